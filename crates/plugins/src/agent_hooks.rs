//! Podwire's hooks around every plugin call: the agent's readiness, policies that cannot be enforced, call durations.

use std::time::Duration;

use podwire_agent_ipc::calls::Call;
use podwire_agent_ipc::readiness;
use podwire_cni_plugin::{Command, Hooks, Plugin, Result};
use podwire_cni_spec::{code, json, Error};
use serde_json::Value;

use crate::policy::Policy;

/// The hooks of `podwire-cni` and of every in-process runtime of this project.
#[derive(Clone, Copy, Debug)]
pub struct AgentHooks;

impl Hooks for AgentHooks {
    fn before(&self, plugin: &dyn Plugin, command: Command, config: &Value) -> Result<()> {
        if matches!(command, Command::Add | Command::Status) && plugin.bypasses_host_firewall() {
            refuse_policies(plugin, config)?;
        }
        if command == Command::Status {
            check_readiness(config)?;
        }
        Ok(())
    }

    fn after(&self, plugin: &dyn Plugin, command: Command, duration: Duration, code: u32) {
        Call { verb: command.as_str(), plugin: plugin.name(), duration, code }.report();
    }
}

/// A network that asks for policies must not come up without them.
fn refuse_policies(plugin: &dyn Plugin, config: &Value) -> Result<()> {
    if Policy::read(config)?.is_none() {
        return Ok(());
    }
    let name = plugin.name();
    let text = format!(
        "policy: packets of {name} interfaces bypass the node's firewall, so policies cannot be enforced"
    );
    Err(Error::invalid_config(text)
        .with_details("use bridge or ptp, or remove \"policy\" from the config")
        .into())
}

/// Fails with code 50 (the spec's "not available") while the agent says that the node is not ready.
fn check_readiness(config: &Value) -> Result<()> {
    let Some(path) = json::get(config, readiness::KEY).and_then(Value::as_str) else { return Ok(()) };
    readiness::check(path).map_err(|reason| {
        let text = "the node cannot carry pod traffic";
        Error::new(code::NOT_AVAILABLE, text).with_details(format!("{path}: {reason}")).into()
    })
}

#[cfg(test)]
mod tests {
    use podwire_cni_plugin::{dispatch, Registry, Request, Source};
    use serde_json::json;

    use super::*;
    use crate::PLUGINS;

    #[test]
    fn plugins_that_bypass_the_firewall_refuse_policies() {
        let config = json!({
            "cniVersion": "1.1.0", "name": "net", "policy": {"type": "k8s"}, "master": "nowhere", "vlanId": 5,
            "ipam": {"type": "static"},
        });
        let source = Source {
            container: "c".into(),
            ifname: "eth0".into(),
            netns: "/nowhere".into(),
            ..Source::default()
        };
        let bypassing: Vec<_> = PLUGINS.iter().filter(|plugin| plugin.bypasses_host_firewall()).collect();
        let names: Vec<_> = bypassing.iter().map(|plugin| plugin.name()).collect();
        assert_eq!(names, ["dummy", "host-device", "ipvlan", "macvlan", "tap", "vlan"]);
        let registry = Registry::none().with_hooks(&AgentHooks);
        for (plugin, command) in
            bypassing.iter().flat_map(|one| [(one, Command::Add), (one, Command::Status)])
        {
            let req = Request::new(command, &source, config.clone(), registry).unwrap();
            let error = dispatch::call(**plugin, &req, true).unwrap_err().to_string();
            assert!(error.contains("policies cannot be enforced"), "{}: {error}", plugin.name());
        }
    }

    #[test]
    fn status_fails_while_the_agent_is_not_ready() {
        let file = std::env::temp_dir().join(format!("podwire-readiness-{}", std::process::id()));
        let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "noop", "readiness": file});
        let registry = Registry::none().with_hooks(&AgentHooks);
        let status = || {
            let req = Request::new(Command::Status, &Source::default(), config.clone(), registry).unwrap();
            dispatch::call(&crate::bandwidth::Bandwidth, &req, true).map_err(|error| error.to_cni())
        };
        let missing = status().unwrap_err();
        assert_eq!(missing.code, code::NOT_AVAILABLE);
        assert!(missing.details.contains("is it running?"), "{}", missing.details);
        std::fs::write(&file, "no route to n2\n").unwrap();
        assert!(status().unwrap_err().details.ends_with(": no route to n2"));
        std::fs::write(&file, "ready\n").unwrap();
        status().unwrap();
        std::fs::remove_file(&file).unwrap();
    }
}
