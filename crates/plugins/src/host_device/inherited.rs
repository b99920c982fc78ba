//! `useInterfaceNetwork`: the pod gets the addresses and routes that the device has on the node. In clouds that
//! configure devices themselves, no other configuration exists.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cni_spec::{Attachment, Ip, Route};
use podwire_kernel::rt::{address::Address, route};
use podwire_kernel::LinkConfig;

const UNIVERSE: u8 = 0; // RT_SCOPE_UNIVERSE, linux/rtnetlink.h
const TEMPORARY: u32 = 0x01; // IFA_F_TEMPORARY, linux/if_addr.h; for IPv4 the bit marks a secondary address

/// The permanent addresses of global scope, and the routes of the main table.
pub fn from(link_config: &LinkConfig) -> LinkConfig {
    let is_permanent =
        |one: &&Address| one.scope == UNIVERSE && (one.ip.is_ipv4() || one.flags & TEMPORARY == 0);
    LinkConfig {
        addresses: link_config.addresses.iter().filter(is_permanent).cloned().collect(),
        routes: link_config.routes.iter().filter(|one| one.table == route::MAIN).cloned().collect(),
    }
}

/// Adds them to the result, unless the IPAM plugin returned the same.
pub fn add(result: &mut Attachment, inherited: &LinkConfig) {
    for one in &inherited.addresses {
        let Ok(address) = IpNet::new(one.ip, one.prefix) else { continue };
        if !result.ips.iter().any(|ip| ip.address == address) {
            let gateway = gateway(inherited, &address);
            result.ips.push(Ip { interface: None, address, gateway });
        }
    }
    for one in &inherited.routes {
        let Ok(dst) = IpNet::new(one.dst, one.prefix) else { continue };
        let on_link = one.gateway.is_none().then_some(u32::from(route::LINK));
        let wanted = Route {
            dst,
            gw: one.gateway,
            mtu: one.mtu,
            advmss: one.advmss,
            priority: one.priority,
            table: None,
            scope: on_link,
        };
        if !result.routes.iter().any(|route| (route.dst, route.gw) == (dst, one.gateway)) {
            result.routes.push(wanted);
        }
    }
}

/// The next hop of the default route, if it is in the address's subnet.
fn gateway(inherited: &LinkConfig, address: &IpNet) -> Option<IpAddr> {
    let defaults = inherited.routes.iter().filter(|one| one.is_default());
    defaults.filter_map(|one| one.gateway).find(|gateway| address.contains(gateway))
}
