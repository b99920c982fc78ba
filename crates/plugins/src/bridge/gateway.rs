//! The node as the pods' gateway: which link has the gateway's address, and how it gets it.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cni_plugin::{Context, Result};
use podwire_cni_spec::{Attachment, Route};
use podwire_kernel::bridge::Vlans;
use podwire_kernel::rt::{address, link};
use podwire_kernel::veth::{self, Veth};
use podwire_kernel::{sysctl, Host, Link, Netns, Owner};
use podwire_netlink::Batch;

use super::config::Conf;
use super::port;
use crate::lease;

/// The gateway of a subnet for which nobody named one. A subnet of two addresses has none to spare: each is a pod's.
pub(super) fn expected(net: &IpNet) -> Result<IpAddr> {
    if net.prefix_len() + 1 < net.max_prefix_len() {
        return Ok(lease::first_host(net));
    }
    let text = format!("ipam: address {net} has no gateway, and isGateway needs one");
    Err(podwire_cni_spec::Error::invalid_config(text).with_details("give the IPAM plugin a gateway").into())
}

/// Default routes through the gateways, for families that have none with a gateway yet, and none that gets the family's.
pub(super) fn add_default_routes(result: &mut Attachment) {
    for (default, v4) in [("0.0.0.0/0", true), ("::/0", false)] {
        let Ok(dst) = default.parse::<IpNet>() else { continue };
        let gateway = result.ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == v4);
        // Of another table, metric or scope it is another route.
        let is_usual =
            |route: &Route| route.table.is_none() && route.priority.is_none() && route.scope.is_none();
        let there =
            result.routes.iter().any(|route| route.dst == dst && (route.gw.is_some() || is_usual(route)));
        if let Some(gateway) = gateway.filter(|_| !there) {
            result.routes.push(Route::new(dst, Some(gateway)));
        }
    }
}

/// The bridge as it is after a port was added. One that somebody else made may take the smallest hardware address
/// of its ports, which changes as pods come and go: a gateway must not, or every neighbour forgets it.
pub(super) fn keep_address(conf: &Conf, node: &mut Host, before: Link) -> Result<Link> {
    let now = Link { mac: node.peek_link(&before.name)?.mac, ..before.clone() };
    if !conf.is_gateway {
        return Ok(now);
    }
    // It is a router's leg, not a host that listens to routers; a pod could be one.
    if before.accept_ra.is_some_and(|accepted| accepted != 0) {
        sysctl::ensure_if_there(&format!("net/ipv6/conf/{}/accept_ra", before.name), "0")?;
    }
    if now.mac == before.mac {
        return Ok(before);
    }
    // One whose last port has gone has an address of zeros, which nobody can have: it gets the one that it would have of ours.
    let mac = match before.mac.iter().any(|byte| *byte != 0) {
        true => before.mac.clone(),
        false => conf.bridge().mac(node)?.0.to_vec(),
    };
    let kept = Link { mac, ..before };
    let doing = format!("keep the hardware address of bridge {}", kept.name);
    node.route.request(link::change(kept.index, doing).bytes(link::attribute::ADDRESS, &kept.mac))?;
    Ok(kept)
}

/// Whose a leg is. No network has a colon in its name, so no GC takes this cable for a pod's.
fn leg_owner(bridge: &str, name: &str) -> Owner {
    Owner { network: "vlan:gateway".into(), container: bridge.into(), ifname: name.into() }
}

/// The leg's port on the bridge; none if somebody else made the leg, their way.
pub(super) fn leg_port(node: &mut Host, bridge: &str, name: &str) -> Result<Option<Link>> {
    Ok(node.find_link(&veth::host_name(&leg_owner(bridge, name)))?)
}

/// The VLAN that a leg leads into.
pub(super) fn leg_vlan(conf: &Conf) -> Vlans {
    let id = conf.vlan as u16;
    Vlans { first: id, last: id, native: true }
}

