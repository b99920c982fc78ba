//! The target of a pod's host ports: its addresses, and the node's device towards it.

use ipnet::IpNet;
use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::Attachment;
use podwire_ip::IpFamily;
use podwire_kernel::firewall::hostports::PortMap;
use podwire_kernel::rt::{link, route};
use podwire_kernel::{Host, Link};

use crate::addresses::addresses_of;

/// The pod's first address of each family, the target of its ports.
pub(super) fn pod_addresses(result: &Attachment, req: &Request<'_>) -> Vec<IpNet> {
    let all = addresses_of(result, &req.ifname);
    let first = |family: IpFamily| all.iter().copied().find(|net| IpFamily::of_net(*net) == family);
    IpFamily::ALL.into_iter().filter_map(first).collect()
}

/// The device through which the node reaches the pod by IPv4. IPv6 has no equivalent of `route_localnet`.
pub(super) fn find_device(node: &mut Host, maps: &[PortMap]) -> Result<Option<Link>> {
    let Some(map) = maps.iter().find(|map| map.pod.addr().is_ipv4()) else { return Ok(None) };
    let Some(index) = route::find(&mut node.route, map.pod.addr())? else { return Ok(None) };
    Ok(Some(link::by_index(&mut node.route, index)?))
}

/// The sysctl that lets packets with a loopback source leave through the device.
pub(super) fn loopback_sysctl(device: &str) -> String {
    format!("net/ipv4/conf/{device}/route_localnet")
}
