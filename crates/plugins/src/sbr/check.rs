//! CHECK of source based routing: the rules, the routes of the tables, and that none of them is in the main table.

mod routes;

use podwire_cni_plugin::{Context, Finding, Request, Result};
use podwire_cni_spec::Ip;
use podwire_kernel::rt::rule::Rule;
use podwire_kernel::rt::{link, route, rule};
use podwire_kernel::{Host, Link};
use podwire_netlink::Batch;

use super::apply::{add_rules, interface, move_routes, of_interface};
use super::desired::{SourceRouting, SourceTable};
use crate::pod_lock::PodLock;
use routes::MissingRoute;

/// Compares rules and routes with those that the recorded result requires.
pub(super) fn inspect<'p>(req: &Request<'p>, routing: SourceRouting) -> Result<Vec<Finding<'p>>> {
    let recorded = req.recorded()?;
    let mut pod = req.pod()?;
    let link = interface(req, &mut pod)?;
    let (rules, found) = (rule::list(&mut pod.route)?, route::list(&mut pod.route)?);
    let (mut findings, mut tables) = (Vec::new(), Vec::new());
    for ip in of_interface(recorded, &req.ifname) {
        match routing.find_table(ip, &rules) {
            Some(table) => tables.push(table),
            None => {
                let lost = lacks(req, &routes::rule_text(&routing, ip));
                findings.push(lost.repaired_by(add_rule_again(req, routing, ip.clone())));
            }
        }
    }
    // Misplaced routes come first: moving one may add what a table lacks.
    let misplaced = routes::misplaced(&routing, &tables, &found, recorded, &link);
    if let Some(first) = misplaced.first() {
        let to = format!("{}/{}", first.dst, first.prefix);
        let text = format!("route to {to} of {} is in the main table again", req.ifname);
        let (tables, index) = (tables.clone(), link.index);
        let again = with_lock(req, move |pod| move_routes(pod, &routing.moves(&tables, &misplaced, index)));
        findings.push(Finding::new(text).repaired_by(again));
    }
    let is_routed = is_routed(&tables, &link)?;
    let mut missing: Vec<MissingRoute> = Vec::new();
    for table in &tables {
        missing.extend(routes::missing(&routing, table, &found, link.index, is_routed));
    }
    missing.extend(routes::missing_recorded(&routing, &tables, &found, recorded, &link));
    findings.extend(missing.into_iter().map(|missing| {
        let lost = lacks(req, &missing.text);
        lost.repaired_by(with_lock(req, move |pod| add_routes(pod, &missing)))
    }));
    Ok(findings)
}

fn lacks<'p>(req: &Request<'p>, what: &str) -> Finding<'p> {
    Finding::new(format!("source based routing of {} lacks {what}", req.ifname))
}

/// A repair that runs `work` in the pod, under the pod's lock as ADD does.
fn with_lock<'p>(
    req: &Request<'p>,
    work: impl FnOnce(&mut Host) -> Result<()> + 'p,
) -> impl FnOnce() -> Result<()> + 'p {
    let req = req.clone();
    move || {
        let mut pod = req.pod()?;
        let _lock = PodLock::acquire(&pod)?;
        work(&mut pod)
    }
}

/// Adds the routes that are still missing.
fn add_routes(pod: &mut Host, missing: &MissingRoute) -> Result<()> {
    let present = route::list(&mut pod.route)?;
    let is_present = |route: &&route::Route| {
        let key = |one: &route::Route| (one.dst, one.prefix, one.table, one.link, one.gateway);
        present.iter().any(|one| key(one) == key(route))
    };
    let mut batch = Batch::new();
    batch.extend(missing.routes.iter().filter(|route| !is_present(route)).map(route::Route::replace));
    if batch.is_empty() {
        return Ok(());
    }
    Ok(pod.route.batch(batch)?)
}

/// A repair that adds the rule of an address again: to the table that has its routes, or to a new one.
fn add_rule_again<'p>(req: &Request<'p>, routing: SourceRouting, ip: Ip) -> impl FnOnce() -> Result<()> + 'p {
    let ifname = req.ifname.clone();
    with_lock(req, move |pod| {
        let link = pod.get_link(&ifname)?;
        let (rules, routes) = (rule::list(&mut pod.route)?, route::list(&mut pod.route)?);
        let Some(table) = routes::orphaned_table(&routing, &ip, &rules, &routes, link.index) else {
            return add_rules(pod, &[ip], &routing).map(drop);
        };
        let source = ip.address.addr();
        let rule = Rule { source: (source, super::desired::host_prefix(&source)), table, priority: None };
        Ok(pod.route.request(rule.add())?)
    })
}

/// Whether the node is the pod's only neighbour: the other end of the veth pair is not on a bridge, and the node has a
/// host route to the pod's address through it. Then the pod's subnet is behind the gateway.
fn is_routed(tables: &[SourceTable], pod_end: &Link) -> Result<bool> {
    let Some(index) = pod_end.link.filter(|_| pod_end.kind == "veth") else { return Ok(false) };
    let mut node = Host::here()?;
    let end =
        link::find_index(&mut node.route, index).doing(|| "find the other end of the veth pair".into())?;
    let Some(end) = end.filter(|end| end.kind == "veth" && end.master.is_none()) else { return Ok(false) };
    let routes = route::list(&mut node.route)?;
    let is_host_route = |table: &SourceTable| {
        let ip = table.address.addr();
        routes.iter().any(|route| {
            (route.dst, route.prefix, route.link) == (ip, super::desired::host_prefix(&ip), Some(end.index))
        })
    };
    Ok(tables.iter().any(is_host_route))
}
