//! Computes the missing and misplaced routes of the tables. No I/O.

use podwire_cni_spec::{Attachment, Ip};
use podwire_ip::IpFamily;
use podwire_kernel::rt::route::{self, Route};
use podwire_kernel::rt::rule::Rule;
use podwire_kernel::Link;

use super::super::desired::{host_prefix, SourceRouting, SourceTable};
use crate::pod_interface;

/// The metric of the routes that the kernel creates for IPv6 addresses (`IP6_RT_PRIO_ADDRCONF`, net/ip6_route.h).
const ADDRCONF_METRIC: u32 = 256;

/// A missing route: its description, and the routes that restore it, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MissingRoute {
    pub text: String,
    pub routes: Vec<Route>,
}

/// The description of a missing rule.
pub(super) fn rule_text(routing: &SourceRouting, ip: &Ip) -> String {
    let source = ip.address.addr();
    let to = routing.table.map_or("its own table".to_string(), |table| format!("table {table}"));
    format!("rule from {source}/{} to {to}", host_prefix(&source))
}

/// The table that has the routes of an address, but no rule.
pub(super) fn orphaned_table(
    routing: &SourceRouting,
    ip: &Ip,
    rules: &[Rule],
    routes: &[Route],
    link: u32,
) -> Option<u32> {
    let table =
        SourceTable { address: ip.address, gateway: routing.gateways.of(ip), number: 0, is_new: true };
    let is_free = |table: u32| routing.fits(table) && !rules.iter().any(|rule| rule.table == table);
    let is_of_table = |route: &&Route| {
        route.link == Some(link)
            && table.is_of_family(route)
            && (is_subnet(&table, route) || (route.is_default() && route.gateway == table.gateway))
    };
    routes.iter().filter(is_of_table).map(|route| route.table).find(|table| is_free(*table))
}

fn is_subnet(table: &SourceTable, route: &Route) -> bool {
    let subnet = table.address.trunc();
    (route.dst, route.prefix) == (subnet.addr(), subnet.prefix_len())
}

/// The routes that a table should have and `routes` lack: to its subnet, the default route, its hint in the main table.
/// If the interface `is_routed`, the subnet is behind the gateway, otherwise on the link.
pub(super) fn missing(
    routing: &SourceRouting,
    table: &SourceTable,
    routes: &[Route],
    link: u32,
    is_routed: bool,
) -> Vec<MissingRoute> {
    let mut missing = Vec::new();
    if routing.table.is_some() {
        return missing;
    }
    let on_link = || routes.iter().filter(|route| route.link == Some(link));
    let in_table = || on_link().filter(|route| route.table == table.number);
    let subnet = table.address.trunc();
    let is_host = subnet.prefix_len() == host_prefix(&subnet.addr());
    if !is_host && !in_table().any(|route| is_subnet(table, route)) {
        let routes = subnet_routes(table, link, is_routed);
        let routes = routes.into_iter().map(|route| Route { table: table.number, ..route }).collect();
        missing.push(MissingRoute { text: format!("route to {subnet} in table {}", table.number), routes });
    }
    if let Some((gateway, default)) = table.gateway.zip(table.default_route(link)) {
        if !in_table().any(|route| route.is_default() && route.gateway == Some(gateway)) {
            let text = format!("default route via {gateway} in table {}", table.number);
            missing.push(MissingRoute { text, routes: vec![default] });
        }
    }
    let is_hint = |route: &Route| route.table == route::MAIN && is_subnet(table, route);
    if routing.hints && !is_host && !on_link().any(is_hint) {
        let hint = Route { source: Some(table.address.addr()), ..on_link_route(table, link) };
        missing
            .push(MissingRoute { text: format!("route to {subnet} in the main table"), routes: vec![hint] });
    }
    missing
}

