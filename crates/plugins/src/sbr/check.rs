//! CHECK of source based routing: every rule, every lane's ways, and nothing of them in the main table.

mod ways;

use podwire_cni_plugin::{Context, Finding, Request, Result};
use podwire_cni_spec::Ip;
use podwire_kernel::rt::rule::Rule;
use podwire_kernel::rt::{link, route, rule};
use podwire_kernel::{Host, Link};
use podwire_netlink::Batch;

use super::plan::{Lane, Plan};
use super::turn::Turn;
use super::{carry_out, interface, of_interface, open_lanes};
use ways::Way;

/// Compares rules and routes with what the plan makes of the recorded result.
pub(super) fn inspect<'p>(req: &Request<'p>, plan: Plan) -> Result<Vec<Finding<'p>>> {
    let recorded = req.recorded()?;
    let mut pod = req.pod()?;
    let link = interface(req, &mut pod)?;
    let (rules, routes) = (rule::list(&mut pod.route)?, route::list(&mut pod.route)?);
    let (mut findings, mut lanes) = (Vec::new(), Vec::new());
    for ip in of_interface(recorded, &req.ifname) {
        match plan.find_lane(ip, &rules) {
            Some(lane) => lanes.push(lane),
            None => {
                let lost = lacks(req, &ways::rule_text(&plan, ip));
                findings.push(lost.repaired_by(lead_again(req, plan, ip.clone())));
            }
        }
    }
    // What has come back to the main table goes first: it may be what a lane lacks.
    let strays = ways::strays(&plan, &lanes, &routes, (recorded, &link));
    if let Some(first) = strays.first() {
        let to = format!("{}/{}", first.dst, first.prefix);
        let text = format!("route to {to} of {} is in the main table again", req.ifname);
        let (lanes, index) = (lanes.clone(), link.index);
        let again = in_turn(req, move |pod| carry_out(pod, &plan.moves(&lanes, &strays, index)));
        findings.push(Finding::new(text).repaired_by(again));
    }
    let routed = is_routed(&lanes, &link)?;
    let mut missing: Vec<Way> = Vec::new();
    for lane in &lanes {
        missing.extend(ways::missing(&plan, lane, &routes, (link.index, routed)));
    }
    missing.extend(ways::missing_recorded(&plan, &lanes, &routes, (recorded, &link)));
    findings.extend(missing.into_iter().map(|way| {
        let lost = lacks(req, &way.text);
        lost.repaired_by(in_turn(req, move |pod| open_again(pod, &way)))
    }));
    Ok(findings)
}

fn lacks<'p>(req: &Request<'p>, what: &str) -> Finding<'p> {
    Finding::new(format!("source based routing of {} lacks {what}", req.ifname))
}

/// Does `work` in the pod when it comes to that, alone as ADD is.
fn in_turn<'p>(
    req: &Request<'p>,
    work: impl FnOnce(&mut Host) -> Result<()> + 'p,
) -> impl FnOnce() -> Result<()> + 'p {
    let req = req.clone();
    move || {
        let mut pod = req.pod()?;
        let _turn = Turn::take(&pod)?;
        work(&mut pod)
    }
}

/// Makes the routes of a way that are not there by then.
fn open_again(pod: &mut Host, way: &Way) -> Result<()> {
    let there = route::list(&mut pod.route)?;
    let is_there = |route: &&route::Route| {
        let place = |one: &route::Route| (one.dst, one.prefix, one.table, one.link, one.gateway);
        there.iter().any(|one| place(one) == place(route))
    };
    let mut batch = Batch::new();
    batch.extend(way.routes.iter().filter(|route| !is_there(route)).map(route::Route::replace));
    match batch.is_empty() {
        true => Ok(()),
        false => Ok(pod.route.batch(batch)?),
    }
}

/// Leads packets from the address to its table again: to the one that has its routes, or to a new one.
fn lead_again<'p>(req: &Request<'p>, plan: Plan, ip: Ip) -> impl FnOnce() -> Result<()> + 'p {
    let ifname = req.ifname.clone();
    in_turn(req, move |pod| {
        let link = pod.get_link(&ifname)?;
        let (rules, routes) = (rule::list(&mut pod.route)?, route::list(&mut pod.route)?);
        let Some(table) = ways::orphaned_table(&plan, &ip, (&rules, &routes), link.index) else {
            return open_lanes(pod, &[ip], &plan).map(drop);
        };
        let source = ip.address.addr();
        let rule = Rule { source: (source, super::plan::host_prefix(&source)), table, priority: None };
        Ok(pod.route.request(rule.add())?)
    })
}

/// Whether the pod is alone with the node on its wire: a cable that ends at the node itself, which has a route of its
/// own to the pod's address. Then the pod's neighbours are behind the gateway.
fn is_routed(lanes: &[Lane], inside: &Link) -> Result<bool> {
    let Some(index) = inside.link.filter(|_| inside.kind == "veth") else { return Ok(false) };
    let mut node = Host::here()?;
    let end = link::find_index(&mut node.route, index).doing(|| "look for the other end".into())?;
    let Some(end) = end.filter(|end| end.kind == "veth" && end.master.is_none()) else { return Ok(false) };
    let routes = route::list(&mut node.route)?;
    let leads = |lane: &Lane| {
        let ip = lane.address.addr();
        routes.iter().any(|route| {
            (route.dst, route.prefix, route.link) == (ip, super::plan::host_prefix(&ip), Some(end.index))
        })
    };
    Ok(lanes.iter().any(leads))
}
