//! How rules and sets express an IP family.

use podwire_ip::IpFamily;

use super::field::Field;
use super::set::Type;
use super::table::Family;

/// The nftables terms for an IP family.
pub trait IpTerms: Copy {
    /// The family that a rule matches on.
    fn packet_family(self) -> Family;
    /// The type of an address in a set key.
    fn address_type(self) -> Type;
    /// The source address of a packet.
    fn source(self) -> Field;
    /// The destination address of a packet.
    fn destination(self) -> Field;
}

impl IpTerms for IpFamily {
    fn packet_family(self) -> Family {
        match self {
            IpFamily::V4 => Family::Ip,
            IpFamily::V6 => Family::Ip6,
        }
    }

    fn address_type(self) -> Type {
        match self {
            IpFamily::V4 => Type::Ipv4,
            IpFamily::V6 => Type::Ipv6,
        }
    }

    fn source(self) -> Field {
        match self {
            IpFamily::V4 => Field::Ip4Source,
            IpFamily::V6 => Field::Ip6Source,
        }
    }

    fn destination(self) -> Field {
        match self {
            IpFamily::V4 => Field::Ip4Destination,
            IpFamily::V6 => Field::Ip6Destination,
        }
    }
}
