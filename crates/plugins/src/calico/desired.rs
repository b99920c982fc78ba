//! The desired network of a routed pod: fixed addresses, sysctls of the node's end, and the pod's routes. The values
//! are those of Calico's plugin, because Calico's node agent adopts these pods.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use podwire_cni_spec::Attachment;
use podwire_ip::IpFamily;
use podwire_kernel::rt::{route, route::Route};
use podwire_kernel::{Link, Mac};

use super::config::Conf;

/// The hardware address of every node's end.
pub(super) const NODE_END_MAC: Mac = Mac([0xee; 6]);
/// The pod's IPv4 gateway. No interface has this address: the node's end answers for it by proxy ARP.
const GATEWAY_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));
/// The pod's IPv6 gateway: the link-local address that the kernel derives from the hardware address of the node's end.
pub(super) const GATEWAY_V6: IpAddr =
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee));

/// The pod's gateway.
pub(super) fn gateway(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => GATEWAY_V4,
        IpFamily::V6 => GATEWAY_V6,
    }
}

/// The sysctls of the node's end that are not set when it is created. Without `proxy_delay` 0 the kernel delays proxy
/// ARP replies.
pub(super) fn node_end_sysctls(end: &str, families: &[IpFamily]) -> Vec<(String, &'static str)> {
    let mut all = vec![(format!("net/ipv6/conf/{end}/accept_ra"), "0")];
    if families.contains(&IpFamily::V4) {
        all.push((format!("net/ipv4/neigh/{end}/proxy_delay"), "0"));
    }
    let v6: &[_] = if families.contains(&IpFamily::V6) {
        &[("disable_ipv6", "0"), ("accept_dad", "0"), ("proxy_ndp", "1"), ("forwarding", "1")]
    } else {
        &[("disable_ipv6", "1")]
    };
    all.extend(v6.iter().map(|(knob, value)| (format!("net/ipv6/conf/{end}/{knob}"), *value)));
    all
}

/// The pod's routes: to the gateway of each family, and through it to everything, or to the networks of the config.
pub(super) fn pod_routes(conf: &Conf, result: &Attachment, pod_end: &Link) -> Vec<Route> {
    let on = |route: Route| Route { link: Some(pod_end.index), ..route };
    let mut all = Vec::new();
    for ip in &result.ips {
        let family = IpFamily::of_net(ip.address);
        if family.is_v4() {
            all.push(on(Route { scope: route::LINK, ..Route::to(GATEWAY_V4, family.bits()) }));
        }
        for net in conf.destinations(family) {
            let gateway = Some(gateway(family));
            all.push(on(Route { gateway, ..Route::to(net.addr(), net.prefix_len()) }));
        }
    }
    all
}
