//! The pods that were attached before the agent started, from the plugins' ledger.

use podwire_agent_ipc::policy::Interface;
use podwire_agent_ipc::Owner;
use podwire_cni_plugin::ledger::{self, Entry};
use serde_json::Value;

/// The recorded interfaces of networks with `"policy": {"type": "k8s"}`.
pub(crate) fn interfaces() -> Vec<Interface> {
    let entries = ledger::all().into_iter().flat_map(|file| file.entries);
    entries.filter_map(|entry| interface(&entry)).collect()
}

fn interface(entry: &Entry) -> Option<Interface> {
    let kind = entry.config.pointer("/policy/type").and_then(Value::as_str);
    let result = entry.result.as_ref().filter(|_| kind == Some("k8s"))?;
    let version = podwire_cni_spec::Version::parse(result.get("cniVersion")?.as_str()?)?;
    let attachment = podwire_cni_spec::Attachment::from_json(result, version).ok()?;
    let args = podwire_cni_spec::Args::parse(&entry.args).ok()?;
    let (network, container, ifname) = (entry.network.clone(), entry.container.clone(), entry.ifname.clone());
    Some(Interface::new(Owner { network, container, ifname }, &args, &entry.config, &attachment))
}
