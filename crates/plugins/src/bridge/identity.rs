//! By which hardware address a pod's neighbours know it.
//!
//! Addresses are given again, and neighbours remember for a while who had them. So the hardware address follows from the pod's address:
//! whoever has it is reached at once, and nobody need be told. To tell would cost a packet for each pod on the bridge.

use cni::Attachment;
use cni_plugin::{delegate, Request, Result};
use kernel::rt::neighbour;
use kernel::{Host, Link, Mac};

use super::config::Conf;
use crate::plumbing::Options;

/// IPAM plugins to which it is all the same who asks. A DHCP server has given its address to the hardware address that asked.
const INDIFFERENT: [&str; 2] = ["host-local", "static"];

/// The pod's hardware address, if it follows from its first address, and whether the neighbours are to be told of it.
pub(super) fn choose(
    req: &Request<'_>,
    conf: &Conf,
    node: &mut Host,
    (bridge, result): (&Link, &Attachment),
) -> Result<Options> {
    let follows =
        conf.mac(req)?.is_none() && delegate::ipam(req).is_some_and(|kind| INDIFFERENT.contains(&kind));
    let mac = result.ips.first().filter(|_| follows).map(|ip| Mac::of_ip(ip.address.addr()));
    let announce = match mac {
        Some(mac) => is_known_otherwise(conf, node, bridge, (result, mac))?,
        None => true,
    };
    Ok(Options { detect_duplicates: conf.enabledad, mac, announce })
}

/// Whether one of the pod's addresses was somebody's with another hardware address: of a pod that had asked for one, or that another program
/// connected. The node, through which pods talk to others, remembers that; where it is no neighbour of theirs, nobody can be asked. Of several
/// IPv4 addresses only one goes with the hardware address.
fn is_known_otherwise(
    conf: &Conf,
    node: &mut Host,
    bridge: &Link,
    (result, mac): (&Attachment, Mac),
) -> Result<bool> {
    let v4: Vec<_> = result.ips.iter().map(|ip| ip.address.addr()).filter(|ip| ip.is_ipv4()).collect();
    match v4[..] {
        [] => Ok(false),
        [ip] if conf.is_gateway && conf.vlan == 0 && Mac::of_ip(ip) == mac => {
            // A kernel before 5.0 cannot be asked for one.
            let known = neighbour::find(&mut node.route, bridge.index, ip);
            Ok(known.map_or(true, |known| known.and_then(|one| one.mac).is_some_and(|other| other != mac.0)))
        }
        _ => Ok(true),
    }
}
