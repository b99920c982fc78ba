//! vlan: receives the frames of a master with one VLAN tag (IEEE 802.1Q), without the tag. A master has only one child
//! for each tag, in any namespace.

use std::fmt;

use podwire_netlink::rt::link::{attribute as a, Link};
use podwire_netlink::Message;

/// The settings of a VLAN interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// The tag, 0 to 4094.
    pub id: u16,
}

impl Vlan {
    /// The driver name.
    pub const KIND: &'static str = "vlan";

    pub(crate) fn describe(self, message: Message) -> Message {
        message.u16(a::VLAN_ID, self.id)
    }

    /// The settings of `link`, if it is a VLAN.
    pub fn of(link: &Link) -> Option<Vlan> {
        Some(Vlan { id: link.setting(a::VLAN_ID)?.u16()? })
    }
}

impl fmt::Display for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interface of VLAN {}", self.id)
    }
}
