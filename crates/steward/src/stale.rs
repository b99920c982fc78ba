//! What CNI's GC finds in the blocks: addresses of a network's containers on this node that a runtime does not know any more. Whoever gave
//! them: this agent, a plugin while no agent was there, or Calico's plugin before the node was ours.

use std::collections::BTreeMap;

use podwire_agent_ipc::pods::Endpoint;
use podwire_agent_ipc::{Owner, ValidAttachment};
use podwire_block_ipam::{Allocator, Error as Blocks, Handle, Owner as Node};

/// Container and interface of attachments.
pub(crate) type Attachments = [ValidAttachment];

/// The stale handles of a network in this node's blocks, each with the endpoint that its container had.
pub(crate) fn handles(
    allocator: &Allocator<'_>,
    node: &str,
    network: &str,
    valid: &Attachments,
) -> Result<BTreeMap<String, Endpoint>, Blocks> {
    let own = Node::host(node);
    let prefix = Handle::id(network, "");
    let mut stale = BTreeMap::new();
    for block in allocator.blocks()?.into_iter().flatten() {
        for allocation in block.allocations() {
            let said = |key: &str| allocation.attribute.secondary.get(key).cloned().unwrap_or_default();
            // An address of this node's block may be one that another node has borrowed, and the other way round.
            let is_here = match said("node") {
                unsaid if unsaid.is_empty() => block.owner().as_ref() == Some(&own),
                there => there == node,
            };
            let Some(id) = allocation.attribute.handle().filter(|_| is_here) else { continue };
            // Of a network `lan` and a network `lan.10`, this is the first: containers have no dots.
            let its = |container: &&str| !container.contains('.');
            let Some(container) = id.strip_prefix(&prefix).filter(its) else { continue };
            if !valid.iter().any(|one| one.container_id == *container) {
                // Whichever interface it is: the first one of the pod is found.
                let (network, ifname) = (network.to_owned(), "eth0".to_owned());
                let owner = Owner { network, container: container.to_owned(), ifname };
                let (namespace, pod) = (said("namespace"), said("pod"));
                stale.insert(id.to_owned(), Endpoint { owner, namespace, pod, ..Endpoint::default() });
            }
        }
    }
    Ok(stale)
}
