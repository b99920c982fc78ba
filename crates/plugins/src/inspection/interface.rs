//! Compares the pod's interface with the recorded result: hardware address, state, addresses, routes.

use podwire_cni_plugin::{Context, Finding, Request, Result};
use podwire_cni_spec::{Attachment, Interface, Route};
use podwire_kernel::rt::link::{self, attribute};
use podwire_kernel::rt::{address, route};
use podwire_kernel::{Host, Link, Mac};

use super::repair::change;
use crate::addresses::addresses_of;
use crate::pod_interface;

/// The recorded interface `ifname` in the pod.
pub fn recorded_interface<'a>(recorded: &'a Attachment, ifname: &str) -> Option<&'a Interface> {
    recorded.interfaces.iter().find(|one| one.name == ifname && !one.sandbox.is_empty())
}

/// Compares the pod's interface with the recorded result: it exists, is up, and has its hardware address, addresses and
/// routes. The findings are in the order of their repair: an interface that is down has no routes.
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
                    pod.run(|| pod_interface::enable_ipv6(&name, false))??;
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
    let in_kernel = |wanted: &Route| pod_interface::kernel_route(wanted, link, recorded);
    let is_recorded =
        |one: &route::Route| recorded.routes.iter().any(|other| is_same(one, other, &in_kernel(other)));
    let is_missing = |wanted: &&Route| {
        let again = in_kernel(wanted);
        !found.iter().any(|one| is_same(one, wanted, &again))
    };
    Ok(recorded
        .routes
        .iter()
        .filter(is_missing)
        .map(|wanted| {
            let via = wanted.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
            let table = wanted.table.map(|table| format!(" in table {table}")).unwrap_or_default();
            let again = in_kernel(wanted);
            let conflicting = found.iter().filter(|one| conflicts(one, &again) && !is_recorded(one));
            let conflicting = conflicting.cloned().collect();
            Finding::new(format!("route to {}{via}{table} is missing", wanted.dst))
                .repaired_by(replace_route(req, again, conflicting))
        })
        .collect())
}

/// Whether a route sends packets of the wanted route's destination elsewhere.
fn conflicts(found: &route::Route, wanted: &route::Route) -> bool {
    (found.dst, found.prefix, found.table) == (wanted.dst, wanted.prefix, wanted.table)
        && found.link == wanted.link
        && found.protocol != route::BY_KERNEL
}

/// A repair that deletes the conflicting routes and adds the wanted one.
fn replace_route<'p>(
    req: &Request<'p>,
    wanted: route::Route,
    conflicting: Vec<route::Route>,
) -> impl FnOnce() -> Result<()> + 'p {
    let req = req.clone();
    move || {
        let mut pod = req.pod()?;
        for other in conflicting {
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

/// Whether `found` is the recorded route `wanted`, whose kernel form is `expected`. A later plugin (sbr, vrf) may have
/// moved a route to another table: a route that names no table may be in any table, with the gateway that the plugin
/// chose. A default route may lead through another interface. In the main table, through this interface, the gateway
/// must match.
fn is_same(found: &route::Route, wanted: &Route, expected: &route::Route) -> bool {
    let is_elsewhere = found.link != expected.link || found.table != route::MAIN;
    let may_differ = wanted.dst.prefix_len() == 0 || wanted.gw.is_none();
    (found.dst, found.prefix) == (expected.dst, expected.prefix)
        && wanted.table.is_none_or(|table| table == found.table)
        && (found.gateway == expected.gateway || (is_elsewhere && may_differ))
}
