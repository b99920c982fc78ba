//! `podwire cni add` and `del`.

use std::fmt::Write;

use clap::Args;
use podwire_cni_plugin::ledger;
use podwire_cni_runtime::{Cache, Identity};
use podwire_cni_spec::{Attachment, Route};
use serde_json::{json, Value};

use super::runtime_flags::RuntimeFlags;
use super::target::{require_capabilities, Publish, Target};
use super::warnings::{warning_json, warning_lines};
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::publish;

pub(super) const ADD_EXAMPLES: &str = "Examples:
  ip netns add blue
  podwire cni add pods blue
  podwire cni add pods blue --publish 8080:80 --publish 127.0.0.1:53:53/udp
  podwire cni add pods /proc/4711/ns/net --container web-1 --ifname net1
  podwire cni add pods blue --arg IP=10.1.0.7 --capability mac=c2:11:22:33:44:55 --json

If a plugin fails, the changes of the other plugins are undone.";

pub(super) const DEL_EXAMPLES: &str = "Examples:
  podwire cni del pods blue
  podwire cni del pods --container web-1       the namespace no longer exists
  podwire cni del pods blue --force            remove the record although DEL fails

The command is idempotent, and says if nothing was attached. It works without the network's config:
the config of the ADD is cached.";

#[derive(Debug, Args)]
pub(crate) struct Add {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    publish: Publish,
    #[command(flatten)]
    pub(super) flags: RuntimeFlags,
}

#[derive(Debug, Args)]
pub(crate) struct Del {
    #[command(flatten)]
    pub(super) target: Target,
    /// Remove the record even if a plugin fails.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub(super) flags: RuntimeFlags,
}

impl Add {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let (container, network) = (self.target.name(), &self.target.network);
        let what = format!("cannot attach {container} to {network}");
        self.namespace().map_err(Failure::context(&what))?;
        let found = self.flags.configs().find(network).map_err(Failure::context(&what))?;
        let identity = self.target.identity().map_err(Failure::context(&what))?;
        let identity = self.publish.add_to(identity);
        let runtime = self.flags.runtime();
        let mistakes = runtime.lint(&found, &self.flags.configs().load().networks);
        let warnings = warning_lines(&mistakes, Paint::stdout());
        // A mistake in the config may be the cause of a failure.
        let failed = |failure: Failure| failure.with_output(Output::new(warnings.clone(), Value::Null));
        let attachment = require_capabilities(&identity, &found.list)
            .map_err(Failure::context(&what))
            .and_then(|()| runtime.add(&found.list, &identity).map_err(Failure::context(&what)))
            .map_err(failed)?;
        // Early CNI versions require addresses in a result, but a plugin may return none.
        let version = found.list.version;
        let mut json = attachment.to_json(version).unwrap_or_else(|_| json!({ "cniVersion": version }));
        if !mistakes.is_empty() {
            json["warnings"] = mistakes.iter().map(warning_json).collect();
        }
        let head = format!("attached {container} to {network} as {}\n", self.target.ifname());
        let ports = publish::of_attachment(&identity.capabilities, &found.list);
        if !ports.is_empty() {
            json["ports"] = json!(ports);
        }
        Ok(Output::new(head + &describe(&attachment, &ports) + &warnings, json))
    }

    /// Checks that the namespace exists. Plugins report a missing namespace in many different ways.
    fn namespace(&self) -> Result<(), podwire_cni_spec::Error> {
        let fail = |text: String| podwire_cni_spec::Error::new(podwire_cni_spec::code::INVALID_NETNS, text);
        let netns =
            self.target.netns().ok_or_else(|| fail("the network namespace (NETNS) is not given".into()))?;
        let opened = podwire_kernel::Netns::open(netns).map_err(|error| fail(error.to_string()));
        opened.map(drop).map_err(|error| error.with_details("create one with `ip netns add NAME`"))
    }
}

