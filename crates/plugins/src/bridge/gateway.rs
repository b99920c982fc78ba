//! The node as the pods' gateway: the link that has the gateway's address, and the assignment of the address.
//!
//! Without a VLAN the link is the bridge. With a VLAN it is one end of a veth pair whose other end is a port of the
//! bridge in that VLAN. It is called the gateway link here.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cni_plugin::{Context, Result};
use podwire_cni_spec::{Attachment, Route};
use podwire_ip::IpFamily;
use podwire_kernel::bridge::Vlans;
use podwire_kernel::rt::{address, link};
use podwire_kernel::veth::{self, Veth};
use podwire_kernel::{sysctl, Host, Link, Netns, Owner};
use podwire_netlink::Batch;

use super::config::Conf;
use super::{overlap, port};
use crate::addresses;

/// The gateway of a subnet if the IPAM plugin names none: its first host address. A subnet of two addresses or fewer
/// has no address left for a gateway.
pub(super) fn expected(net: &IpNet) -> Result<IpAddr> {
    if net.prefix_len() + 1 < net.max_prefix_len() {
        return Ok(addresses::first_host(net));
    }
    let text = format!("ipam: address {net} has no gateway, and isGateway needs one");
    Err(podwire_cni_spec::Error::invalid_config(text).with_details("give the IPAM plugin a gateway").into())
}

/// Adds a default route through the gateway of each family. Skips a family that has a default route with a gateway, or
/// one to which the family's gateway will be added.
pub(super) fn add_default_routes(result: &mut Attachment) {
    for family in IpFamily::ALL {
        let Ok(dst) = IpNet::new(family.unspecified(), 0) else { continue };
        let mut gateways = result.ips.iter().filter_map(|ip| ip.gateway);
        let gateway = gateways.find(|gateway| IpFamily::of(*gateway) == family);
        // A default route in another table, or with a metric or scope, is a different route.
        let is_usual =
            |route: &Route| route.table.is_none() && route.priority.is_none() && route.scope.is_none();
        let there =
            result.routes.iter().any(|route| route.dst == dst && (route.gw.is_some() || is_usual(route)));
        if let Some(gateway) = gateway.filter(|_| !there) {
            result.routes.push(Route::new(dst, Some(gateway)));
        }
    }
}

/// The bridge after a port was added, with its previous hardware address if it is a gateway. A bridge whose address was
/// never set takes the smallest hardware address of its ports, which changes with every pod. Neighbours of a gateway
/// would then have stale ARP entries.
pub(super) fn keep_hardware_address(conf: &Conf, node: &mut Host, before: Link) -> Result<Link> {
    let now = Link { mac: node.peek_link(&before.name)?.mac, ..before.clone() };
    if !conf.is_gateway {
        return Ok(now);
    }
    // A router must not accept router advertisements: a pod could send them.
    if before.accept_ra.is_some_and(|accepted| accepted != 0) {
        sysctl::ensure_if_there(&format!("net/ipv6/conf/{}/accept_ra", before.name), "0")?;
    }
    if now.mac == before.mac {
        return Ok(before);
    }
    // A bridge that lost its last port has an all-zero address, which cannot be set: it gets the address that Podwire
    // gives to a new bridge.
    let is_zero = before.mac.iter().all(|byte| *byte == 0);
    let mac = if is_zero { conf.bridge().mac(node)?.0.to_vec() } else { before.mac.clone() };
    let kept = Link { mac, ..before };
    let doing = format!("keep the hardware address of bridge {}", kept.name);
    node.route.request(link::change(kept.index, doing).bytes(link::attribute::ADDRESS, &kept.mac))?;
    Ok(kept)
}

/// The network in the owner of a gateway link. A network's name has no colon, so GC of no network deletes this veth
/// pair.
const VLAN_GATEWAY: &str = "vlan:gateway";

/// The owner of a gateway link.
fn link_owner(bridge: &str, name: &str) -> Owner {
    Owner { network: VLAN_GATEWAY.into(), container: bridge.into(), ifname: name.into() }
}

/// Whether a link is the gateway link of a VLAN of any bridge.
pub(super) fn is_link_of_vlan(link: &Link) -> bool {
    link.alias.starts_with(&format!("{VLAN_GATEWAY}/"))
}

/// The gateway link's port on the bridge. `None` if Podwire did not create the gateway link.
pub(super) fn link_port(node: &mut Host, bridge: &str, name: &str) -> Result<Option<Link>> {
    Ok(node.find_link(&veth::host_name(&link_owner(bridge, name)))?)
}

/// The VLAN of the gateway link.
pub(super) fn link_vlan(conf: &Conf) -> Vlans {
    let id = conf.vlan as u16;
    Vlans { first: id, last: id, native: true }
}

