//! The ground that roads are built on: the routes of the node that are not ours. It tells whether a peer is on the wire,
//! that is, whether it can be handed packets without anybody in between.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_netlink::rt::route::Route;

const UNICAST: u8 = libc::RTN_UNICAST;

/// The routes of others, found by longest prefix as the kernel does.
#[derive(Clone, Debug, Default)]
pub struct RouteLookup {
    routes: HashMap<IpNet, Route>,
    /// The lengths of prefixes that there are, longest first, for each family.
    lengths: [Vec<u8>; 2],
}

/// How the node itself would send a packet to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Directly, over the link with this index.
    OnLink(u32),
    /// Through this router.
    Via(IpAddr),
    /// Not at all.
    NoRoute,
}

impl RouteLookup {
    /// The ground that these routes make. Those that lead into a network of the cluster are roads, not ground.
    pub fn new(routes: &[Route], cluster: &[IpNet]) -> RouteLookup {
        let mut ground = RouteLookup::default();
        for route in routes {
            let Ok(to) = IpNet::new(route.dst, route.prefix) else { continue };
            if cluster.iter().any(|net| net.contains(&to)) {
                continue;
            }
            let rank = |route: &Route| route.priority.unwrap_or(0);
            let better = ground.routes.get(&to).is_none_or(|there| rank(route) < rank(there));
            if better {
                ground.routes.insert(to, route.clone());
            }
            let lengths = &mut ground.lengths[usize::from(to.addr().is_ipv6())];
            if !lengths.contains(&to.prefix_len()) {
                lengths.push(to.prefix_len());
            }
        }
        ground.lengths.iter_mut().for_each(|lengths| lengths.sort_by(|a, b| b.cmp(a)));
        ground
    }

    /// How a packet to `ip` would leave.
    pub fn reach(&self, ip: IpAddr) -> Reach {
        let best = self.lengths[usize::from(ip.is_ipv6())].iter().find_map(|length| {
            let net = IpNet::new(ip, *length).ok()?.trunc();
            self.routes.get(&net)
        });
        match best {
            Some(Route { kind: UNICAST, gateway: None, link: Some(link), .. }) => Reach::OnLink(*link),
            Some(Route { kind: UNICAST, gateway: Some(gateway), .. }) => Reach::Via(*gateway),
            _ => Reach::NoRoute,
        }
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

    fn reach(ground: &RouteLookup, ip: &str) -> Reach {
        ground.reach(ip.parse().unwrap())
    }

    #[test]
    fn the_longest_prefix_and_then_the_smallest_metric_decides() {
        let cluster: Vec<IpNet> = vec!["10.244.0.0/16".parse().unwrap()];
        let ground = RouteLookup::new(
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
        assert_eq!(reach(&ground, "192.168.1.5"), Reach::OnLink(2));
        assert_eq!(reach(&ground, "192.168.1.7"), Reach::Via("192.168.1.1".parse().unwrap()));
        assert_eq!(reach(&ground, "10.244.3.4"), Reach::Via("192.168.1.1".parse().unwrap()));
        assert_eq!(reach(&ground, "fd00::9"), Reach::OnLink(2));
        assert_eq!(reach(&ground, "fd01::9"), Reach::NoRoute);
    }
}
