//! The `policy` key of a network's config.
//!
//! With `"policy": {"type": "k8s"}` the node's agent enforces network policies for the network's pods. A plugin that has
//! attached a pod sends the interface to the agent and waits until the rules are in the kernel, so that they apply to the
//! pod's first packet.

use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_agent_ipc::client;
use podwire_agent_ipc::policy::{self, Interface};
use podwire_cni_plugin::{ledger, Request, Result};
use podwire_cni_spec::{code, json, Attachment, Error};
use podwire_kernel::{Mac, Undo};
use serde_json::Value;

/// How long an ADD waits, in seconds, if its config does not say.
const DEFAULT_TIMEOUT: u64 = 10;
/// The agent keeps the time limit of an ADD; the client waits this much longer, for an agent that is stalled.
const MARGIN: Duration = Duration::from_secs(1);
/// A DEL waits only until the agent has received the request.
const DETACH_TIMEOUT: Duration = Duration::from_secs(1);

/// The plugins that connect pods to which policies apply.
const CONNECTING: [&str; 3] = ["bridge", "ptp", "calico"];

/// The `policy` section of a network's config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    socket: PathBuf,
    timeout: Duration,
    /// Whether an ADD succeeds although its policies are not enforced yet. The pod cannot send or receive until they are.
    continue_on_timeout: bool,
}

impl Policy {
    /// Reads it from a network's config; `None` if the network has no policies, or those of another implementation.
    pub fn read(config: &Value) -> Result<Option<Policy>> {
        let Some(section) = json::get(config, "policy") else { return Ok(None) };
        let text = |key: &str| json::get(section, key).and_then(Value::as_str);
        if text("type") != Some("k8s") {
            return Ok(None);
        }
        policy::allowed_source_prefixes(config)?;
        let seconds = match json::get(section, "timeout") {
            None => DEFAULT_TIMEOUT,
            Some(value) => value.as_u64().filter(|seconds| (1..=300).contains(seconds)).ok_or_else(|| {
                Error::invalid_config(format!(
                    "policy.timeout: {value} is not a number of seconds from 1 to 300"
                ))
            })?,
        };
        let continue_on_timeout = match text("onTimeout") {
            None | Some("fail") => false,
            Some("continue") => true,
            Some(other) => {
                let text = format!("policy.onTimeout: {other:?} is neither \"fail\" nor \"continue\"");
                return Err(Error::invalid_config(text).into());
            }
        };
        let socket = text("socket").unwrap_or(policy::SOCKET).into();
        Ok(Some(Policy { socket, timeout: Duration::from_secs(seconds), continue_on_timeout }))
    }

    /// Whether the agent's socket exists: an agent has run since the node booted. If not, another implementation enforces
    /// the network's policies, or none does.
    pub fn has_agent(&self) -> bool {
        Path::new(&self.socket).exists()
    }

    /// Returns when the policies of the attached interface are enforced.
    fn await_enforcement(&self, interface: Interface) -> Result<()> {
        let pod = interface.pod_name();
        let timeout_ms = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let request = policy::Request::Attach { interface: Box::new(interface), timeout_ms };
        let reason = match client::request(&self.socket, &request, self.timeout + MARGIN) {
            Ok(response) if response.enforced => return Ok(()),
            Ok(response) => response.reason,
            Err(error) => format!("request to {}: {error}", self.socket.display()),
        };
        if self.continue_on_timeout {
            return Ok(());
        }
        let text = format!("the policies of pod {pod} are not enforced: {reason}");
        let hint = "check that `podwire agent` runs with --policy; with \"onTimeout\": \"continue\" in the network's policy, \
                    pods start anyway and cannot send or receive until their policies are enforced";
        Err(Error::new(code::TRY_AGAIN, text).with_details(hint).into())
    }
}

/// Waits until the policies of the interface are enforced. The pod cannot send yet: its end of the veth pair is down. If a
/// later step of the ADD fails, `undo` tells the agent that the interface is gone.
pub fn await_enforcement<'a>(
    policy: Option<Policy>,
    req: &'a Request<'a>,
    result: &Attachment,
    undo: &mut Undo<'a>,
) -> Result<()> {
    let Some(policy) = policy else { return Ok(()) };
    undo.push(|| detach(req));
    policy.await_enforcement(Interface::new(req.owner(), &req.args, &req.config, result))
}

/// Tells the agent that the pod's interface gets another MAC address, and waits until the rules accept it: on a bridge
/// they drop frames with any other. Only the config of the plugin that connected the pod has the key `policy`, so the
/// request comes from the ledger.
pub fn change_mac(req: &Request<'_>, mac: Mac) -> Result<()> {
    for plugin in CONNECTING {
        let Some(connected) = ledger::requests(&req.owner(), plugin, req.registry).pop() else { continue };
        let Some(policy) = Policy::read(&connected.config)? else { continue };
        let mut interface = Interface::new(req.owner(), &req.args, &connected.config, connected.recorded()?);
        interface.set_mac(&mac.to_string());
        return policy.await_enforcement(interface);
    }
    Ok(())
}

/// Tells the agent that the interface is gone, and waits for the response: a container that is restarted has the same id,
/// and the agent must receive this before it receives the new interface. An agent that is not running reads the ledger when
/// it starts. If the network has no policies, the agent may know the interface even so: it adopts pods that were attached
/// before their network had policies.
pub fn detach(req: &Request<'_>) {
    let socket = match Policy::read(&req.config) {
        Ok(Some(Policy { socket, .. })) => socket,
        _ if Path::new(policy::SOCKET).exists() => policy::SOCKET.into(),
        _ => return,
    };
    let _ = client::request(&socket, &policy::Request::Detach { owner: req.owner() }, DETACH_TIMEOUT);
}

/// Fails if the network has policies and no agent enforces them.
pub fn status(req: &Request<'_>) -> Result<()> {
    let Some(policy) = Policy::read(&req.config)? else { return Ok(()) };
    client::probe(&policy.socket, policy.timeout).map_err(|error| {
        let socket = policy.socket.display();
        let text = format!("no agent enforces the network's policies: connect to {socket}: {error}");
        Error::new(code::NOT_AVAILABLE, text).with_details("start `podwire agent` with --policy").into()
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::UnixListener;

    use podwire_cni_plugin::{Command, Registry, Source};

    use super::*;

    /// Podman restarts a container under its id: the agent must not receive the end of the old interface after the new one.
    #[test]
    fn detach_returns_after_the_agent_has_answered() {
        let path = std::env::temp_dir().join(format!("podwire-detach-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let config = serde_json::json!({
            "cniVersion": "1.1.0", "name": "pods", "type": "bridge", "policy": {"type": "k8s", "socket": path},
        });
        let source = Source { container: "c1".into(), ifname: "eth0".into(), ..Source::default() };
        let req = Request::new(Command::Del, &source, config, Registry::none()).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                let request = serde_json::from_str::<policy::Request>(&line).unwrap();
                assert!(matches!(request, policy::Request::Detach { owner } if owner.container == "c1"));
                stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                let waits = stream.read(&mut [0]).is_err();
                stream.write_all(b"{\"enforced\":true}\n").unwrap();
                waits
            });
            detach(&req);
            assert!(waits.join().unwrap(), "detach returned before the response");
        });
        std::fs::remove_file(&path).unwrap();
        // Without an agent a DEL does not fail.
        detach(&req);
    }
}
