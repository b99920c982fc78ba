//! By which hardware address a pod's neighbours know it.
//!
//! Addresses are given again, and neighbours remember for a while who had them. So the hardware address follows from the pod's address:
//! whoever has it is reached at once, and nobody need be told. To tell would cost a packet for each pod on the bridge.

use podwire_cni_plugin::{delegate, Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::rt::neighbour;
use podwire_kernel::{Host, Link, Mac};

use super::config::Conf;

/// IPAM plugins to which it is all the same who asks. A DHCP server has given its address to the hardware address that asked.
const INDIFFERENT: [&str; 2] = ["host-local", "static"];

/// By what a pod is known.
pub(super) struct Identity {
    /// The hardware address, if it follows from the pod's address.
    pub(super) mac: Option<Mac>,
    /// Whether the neighbours are to be told.
    pub(super) announce: bool,
}

/// What the pod is to be known by: what goes with its first IPv4 address, or with its first one if it has none of IPv4.
pub(super) fn choose(
    req: &Request<'_>,
    conf: &Conf,
    node: &mut Host,
    (bridge, result): (&Link, &Attachment),
) -> Result<Identity> {
    let follows =
        conf.mac(req)?.is_none() && delegate::ipam(req).is_some_and(|kind| INDIFFERENT.contains(&kind));
    let all: Vec<_> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    let v4: Vec<_> = all.iter().copied().filter(|ip| ip.is_ipv4()).collect();
    let mac = v4.first().or(all.first()).filter(|_| follows).map(|ip| Mac::of_ip(*ip));
    let announce = match (mac, &v4[..]) {
        // The kernel announces IPv4 only.
        (_, []) => false,
        (Some(mac), [ip]) if conf.is_gateway && conf.vlan == 0 => {
            // A kernel before 5.0 cannot be asked for one.
            let known = neighbour::find(&mut node.route, bridge.index, *ip);
            known.map_or(true, |known| known.is_some_and(|one| one.mac != Some(mac.0)))
        }
        _ => true,
    };
    Ok(Identity { mac, announce })
}
