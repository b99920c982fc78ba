//! The choice of a subnet for a node.

use std::fmt;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_kubernetes::random_u32;

use crate::node::PodCidrs;
use crate::pool::{Pool, Pools};

/// Like flannel, a node takes one of the first hundred free subnets at random, so that two nodes that choose at the
/// same time rarely choose the same.
const CANDIDATES: usize = 100;

/// No subnet is free.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct OutOfSubnets {
    pool: Pool,
    taken: usize,
    /// The largest subnet that a node has.
    largest: Option<IpNet>,
}

impl fmt::Display for OutOfSubnets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutOfSubnets { pool, taken, largest } = self;
        let largest = largest.map(|cidr| format!(", the largest is {cidr}")).unwrap_or_default();
        write!(f, "out of subnets: all of {pool} are in use ({taken} leases{largest}); remove leases of nodes that are gone, or enlarge the network")
    }
}

/// Chooses a free subnet of each family.
pub(crate) fn choose(pools: &Pools, taken: &[PodCidrs]) -> Result<PodCidrs, OutOfSubnets> {
    let taken: Vec<IpNet> = taken.iter().flat_map(PodCidrs::iter).collect();
    let pick = |pool: Pool| {
        let free: Vec<IpNet> = pool.free(&taken).take(CANDIDATES).collect();
        let of_family = || taken.iter().filter(|cidr| IpFamily::of_net(**cidr) == pool.family());
        let largest = || of_family().min_by_key(|cidr| cidr.prefix_len()).copied();
        match free.len() {
            0 => Err(OutOfSubnets { pool, taken: of_family().count(), largest: largest() }),
            count => Ok(free[random_u32() as usize % count]),
        }
    };
    let (v4, v6) = (pools.v4.map(pick).transpose()?, pools.v6.map(pick).transpose()?);
    Ok(PodCidrs {
        v4: v4.and_then(|cidr| if let IpNet::V4(cidr) = cidr { Some(cidr) } else { None }),
        v6: v6.and_then(|cidr| if let IpNet::V6(cidr) = cidr { Some(cidr) } else { None }),
    })
}

/// Whether a node may keep its previous subnets: they fit the network config, and no other node has any of their
/// addresses.
pub(crate) fn may_keep(pools: &Pools, previous: PodCidrs, taken: &[PodCidrs]) -> bool {
    !previous.is_empty() && pools.fit(previous) && !taken.iter().any(|other| other.overlap(&previous))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netconf::NetConf;
    use crate::node::{find_overlaps, Backend, LeaseTerm, Node, Underlay};

    fn pools(text: &str) -> Pools {
        NetConf::parse("x", text).unwrap().pools().unwrap()
    }

    #[test]
    fn a_full_pool_is_an_error() {
        let pools = pools(r#"{"Network": "10.0.0.0/28"}"#);
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.push(choose(&pools, &taken).unwrap());
        }
        let error = choose(&pools, &taken).unwrap_err().to_string();
        assert!(
            error.starts_with("out of subnets: all of 10.0.0.4 to 10.0.0.12 of /30 are in use (3 leases, the largest is 10.0.0."),
            "{error}"
        );
    }

    #[test]
    fn one_of_the_first_hundred_is_chosen() {
        let pools = pools(r#"{"Network": "10.0.0.0/8"}"#);
        let last: PodCidrs = PodCidrs { v4: "10.0.100.0/24".parse().ok(), v6: None };
        for _ in 0..300 {
            assert!(choose(&pools, &[]).unwrap().v4 <= last.v4);
        }
    }

    #[test]
    fn the_previous_subnet_is_kept_if_it_fits_and_is_free() {
        let pools = pools(r#"{"Network": "10.0.0.0/16"}"#);
        let range = |text: &str| PodCidrs { v4: text.parse().ok(), v6: None };
        assert!(may_keep(&pools, range("10.0.7.0/24"), &[range("10.0.8.0/24")]));
        assert!(!may_keep(&pools, range("10.0.7.0/24"), &[range("10.0.7.128/25")]));
        assert!(!may_keep(&pools, range("10.0.7.0/25"), &[]));
        assert!(!may_keep(&pools, range("10.0.0.0/24"), &[]), "the first subnet is not assigned");
        assert!(!may_keep(&pools, PodCidrs::default(), &[]));
    }

    proptest! {
        #[test]
        fn no_two_nodes_share_an_address(odd in proptest::collection::vec((0u32..65536, 20u8..30), 0..10)) {
            let pools = pools(r#"{"Network": "10.0.0.0/16", "SubnetLen": 20, "EnableIPv6": true, "IPv6Network": "fd00::/112", "IPv6SubnetLen": 116}"#);
            let strange = |(at, len): (u32, u8)| PodCidrs {
                v4: ipnet::Ipv4Net::new((0x0a00_0000 + at).into(), len).ok().map(|net| net.trunc()),
                v6: None,
            };
            let odd: Vec<PodCidrs> = odd.into_iter().map(strange).collect();
            let mut given: Vec<PodCidrs> = Vec::new();
            while let Ok(pod_cidrs) = choose(&pools, &[&odd[..], &given[..]].concat()) {
                prop_assert!(!odd.iter().any(|other| other.overlap(&pod_cidrs)));
                given.push(pod_cidrs);
            }
            let node = |(at, pod_cidrs): (usize, &PodCidrs)| Node {
                name: at.to_string(), pod_cidrs: *pod_cidrs, underlay: Underlay::default(), backend: Backend::default(), lease_term: LeaseTerm::Permanent,
            };
            let nodes: Vec<Node> = given.iter().enumerate().map(node).collect();
            prop_assert!(find_overlaps(&nodes).is_empty());
            prop_assert!(nodes.len() <= 15);
        }
    }
}