/// The gateway link, created if it does not exist.
pub(super) fn ensure_link(conf: &Conf, node: &mut Host, bridge: &Link) -> Result<Link> {
    let Some(name) = conf.gateway_link_name() else { return Ok(bridge.clone()) };
    let found = node.find_link(&name)?;
    // The link is brought up last. A link that is down was left incomplete and is completed here.
    if let Some(link) = found.as_ref().filter(|link| link.is_up()) {
        return Ok(link.clone());
    }
    let owner = link_owner(&bridge.name, &name);
    if found.is_none() {
        let ipv6 = bridge.has_ipv6();
        let port = veth::Port { bridge: bridge.index, hairpin: false, isolated: false, ipv6 };
        let veth = Veth { name: &name, owner: &owner, mtu: conf.mtu, mac: None, port: Some(port), end: None };
        match veth.create(node, &Netns::current()?) {
            // The ADD of another pod was faster.
            Err(error) if error.is_exists() => {}
            other => drop(other.doing(|| format!("create the gateway link {name}"))?),
        }
    }
    let link = node.get_link(&name)?;
    let Some(port) = link_port(node, &bridge.name, &name)? else {
        // Not created by Podwire: its port is left alone.
        node.route.request(link::up(&link))?;
        return Ok(link);
    };
    let mut batch = port::vlan_messages(conf, &port, [link_vlan(conf)]);
    // Results list the gateway link. The owner in its alias protects it from a DEL that only has the recorded result.
    let label = link::change(link.index, format!("write the owner into the alias of {name}"));
    batch.push(label.string(link::attribute::IFALIAS, &owner.comment()));
    batch.push(link::up(&link));
    node.route.batch(batch).doing(|| format!("set up the gateway link {name}"))?;
    port::wait_until_forwarding(node, &port.name)?;
    Ok(link)
}

/// Adds the gateways' addresses to the gateway link.
pub(super) fn assign(conf: &Conf, node: &mut Host, link: &Link, result: &Attachment) -> Result<()> {
    let found = address::list(&mut node.route, link.index)?;
    for ip in &result.ips {
        let Some(gateway) = ip.gateway else { continue };
        let prefix = ip.address.prefix_len();
        if found.iter().any(|address| address.ip == gateway && address.prefix == prefix) {
            continue;
        }
        let conflicting: Vec<_> = found.iter().filter(|other| conflicts(other, gateway, prefix)).collect();
        if !conflicting.is_empty() && !conf.force_address {
            let (other, name) = (conflicting[0], &link.name);
            let whose = if link.name == conf.bridge { "bridge" } else { "vlan interface for bridge with" };
            let text = format!(
                "failed to set {whose} addr: {name:?} already has an IP address different from {gateway}/{prefix}"
            );
            let hint = format!(
                "it has {}/{}: set forceAddress to replace it, or choose another bridge or subnet",
                other.ip, other.prefix
            );
            return Err(podwire_cni_spec::Error::invalid_config(text).with_hint(hint).into());
        }
        overlap::refuse(node, Some(link), &[ip.address.trunc()])?;
        let mut batch = Batch::new();
        batch.extend(conflicting.iter().map(|other| address::delete(link.index, other.ip, other.prefix)));
        batch.push(address::add(link.index, gateway, prefix, false));
        let doing = || format!("add the gateway's address to {:?}", link.name);
        let failures = node.route.batch_each(batch).doing(doing)?;
        // The ADD of another pod may have deleted a conflicting address, or added the gateway's, the last of the batch.
        let is_done = |at: usize, error: &podwire_netlink::Error| {
            if at < conflicting.len() {
                error.is_gone()
            } else {
                error.is_exists()
            }
        };
        match failures.into_iter().find(|(at, error)| !is_done(*at, error)) {
            Some((_, error)) => return Err(error).doing(doing),
            None => continue,
        }
    }
    Ok(())
}

/// Whether an address conflicts with the gateway's: any other IPv4 address, or an IPv6 address whose subnet overlaps.
fn conflicts(other: &address::Address, gateway: IpAddr, prefix: u8) -> bool {
    let net = |ip: IpAddr, prefix: u8| IpNet::new(ip, prefix).map(|net| net.trunc());
    match (other.ip, gateway) {
        (IpAddr::V4(_), IpAddr::V4(_)) => true,
        (IpAddr::V6(v6), IpAddr::V6(_)) if !v6.is_unicast_link_local() => {
            let (Ok(a), Ok(b)) = (net(other.ip, other.prefix), net(gateway, prefix)) else { return false };
            a.contains(&b) || b.contains(&a)
        }
        _ => false,
    }
}
