//! Calico's etcd keys, which podwire uses in every store.

use std::fmt;

use ipnet::IpNet;

use podwire_ip::IpFamily;

use super::AffinityOwner;

/// The prefix of blocks.
pub const BLOCKS: &str = "/calico/ipam/v2/assignment/";
/// The prefix of handles.
pub const HANDLES: &str = "/calico/ipam/v2/handle/";
/// The key of the IPAM configuration.
pub const CONFIG: &str = "/calico/ipam/v2/config";
/// The prefix of the affinities of nodes.
pub const HOST_AFFINITIES: &str = "/calico/ipam/v2/host/";
/// The prefix of the affinities of virtual owners.
pub const VIRTUAL_AFFINITIES: &str = "/calico/ipam/v2/virtual/";
/// The prefixes of all affinities.
pub const AFFINITIES: [&str; 2] = [HOST_AFFINITIES, VIRTUAL_AFFINITIES];
/// The prefix of pools.
pub const POOLS: &str = "/calico/resources/v3/projectcalico.org/ippools/";
/// The prefix of reservations.
pub const RESERVATIONS: &str = "/calico/resources/v3/projectcalico.org/ipreservations/";
/// The prefix of Calico's Node objects.
pub const NODES: &str = "/calico/resources/v3/projectcalico.org/nodes/";
/// The prefixes of BGP configurations, peers and filters.
pub const BGP: [&str; 3] = [
    "/calico/resources/v3/projectcalico.org/bgpconfigurations/",
    "/calico/resources/v3/projectcalico.org/bgppeers/",
    "/calico/resources/v3/projectcalico.org/bgpfilters/",
];
/// The prefix of workload endpoints.
pub const ENDPOINTS: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/";
/// The prefix of profiles.
pub const PROFILES: &str = "/calico/resources/v3/projectcalico.org/profiles/";

/// The prefix of the owners of nodes. Calico does not read it.
pub const NODE_OWNERS: &str = "/calico/podwire/owners/";

/// A parsed key. Stores of objects, such as the Kubernetes API, map it to an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A block.
    Block(IpNet),
    /// An affinity.
    Affinity(AffinityOwner, IpNet),
    /// A handle, by its id.
    Handle(String),
    /// The IPAM configuration.
    Config,
    /// A pool, by its name.
    Pool(String),
    /// A reservation, by its name.
    Reservation(String),
    /// A Node object, by its name.
    Node(String),
    /// A BGP configuration, by its name.
    BgpConfiguration(String),
    /// A BGP peer, by its name.
    BgpPeer(String),
    /// A BGP filter, by its name.
    BgpFilter(String),
    /// A workload endpoint, by its namespace and name.
    Endpoint(String, String),
    /// A profile, by its name.
    Profile(String),
    /// The owner of a node's blocks, by the node's name.
    NodeOwner(String),
}

impl Key {
    /// Parses a key. Calico has other keys, which podwire does not use.
    pub fn parse(key: &str) -> Option<Key> {
        let named = |root| key.strip_prefix(root).filter(|name| !name.is_empty() && !name.contains('/'));
        if key == CONFIG {
            return Some(Key::Config);
        }
        let block = || parse_block(key).map(Key::Block);
        let affinity = || parse_affinity(key).map(|(owner, cidr)| Key::Affinity(owner, cidr));
        let handle = || parse_handle(key).map(|id| Key::Handle(id.into()));
        let pool = || named(POOLS).map(|name| Key::Pool(name.into()));
        let reservation = || named(RESERVATIONS).map(|name| Key::Reservation(name.into()));
        let node = || named(NODES).map(|name| Key::Node(name.into()));
        let bgp = || {
            let kinds: [fn(String) -> Key; 3] = [Key::BgpConfiguration, Key::BgpPeer, Key::BgpFilter];
            BGP.iter().zip(kinds).find_map(|(root, kind)| named(root).map(|name| kind(name.into())))
        };
        let profile = || named(PROFILES).map(|name| Key::Profile(name.into()));
        let endpoint = || {
            let (namespace, name) = key.strip_prefix(ENDPOINTS)?.split_once('/')?;
            let is_valid = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
            is_valid.then(|| Key::Endpoint(namespace.into(), name.into()))
        };
        let owner = || named(NODE_OWNERS).map(|name| Key::NodeOwner(name.into()));
        let records = block().or_else(affinity).or_else(handle).or_else(pool).or_else(reservation);
        let records = records.or_else(owner);
        records.or_else(node).or_else(endpoint).or_else(profile).or_else(bgp)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Block(cidr) => f.write_str(&block(*cidr)),
            Key::Affinity(owner, cidr) => f.write_str(&affinity(owner, *cidr)),
            Key::Handle(id) => f.write_str(&handle(id)),
            Key::Config => f.write_str(CONFIG),
            Key::Pool(name) => write!(f, "{POOLS}{name}"),
            Key::Reservation(name) => write!(f, "{RESERVATIONS}{name}"),
            Key::Node(name) => write!(f, "{NODES}{name}"),
            Key::BgpConfiguration(name) => write!(f, "{}{name}", BGP[0]),
            Key::BgpPeer(name) => write!(f, "{}{name}", BGP[1]),
            Key::BgpFilter(name) => write!(f, "{}{name}", BGP[2]),
            Key::Endpoint(namespace, name) => write!(f, "{ENDPOINTS}{namespace}/{name}"),
            Key::Profile(name) => write!(f, "{PROFILES}{name}"),
            Key::NodeOwner(name) => write!(f, "{NODE_OWNERS}{name}"),
        }
    }
}

