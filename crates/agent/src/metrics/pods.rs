//! What each pod has received and sent: the counters of the interface inside the pod, which packets on every path pass. They
//! are read when the metrics are read.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use podwire_cni_plugin::ledger;
use podwire_cni_spec::Args;
use podwire_kernel::{Host, Owner};
use podwire_netlink::rt::link::{self, Link, Traffic};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tracing::debug;

use super::Labels;

#[derive(Default)]
pub(super) struct PodMetrics {
    received_packets: Family<Labels, Counter>,
    sent_packets: Family<Labels, Counter>,
    received_bytes: Family<Labels, Counter>,
    sent_bytes: Family<Labels, Counter>,
}

impl PodMetrics {
    pub(super) fn register(&self, all: &mut Registry) {
        let all = all.sub_registry_with_prefix("pod");
        all.register("received_packets", "Packets that a pod received", self.received_packets.clone());
        all.register("sent_packets", "Packets that a pod sent", self.sent_packets.clone());
        all.register("received_bytes", "Bytes that a pod received", self.received_bytes.clone());
        all.register("sent_bytes", "Bytes that a pod sent", self.sent_bytes.clone());
    }

    pub(super) fn update(&self) {
        let families = [&self.received_packets, &self.sent_packets, &self.received_bytes, &self.sent_bytes];
        families.iter().for_each(|family| family.clear());
        let pods = match read() {
            Ok(pods) => pods,
            Err(error) => return debug!(%error, "the pods' counters cannot be read"),
        };
        for (labels, traffic) in pods {
            let Traffic { received_packets, sent_packets, received_bytes, sent_bytes } = traffic;
            let values = [received_packets, sent_packets, received_bytes, sent_bytes];
            for (family, value) in families.iter().zip(values) {
                family.get_or_create(&labels).inner().store(value, Ordering::Relaxed);
            }
        }
    }
}

/// The traffic of all pods that our plugins have attached by a veth pair. A pod that goes meanwhile is left out.
fn read() -> podwire_kernel::Result<Vec<(Labels, Traffic)>> {
    let mut host = Host::here()?;
    let links = link::list(&mut host.route)?;
    let ends: Vec<&Link> =
        links.iter().filter(|link| link.kind == "veth" && link.alias.contains('/')).collect();
    if ends.is_empty() {
        return Ok(Vec::new());
    }
    let entries: Vec<_> = ledger::all().into_iter().flat_map(|file| file.entries).collect();
    let names: HashMap<String, Labels> =
        entries.iter().map(|entry| (entry.owner().comment(), labels(&entry.args, &entry.owner()))).collect();
    let mut pods = Vec::new();
    for end in ends {
        let (Some(netns), Some(peer), Some(labels)) = (end.link_netns, end.link, names.get(&end.alias))
        else {
            continue;
        };
        if let Ok(traffic) = link::traffic_in(&mut host.route, netns, peer) {
            pods.push((labels.clone(), traffic));
        }
    }
    Ok(pods)
}

/// A container that is no pod of Kubernetes has its id as name.
fn labels(args: &str, owner: &Owner) -> Labels {
    let args = Args::parse(args).unwrap_or_default();
    let text = |name: &str| args.get(name).map(str::to_owned);
    vec![
        ("namespace", text("K8S_POD_NAMESPACE").unwrap_or_default()),
        ("pod", text("K8S_POD_NAME").unwrap_or_else(|| owner.container.clone())),
        ("interface", owner.ifname.clone()),
    ]
}
