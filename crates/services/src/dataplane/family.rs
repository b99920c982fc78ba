//! The nftables terms for an IP family.

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Family, Field, Rule, Type};

/// How rules and sets express an IP family.
pub(super) trait NftFamily: Copy {
    fn packets(self) -> Family;
    fn address(self) -> Type;
    fn source(self) -> Field;
    fn destination(self) -> Field;
    fn original_destination(self) -> Field;

    /// A rule for packets of the family.
    fn rule(self) -> Rule {
        Rule::new().family(self.packets())
    }

    /// The frontend that a packet is sent to, before translation.
    fn frontend(self) -> [Field; 3] {
        [self.destination(), Field::Protocol, Field::PortDestination]
    }

    /// The frontend that the packet's connection was sent to, after translation.
    fn original_frontend(self) -> [Field; 3] {
        [self.original_destination(), Field::Protocol, Field::OriginalPortDestination]
    }
}

impl NftFamily for IpFamily {
    fn packets(self) -> Family {
        match self {
            IpFamily::V4 => Family::Ip,
            IpFamily::V6 => Family::Ip6,
        }
    }

    fn address(self) -> Type {
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

    fn original_destination(self) -> Field {
        match self {
            IpFamily::V4 => Field::OriginalIp4Destination,
            IpFamily::V6 => Field::OriginalIp6Destination,
        }
    }
}