/// `/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26`.
pub(super) fn block(cidr: IpNet) -> String {
    format!("{BLOCKS}{}", tail(cidr))
}

/// The prefix of the blocks of a family.
pub(super) fn blocks(family: IpFamily) -> String {
    format!("{BLOCKS}ipv{}/", family.digit())
}

/// `/calico/ipam/v2/host/node1/ipv4/block/10.244.1.0-26`.
pub(super) fn affinity(owner: &AffinityOwner, cidr: IpNet) -> String {
    format!("{}{}", affinities(owner), tail(cidr))
}

/// The prefix of an owner's affinities.
pub(super) fn affinities(owner: &AffinityOwner) -> String {
    match owner {
        AffinityOwner::Host(name) => format!("{HOST_AFFINITIES}{name}/"),
        AffinityOwner::Virtual(name) => format!("{VIRTUAL_AFFINITIES}{name}/"),
    }
}

/// `/calico/ipam/v2/handle/k8s-pod-network.4711`.
pub(super) fn handle(id: &str) -> String {
    format!("{HANDLES}{id}")
}

fn tail(cidr: IpNet) -> String {
    format!("ipv{}/block/{}-{}", IpFamily::of(cidr.addr()).digit(), cidr.addr(), cidr.prefix_len())
}

/// The largest block has 2^16 addresses.
const MAX_BLOCK_BITS: u8 = 16;

/// Parses the key of a block. No block has more than 65 536 addresses: such a key would take all pools within it.
pub(super) fn parse_block(key: &str) -> Option<IpNet> {
    let cidr = parse_tail(key.strip_prefix(BLOCKS)?)?;
    (cidr.max_prefix_len() - cidr.prefix_len() <= MAX_BLOCK_BITS).then_some(cidr)
}

/// Parses the key of an affinity. Calico has other records with the same prefix.
pub(super) fn parse_affinity(key: &str) -> Option<(AffinityOwner, IpNet)> {
    let owners: [fn(String) -> AffinityOwner; 2] = [AffinityOwner::Host, AffinityOwner::Virtual];
    AFFINITIES.iter().zip(owners).find_map(|(prefix, owner)| {
        let (name, tail) = key.strip_prefix(prefix)?.split_once('/')?;
        Some((owner(name.into()), parse_tail(tail)?))
    })
}

/// Parses the key of a handle.
pub(super) fn parse_handle(key: &str) -> Option<&str> {
    key.strip_prefix(HANDLES).filter(|id| !id.is_empty())
}

fn parse_tail(tail: &str) -> Option<IpNet> {
    let (family, cidr) = tail.split_once("/block/")?;
    let (addr, length) = cidr.split_once('-')?;
    let cidr = IpNet::new(addr.parse().ok()?, length.parse().ok()?).ok()?;
    let is_valid =
        cidr.addr() == cidr.network() && family == format!("ipv{}", IpFamily::of(cidr.addr()).digit());
    is_valid.then_some(cidr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_calicos() {
        let v4: IpNet = "10.244.1.0/26".parse().unwrap();
        let v6: IpNet = "fd00::40/122".parse().unwrap();
        let (node, balancer) =
            (AffinityOwner::Host("node1".into()), AffinityOwner::Virtual("load-balancer".into()));
        let keys = [
            (block(v4), "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26"),
            (block(v6), "/calico/ipam/v2/assignment/ipv6/block/fd00::40-122"),
            (affinity(&node, v4), "/calico/ipam/v2/host/node1/ipv4/block/10.244.1.0-26"),
            (affinity(&balancer, v4), "/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.244.1.0-26"),
            (handle("k8s-pod-network.4711"), "/calico/ipam/v2/handle/k8s-pod-network.4711"),
        ];
        for (ours, calicos) in keys {
            assert_eq!(ours, calicos);
            assert_eq!(Key::parse(calicos).unwrap().to_string(), calicos);
        }
        for root in [POOLS, RESERVATIONS, NODES, PROFILES].into_iter().chain(BGP) {
            assert_eq!(Key::parse(&format!("{root}a")).unwrap().to_string(), format!("{root}a"));
            assert_eq!(Key::parse(&format!("{root}a/b")), None);
        }
        let endpoint = format!("{ENDPOINTS}default/node1-k8s-nginx-eth0");
        assert_eq!(
            Key::parse(&endpoint),
            Some(Key::Endpoint("default".into(), "node1-k8s-nginx-eth0".into()))
        );
        assert_eq!(Key::parse(&endpoint).unwrap().to_string(), endpoint);
        assert_eq!(Key::parse(&format!("{ENDPOINTS}default")), None);
        assert_eq!(Key::parse(CONFIG), Some(Key::Config));
        assert_eq!(Key::parse("/calico/ipam/v2/host/node1"), None);
        assert_eq!(parse_block(&block(v6)), Some(v6));
        assert_eq!(parse_affinity(&affinity(&balancer, v6)), Some((balancer, v6)));
        assert_eq!(parse_affinity(&affinity(&node, v4)), Some((node, v4)));
        assert_eq!(parse_affinity("/calico/ipam/v2/host/node1"), None, "the parent of a node's affinities");
        assert_eq!(parse_block("/calico/ipam/v2/assignment/ipv6/block/10.0.0.0-26"), None);
        assert_eq!(parse_block("/calico/ipam/v2/assignment/ipv4/block/10.0.0.1-26"), None);
    }
}
