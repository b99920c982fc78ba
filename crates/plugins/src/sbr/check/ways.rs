//! Which ways a lane should have and does not. No kernel here: lists in, lists out.

use podwire_cni_spec::{Attachment, Ip};
use podwire_kernel::rt::route::{self, Route};
use podwire_kernel::rt::rule::Rule;
use podwire_kernel::Link;

use super::super::plan::{host_prefix, Lane, Plan};
use crate::pod_interface;

/// The metric of the routes that the kernel makes for IPv6 addresses (`IP6_RT_PRIO_ADDRCONF`, net/ip6_route.h).
const ADDRCONF_METRIC: u32 = 256;

/// Something that is missing: in words, and the routes that put it back, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub text: String,
    pub routes: Vec<Route>,
}

/// How a rule that is not there is called.
pub(super) fn rule_text(plan: &Plan, ip: &Ip) -> String {
    let source = ip.address.addr();
    let to = plan.table.map_or("a table of its own".to_string(), |table| format!("table {table}"));
    format!("rule from {source}/{} to {to}", host_prefix(&source))
}

/// The table that has the routes of an address and that no rule leads to.
pub(super) fn orphaned_table(
    plan: &Plan,
    ip: &Ip,
    (rules, routes): (&[Rule], &[Route]),
    link: u32,
) -> Option<u32> {
    let lane = Lane { address: ip.address, gateway: plan.gateways.of(ip), table: 0, is_new: true };
    let free = |table: u32| plan.fits(table) && !rules.iter().any(|rule| rule.table == table);
    let is_of_lane = |route: &&Route| {
        route.link == Some(link)
            && lane.is_of_family(route)
            && (is_subnet(&lane, route) || (route.is_default() && route.gateway == lane.gateway))
    };
    routes.iter().filter(is_of_lane).map(|route| route.table).find(|table| free(*table))
}

fn is_subnet(lane: &Lane, route: &Route) -> bool {
    let subnet = lane.address.trunc();
    (route.dst, route.prefix) == (subnet.addr(), subnet.prefix_len())
}

/// What a lane should have and `routes` do not: the way to its subnet, its way out, its hint in the main table. The
/// pod of a `routed` interface has its neighbours behind the gateway, else they are on the wire.
pub(super) fn missing(plan: &Plan, lane: &Lane, routes: &[Route], (link, routed): (u32, bool)) -> Vec<Way> {
    let mut missing = Vec::new();
    if plan.table.is_some() {
        return missing;
    }
    let on_link = || routes.iter().filter(|route| route.link == Some(link));
    let in_lane = || on_link().filter(|route| route.table == lane.table);
    let subnet = lane.address.trunc();
    let whole = subnet.prefix_len() == host_prefix(&subnet.addr());
    if !whole && !in_lane().any(|route| is_subnet(lane, route)) {
        let near = near(lane, link, routed);
        let routes = near.into_iter().map(|route| Route { table: lane.table, ..route }).collect();
        missing.push(Way { text: format!("route to {subnet} in table {}", lane.table), routes });
    }
    if let Some((gateway, way_out)) = lane.gateway.zip(lane.default_route(link)) {
        if !in_lane().any(|route| route.is_default() && route.gateway == Some(gateway)) {
            let text = format!("default route via {gateway} in table {}", lane.table);
            missing.push(Way { text, routes: vec![way_out] });
        }
    }
    let is_hint = |route: &Route| route.table == route::MAIN && is_subnet(lane, route);
    if plan.hints && !whole && !on_link().any(is_hint) {
        let hint = Route { source: Some(lane.address.addr()), ..wire(lane, link) };
        missing.push(Way { text: format!("route to {subnet} in the main table"), routes: vec![hint] });
    }
    missing
}

/// The way to the lane's neighbours: on the wire, or behind the gateway, which is.
fn near(lane: &Lane, link: u32, routed: bool) -> Vec<Route> {
    let Some(gateway) = lane.gateway.filter(|_| routed) else { return vec![wire(lane, link)] };
    let subnet = lane.address.trunc();
    let from = Route {
        link: Some(link),
        source: Some(lane.address.addr()),
        ..Route::to(gateway, host_prefix(&gateway))
    };
    let behind =
        Route { dst: subnet.addr(), prefix: subnet.prefix_len(), gateway: Some(gateway), ..from.clone() };
    vec![Route { scope: route::LINK, ..from }, behind]
}

/// The route that the kernel makes for an address, which of IPv6 names no sender.
fn wire(lane: &Lane, link: u32) -> Route {
    let (subnet, address) = (lane.address.trunc(), lane.address.addr());
    let route = Route {
        link: Some(link),
        protocol: route::BY_KERNEL,
        ..Route::to(subnet.addr(), subnet.prefix_len())
    };
    match address.is_ipv4() {
        true => Route { source: Some(address), scope: route::LINK, ..route },
        false => Route { priority: Some(ADDRCONF_METRIC), ..route },
    }
}

/// The recorded routes that are in no table. They go to the lanes that claim them, or to all of their family.
pub(super) fn missing_recorded(
    plan: &Plan,
    lanes: &[Lane],
    routes: &[Route],
    (recorded, link): (&Attachment, &Link),
) -> Vec<Way> {
    let lane_route = |lane: &Lane, route: &Route| Route { table: lane.table, ..route.clone() };
    let is_there = |wanted: &&podwire_cni_spec::Route| {
        routes.iter().any(|found| {
            (found.dst, found.prefix) == (wanted.dst.network(), wanted.dst.prefix_len())
                && (wanted.gw.is_none() || wanted.dst.prefix_len() == 0 || found.gateway == wanted.gw)
        })
    };
    let missing = recorded.routes.iter().filter(|wanted| !is_there(wanted));
    let way = |wanted: &podwire_cni_spec::Route| {
        let route = pod_interface::kernel_route(wanted, link, recorded);
        let claimed = lanes.iter().any(|lane| lane.claims(&route));
        let takes = |lane: &&Lane| if claimed { lane.claims(&route) } else { lane.is_of_family(&route) };
        let mut routes: Vec<Route> =
            lanes.iter().filter(takes).map(|lane| lane_route(lane, &route)).collect();
        if wanted.table.is_some() || plan.table.is_some() || routes.is_empty() {
            routes = vec![route];
        }
        Way { text: format!("route to {}", wanted.dst), routes }
    };
    missing.map(way).collect()
}

/// Routes of the lanes that have come back to the main table: the kernel makes some when a link comes up. Others'
/// routes over the interface are none of ours.
pub(super) fn strays(
    plan: &Plan,
    lanes: &[Lane],
    routes: &[Route],
    (recorded, link): (&Attachment, &Link),
) -> Vec<Route> {
    if plan.table.is_some() {
        return Vec::new();
    }
    let is_recorded = |route: &Route| {
        recorded.routes.iter().any(|wanted| {
            wanted.table.is_none()
                && (route.dst, route.prefix) == (wanted.dst.network(), wanted.dst.prefix_len())
                && (wanted.gw.is_none() || route.gateway == wanted.gw)
        })
    };
    let mut strays = plan.moves(lanes, routes, link.index).leaving;
    let is_near = |lane: &Lane, route: &Route| {
        let to_gateway = lane.gateway == Some(route.dst) && route.prefix == host_prefix(&route.dst);
        is_subnet(lane, route) || to_gateway
    };
    strays.retain(|route| is_recorded(route) || lanes.iter().any(|lane| is_near(lane, route)));
    strays
}

#[cfg(test)]
mod tests;
