//! How nftables rules and sets express an IP family.

use std::net::IpAddr;

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Family, Field, Type};
use podwire_policy::Direction;

/// The nftables terms for an IP family.
pub(super) trait NftFamily: Copy {
    /// Whether the address is of this family.
    fn has(self, address: &IpAddr) -> bool;
    /// The name of the set of this family: `egress_4`, `egress_6`.
    fn set_name(self, id: &str) -> String;
    /// The family that a rule matches on.
    fn packet_family(self) -> Family;
    /// The type of an address in a set key.
    fn address_type(self) -> Type;
    /// The source address of a packet.
    fn source(self) -> Field;
    /// The destination address of a packet.
    fn destination(self) -> Field;

    /// The address of the pod whose policies are checked: the sender for egress, the receiver for ingress.
    fn pod_address(self, direction: Direction) -> Field {
        match direction {
            Direction::Egress => self.source(),
            Direction::Ingress => self.destination(),
        }
    }

    /// The address of the other end.
    fn peer_address(self, direction: Direction) -> Field {
        match direction {
            Direction::Egress => self.destination(),
            Direction::Ingress => self.source(),
        }
    }
}

impl NftFamily for IpFamily {
    fn has(self, address: &IpAddr) -> bool {
        IpFamily::of(*address) == self
    }

    fn set_name(self, id: &str) -> String {
        format!("{id}_{}", self.digit())
    }

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
