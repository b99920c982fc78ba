//! One more network on an interface that the container has by another one. Calico knows this where there are no pods: the container keeps its
//! cable and its addresses, and the network's profile is added to its endpoint.

use ipnet::IpNet;
use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{Attachment, Ip};
use podwire_kernel::{Host, Mac};

use super::{cluster, END};
use crate::cable;
use crate::calico_ipam::config;

/// Joins the network that the container has the interface by. Nothing, if it has none, or has it by this network.
pub(super) fn join(req: &Request<'_>, node: &mut Host, pod: &mut Host) -> Result<Option<Attachment>> {
    // A glance waits for nobody, and most have nothing there.
    let may_be = is_container(req) && pod.peek_link(&req.ifname).is_ok();
    if !may_be || !is_guest(req, node, pod)? {
        return Ok(None);
    }
    let Some(endpoint) = cluster::join(req)? else { return Ok(None) };
    let pair = podwire_kernel::veth::Pair {
        host: endpoint.interface,
        host_mac: END,
        pod_mac: endpoint.mac.parse::<Mac>().unwrap_or(Mac([0; 6])),
    };
    let ip = |ip| Ip { address: IpNet::from(ip), interface: Some(1), gateway: None };
    Ok(Some(Attachment {
        interfaces: cable::interfaces(req, 0, &pair),
        ips: endpoint.addresses.into_iter().map(ip).collect(),
        ..Attachment::default()
    }))
}

/// Whether the container, which is no pod, has the interface by another network.
pub(super) fn is_guest(req: &Request<'_>, node: &mut Host, pod: &mut Host) -> Result<bool> {
    if !is_container(req) {
        return Ok(false);
    }
    match pod.find_link(&req.ifname)?.filter(|link| link.kind == "veth") {
        Some(inside) => cable::is_anothers(req, node, &inside),
        None => Ok(false),
    }
}

/// Whether it is a container of a cluster that knows no pods.
fn is_container(req: &Request<'_>) -> bool {
    config::pod(req).is_none() && cluster::is_concerned(req)
}