impl Del {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let (container, network, ifname) = (self.target.name(), &self.target.network, self.target.ifname());
        let what = || format!("cannot detach {container} from {network}");
        let identity = self.target.existing(&self.flags.cache()).map_err(Failure::context(what()))?;
        let was_there = is_known(network, &identity, self.flags.runtime().cache());
        let mut json = json!({ "network": network, "container": identity.container, "ifname": ifname, "detached": was_there });
        let Err(error) = self.delete(&identity) else {
            let text = if was_there {
                format!("detached {container} from {network}\n")
            } else {
                format!("nothing to detach: {ifname} of {container} is not known in {network} (its plugins ran DEL anyway)\n")
            };
            return Ok(Output::new(text, json));
        };
        let is_forced = self.force
            && self.flags.runtime().forget(network, &identity).map_err(Failure::context(what()))?;
        let cause = error.to_cni();
        if !is_forced {
            return Err(Failure::new(what(), cause));
        }
        json["detached"] = false.into();
        json["error"] = cause.to_json();
        let text = format!(
            "removed the record of {container} in {network}; DEL failed: {cause}\n\
             `podwire cni audit` shows what is left\n"
        );
        Ok(Output::new(text, json))
    }

    fn delete(&self, identity: &Identity) -> podwire_cni_runtime::Result<()> {
        let (runtime, network) = (self.flags.runtime(), &self.target.network);
        match self.flags.configs().find(network) {
            Ok(found) => runtime.del(&found.list, identity),
            Err(missing) => {
                let known = runtime.del_cached(network, &identity.container, self.target.ifname())?;
                known.then_some(()).ok_or(missing)
            }
        }
    }
}

/// Whether the runtime or a plugin has an ADD of the attachment on record.
fn is_known(network: &str, identity: &Identity, cache: &Cache) -> bool {
    let (container, ifname) = (identity.container.as_str(), identity.ifname.as_str());
    let is_same = |entry: &ledger::Entry| (&*entry.container, &*entry.ifname) == (container, ifname);
    // An unreadable record is one.
    !matches!(cache.find(network, identity), Ok(None))
        || ledger::read_network(network).iter().flat_map(|file| &file.entries).any(is_same)
}

/// An attachment, one short line per address, route and interface.
fn describe(attachment: &Attachment, ports: &[Value]) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| text += &format!("  {key:<9}{value}\n");
    for ip in &attachment.ips {
        let gateway = ip.gateway.map(|gateway| format!("  gateway {gateway}")).unwrap_or_default();
        line("address", format!("{}{gateway}", ip.address));
    }
    attachment.routes.iter().for_each(|one| line("route", route(one)));
    for interface in &attachment.interfaces {
        let key = if interface.sandbox.is_empty() { "on host" } else { "in pod" };
        line(key, format!("{} {}", interface.name, interface.mac).trim_end().to_owned());
    }
    if !ports.is_empty() {
        line("ports", publish::text(ports));
    }
    if !attachment.dns.nameservers.is_empty() {
        line("dns", attachment.dns.nameservers.join(" "));
    }
    text
}

fn route(route: &Route) -> String {
    let mut text = route.dst.to_string();
    if let Some(gateway) = route.gw {
        let _ = write!(text, " via {gateway}");
    }
    for (name, value) in [("mtu", route.mtu), ("metric", route.priority), ("table", route.table)] {
        if let Some(value) = value {
            let _ = write!(text, " {name} {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attachment_is_described_in_short_lines() {
        let result = json!({"cniVersion": "1.0.0",
            "interfaces": [{"name": "veth1"}, {"name": "eth0", "mac": "c2:11", "sandbox": "/x"}],
            "ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 1}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "priority": 7}], "dns": {"nameservers": ["1.1.1.1"]}});
        let text = "  address  10.1.0.5/16  gateway 10.1.0.1\n  route    0.0.0.0/0 via 10.1.0.1 metric 7\n  \
                    on host  veth1\n  in pod   eth0 c2:11\n  ports    8080:80\n  dns      1.1.1.1\n";
        let attachment = Attachment::from_json(&result, podwire_cni_spec::Version::CURRENT).unwrap();
        assert_eq!(describe(&attachment, &[publish::parse("8080:80").unwrap()]), text);
    }
}
