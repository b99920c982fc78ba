//! IPIP: a link whose IPv4 packets travel in IPv4 packets. The gateway of the route selects the remote node.

use std::fmt;
use std::net::Ipv4Addr;

use podwire_netlink::rt::link::{attribute as a, Link};
use podwire_netlink::Message;

/// The settings of an IPIP link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipip {
    /// The source address of outer packets.
    pub local: Ipv4Addr,
}

impl Ipip {
    /// The driver name.
    pub const KIND: &'static str = "ipip";
    /// The encapsulation overhead in bytes.
    pub const OVERHEAD: u32 = 20;

    /// The settings of a link, if it is an IPIP link without a fixed remote address.
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
