//! A secondary network on an interface that another network created. Calico has this for containers that are not pods:
//! the container keeps its veth pair and addresses, and the network's profile is added to its endpoint.

use ipnet::IpNet;
use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{Attachment, Ip};
use podwire_kernel::{Host, Mac};

use super::agent;
use super::desired::NODE_END_MAC;
use crate::calico_ipam::config;
use crate::veth_pair;

/// Adds this network to the container's endpoint and returns the existing interface and addresses. `None` if the
/// container has no such interface, or has it from this network.
pub(super) fn join(req: &Request<'_>, node: &mut Host, pod: &mut Host) -> Result<Option<Attachment>> {
    // This lookup does not wait for the rtnl lock, and most containers have no such interface.
    let may_be_secondary = is_container(req) && pod.peek_link(&req.ifname).is_ok();
    if !may_be_secondary || !is_secondary(req, node, pod)? {
        return Ok(None);
    }
    let Some(endpoint) = agent::join(req)? else { return Ok(None) };
    let pair = podwire_kernel::veth::Pair {
        host: endpoint.interface,
        host_mac: NODE_END_MAC,
        pod_mac: endpoint.mac.parse::<Mac>().unwrap_or(Mac([0; 6])),
    };
    let ip = |ip| Ip { address: IpNet::from(ip), interface: Some(1), gateway: None };
    Ok(Some(Attachment {
        interfaces: veth_pair::interfaces(req, 0, &pair),
        ips: endpoint.addresses.into_iter().map(ip).collect(),
        ..Attachment::default()
    }))
}

/// Whether the container is not a pod and has the interface from another network.
pub(super) fn is_secondary(req: &Request<'_>, node: &mut Host, pod: &mut Host) -> Result<bool> {
    if !is_container(req) {
        return Ok(false);
    }
    match pod.find_link(&req.ifname)?.filter(|link| link.kind == "veth") {
        Some(link) => veth_pair::belongs_to_another(req, node, &link),
        None => Ok(false),
    }
}

/// Whether this is a container of a cluster without pods.
fn is_container(req: &Request<'_>) -> bool {
    config::pod(req).is_none() && agent::is_in_cluster(req)
}