/// The link that has the gateway's address: the bridge, or with a VLAN a leg into it, made if it is not there.
pub(super) fn leg(conf: &Conf, node: &mut Host, bridge: &Link) -> Result<Link> {
    let Some(name) = conf.leg_name() else { return Ok(bridge.clone()) };
    let found = node.find_link(&name)?;
    // It is switched on when it is complete; one that was left incomplete is completed.
    if let Some(leg) = found.as_ref().filter(|leg| leg.is_up()) {
        return Ok(leg.clone());
    }
    let owner = leg_owner(&bridge.name, &name);
    if found.is_none() {
        let ipv6 = bridge.has_ipv6();
        let place = veth::Port { bridge: bridge.index, hairpin: false, isolated: false, ipv6 };
        let cable =
            Veth { name: &name, owner: &owner, mtu: conf.mtu, mac: None, port: Some(place), end: None };
        match cable.create(node, &Netns::current()?) {
            // Another pod's plugin was faster.
            Err(error) if error.is_exists() => {}
            other => drop(other.doing(|| format!("make the gateway's leg {name}"))?),
        }
    }
    let inner = node.get_link(&name)?;
    let Some(outer) = leg_port(node, &bridge.name, &name)? else {
        // Somebody else made it, their way.
        node.route.request(link::up(&inner))?;
        return Ok(inner);
    };
    let mut batch = port::vlan_messages(conf, &outer, [leg_vlan(conf)]);
    // Results name the leg. The owner noted on it saves it from a DEL that has nothing but the result to go by.
    let label = link::change(inner.index, format!("note the owner on {name}"));
    batch.push(label.string(link::attribute::IFALIAS, &owner.comment()));
    batch.push(link::up(&inner));
    node.route.batch(batch).doing(|| format!("set up the gateway's leg {name}"))?;
    port::wait_until_it_forwards(node, &outer.name)?;
    Ok(inner)
}

/// Gives the leg the gateways' addresses.
pub(super) fn assign(conf: &Conf, node: &mut Host, leg: &Link, result: &Attachment) -> Result<()> {
    let found = address::list(&mut node.route, leg.index)?;
    for ip in &result.ips {
        let Some(gateway) = ip.gateway else { continue };
        let prefix = ip.address.prefix_len();
        if found.iter().any(|address| address.ip == gateway && address.prefix == prefix) {
            continue;
        }
        let strangers: Vec<_> = found.iter().filter(|there| in_the_way(there, gateway, prefix)).collect();
        if !strangers.is_empty() && !conf.force_address {
            let (there, name) = (strangers[0], &leg.name);
            let text = format!(
                "{name:?} already has an IP address different from {gateway}/{prefix}: {}/{}",
                there.ip, there.prefix
            );
            let hint = "set forceAddress to replace it, or choose another bridge or subnet";
            return Err(podwire_cni_spec::Error::invalid_config(text).with_details(hint).into());
        }
        let mut batch = Batch::new();
        batch.extend(strangers.iter().map(|there| address::delete(leg.index, there.ip, there.prefix)));
        batch.push(address::add(leg.index, gateway, prefix, false));
        let doing = || format!("give the gateway's address to {:?}", leg.name);
        let failures = node.route.batch_each(batch).doing(doing)?;
        // Another pod's plugin was faster: a stranger is gone, or the gateway, which comes last, is there.
        let is_done = |at: usize, error: &podwire_netlink::Error| match at < strangers.len() {
            true => error.is_gone(),
            false => error.is_exists(),
        };
        match failures.into_iter().find(|(at, error)| !is_done(*at, error)) {
            Some((_, error)) => return Err(error).doing(doing),
            None => continue,
        }
    }
    Ok(())
}

/// Any other IPv4 address is in the way of a gateway; of IPv6 only one whose subnet overlaps.
fn in_the_way(there: &address::Address, gateway: IpAddr, prefix: u8) -> bool {
    let net = |ip: IpAddr, prefix: u8| IpNet::new(ip, prefix).map(|net| net.trunc());
    match (there.ip, gateway) {
        (IpAddr::V4(_), IpAddr::V4(_)) => true,
        (IpAddr::V6(v6), IpAddr::V6(_)) if !v6.is_unicast_link_local() => {
            let (Ok(a), Ok(b)) = (net(there.ip, there.prefix), net(gateway, prefix)) else { return false };
            a.contains(&b) || b.contains(&a)
        }
        _ => false,
    }
}
