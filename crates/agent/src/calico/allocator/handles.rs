//! Handles and attributes in Calico's blocks.

use std::collections::BTreeMap;

use podwire_agent_ipc::addresses::Lease;
use podwire_agent_ipc::pods::Endpoint;
use podwire_agent_ipc::{Owner, ValidAttachment};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{AffinityOwner, Allocator, Error as IpamError, Handle};

/// The handle of a lease.
pub(super) fn handle_of(lease: &Lease) -> String {
    Handle::id(&lease.owner.network, &lease.owner.container)
}

/// The attributes of an address in a block, by Calico's names.
pub(super) fn attributes(node: &str, namespace: &str, pod: &str) -> BTreeMap<String, String> {
    let all = [
        ("namespace", namespace.to_owned()),
        ("node", node.to_owned()),
        ("pod", pod.to_owned()),
        ("timestamp", Timestamp::now().go_string()),
    ];
    let set = all.into_iter().filter(|(_, value)| !value.is_empty());
    set.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The stale handles of a network in this node's blocks, each with the endpoint that its container had: addresses of
/// containers that the runtime does not have any more. This agent, a plugin without an agent, or Calico's plugin may
/// have assigned them.
pub(super) fn stale(
    allocator: &Allocator<'_>,
    node: &str,
    network: &str,
    valid: &[ValidAttachment],
) -> Result<BTreeMap<String, Endpoint>, IpamError> {
    let own = AffinityOwner::host(node);
    let prefix = Handle::id(network, "");
    let mut stale = BTreeMap::new();
    for block in allocator.blocks()?.into_iter().flatten() {
        for allocation in block.allocations() {
            let attribute = |key: &str| allocation.attribute.secondary.get(key).cloned().unwrap_or_default();
            // Another node may have borrowed an address of this node's block, and the other way round.
            let is_here = match attribute("node") {
                unset if unset.is_empty() => block.owner().as_ref() == Some(&own),
                other => other == node,
            };
            let Some(id) = allocation.attribute.handle().filter(|_| is_here) else { continue };
            // A handle of the network `lan.10` has the prefix of the network `lan`, but container ids have no dots.
            let is_container = |container: &&str| !container.contains('.');
            let Some(container) = id.strip_prefix(&prefix).filter(is_container) else { continue };
            if !valid.iter().any(|one| one.container_id == *container) {
                // The handle does not name the interface; the first interface of the pod is found.
                let (network, ifname) = (network.to_owned(), "eth0".to_owned());
                let owner = Owner { network, container: container.to_owned(), ifname };
                let (namespace, pod) = (attribute("namespace"), attribute("pod"));
                stale.insert(id.to_owned(), Endpoint { owner, namespace, pod, ..Endpoint::default() });
            }
        }
    }
    Ok(stale)
}
