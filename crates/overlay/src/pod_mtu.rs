//! Pods whose interfaces have a larger MTU than the network between the nodes carries.
//!
//! A pod keeps the MTU that it got at its ADD. When the MTU of the uplink or the backend becomes smaller later, packets of
//! such a pod to other nodes are too large: connections wait for ICMP errors, and stop where those are filtered. The pod's
//! MTU is a part of its ADD result, which the runtime checks, so this crate finds such pods and does not change them.

use ipnet::IpNet;
use podwire_kernel::{Host, Link};
use podwire_netlink::rt::route::Route;
use podwire_netlink::rt::{address, link};

use crate::apply::main_table;
use crate::error::Result;

/// The node's end of the veth pair of a pod with a larger MTU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OversizedPort {
    /// Its name.
    pub name: String,
    /// Its alias. Podwire's plugins write the owner there: network, container and interface.
    pub alias: String,
    /// Its MTU, which is that of the pod's end.
    pub mtu: u32,
}

/// The pods with addresses of `pod_cidrs` whose MTU is larger than `mtu`, sorted by name.
pub fn oversized_ports(host: &mut Host, pod_cidrs: &[IpNet], mtu: u32) -> Result<Vec<OversizedPort>> {
    let mut links = link::list(&mut host.route)?;
    links.retain(|link| link.kind == "veth" && link.mtu > mtu);
    if links.is_empty() {
        return Ok(Vec::new());
    }
    let contains = |ip| pod_cidrs.iter().any(|cidr| cidr.contains(&ip));
    // A pod of this network is a port of the bridge with the gateway's address, or has a route of its own.
    let gateways: Vec<u32> = (address::list(&mut host.route, 0)?.iter())
        .filter(|address| contains(address.ip))
        .map(|address| address.link)
        .collect();
    let is_single = |route: &Route| route.prefix == if route.dst.is_ipv4() { 32 } else { 128 };
    let routed: Vec<u32> = (main_table(host)?.iter())
        .filter(|route| is_single(route) && contains(route.dst))
        .filter_map(|route| route.link)
        .collect();
    let is_pod = |link: &Link| {
        link.master.is_some_and(|bridge| gateways.contains(&bridge)) || routed.contains(&link.index)
    };
    let port = |link: Link| OversizedPort { name: link.name, alias: link.alias, mtu: link.mtu };
    let mut found: Vec<_> = links.into_iter().filter(is_pod).map(port).collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}
