//! VXLAN: a link whose frames travel in UDP packets between machines. Which machine a frame goes to is looked up in the
//! link's forwarding database; here nothing is ever flooded, and by default nothing is learned.

use std::fmt;
use std::net::IpAddr;

use podwire_netlink::rt::link::{attribute as a, Link};
use podwire_netlink::Message;

/// The port that the kernel takes when it is given none. (IANA's is 4789; Linux was earlier.)
pub const DEFAULT_PORT: u16 = 8472;

/// Whether the outer packet may be cut on its way (IPv4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Df {
    /// It may: what flannel does, and what works where ICMP is filtered.
    #[default]
    Unset,
    /// It must not.
    Set,
    /// As the inner packet says.
    Inherit,
}

impl Df {
    fn number(self) -> u8 {
        match self {
            Df::Unset => 0,
            Df::Set => 1,
            Df::Inherit => 2,
        }
    }

    fn from_number(number: u8) -> Df {
        [Df::Set, Df::Inherit].into_iter().find(|df| df.number() == number).unwrap_or_default()
    }
}

/// What a VXLAN link is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// The network's number: only links with the same one talk.
    pub vni: u32,
    /// UDP port, here and at the others.
    pub port: u16,
    /// The address of this machine that outer packets come from. Its family is that of the outer packets.
    pub local: IpAddr,
    /// The index of the link that outer packets leave by.
    pub link: u32,
    /// Whether it learns from what it receives who is where.
    pub learning: bool,
    /// Whether the mark of a packet travels with it (Group Based Policy).
    pub gbp: bool,
    /// Whether outer packets may be cut.
    pub df: Df,
}

impl Vxlan {
    /// The driver's name.
    pub const KIND: &'static str = "vxlan";

    /// What a link is set to, if it is a VXLAN.
    pub fn of(link: &Link) -> Option<Vxlan> {
        let byte = |kind| link.setting(kind).and_then(|attr| attr.u8());
        let local = link.setting(a::VXLAN_LOCAL).or(link.setting(a::VXLAN_LOCAL6));
        (link.kind == Vxlan::KIND).then(|| {
            Some(Vxlan {
                vni: link.setting(a::VXLAN_ID)?.u32()?,
                port: link.setting(a::VXLAN_PORT)?.be16()?,
                local: local.and_then(|attr| attr.ip()).unwrap_or(IpAddr::from([0u8; 4])),
                link: link.setting(a::VXLAN_LINK).and_then(|attr| attr.u32()).unwrap_or(0),
                learning: byte(a::VXLAN_LEARNING) == Some(1),
                gbp: link.setting(a::VXLAN_GBP).is_some(),
                df: Df::from_number(byte(a::VXLAN_DF).unwrap_or(0)),
            })
        })?
    }

    /// Whether a link that is `found` can be changed to this, and need not be made anew. The kernel does not let
    /// number, port, family or GBP of a living link change.
    pub fn can_follow(&self, found: &Vxlan) -> bool {
        let fixed = |one: &Vxlan| (one.vni, one.port, one.gbp, one.local.is_ipv4());
        fixed(self) == fixed(found)
    }

    /// The bytes that it puts around a frame's content: Ethernet, VXLAN, UDP, IP.
    pub fn overhead(&self) -> u32 {
        if self.local.is_ipv4() {
            50
        } else {
            70
        }
    }

    /// All settings of a new link.
    pub(crate) fn describe(&self, message: Message) -> Message {
        let message = self.describe_change(message.u32(a::VXLAN_ID, self.vni).be16(a::VXLAN_PORT, self.port));
        message.maybe(self.gbp.then_some(()), |m, ()| m.flag(a::VXLAN_GBP))
    }

    /// The settings that may change while it lives.
    pub(crate) fn describe_change(&self, message: Message) -> Message {
        let local = if self.local.is_ipv4() { a::VXLAN_LOCAL } else { a::VXLAN_LOCAL6 };
        message
            .maybe((self.link > 0).then_some(self.link), |m, link| m.u32(a::VXLAN_LINK, link))
            .ip(local, self.local)
            .u8(a::VXLAN_LEARNING, self.learning.into())
            .u8(a::VXLAN_DF, self.df.number())
    }
}

impl fmt::Display for Vxlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VXLAN number {} at {} port {}", self.vni, self.local, self.port)
    }
}
