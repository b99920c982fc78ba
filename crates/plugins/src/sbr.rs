//! sbr: source based routing, for pods with legs in several networks.
//!
//! A route is normally chosen by where a packet goes. A pod that answers from its second interface's address
//! would then send the answer through the first one's gateway, where it is dropped. Here the sender decides:
//! each address of the interface gets a routing table of its own with the interface's routes in it, and a rule
//! that sends packets *from* that address to that table.
//!
//! Everything lives in the pod's namespace and ends with it.

mod check;
mod plan;
pub(crate) mod turn;

use std::net::IpAddr;

use podwire_cni_plugin::{Context, Error, Finding, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Ip};
use podwire_kernel::rt::{address, route, rule};
use podwire_kernel::{Host, Link, Undo};
use podwire_netlink::Batch;
use serde::Deserialize;

use crate::veth_pair;
use plan::{Gateways, Lane, Moves, Plan};
use turn::Turn;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Conf {
    /// The administrator fills this table; only rules are made.
    table: Option<u32>,
    /// The gateways to use in place of the recorded ones.
    gateways: Vec<String>,
    /// Routes on the wire stay in the main table too, for packets that have no sender yet.
    add_source_hints: bool,
}

impl Conf {
    fn plan(&self) -> Result<Plan> {
        Ok(Plan {
            table: self.table,
            gateways: Gateways::parse(&self.gateways)?,
            hints: self.add_source_hints,
        })
    }
}

/// The plugin.
#[derive(Debug)]
pub struct Sbr;

impl Plugin for Sbr {
    fn name(&self) -> &'static str {
        "sbr"
    }

    fn about(&self) -> &'static str {
        "sbr: routes by source address, for pods with several interfaces"
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let plan = req.config::<Conf>()?.plan()?;
        let missing = "This plugin must be called as chained plugin: prevResult is missing";
        let result = req.prev.as_ref().ok_or_else(|| podwire_cni_spec::Error::invalid_config(missing))?;
        let sources = sources(result, &req.ifname)?;
        let mut pod = req.pod()?;
        let _turn = Turn::take(&pod)?;
        let link = interface(req, &mut pod)?;
        let mut undo = Undo::new();
        undo.push(|| drop(take_back_rules(req, &sources)));
        let lanes = open_lanes(&mut pod, &sources, &plan)?;
        if plan.table.is_none() {
            let moves = plan.moves(&lanes, &route::list(&mut pod.route)?, link.index);
            let backwards = moves.clone();
            undo.push(move || drop(take_back_moves(req, &backwards)));
            carry_out(&mut pod, &moves)?;
        }
        undo.keep();
        Ok(result.clone())
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let Some(mut pod) = req.find_pod()? else { return Ok(()) };
        let _turn = Turn::take(&pod)?;
        let recorded = req.prev.iter().flat_map(|prev| of_interface(prev, &req.ifname));
        let mut addresses: Vec<IpAddr> = recorded.map(|ip| ip.address.addr()).collect();
        match interface_there(req, &mut pod)? {
            Some(Its::Own(there)) => addresses.extend(there),
            // It may have got an address that was this one's.
            Some(Its::Anothers(there)) => addresses.retain(|address| !there.contains(address)),
            None => {}
        }
        let table = req.config::<Conf>().ok().and_then(|conf| conf.table);
        remove_rules(&mut pod, &addresses, table)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        check::inspect(req, req.config::<Conf>()?.plan()?)
    }

    fn gc(&self, _: &Request<'_>) -> Result<()> {
        turn::collect()
    }

    /// Without rules in the kernel no ADD can succeed.
    fn status(&self, req: &Request<'_>) -> Result<()> {
        req.config::<Conf>()?.plan()?;
        match rule::is_supported(&mut Host::here()?.route)? {
            true => Ok(()),
            false => {
                Err(podwire_cni_spec::Error::new(podwire_cni_spec::code::NOT_AVAILABLE, NO_POLICY_ROUTING)
                    .into())
            }
        }
    }
}

/// The addresses of the interface that has the name now.
enum Its {
    Own(Vec<IpAddr>),
    Anothers(Vec<IpAddr>),
}

fn interface_there(req: &Request<'_>, pod: &mut Host) -> Result<Option<Its>> {
    let Some(link) = pod.find_link(&req.ifname)? else { return Ok(None) };
    let there = match address::list(&mut pod.route, link.index) {
        Ok(all) => all.into_iter().map(|one| one.ip).collect(),
        // It goes right now.
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(match veth_pair::belongs_to_another(req, &mut Host::here()?, &link)? {
        true => Its::Anothers(there),
        false => Its::Own(there),
    }))
}

