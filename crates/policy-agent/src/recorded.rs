//! Pods of this node that were attached before this program began, from the plugins' ledger.

use podwire_agent_ipc::policy::Interface;
use podwire_agent_ipc::Owner;
use podwire_cni_plugin::ledger::{self, Entry};
use serde_json::Value;

/// The interfaces of networks that ask for policies.
pub(crate) fn recorded() -> Vec<Interface> {
    let entries = ledger::all().into_iter().flat_map(|account| account.entries);
    entries.filter_map(|entry| interface(&entry)).collect()
}

fn interface(entry: &Entry) -> Option<Interface> {
    let kind = entry.config.pointer("/policy/type").and_then(Value::as_str);
    let result = entry.result.as_ref().filter(|_| kind == Some("k8s"))?;
    let version = podwire_cni_spec::Version::parse(result.get("cniVersion")?.as_str()?)?;
    let made = podwire_cni_spec::Attachment::from_json(result, version).ok()?;
    let args = podwire_cni_spec::Args::parse(&entry.args).ok()?;
    let owner = Owner::new(&*entry.network, &*entry.container, &*entry.ifname);
    Some(Interface::new(owner, &args, &entry.config, &made))
}
