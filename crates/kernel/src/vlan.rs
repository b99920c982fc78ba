//! vlan: the frames of a network card that have one tag (IEEE 802.1Q), without it. A card gives each tag to one child
//! only, in whichever namespace.

use std::fmt;

use podwire_netlink::rt::link::{attribute as a, Link};
use podwire_netlink::Message;

/// What a VLAN's interface is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// The tag, 0 to 4094.
    pub id: u16,
}

impl Vlan {
    /// The driver.
    pub const KIND: &'static str = "vlan";

    pub(crate) fn describe(self, message: Message) -> Message {
        message.u16(a::VLAN_ID, self.id)
    }

    /// What `link` is, if it is one.
    pub fn of(link: &Link) -> Option<Vlan> {
        Some(Vlan { id: link.setting(a::VLAN_ID)?.u16()? })
    }
}

impl fmt::Display for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interface of VLAN {}", self.id)
    }
}