const NO_POLICY_ROUTING: &str =
    "the kernel has no policy routing: sbr needs CONFIG_IP_MULTIPLE_TABLES and, for IPv6, CONFIG_IPV6_MULTIPLE_TABLES";

/// The recorded addresses of the interface; one that names no interface is taken for its.
fn of_interface<'a>(result: &'a Attachment, ifname: &'a str) -> impl Iterator<Item = &'a Ip> + 'a {
    let belongs = move |ip: &&Ip| match ip.interface.and_then(|index| result.interfaces.get(index)) {
        Some(interface) => interface.name == ifname,
        None => true,
    };
    result.ips.iter().filter(belongs)
}

fn sources(result: &Attachment, ifname: &str) -> Result<Vec<Ip>> {
    let all: Vec<Ip> = of_interface(result, ifname).cloned().collect();
    match all.is_empty() {
        false => Ok(all),
        true => {
            let text = format!("No IP addresses supplied on interface: {ifname}");
            Err(podwire_cni_spec::Error::invalid_config(text)
                .with_details("sbr needs an ipam plugin before it")
                .into())
        }
    }
}

fn interface(req: &Request<'_>, pod: &mut Host) -> Result<Link> {
    pod.get_link(&req.ifname).doing(|| format!("Cannot find network interface {}", req.ifname))
}

/// A rule for each address. Made first: it is how a table is found again, and a table without routes does no
/// harm, since the kernel then goes on to the main one.
fn open_lanes(pod: &mut Host, sources: &[Ip], plan: &Plan) -> Result<Vec<Lane>> {
    let rules = rule::list(&mut pod.route)?;
    let mut taken = rule::tables(&mut pod.route)?;
    taken.extend(route::list(&mut pod.route)?.iter().map(|route| route.table));
    let lanes = plan.lanes(sources, &rules, &taken)?;
    let mut batch = Batch::new();
    batch.extend(lanes.iter().filter(|lane| lane.is_new).map(|lane| lane.rule().add()));
    match pod.route.batch(batch) {
        Err(error) if error.is_unsupported() => Err(error).doing(|| NO_POLICY_ROUTING.into()),
        other => other.doing(|| "Failed to add rule".into()),
    }?;
    Ok(lanes)
}

/// Copies the interface's routes into the lanes, then takes them from the main table. In this order, because a
/// gateway must be reachable when a route through it is made.
fn carry_out(pod: &mut Host, moves: &Moves) -> Result<()> {
    let mut batch = Batch::new();
    batch.extend(moves.copies.iter().map(route::Route::replace));
    pod.route.batch(batch).doing(|| "Failed to copy a route to its table".into())?;
    let mut batch = Batch::new();
    batch.extend(moves.leaving.iter().map(route::Route::delete));
    // Added, never put in the place of another: an interface to the same subnet may have its route there.
    batch.extend(moves.hints.iter().map(route::Route::add));
    pod.route.batch(batch).doing(|| "Failed to delete route from the main table".into())
}

/// After a failure: the main table as it was.
fn take_back_moves(req: &Request<'_>, moves: &Moves) -> Result<()> {
    let mut batch = Batch::new();
    batch.extend(moves.copies.iter().chain(&moves.hints).map(route::Route::delete));
    // What is on the wire comes back before what leads through a gateway.
    batch.extend(moves.leaving.iter().rev().map(route::Route::add));
    Ok(req.pod()?.route.batch(batch)?)
}

fn take_back_rules(req: &Request<'_>, sources: &[Ip]) -> Result<()> {
    let addresses: Vec<IpAddr> = sources.iter().map(|ip| ip.address.addr()).collect();
    remove_rules(&mut req.pod()?, &addresses, req.config::<Conf>()?.table)
}

/// Removes the rules for packets from exactly these addresses (to `table`, if it is given).
fn remove_rules(pod: &mut Host, addresses: &[IpAddr], table: Option<u32>) -> Result<()> {
    let mut errors = Vec::new();
    for rule in rule::list(&mut pod.route)? {
        let ours = addresses.contains(&rule.source.0) && table.is_none_or(|table| table == rule.table);
        if !ours || rule.source.1 != plan::host_prefix(&rule.source.0) {
            continue;
        }
        match pod.route.request(rule.delete()) {
            Err(error) if !error.is_gone() => errors.push(error.into()),
            _ => {}
        }
    }
    Error::all(errors)
}
