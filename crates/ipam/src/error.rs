//! Errors in range configurations.

use std::net::IpAddr;

use ipnet::IpNet;

/// An error in the ranges of a configuration. The texts are those of the reference plugin; the hint names the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The subnet has no address left besides the network address, the broadcast address and the gateway.
    #[error("Network {subnet} too small to allocate from")]
    TooSmall {
        /// The range's key in the configuration.
        key: String,
        /// Its subnet.
        subnet: IpNet,
    },
    /// The subnet has host bits set.
    #[error(
        "Network has host bits set. For a subnet mask of length {} the network address is {}",
        .subnet.prefix_len(), .subnet.network()
    )]
    HostBits {
        /// The range's key in the configuration.
        key: String,
        /// Its subnet.
        subnet: IpNet,
    },
    /// A bound is not in the subnet.
    #[error("{} {ip} not in network {subnet}", capital(.bound))]
    OutsideOfSubnet {
        /// The range's key in the configuration.
        key: String,
        /// `rangeStart` or `rangeEnd`.
        bound: &'static str,
        /// The bound.
        ip: IpAddr,
        /// The range's subnet.
        subnet: IpNet,
    },
    /// The range ends before it starts.
    #[error("RangeEnd {end} not in network {subnet} after rangeStart {start}")]
    Inverted {
        /// The range's key in the configuration.
        key: String,
        /// Its first address.
        start: IpAddr,
        /// Its last address.
        end: IpAddr,
        /// Its subnet.
        subnet: IpNet,
    },
    /// An entry of `exclude` or `reserve` is invalid.
    #[error("{key}.{list}: {text:?} is invalid for {subnet}: {why}")]
    HeldBack {
        /// The range's key in the configuration.
        key: String,
        /// `exclude` or `reserve`.
        list: &'static str,
        /// The entry.
        text: String,
        /// The range's subnet.
        subnet: IpNet,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A set has no range.
    #[error("empty range set")]
    Empty,
    /// A set has IPv4 and IPv6 ranges.
    #[error("mixed address families")]
    MixedFamilies {
        /// The key of a range.
        first: String,
        /// The key of a range of the other family.
        second: String,
    },
    /// Two ranges of a set overlap.
    #[error("subnets {first} and {second} overlap")]
    RangesOverlap {
        /// One range: its first and last address.
        first: String,
        /// The other.
        second: String,
        /// The keys of both.
        keys: (String, String),
    },
    /// Two sets overlap.
    #[error("range set {} overlaps with {}", .sets.0, .sets.1)]
    SetsOverlap {
        /// Both sets, counted from 0.
        sets: (usize, usize),
        /// The keys of the ranges.
        keys: (String, String),
    },
    /// A set is invalid.
    #[error("invalid range set {set}: {why}")]
    InSet {
        /// The set, counted from 0.
        set: usize,
        /// The reason.
        why: Box<Error>,
    },
}

impl Error {
    /// A hint for the administrator: the affected keys, and what to do.
    pub fn hint(&self) -> String {
        match self {
            Error::TooSmall { key, .. } => {
                format!("{key}.subnet: use a prefix of at most /31 for IPv4 and /127 for IPv6")
            }
            Error::HostBits { key, subnet } => format!(
                "{key}.subnet is {subnet}: write the network address, and choose addresses with rangeStart and \
                 rangeEnd"
            ),
            Error::OutsideOfSubnet { key, bound, .. } => format!("{key}.{bound}: choose an address of the subnet"),
            Error::Inverted { key, .. } => {
                format!("{key}.rangeEnd: swap rangeStart and rangeEnd, or leave one of them out")
            }
            Error::HeldBack { .. } => {
                "write addresses, networks like 10.1.0.0/28, or ranges like 10.1.0.5-10.1.0.9, of the subnet".into()
            }
            Error::Empty => "put a range with a subnet into every list of ipam.ranges".into(),
            Error::MixedFamilies { first, second } => format!(
                "{first}.subnet and {second}.subnet: give each family a list of its own in ipam.ranges"
            ),
            Error::RangesOverlap { keys, .. } | Error::SetsOverlap { keys, .. } => format!(
                "{} and {}: separate them with rangeStart and rangeEnd, or remove one of them",
                keys.0, keys.1
            ),
            Error::InSet { why, .. } => why.hint(),
        }
    }
}

/// The spelling of a bound in the reference plugin's messages.
fn capital(bound: &str) -> &'static str {
    if bound == "rangeStart" {
        "RangeStart"
    } else {
        "RangeEnd"
    }
}

/// Why cluster networks cannot be divided into node CIDRs, or why none is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeCidrsError {
    /// A network has host bits set.
    #[error("cluster network {network} has host bits set: write {}", network.trunc())]
    HostBits {
        /// The network.
        network: IpNet,
    },
    /// The prefix length of node CIDRs does not fit the network.
    #[error("cluster network {network}: a node CIDR cannot be /{len}: it must be from /{} to /{}", network.prefix_len(), network.max_prefix_len())]
    Mask {
        /// The network.
        network: IpNet,
        /// The requested prefix length.
        len: u8,
    },
    /// There is no network, or more than one of a family.
    #[error("there must be one cluster network, or one of each family, not {given}")]
    Families {
        /// The given networks.
        given: String,
    },
    /// All node CIDRs are assigned.
    #[error("{network} has no CIDR left for node {node:?} (CIDRNotAvailable): delete the objects of nodes that do not exist any more, or use a larger cluster network")]
    Exhausted {
        /// The network.
        network: IpNet,
        /// The node that gets none.
        node: String,
    },
}
