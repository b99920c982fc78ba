//! A pod's networks: which ones, their capability arguments, attaching and detaching.

use std::collections::BTreeSet;

use podwire_cni_runtime::{Catalogue, Identity, Runtime};
use podwire_cni_spec::{Args, Attachment, Dns, NetworkList};
use serde_json::{json, Map, Value};

use crate::checkpoint::{Checkpoint, PlannedAttachment};
use crate::{Error, Result, Spec};

/// The interface of the default network.
const FIRST: &str = "eth0";
const PORTS: &str = "portMappings";
const BANDWIDTH: &str = "bandwidth";
const DNS: &str = "dns";
/// containerd's name for it, which plugins know.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// The networks to attach a pod to; the one with the default route first.
pub(crate) fn plan(spec: &Spec, networks: &Catalogue<'_>) -> Result<Vec<(PlannedAttachment, NetworkList)>> {
    if spec.host_network {
        return Ok(Vec::new());
    }
    let is_first = |ifname: &Option<String>| ifname.as_deref() == Some(FIRST);
    let replacement = spec.networks.iter().find(|wanted| is_first(&wanted.ifname));
    let first = match replacement {
        Some(wanted) => networks.find(&wanted.network)?,
        None => networks.default_network()?,
    };
    let mut plans = vec![(FIRST.to_owned(), first)];
    for (number, wanted) in spec.networks.iter().filter(|wanted| !is_first(&wanted.ifname)).enumerate() {
        let ifname = wanted.ifname.clone().unwrap_or_else(|| format!("net{}", number + 1));
        podwire_cni_spec::IfName::parse(&ifname)?;
        plans.push((ifname, networks.find(&wanted.network)?));
    }
    let mut names = BTreeSet::from(["lo"]);
    if let Some((twice, _)) = plans.iter().find(|(ifname, _)| !names.insert(ifname)) {
        let text = format!("interface {twice:?} is requested twice");
        return Err(podwire_cni_spec::Error::env(text)
            .with_details("choose another interface for each network: --network NAME=IFNAME")
            .into());
    }
    if spec.networks.iter().filter(|wanted| is_first(&wanted.ifname)).count() > 1 {
        let text = format!("interface {FIRST:?} is requested twice");
        return Err(podwire_cni_spec::Error::env(text)
            .with_details("choose another interface for each network: --network NAME=IFNAME")
            .into());
    }
    let mut planned = Vec::new();
    for (number, (ifname, network)) in plans.into_iter().enumerate() {
        let capabilities = capabilities(spec, number == 0, &network.list)?;
        let config = String::from_utf8_lossy(&network.list.bytes).into_owned();
        let name = network.list.name.to_string();
        planned
            .push((PlannedAttachment { network: name, ifname, config, capabilities }, network.list.clone()));
    }
    Ok(planned)
}

/// The capability arguments of a network's plugins. A pod that needs a capability that no plugin has is an error: a port that no
/// plugin opens would be noticed too late. Ports and limits belong to the first network: a host port cannot be used twice.
fn capabilities(spec: &Spec, first: bool, list: &NetworkList) -> Result<Map<String, Value>> {
    let bandwidth = spec.bandwidth.or_annotated(&spec.annotations)?.argument();
    let ports = (!spec.ports.is_empty()).then(|| json!(spec.ports));
    let dns =
        json!({ "servers": spec.dns.nameservers, "searches": spec.dns.search, "options": spec.dns.options });
    let all = [
        (PORTS, ports.filter(|_| first), true),
        (BANDWIDTH, bandwidth.filter(|_| first), true),
        (DNS, (spec.dns != Dns::default()).then_some(dns), false),
        (ANNOTATIONS, (!spec.annotations.is_empty()).then(|| json!(spec.annotations)), false),
    ];
    let mut arguments = Map::new();
    for (name, value, needed) in all {
        let Some(value) = value else { continue };
        let asked = list.plugins.iter().any(|plugin| plugin.capabilities.iter().any(|known| known == name));
        if asked {
            arguments.insert(name.to_owned(), value);
        } else if needed {
            return Err(missing_capability(name, list).into());
        }
    }
    Ok(arguments)
}

fn missing_capability(capability: &str, list: &NetworkList) -> podwire_cni_spec::Error {
    let (what, plugin) = match capability {
        PORTS => ("publishes no ports", "portmap"),
        _ => ("limits no bandwidth", "bandwidth"),
    };
    let text =
        format!("network {:?} {what}: none of its plugins has the capability {capability}", &*list.name);
    let example = json!({ "type": plugin, "capabilities": { capability: true } });
    podwire_cni_spec::Error::invalid_config(text).with_details(format!("add {example} to its plugins"))
}

/// Attaches the pod to each network in turn.
pub(crate) fn attach(
    runtime: &Runtime<'_>,
    pod: &Checkpoint,
    lists: &[NetworkList],
) -> Result<Vec<Attachment>> {
    let mut made = Vec::new();
    for (plan, list) in pod.attachments.iter().zip(lists) {
        made.push(runtime.add(list, &identity(pod, plan)?)?);
    }
    Ok(made)
}

/// Detaches the pod from all networks, the last one first, and goes on past failures. The pod may never have been attached.
pub(crate) fn detach(runtime: &Runtime<'_>, pod: &Checkpoint) -> Vec<Error> {
    let one = |plan: &PlannedAttachment| -> Result<()> {
        let list = NetworkList::parse(plan.config.as_bytes())?;
        Ok(runtime.del(&list, &identity(pod, plan)?)?)
    };
    pod.attachments.iter().rev().filter_map(|plan| one(plan).err()).collect()
}

/// The identity of an attachment. A namespace that is gone is left out: the PID in its path may be reused.
fn identity(pod: &Checkpoint, plan: &PlannedAttachment) -> Result<Identity> {
    let name = &pod.spec.name;
    let args = [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", name.namespace()),
        ("K8S_POD_NAME", name.name()),
        ("K8S_POD_INFRA_CONTAINER_ID", &pod.id),
        ("K8S_POD_UID", &pod.spec.uid),
    ];
    let known = args.into_iter().filter(|(_, value)| !value.is_empty());
    let mut identity = Identity::new(&pod.id, &plan.ifname)?.args(Args::from_pairs(known)?);
    identity.netns = pod.process.filter(|process| process.is_alive()).map(|process| process.netns());
    identity.capabilities = plan.capabilities.clone();
    Ok(identity)
}