/// The routes to the address's subnet: on the link, or behind the gateway, which is on the link.
fn subnet_routes(table: &SourceTable, link: u32, is_routed: bool) -> Vec<Route> {
    let Some(gateway) = table.gateway.filter(|_| is_routed) else { return vec![on_link_route(table, link)] };
    let subnet = table.address.trunc();
    let from = Route {
        link: Some(link),
        source: Some(table.address.addr()),
        ..Route::to(gateway, host_prefix(&gateway))
    };
    let behind =
        Route { dst: subnet.addr(), prefix: subnet.prefix_len(), gateway: Some(gateway), ..from.clone() };
    vec![Route { scope: route::LINK, ..from }, behind]
}

/// The route that the kernel creates for an address. For IPv6 it has no source.
fn on_link_route(table: &SourceTable, link: u32) -> Route {
    let (subnet, address) = (table.address.trunc(), table.address.addr());
    let route = Route {
        link: Some(link),
        protocol: route::BY_KERNEL,
        ..Route::to(subnet.addr(), subnet.prefix_len())
    };
    match IpFamily::of(address) {
        IpFamily::V4 => Route { source: Some(address), scope: route::LINK, ..route },
        IpFamily::V6 => Route { priority: Some(ADDRCONF_METRIC), ..route },
    }
}

/// The recorded routes that are in no routing table. They are added to the tables that claim them, or to all of their
/// family.
pub(super) fn missing_recorded(
    routing: &SourceRouting,
    tables: &[SourceTable],
    routes: &[Route],
    recorded: &Attachment,
    link: &Link,
) -> Vec<MissingRoute> {
    let in_table = |table: &SourceTable, route: &Route| Route { table: table.number, ..route.clone() };
    let is_present = |wanted: &&podwire_cni_spec::Route| {
        routes.iter().any(|found| {
            (found.dst, found.prefix) == (wanted.dst.network(), wanted.dst.prefix_len())
                && (wanted.gw.is_none() || wanted.dst.prefix_len() == 0 || found.gateway == wanted.gw)
        })
    };
    let missing = recorded.routes.iter().filter(|wanted| !is_present(wanted));
    let missing_route = |wanted: &podwire_cni_spec::Route| {
        let route = pod_interface::kernel_route(wanted, link, recorded);
        let is_claimed = tables.iter().any(|table| table.claims(&route));
        let takes =
            |table: &&SourceTable| if is_claimed { table.claims(&route) } else { table.is_of_family(&route) };
        let mut routes: Vec<Route> =
            tables.iter().filter(takes).map(|table| in_table(table, &route)).collect();
        if wanted.table.is_some() || routing.table.is_some() || routes.is_empty() {
            routes = vec![route];
        }
        MissingRoute { text: format!("route to {}", wanted.dst), routes }
    };
    missing.map(missing_route).collect()
}

/// Routes that must be in the tables and are in the main table again: the kernel adds some when a link comes up. Other
/// routes through the interface are ignored.
pub(super) fn misplaced(
    routing: &SourceRouting,
    tables: &[SourceTable],
    routes: &[Route],
    recorded: &Attachment,
    link: &Link,
) -> Vec<Route> {
    if routing.table.is_some() {
        return Vec::new();
    }
    let is_recorded = |route: &Route| {
        recorded.routes.iter().any(|wanted| {
            wanted.table.is_none()
                && (route.dst, route.prefix) == (wanted.dst.network(), wanted.dst.prefix_len())
                && (wanted.gw.is_none() || route.gateway == wanted.gw)
        })
    };
    let mut misplaced = routing.moves(tables, routes, link.index).leaving;
    let is_of_subnet = |table: &SourceTable, route: &Route| {
        let to_gateway = table.gateway == Some(route.dst) && route.prefix == host_prefix(&route.dst);
        is_subnet(table, route) || to_gateway
    };
    misplaced.retain(|route| is_recorded(route) || tables.iter().any(|table| is_of_subnet(table, route)));
    misplaced
}

#[cfg(test)]
mod tests;
