//! IPIP: a link whose IPv4 packets travel in IPv4 packets, with nothing in between. Which machine a packet goes to is its
//! route's gateway.

use std::fmt;
use std::net::Ipv4Addr;

use podwire_netlink::rt::link::{attribute as a, Link};
use podwire_netlink::Message;

/// What an IPIP link is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipip {
    /// The address of this machine that outer packets come from.
    pub local: Ipv4Addr,
}

impl Ipip {
    /// The driver's name.
    pub const KIND: &'static str = "ipip";
    /// The bytes that it puts around a packet.
    pub const OVERHEAD: u32 = 20;

    /// What a link is set to, if it is an IPIP link that goes to any machine; one that goes to a single machine is not
    /// what is meant here.
    pub fn of(link: &Link) -> Option<Ipip> {
        let address = |kind| {
            let bytes: [u8; 4] = link.setting(kind)?.value.try_into().ok()?;
            Some(Ipv4Addr::from(bytes)).filter(|address| !address.is_unspecified())
        };
        let fits = link.kind == Ipip::KIND && address(a::IPTUN_REMOTE).is_none();
        fits.then(|| Ipip { local: address(a::IPTUN_LOCAL).unwrap_or(Ipv4Addr::UNSPECIFIED) })
    }

    pub(crate) fn describe(&self, message: Message) -> Message {
        message.bytes(a::IPTUN_LOCAL, &self.local.octets())
    }
}

impl fmt::Display for Ipip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPIP at {}", self.local)
    }
}
