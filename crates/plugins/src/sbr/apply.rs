//! Applies source based routing in the pod: rules, copies of routes, and their removal.

use std::net::IpAddr;

use podwire_cni_plugin::{Context, Error, Request, Result};
use podwire_cni_spec::{Attachment, Ip};
use podwire_kernel::rt::{route, rule};
use podwire_kernel::{Host, Link};
use podwire_netlink::Batch;

use super::desired::{host_prefix, RouteMoves, SourceRouting, SourceTable};

pub(super) const NO_POLICY_ROUTING: &str =
    "the kernel has no policy routing: sbr needs CONFIG_IP_MULTIPLE_TABLES and, for IPv6, CONFIG_IPV6_MULTIPLE_TABLES";

/// The recorded addresses of the interface. An address that names no interface counts as its own.
pub(super) fn of_interface<'a>(result: &'a Attachment, ifname: &'a str) -> impl Iterator<Item = &'a Ip> + 'a {
    let is_own = move |ip: &&Ip| match ip.interface.and_then(|index| result.interfaces.get(index)) {
        Some(interface) => interface.name == ifname,
        None => true,
    };
    result.ips.iter().filter(is_own)
}

/// The interface in the pod.
pub(super) fn interface(req: &Request<'_>, pod: &mut Host) -> Result<Link> {
    pod.get_link(&req.ifname).doing(|| format!("Cannot find network interface {}", req.ifname))
}

/// Adds a rule for each address and returns the tables. Rules come first: a table is found again by its rule. A rule to
/// an empty table does no harm, because the kernel continues with the main table.
pub(super) fn add_rules(pod: &mut Host, sources: &[Ip], routing: &SourceRouting) -> Result<Vec<SourceTable>> {
    let rules = rule::list(&mut pod.route)?;
    let mut taken = rule::tables(&mut pod.route)?;
    taken.extend(route::list(&mut pod.route)?.iter().map(|route| route.table));
    let tables = routing.tables(sources, &rules, &taken)?;
    let mut batch = Batch::new();
    batch.extend(tables.iter().filter(|table| table.is_new).map(|table| table.rule().add()));
    match pod.route.batch(batch) {
        Err(error) if error.is_unsupported() => Err(error).doing(|| NO_POLICY_ROUTING.into()),
        other => other.doing(|| "Failed to add rule".into()),
    }?;
    Ok(tables)
}

/// Copies the interface's routes into the tables, then deletes them from the main table. The order matters: a gateway
/// must be reachable when a route through it is added.
pub(super) fn move_routes(pod: &mut Host, moves: &RouteMoves) -> Result<()> {
    let mut batch = Batch::new();
    batch.extend(moves.copies.iter().map(route::Route::replace));
    pod.route.batch(batch).doing(|| "Failed to copy a route to its table".into())?;
    let mut batch = Batch::new();
    batch.extend(moves.leaving.iter().map(route::Route::delete));
    // Added, not replaced: another interface on the same subnet may have its route in the main table.
    batch.extend(moves.hints.iter().map(route::Route::add));
    pod.route.batch(batch).doing(|| "Failed to delete route from the main table".into())
}

/// Restores the main table after a failure.
pub(super) fn undo_moves(req: &Request<'_>, moves: &RouteMoves) -> Result<()> {
    let mut batch = Batch::new();
    batch.extend(moves.copies.iter().chain(&moves.hints).map(route::Route::delete));
    // On-link routes come before routes through a gateway.
    batch.extend(moves.leaving.iter().rev().map(route::Route::add));
    Ok(req.pod()?.route.batch(batch)?)
}

/// Removes the rules for packets from exactly these addresses, only those to `table` if it is given.
pub(super) fn remove_rules(pod: &mut Host, addresses: &[IpAddr], table: Option<u32>) -> Result<()> {
    let mut errors = Vec::new();
    for rule in rule::list(&mut pod.route)? {
        let is_ours = addresses.contains(&rule.source.0) && table.is_none_or(|table| table == rule.table);
        if !is_ours || rule.source.1 != host_prefix(&rule.source.0) {
            continue;
        }
        match pod.route.request(rule.delete()) {
            Err(error) if !error.is_gone() => errors.push(error.into()),
            _ => {}
        }
    }
    Error::all(errors)
}
