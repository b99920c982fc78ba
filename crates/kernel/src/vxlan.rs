//! VXLAN: a link whose frames travel in UDP packets. The link's forwarding database selects the remote node. Nothing is
//! flooded, and by default nothing is learned.

use std::fmt;
use std::net::IpAddr;

use podwire_netlink::rt::link::{attribute as a, Link};
use podwire_netlink::Message;

/// The kernel's default port. IANA's is 4789, which is newer than the Linux driver.
pub const DEFAULT_PORT: u16 = 8472;

/// The Don't Fragment bit of outer IPv4 packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Df {
    /// Clear: as in flannel; works where ICMP is filtered.
    #[default]
    Unset,
    /// Set.
    Set,
    /// Copied from the inner packet.
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

/// The settings of a VXLAN link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// The VXLAN network identifier.
    pub vni: u32,
    /// The UDP port, local and remote.
    pub port: u16,
    /// The source address of outer packets. It determines their family.
    pub local: IpAddr,
    /// The index of the link for outer packets.
    pub link: u32,
    /// Whether it learns forwarding entries from received packets.
    pub learning: bool,
    /// Whether packet marks are carried through the tunnel (Group Based Policy).
    pub gbp: bool,
    /// The Don't Fragment bit of outer packets.
    pub df: Df,
}

impl Vxlan {
    /// The driver name.
    pub const KIND: &'static str = "vxlan";

    /// The settings of a link, if it is a VXLAN.
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

    /// Whether a link with settings `found` can be changed to these without being recreated. The kernel cannot change
    /// VNI, port, family or GBP of an existing link.
    pub fn can_change_from(&self, found: &Vxlan) -> bool {
        let fixed = |one: &Vxlan| (one.vni, one.port, one.gbp, one.local.is_ipv4());
        fixed(self) == fixed(found)
    }

    /// The encapsulation overhead in bytes: Ethernet, VXLAN, UDP, IP.
    pub fn overhead(&self) -> u32 {
        if self.local.is_ipv4() {
            50
        } else {
            70
        }
    }

    /// Adds all settings of a new link.
    pub(crate) fn describe(&self, message: Message) -> Message {
        let message = self.describe_change(message.u32(a::VXLAN_ID, self.vni).be16(a::VXLAN_PORT, self.port));
        message.maybe(self.gbp.then_some(()), |m, ()| m.flag(a::VXLAN_GBP))
    }

    /// Adds the settings that can change.
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
        write!(f, "VXLAN {} at {} port {}", self.vni, self.local, self.port)
    }
}
