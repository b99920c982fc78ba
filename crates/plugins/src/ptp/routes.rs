//! The routes and sysctls of a pod that is connected to the node only.
//!
//! The kernel's route for the pod's address would make the pod look for its neighbours on the link, where only the node
//! is. This route is deleted. Instead the gateway is on the link, and the subnet is behind the gateway.

use podwire_cni_spec::Ip;
use podwire_kernel::rt::{route, route::Route};
use podwire_kernel::Link;

/// The route that the kernel creates for the address.
pub(super) fn connected(ip: &Ip, pod_end: &Link) -> Route {
    let (subnet, prefix) = (ip.address.network(), ip.address.prefix_len());
    Route { scope: route::NOWHERE, link: Some(pod_end.index), protocol: 0, ..Route::to(subnet, prefix) }
}

/// The routes that replace it: to the gateway, and through the gateway to the subnet.
pub(super) fn through_gateway(ip: &Ip, pod_end: &Link) -> [Route; 2] {
    let (addr, gateway) = (ip.address.addr(), ip.gateway.unwrap_or(ip.address.addr()));
    let on = |route: Route| Route { link: Some(pod_end.index), source: Some(addr), ..route };
    [
        on(Route { scope: route::LINK, ..Route::to(gateway, ip.address.max_prefix_len()) }),
        on(Route { gateway: Some(gateway), ..Route::to(ip.address.network(), ip.address.prefix_len()) }),
    ]
}

/// The sysctl of the node's end. A pod must not become the node's router: it could send router advertisements even
/// without an IPv6 address. If the pod has no IPv6 address, IPv6 is disabled on the node's end: otherwise each end
/// would have IPv6 routes, and the kernel walks all of them whenever a link appears or disappears. The pair is not in
/// use yet, so there are none to remove.
pub(super) fn node_end_sysctl(end: &str, has_v6: bool) -> (String, &'static str) {
    let (knob, value) = if has_v6 { ("accept_ra", "0") } else { ("disable_ipv6", "1") };
    (format!("net/ipv6/conf/{end}/{knob}"), value)
}
