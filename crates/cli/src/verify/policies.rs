//! The objects by which this node decides what policies deny, from its policy agent.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use podwire_agent_ipc::policy::SOCKET;
use podwire_policy::api::{NodeAddress, Pod};
use podwire_policy::Snapshot;
use podwire_policy_agent::dataplane::DropCounters;
use podwire_verify::{Endpoint, Kind, RemoteEndpoint};

use crate::policy::read_agent;

/// The objects by which this node decides about packets of `endpoints`; `None` if it enforces no policies. An error
/// says why they are unknown.
pub(super) fn of_this_node(endpoints: &[Endpoint]) -> Result<Option<Snapshot>, String> {
    let mut snapshot = Snapshot::new();
    match read_agent(Path::new(SOCKET), &mut snapshot) {
        Ok(()) => {
            add_node_addresses(&mut snapshot, endpoints);
            Ok(Some(snapshot))
        }
        // The rules of an agent stay when it ends.
        Err(_) if !has_rules() => Ok(None),
        Err(error) => Err(format!(
            "the policies of this node are unknown, and some failures may be theirs: {} (start the node's agent)",
            error.msg
        )),
    }
}

/// Whether this node has the rules of a policy agent. They have counters.
fn has_rules() -> bool {
    DropCounters::open()
        .and_then(|mut counters| counters.read())
        .is_ok_and(|counts| !counts.reasons.is_empty())
}

/// Adds all addresses of this node to its Node object. A policy never applies between a pod and its node, by any
/// address of the node, and Kubernetes does not know those of its bridges and tunnels.
fn add_node_addresses(snapshot: &mut Snapshot, endpoints: &[Endpoint]) {
    let own = |kind: Kind| {
        let all = endpoints.iter().filter(move |one| one.kind == kind).flat_map(|one| &one.own);
        all.map(|one| one.ip).collect::<BTreeSet<IpAddr>>()
    };
    let (of_pods, of_node) = (own(Kind::Pod), own(Kind::Node));
    let is_here = |pod: &&Pod| pod.has_address(|ip| of_pods.contains(ip));
    let names: BTreeSet<&str> =
        snapshot.pods.iter().filter(is_here).map(|pod| pod.spec.node_name.as_str()).collect();
    let address = |ip: &IpAddr| NodeAddress { kind: "InternalIP".into(), address: ip.to_string() };
    for node in snapshot.nodes.iter_mut().filter(|node| names.contains(node.metadata.name.as_str())) {
        node.status.addresses.extend(of_node.iter().map(address));
    }
}

/// Deletes the pods that no packet is from or to: the oracle searches all pods for each packet.
pub(super) fn retain_ends(snapshot: &mut Snapshot, endpoints: &[Endpoint], remote: &[RemoteEndpoint]) {
    let here = endpoints.iter().flat_map(|one| &one.own).map(|one| one.ip);
    let there = remote.iter().flat_map(|one| &one.addresses).map(|one| one.address);
    let ends: BTreeSet<IpAddr> = here.chain(there).collect();
    snapshot.pods.retain(|pod| pod.has_address(|ip| ends.contains(ip)));
}
