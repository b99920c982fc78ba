//! The hardware address of a pod on a bridge.
//!
//! IPAM reuses addresses, and neighbours cache the hardware address of the previous pod. So the hardware address is
//! derived from the pod's IP address: the cached entry stays correct, and no announcement is needed. An announcement
//! would cost one packet for each pod on the bridge.

use podwire_cni_plugin::{delegate, Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::rt::neighbour;
use podwire_kernel::{Host, Link, Mac};

use super::config::Conf;

/// IPAM plugins that allow a change of the hardware address after the lease. A DHCP server leases to a hardware
/// address.
const MAC_INDEPENDENT: [&str; 2] = ["host-local", "static"];

/// How neighbours find a pod.
pub(super) struct Identity {
    /// The hardware address, if it is derived from the pod's IP address.
    pub(super) mac: Option<Mac>,
    /// Whether to announce the pod by gratuitous ARP.
    pub(super) announce: bool,
}

/// Derives the hardware address from the pod's first IPv4 address, or from its first address if it has no IPv4.
pub(super) fn choose(
    req: &Request<'_>,
    conf: &Conf,
    node: &mut Host,
    bridge: &Link,
    result: &Attachment,
) -> Result<Identity> {
    let is_derived =
        conf.mac(req)?.is_none() && delegate::ipam(req).is_some_and(|kind| MAC_INDEPENDENT.contains(&kind));
    let all: Vec<_> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    let v4: Vec<_> = all.iter().copied().filter(|ip| ip.is_ipv4()).collect();
    let mac = v4.first().or(all.first()).filter(|_| is_derived).map(|ip| Mac::of_ip(*ip));
    let announce = match (mac, &v4[..]) {
        // The kernel announces IPv4 addresses only.
        (_, []) => false,
        // Only if the node's own neighbour entry for the address has another hardware address.
        (Some(mac), [ip]) if conf.is_gateway && conf.vlan == 0 => {
            // Kernels before 5.0 cannot look up a single entry.
            let known = neighbour::find(&mut node.route, bridge.index, *ip);
            known.map_or(true, |known| known.is_some_and(|one| one.mac != Some(mac.0)))
        }
        _ => true,
    };
    Ok(Identity { mac, announce })
}
