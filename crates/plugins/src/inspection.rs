//! Comparing a pod's interface with what was recorded of it, and putting it back: the part of CHECK that every plugin
//! with an interface of its own shares.

mod node;

use std::net::IpAddr;

use podwire_cni_plugin::{Context, Finding, Request, Result};
use podwire_cni_spec::{Attachment, Interface, Route};
use podwire_kernel::rt::link::{self, attribute};
use podwire_kernel::rt::{address, route};
use podwire_kernel::{Host, Link, Mac};
use podwire_netlink::Message;

use crate::lease::addresses_of;
use crate::plumbing;

pub use node::{forwarding, is_ours, is_up, mtu, on_node, other_end, rules, sysctl};

/// The recorded interface `ifname` in the pod.
pub fn recorded_interface<'a>(recorded: &'a Attachment, ifname: &str) -> Option<&'a Interface> {
    recorded.interfaces.iter().find(|one| one.name == ifname && !one.sandbox.is_empty())
}

/// The pod's interface as recorded: it is there, has its hardware address, is up, and has its addresses and routes.
/// The findings are in the order in which they can be mended: an interface that is down has no routes.
pub fn pod_interface<'p>(req: &Request<'p>, pod: &mut Host) -> Result<Vec<Finding<'p>>> {
    let recorded = req.recorded()?;
    let Some(link) = pod.find_link(&req.ifname)? else {
        return Ok(vec![Finding::new(format!("the pod has no interface {}", req.ifname))]);
    };
    let mut findings = Vec::new();
    findings.extend(hardware_address(req, recorded, &link));
    if !link.is_up() {
        findings.push(
            Finding::new(format!("interface {} is down", link.name))
                .repaired_by(change(req, link::up(&link))),
        );
    }
    findings.extend(addresses(req, pod, recorded, &link)?);
    findings.extend(routes(req, pod, recorded, &link)?);
    Ok(findings)
}

fn hardware_address<'p>(req: &Request<'p>, recorded: &Attachment, link: &Link) -> Option<Finding<'p>> {
    let expected = recorded_interface(recorded, &req.ifname)?.mac.parse::<Mac>().ok()?;
    if expected.0[..] == link.mac[..] {
        return None;
    }
    let (name, is) = (&link.name, link.mac_text());
    let text = format!("interface {name} has hardware address {is}, recorded was {expected}");
    let message = link::change(link.index, format!("set the hardware address of {name}"))
        .bytes(attribute::ADDRESS, &expected.0);
    Some(Finding::new(text).repaired_by(change(req, message)))
}

fn addresses<'p>(
    req: &Request<'p>,
    pod: &mut Host,
    recorded: &Attachment,
    link: &Link,
) -> Result<Vec<Finding<'p>>> {
    let found = address::list(&mut pod.route, link.index)?;
    let missing = addresses_of(recorded, &req.ifname)
        .into_iter()
        .filter(|net| !found.iter().any(|one| one.ip == net.addr() && one.prefix == net.prefix_len()));
    Ok(missing
        .map(|net| {
            let again = address::add(link.index, net.addr(), net.prefix_len(), false);
            let (req, name) = (req.clone(), link.name.clone());
            Finding::new(format!("interface {name} lacks address {net}")).repaired_by(move || {
                let mut pod = req.pod()?;
                if net.addr().is_ipv6() {
                    pod.run(|| plumbing::allow_ipv6(&name, false))??;
                }
                Ok(pod.route.request(again)?)
            })
        })
        .collect())
}

