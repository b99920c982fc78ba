//! Route lookup among the node's other routes: whether a peer is on a link of this node, so that it can be a next hop.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_netlink::rt::route::Route;

const UNICAST: u8 = libc::RTN_UNICAST;

/// The foreign routes of the node, found by longest prefix as in the kernel.
#[derive(Clone, Debug, Default)]
pub struct RouteLookup {
    routes: HashMap<IpNet, Route>,
    /// The prefix lengths that occur, longest first, for IPv4 and IPv6.
    lengths: [Vec<u8>; 2],
}

/// How the node sends packets to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Directly, over the link with this index.
    OnLink(u32),
    /// Via this router.
    Via(IpAddr),
    /// There is no route.
    NoRoute,
}

impl RouteLookup {
    /// A lookup in these routes. Routes into the cluster's networks are ignored: they are results of the lookup, not
    /// input.
    pub fn new(routes: &[Route], cluster: &[IpNet]) -> RouteLookup {
        let mut lookup = RouteLookup::default();
        for route in routes {
            let Ok(to) = IpNet::new(route.dst, route.prefix) else { continue };
            if cluster.iter().any(|net| net.contains(&to)) {
                continue;
            }
            let metric = |route: &Route| route.priority.unwrap_or(0);
            let is_better = lookup.routes.get(&to).is_none_or(|other| metric(route) < metric(other));
            if is_better {
                lookup.routes.insert(to, route.clone());
            }
            let lengths = &mut lookup.lengths[usize::from(to.addr().is_ipv6())];
            if !lengths.contains(&to.prefix_len()) {
                lengths.push(to.prefix_len());
            }
        }
        lookup.lengths.iter_mut().for_each(|lengths| lengths.sort_by(|a, b| b.cmp(a)));
        lookup
    }

    /// How a packet to `ip` leaves the node.
    pub fn reach(&self, ip: IpAddr) -> Reach {
        match self.best(ip) {
            Some(Route { kind: UNICAST, gateway: None, link: Some(link), .. }) => Reach::OnLink(*link),
            Some(Route { kind: UNICAST, gateway: Some(gateway), .. }) => Reach::Via(*gateway),
            _ => Reach::NoRoute,
        }
    }

    /// The index of the link by which a packet to `ip` leaves the node.
    pub fn link_to(&self, ip: IpAddr) -> Option<u32> {
        self.best(ip).filter(|route| route.kind == UNICAST)?.link
    }

    fn best(&self, ip: IpAddr) -> Option<&Route> {
        self.lengths[usize::from(ip.is_ipv6())].iter().find_map(|length| {
            let net = IpNet::new(ip, *length).ok()?.trunc();
            self.routes.get(&net)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(to: &str, via: Option<&str>, link: u32, metric: Option<u32>) -> Route {
        let to: IpNet = to.parse().unwrap();
        Route {
            gateway: via.map(|via| via.parse().unwrap()),
            link: Some(link),
            priority: metric,
            ..Route::to(to.addr(), to.prefix_len())
        }
    }

    fn reach(lookup: &RouteLookup, ip: &str) -> Reach {
        lookup.reach(ip.parse().unwrap())
    }

    #[test]
    fn the_longest_prefix_and_the_smallest_metric_win() {
        let cluster: Vec<IpNet> = vec!["10.244.0.0/16".parse().unwrap()];
        let lookup = RouteLookup::new(
            &[
                route("0.0.0.0/0", Some("192.168.1.1"), 2, None),
                route("192.168.1.0/24", None, 2, Some(100)),
                route("192.168.1.0/24", Some("192.168.9.9"), 3, Some(200)),
                route("192.168.1.7/32", Some("192.168.1.1"), 2, None),
                route("10.244.3.0/24", None, 9, None),
                route("fd00::/64", None, 2, Some(256)),
            ],
            &cluster,
        );
        assert_eq!(reach(&lookup, "192.168.1.5"), Reach::OnLink(2));
        assert_eq!(reach(&lookup, "192.168.1.7"), Reach::Via("192.168.1.1".parse().unwrap()));
        assert_eq!(reach(&lookup, "10.244.3.4"), Reach::Via("192.168.1.1".parse().unwrap()));
        assert_eq!(reach(&lookup, "fd00::9"), Reach::OnLink(2));
        assert_eq!(reach(&lookup, "fd01::9"), Reach::NoRoute);
        let links = ["192.168.1.5", "198.51.100.1", "fd01::9"].map(|ip| lookup.link_to(ip.parse().unwrap()));
        assert_eq!(links, [Some(2), Some(2), None]);
    }
}
