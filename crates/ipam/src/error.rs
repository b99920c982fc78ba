//! Why ranges make no sense.

use std::net::IpAddr;

use ipnet::IpNet;

/// What is wrong with the ranges of a config. Each text ends with the key to look at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing is left of the subnet after its own address, the broadcast address and the gateway.
    #[error("Network {subnet} too small to allocate from ({key}.subnet)")]
    TooSmall {
        /// The range in the config.
        key: String,
        /// Its subnet.
        subnet: IpNet,
    },
    /// The subnet is an address inside of a network.
    #[error(
        "Network has host bits set. For a subnet mask of length {} the network address is {} ({key}.subnet is {subnet})",
        .subnet.prefix_len(), .subnet.network()
    )]
    HostBits {
        /// The range in the config.
        key: String,
        /// Its subnet.
        subnet: IpNet,
    },
    /// A bound lies outside of the subnet, or is of the other family.
    #[error("{} {ip} not in network {subnet} ({key}.{bound})", capital(.bound))]
    OutsideOfSubnet {
        /// The range in the config.
        key: String,
        /// `rangeStart` or `rangeEnd`.
        bound: &'static str,
        /// What it says.
        ip: IpAddr,
        /// The range's subnet.
        subnet: IpNet,
    },
    /// The range ends before it starts.
    #[error("RangeEnd {end} not in network {subnet} after rangeStart {start} ({key}.rangeEnd)")]
    Inverted {
        /// The range in the config.
        key: String,
        /// Its first address.
        start: IpAddr,
        /// Its last address.
        end: IpAddr,
        /// Its subnet.
        subnet: IpNet,
    },
    /// A list of addresses that are kept back has something else in it.
    #[error("{key}.{list}: {text:?} cannot be kept back from {subnet}: {why}")]
    KeptBack {
        /// The range in the config.
        key: String,
        /// `exclude` or `reserve`.
        list: &'static str,
        /// What it says.
        text: String,
        /// The range's subnet.
        subnet: IpNet,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A set without a range.
    #[error("empty range set")]
    Empty,
    /// IPv4 and IPv6 in one set.
    #[error("mixed address families ({first}.subnet and {second}.subnet)")]
    MixedFamilies {
        /// A range in the config.
        first: String,
        /// A range of the other family.
        second: String,
    },
    /// Two ranges of a set have an address in common.
    #[error("subnets {first} and {second} overlap ({} and {})", .keys.0, .keys.1)]
    RangesOverlap {
        /// One range: its first and last address.
        first: String,
        /// The other.
        second: String,
        /// Both in the config.
        keys: (String, String),
    },
    /// Two sets have an address in common.
    #[error("range set {} overlaps with {} ({} and {})", .sets.0, .sets.1, .keys.0, .keys.1)]
    SetsOverlap {
        /// Both sets, counted from 0.
        sets: (usize, usize),
        /// The ranges in the config.
        keys: (String, String),
    },
    /// Something is wrong inside of a set.
    #[error("invalid range set {set}: {why}")]
    InSet {
        /// The set, counted from 0.
        set: usize,
        /// What.
        why: Box<Error>,
    },
}

impl Error {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::TooSmall { .. } => "use a prefix of at most /31 for IPv4 and /127 for IPv6",
            Error::HostBits { .. } => {
                "write the network address, and choose addresses with rangeStart and rangeEnd"
            }
            Error::OutsideOfSubnet { .. } => "choose an address of the subnet",
            Error::Inverted { .. } => "swap rangeStart and rangeEnd, or leave one of them out",
            Error::KeptBack { .. } => {
                "write addresses, networks like 10.1.0.0/28, or ranges like 10.1.0.5-10.1.0.9, of the subnet"
            }
            Error::Empty => "put a range with a subnet into every list of ipam.ranges",
            Error::MixedFamilies { .. } => "give each family a list of its own in ipam.ranges",
            Error::RangesOverlap { .. } | Error::SetsOverlap { .. } => {
                "separate them with rangeStart and rangeEnd, or remove one of them"
            }
            Error::InSet { why, .. } => why.hint(),
        }
    }
}

/// The reference plugin's spelling of a bound.
fn capital(bound: &str) -> &'static str {
    if bound == "rangeStart" {
        "RangeStart"
    } else {
        "RangeEnd"
    }
}