fn routes<'p>(
    req: &Request<'p>,
    pod: &mut Host,
    recorded: &Attachment,
    link: &Link,
) -> Result<Vec<Finding<'p>>> {
    let found = route::list(&mut pod.route)?;
    let wire = |wanted: &Route| plumbing::wire_route(wanted, link, recorded);
    let is_known = |one: &route::Route| recorded.routes.iter().any(|other| is_same(one, other, &wire(other)));
    let is_missing = |wanted: &&Route| {
        let again = wire(wanted);
        !found.iter().any(|one| is_same(one, wanted, &again))
    };
    Ok(recorded
        .routes
        .iter()
        .filter(is_missing)
        .map(|wanted| {
            let via = wanted.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
            let table = wanted.table.map(|table| format!(" in table {table}")).unwrap_or_default();
            let again = wire(wanted);
            let others = found.iter().filter(|one| is_in_the_way(one, &again) && !is_known(one));
            let in_the_way = others.cloned().collect();
            Finding::new(format!("route to {}{via}{table} is missing", wanted.dst))
                .repaired_by(put_in_place(req, again, in_the_way))
        })
        .collect())
}

/// A route by which the interface would send the same packets somewhere else.
fn is_in_the_way(found: &route::Route, wanted: &route::Route) -> bool {
    (found.dst, found.prefix, found.table) == (wanted.dst, wanted.prefix, wanted.table)
        && found.link == wanted.link
        && found.protocol != route::BY_KERNEL
}

fn put_in_place<'p>(
    req: &Request<'p>,
    wanted: route::Route,
    in_the_way: Vec<route::Route>,
) -> impl FnOnce() -> Result<()> + 'p {
    let req = req.clone();
    move || {
        let mut pod = req.pod()?;
        for other in in_the_way {
            match pod.route.request(other.delete()) {
                Err(error) if !error.is_gone() => return Err(error.into()),
                _ => {}
            }
        }
        match pod.route.request(wanted.add()) {
            Err(error) if error.is_exists() => Ok(()),
            other => other.doing(|| "repair the pod".into()),
        }
    }
}

/// A route may have been given to a table of its own by a later plugin (sbr, vrf): one that names no table may be in
/// any, and there its way is that plugin's choice; as the way of a default route may be another interface's. But in
/// the main table, by this interface, it leads as it was told to.
fn is_same(found: &route::Route, wanted: &Route, wire: &route::Route) -> bool {
    let elsewhere = found.link != wire.link || found.table != route::MAIN;
    let chosen = wanted.dst.prefix_len() == 0 || wanted.gw.is_none();
    (found.dst, found.prefix) == (wire.dst, wire.prefix)
        && wanted.table.is_none_or(|table| table == found.table)
        && (found.gateway == wire.gateway || (elsewhere && chosen))
}

/// Sends `message` to the pod's kernel side. Something that is there already is fine.
pub fn change<'p>(req: &Request<'p>, message: Message) -> impl FnOnce() -> Result<()> + 'p {
    let req = req.clone();
    move || match req.pod()?.route.request(message) {
        Err(error) if error.is_exists() => Ok(()),
        other => other.doing(|| "repair the pod".into()),
    }
}

/// Sends `message` to the node's kernel side. Something that is there already is fine.
pub fn change_node<'p>(message: Message) -> impl FnOnce() -> Result<()> + 'p {
    move || match Host::here()?.route.request(message) {
        Err(error) if error.is_exists() => Ok(()),
        other => other.doing(|| "repair the node".into()),
    }
}

/// The node's routes to the pod's addresses lead through `end`.
pub fn node_routes<'p>(node: &mut Host, end: &Link, pods: &[IpAddr]) -> Result<Vec<Finding<'p>>> {
    let found = route::list(&mut node.route)?;
    let missing = pods
        .iter()
        .filter(|pod| !found.iter().any(|route| route.dst == **pod && route.link == Some(end.index)));
    Ok(missing
        .map(|pod| {
            let full = if pod.is_ipv4() { 32 } else { 128 };
            let again =
                route::Route { link: Some(end.index), scope: route::LINK, ..route::Route::to(*pod, full) };
            Finding::new(format!("the node has no route to {pod} through {}", end.name))
                .repaired_by(change_node(again.add()))
        })
        .collect())
}
