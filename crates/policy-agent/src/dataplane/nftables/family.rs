//! How nftables rules and sets express an IP family.

use std::net::IpAddr;

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Field, IpTerms};
use podwire_policy::Direction;

/// The nftables terms for an IP family.
pub(super) trait NftFamily: IpTerms {
    /// Whether the address is of this family.
    fn has(self, address: &IpAddr) -> bool;
    /// The name of the set of this family: `egress_4`, `egress_6`.
    fn set_name(self, id: &str) -> String;

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
}
