//! The routes that are wanted, compared with those that are there.
//!
//! A route is ours if it has our protocol number; or if it lies on a device of ours and is one that flanneld wrote there
//! (it has no number of its own: `boot` or `static`). One that nobody signed (`boot`) and that leads exactly where ours would
//! is what flanneld leaves on the wire with host-gw: it becomes ours, so that it goes when its node does. All others belong to
//! somebody, and stay as they are even if they are in the way: then that is told.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_netlink::rt::route::{self, Route};
use podwire_netlink::Message;

use crate::PROTOCOL;

/// The metric that the kernel gives an IPv6 route that has none.
const IPV6_METRIC: u32 = 1024;

/// What is known of our own.
pub(crate) struct Claim<'a> {
    /// The indices of our devices.
    pub devices: &'a [u32],
    /// The cluster's networks.
    pub networks: &'a [IpNet],
    /// The number of a program whose routes in these networks become ours.
    pub predecessor: Option<u8>,
}

/// What is to be done.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// Routes of ours that nobody wants. They go before neighbours do.
    pub obsolete: Vec<Message>,
    /// Routes that are missing or lead elsewhere. They come when neighbours are there.
    pub needed: Vec<Message>,
    /// Destinations that somebody else's route has: what it says of itself.
    pub occupied: Vec<(IpNet, String)>,
}

impl Claim<'_> {
    fn owns(&self, route: &Route) -> bool {
        route.protocol == PROTOCOL || self.is_inherited(route) || self.is_leftover(route)
    }

    fn is_inherited(&self, route: &Route) -> bool {
        self.predecessor == Some(route.protocol) && self.is_in_cluster(route)
    }

    fn is_in_cluster(&self, route: &Route) -> bool {
        let to = IpNet::new(route.dst, route.prefix);
        to.is_ok_and(|to| self.networks.iter().any(|net| net.contains(&to)))
    }

    /// Whether flanneld left it. Its routes lead through the first address of where they lead to, or into the cluster; an
    /// administrator's route over the device to somewhere else is none of them.
    fn is_leftover(&self, route: &Route) -> bool {
        let by_nobody = matches!(route.protocol, route::BY_TOOL | route::BY_ADMINISTRATOR);
        let on_ours = route.link.is_some_and(|link| self.devices.contains(&link));
        by_nobody
            && on_ours
            && ((route.onlink && route.gateway == Some(route.dst)) || self.is_in_cluster(route))
    }
}

type Key = (IpAddr, u8, u32);

fn key(route: &Route) -> Key {
    let metric = match route.priority.unwrap_or(0) {
        0 if route.dst.is_ipv6() => IPV6_METRIC,
        metric => metric,
    };
    (route.dst, route.prefix, metric)
}

/// Whether packets take the same way by both.
fn leads_alike(one: &Route, other: &Route) -> bool {
    (one.gateway, one.link, one.kind) == (other.gateway, other.link, other.kind)
}

/// Whether nobody signed a route that takes packets where the wanted one will.
fn is_unsigned_twin(found: &Route, wanted: &Route) -> bool {
    found.protocol == route::BY_TOOL && leads_alike(found, wanted)
}

/// Whether there is nothing to be done about a route of ours.
fn is_as_wanted(found: &Route, wanted: &Route) -> bool {
    // IPv6 has no scopes.
    let scopes = wanted.dst.is_ipv6() || found.scope == wanted.scope;
    let plain = found.source.is_none() && found.mtu.is_none() && found.advmss.is_none();
    leads_alike(found, wanted)
        && found.protocol == wanted.protocol
        && found.onlink == wanted.onlink
        && scopes
        && plain
}

/// What makes the routes that are `found` (of the main table) those that are `wanted`.
pub(crate) fn difference(wanted: &[Route], found: &[Route], claim: &Claim<'_>) -> Difference {
    let mut there: HashMap<Key, Vec<&Route>> = HashMap::with_capacity(found.len());
    for route in found {
        there.entry(key(route)).or_default().push(route);
    }
    let mut difference = Difference::default();
    for route in wanted {
        let rivals = there.remove(&key(route)).unwrap_or_default();
        difference.settle(route, &rivals, claim);
    }
    // What is left at destinations that nobody wants.
    let mut left: Vec<&Route> = there.into_values().flatten().filter(|route| claim.owns(route)).collect();
    left.sort_by_key(|route| (route.dst, route.prefix));
    difference.obsolete.extend(left.into_iter().map(Route::delete));
    difference
}

impl Difference {
    /// Decides about one destination, at which `rivals` are.
    fn settle(&mut self, wanted: &Route, rivals: &[&Route], claim: &Claim<'_>) {
        let (ours, foreign): (Vec<&Route>, Vec<&Route>) = rivals.iter().partition(|route| claim.owns(route));
        if let Some(good) = ours.iter().position(|route| is_as_wanted(route, wanted)) {
            let others = ours.iter().enumerate().filter(|(n, _)| *n != good);
            self.obsolete.extend(others.map(|(_, route)| route.delete()));
            return;
        }
        if let ([], [twin]) = (ours.as_slice(), foreign.as_slice()) {
            if is_unsigned_twin(twin, wanted) {
                self.needed.push(wanted.replace());
                return;
            }
        }
        if let Some(occupant) = foreign.first() {
            self.obsolete.extend(ours.iter().map(|route| route.delete()));
            // Somebody else's route that leads where ours would is as good.
            if !foreign.iter().any(|route| leads_alike(route, wanted)) {
                if let Ok(to) = IpNet::new(wanted.dst, wanted.prefix) {
                    self.occupied.push((to, describe(occupant)));
                }
            }
            return;
        }
        match ours.as_slice() {
            [] => self.needed.push(wanted.create()),
            // One message, and no packet is lost in between. (In IPv6 the gateway must not be found behind another
            // device, not even by the route that is being replaced.)
            [one] if wanted.dst.is_ipv4() || one.link == wanted.link => self.needed.push(wanted.replace()),
            many => {
                self.needed.extend(many.iter().map(|route| route.delete()));
                self.needed.push(wanted.create());
            }
        }
    }
}

fn describe(route: &Route) -> String {
    let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    let link = route.link.map(|link| format!(" over link number {link}")).unwrap_or_default();
    format!("a route{via}{link} of protocol {}", route.protocol)
}

#[cfg(test)]
mod tests;
