//! The nftables terms of Services for an IP family.

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Field, IpTerms, Rule};

/// How rules and sets of Services express an IP family.
pub(super) trait NftFamily: IpTerms {
    /// The destination of the packet's connection before translation.
    fn original_destination(self) -> Field;

    /// A rule for packets of the family.
    fn rule(self) -> Rule {
        Rule::new().family(self.packet_family())
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
    fn original_destination(self) -> Field {
        match self {
            IpFamily::V4 => Field::OriginalIp4Destination,
            IpFamily::V6 => Field::OriginalIp6Destination,
        }
    }
}
