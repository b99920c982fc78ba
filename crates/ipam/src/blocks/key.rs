//! Calico's keys in etcd, which are ours in every store.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Owner;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(ip: IpAddr) -> Family {
        match ip {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// `IPv4` or `IPv6`.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    /// How many bits an address has.
    pub fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    fn digit(self) -> char {
        match self {
            Family::V4 => '4',
            Family::V6 => '6',
        }
    }
}

pub(super) const BLOCKS: &str = "/calico/ipam/v2/assignment/";
pub(super) const HANDLES: &str = "/calico/ipam/v2/handle/";
pub(super) const CONFIG: &str = "/calico/ipam/v2/config";
pub(super) const AFFINITIES: [&str; 2] = ["/calico/ipam/v2/host/", "/calico/ipam/v2/virtual/"];
pub(super) const POOLS: &str = "/calico/resources/v3/projectcalico.org/ippools/";
pub(super) const RESERVATIONS: &str = "/calico/resources/v3/projectcalico.org/ipreservations/";
pub(super) const NODES: &str = "/calico/resources/v3/projectcalico.org/nodes/";

/// `/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26`.
pub(super) fn block(cidr: IpNet) -> String {
    format!("{BLOCKS}{}", tail(cidr))
}

/// `/calico/ipam/v2/host/node1/ipv4/block/10.244.1.0-26`.
pub(super) fn affinity(owner: &Owner, cidr: IpNet) -> String {
    format!("{}{}", affinities(owner), tail(cidr))
}

/// What the keys of an owner's affinities begin with.
pub(super) fn affinities(owner: &Owner) -> String {
    match owner {
        Owner::Host(name) => format!("{}{name}/", AFFINITIES[0]),
        Owner::Virtual(name) => format!("{}{name}/", AFFINITIES[1]),
    }
}

/// `/calico/ipam/v2/handle/k8s-pod-network.4711`.
pub(super) fn handle(id: &str) -> String {
    format!("{HANDLES}{id}")
}

fn tail(cidr: IpNet) -> String {
    format!("ipv{}/block/{}-{}", Family::of(cidr.addr()).digit(), cidr.addr(), cidr.prefix_len())
}

/// The block that a key of a block speaks of.
pub(super) fn parse_block(key: &str) -> Option<IpNet> {
    parse_tail(key.strip_prefix(BLOCKS)?)
}

/// The owner and the block that a key of an affinity speaks of. Other things stand there too.
pub(super) fn parse_affinity(key: &str) -> Option<(Owner, IpNet)> {
    let owners: [fn(String) -> Owner; 2] = [Owner::Host, Owner::Virtual];
    AFFINITIES.iter().zip(owners).find_map(|(prefix, owner)| {
        let (name, tail) = key.strip_prefix(prefix)?.split_once('/')?;
        Some((owner(name.into()), parse_tail(tail)?))
    })
}

/// The id that a key of a handle speaks of.
pub(super) fn parse_handle(key: &str) -> Option<&str> {
    key.strip_prefix(HANDLES).filter(|id| !id.is_empty())
}

fn parse_tail(tail: &str) -> Option<IpNet> {
    let (family, cidr) = tail.split_once("/block/")?;
    let (addr, length) = cidr.split_once('-')?;
    let cidr = IpNet::new(addr.parse().ok()?, length.parse().ok()?).ok()?;
    let sound = cidr.addr() == cidr.network() && family == format!("ipv{}", Family::of(cidr.addr()).digit());
    sound.then_some(cidr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_calicos() {
        let v4: IpNet = "10.244.1.0/26".parse().unwrap();
        let v6: IpNet = "fd00::40/122".parse().unwrap();
        let (node, balancer) = (Owner::Host("node1".into()), Owner::Virtual("load-balancer".into()));
        let keys = [
            (block(v4), "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26"),
            (block(v6), "/calico/ipam/v2/assignment/ipv6/block/fd00::40-122"),
            (affinity(&node, v4), "/calico/ipam/v2/host/node1/ipv4/block/10.244.1.0-26"),
            (affinity(&balancer, v4), "/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.244.1.0-26"),
            (handle("k8s-pod-network.4711"), "/calico/ipam/v2/handle/k8s-pod-network.4711"),
        ];
        for (ours, calicos) in keys {
            assert_eq!(ours, calicos);
        }
        assert_eq!(parse_block(&block(v6)), Some(v6));
        assert_eq!(parse_affinity(&affinity(&balancer, v6)), Some((balancer, v6)));
        assert_eq!(parse_affinity(&affinity(&node, v4)), Some((node, v4)));
        assert_eq!(parse_affinity("/calico/ipam/v2/host/node1"), None, "the root of a node's tree");
        assert_eq!(parse_block("/calico/ipam/v2/assignment/ipv6/block/10.0.0.0-26"), None);
        assert_eq!(parse_block("/calico/ipam/v2/assignment/ipv4/block/10.0.0.1-26"), None);
    }
}
