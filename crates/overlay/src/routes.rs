//! Comparison of the desired routes with the routes in the kernel.
//!
//! A route is owned if it has our protocol number, if the predecessor's number marks it (see [`Ownership`]), or if
//! flanneld left it on one of our devices. flanneld uses no protocol number of its own: its routes are `boot` or
//! `static`. A `boot` route on another link that leads exactly where ours would is what flanneld's host-gw leaves; it
//! becomes owned, so that it goes when its node goes. All other routes are foreign. They stay even if they block a
//! desired route, which is reported.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_netlink::rt::route::{self, Route};
use podwire_netlink::Message;

use crate::ownership::PROTOCOL;

/// The metric that the kernel gives to an IPv6 route without one.
const IPV6_METRIC: u32 = 1024;

/// What identifies owned routes.
pub(crate) struct Ownership<'a> {
    /// The indices of owned devices.
    pub devices: &'a [u32],
    /// The cluster's networks.
    pub networks: &'a [IpNet],
    /// The protocol number of a program whose routes in these networks become owned.
    pub predecessor: Option<u8>,
}

/// The changes that make the routes as desired.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// Deletions of owned routes. Sent before neighbours change.
    pub obsolete: Vec<Message>,
    /// Missing or wrong routes. Sent after neighbours were added.
    pub needed: Vec<Message>,
    /// Destinations that a foreign route occupies, with its description.
    pub occupied: Vec<(IpNet, String)>,
}

impl Ownership<'_> {
    fn owns(&self, route: &Route) -> bool {
        route.protocol == PROTOCOL || self.is_predecessors(route) || self.is_flannels(route)
    }

    fn is_predecessors(&self, route: &Route) -> bool {
        self.predecessor == Some(route.protocol) && self.is_in_cluster(route)
    }

    fn is_in_cluster(&self, route: &Route) -> bool {
        let to = IpNet::new(route.dst, route.prefix);
        to.is_ok_and(|to| self.networks.iter().any(|net| net.contains(&to)))
    }

    /// Whether flanneld left the route on an owned device. Its routes go via the first address of their destination, or
    /// into the cluster. Any other route on the device belongs to the administrator.
    fn is_flannels(&self, route: &Route) -> bool {
        let is_unmarked = matches!(route.protocol, route::BY_TOOL | route::BY_ADMINISTRATOR);
        let is_on_device = route.link.is_some_and(|link| self.devices.contains(&link));
        is_unmarked
            && is_on_device
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

/// Whether packets take the same path on both routes.
fn has_same_path(one: &Route, other: &Route) -> bool {
    (one.gateway, one.link, one.kind) == (other.gateway, other.link, other.kind)
}

/// Whether an unmarked route (protocol `boot`) has the same path as the desired one.
fn is_unmarked_equal(found: &Route, desired: &Route) -> bool {
    found.protocol == route::BY_TOOL && has_same_path(found, desired)
}

/// Whether an owned route needs no change.
fn is_as_desired(found: &Route, desired: &Route) -> bool {
    // IPv6 routes have no scope.
    let has_scope = desired.dst.is_ipv6() || found.scope == desired.scope;
    let has_no_options = found.source.is_none() && found.mtu.is_none() && found.advmss.is_none();
    has_same_path(found, desired)
        && found.protocol == desired.protocol
        && found.onlink == desired.onlink
        && has_scope
        && has_no_options
}

/// The changes from the routes that were `found` in the main table to the `desired` ones.
pub(crate) fn difference(desired: &[Route], found: &[Route], ownership: &Ownership<'_>) -> Difference {
    let mut present: HashMap<Key, Vec<&Route>> = HashMap::with_capacity(found.len());
    for route in found {
        present.entry(key(route)).or_default().push(route);
    }
    let mut difference = Difference::default();
    for route in desired {
        let same_key = present.remove(&key(route)).unwrap_or_default();
        difference.compare(route, &same_key, ownership);
    }
    // Routes to destinations that are not desired.
    let mut left: Vec<&Route> =
        present.into_values().flatten().filter(|route| ownership.owns(route)).collect();
    left.sort_by_key(|route| (route.dst, route.prefix));
    difference.obsolete.extend(left.into_iter().map(Route::delete));
    difference
}

impl Difference {
    /// Compares one desired route with the existing routes of the same destination and metric.
    fn compare(&mut self, desired: &Route, found: &[&Route], ownership: &Ownership<'_>) {
        let (owned, foreign): (Vec<&Route>, Vec<&Route>) =
            found.iter().partition(|route| ownership.owns(route));
        if let Some(good) = owned.iter().position(|route| is_as_desired(route, desired)) {
            let others = owned.iter().enumerate().filter(|(n, _)| *n != good);
            self.obsolete.extend(others.map(|(_, route)| route.delete()));
            return;
        }
        if let ([], [other]) = (owned.as_slice(), foreign.as_slice()) {
            if is_unmarked_equal(other, desired) {
                self.needed.push(desired.replace());
                return;
            }
        }
        if let Some(occupant) = foreign.first() {
            self.obsolete.extend(owned.iter().map(|route| route.delete()));
            // A foreign route with the same path serves as well.
            if !foreign.iter().any(|route| has_same_path(route, desired)) {
                if let Ok(to) = IpNet::new(desired.dst, desired.prefix) {
                    self.occupied.push((to, describe(occupant)));
                }
            }
            return;
        }
        match owned.as_slice() {
            [] => self.needed.push(desired.create()),
            // One message loses no packet. IPv6 cannot replace a route by one on another device: the kernel refuses a
            // gateway that it finds behind another device, even by the route that is being replaced.
            [one] if desired.dst.is_ipv4() || one.link == desired.link => self.needed.push(desired.replace()),
            many => {
                self.needed.extend(many.iter().map(|route| route.delete()));
                self.needed.push(desired.create());
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
