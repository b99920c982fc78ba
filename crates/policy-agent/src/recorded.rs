//! The pods that were attached before the agent started, from the plugins' ledger.

use std::collections::BTreeMap;

use podwire_agent_ipc::policy::Interface;
use podwire_agent_ipc::Owner;
use podwire_cni_plugin::ledger::{self, Entry};
use podwire_cni_spec::{json, Args, Attachment, Version};
use serde_json::Value;

/// The plugins that connect pods to which policies apply.
const CONNECTING: [&str; 3] = ["bridge", "ptp", "calico"];

/// The recorded interfaces.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// Those of networks with `"policy": {"type": "k8s"}`.
    pub enforced: Vec<Interface>,
    /// Those of networks without the key `policy`, or from before their network had it.
    pub without_policy: Vec<Interface>,
}

/// Reads the ledger.
pub(crate) fn interfaces() -> Recorded {
    let entries: Vec<Entry> = ledger::all().into_iter().flat_map(|file| file.entries).collect();
    let macs: BTreeMap<Owner, String> = entries.iter().filter_map(tuned_mac).collect();
    let mut recorded = Recorded::default();
    for entry in entries.iter().filter(|entry| CONNECTING.contains(&entry.plugin.as_str())) {
        let into = match json::get(&entry.config, "policy") {
            None => &mut recorded.without_policy,
            Some(policy) if json::get(policy, "type").and_then(Value::as_str) == Some("k8s") => {
                &mut recorded.enforced
            }
            // Another implementation enforces the network's policies.
            Some(_) => continue,
        };
        let Some(mut interface) = interface(entry) else { continue };
        macs.get(&interface.owner).into_iter().for_each(|mac| interface.set_mac(mac));
        into.push(interface);
    }
    recorded
}

fn interface(entry: &Entry) -> Option<Interface> {
    let args = Args::parse(&entry.args).ok()?;
    Some(Interface::new(owner(entry), &args, &entry.config, &attachment(entry)?))
}

/// The MAC address of the pod's interface after the plugin tuning.
fn tuned_mac(entry: &Entry) -> Option<(Owner, String)> {
    let attachment = attachment(entry).filter(|_| entry.plugin == "tuning")?;
    let in_pod = |one: &podwire_cni_spec::Interface| one.name == entry.ifname && !one.sandbox.is_empty();
    Some((owner(entry), attachment.interfaces.into_iter().find(in_pod)?.mac))
}

fn attachment(entry: &Entry) -> Option<Attachment> {
    let result = entry.result.as_ref()?;
    Attachment::from_json(result, Version::parse(result.get("cniVersion")?.as_str()?)?).ok()
}

fn owner(entry: &Entry) -> Owner {
    let Entry { network, container, ifname, .. } = entry.clone();
    Owner { network, container, ifname }
}
