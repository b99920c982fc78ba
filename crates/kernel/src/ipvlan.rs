//! ipvlan: more addresses behind one hardware address of a network card. Packets go to the child that has their
//! destination's IP address.

use std::fmt;

use podwire_netlink::rt::link::{attribute as a, Link};
use podwire_netlink::Message;

/// What an ipvlan is to be like. All children of one card have the same mode and the same isolation: the last one that is
/// made decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipvlan {
    /// What the card does for its children.
    pub mode: Mode,
    /// Whether they see each other.
    pub isolation: Isolation,
}

/// What a card does for its children (`IPVLAN_MODE_…` of linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It switches: broadcasts and ARP reach them.
    L2 = 0,
    /// It routes in its own namespace: no broadcasts, no ARP, no firewall of the pod's namespace.
    L3 = 1,
    /// As L3, and what comes in passes the node's connection tracking.
    L3s = 2,
}

/// Whether the children of one card see each other (`IPVLAN_F_…` of linux/if_link.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// They do.
    #[default]
    Bridge = 0,
    /// They do not.
    Private = 1,
    /// Through a switch that sends frames back to where they came from.
    Vepa = 2,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 3] = [Mode::L2, Mode::L3, Mode::L3s];

    /// As `ip link` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::L2 => "l2",
            Mode::L3 => "l3",
            Mode::L3s => "l3s",
        }
    }
}

impl Isolation {
    /// All of them.
    pub const ALL: [Isolation; 3] = [Isolation::Bridge, Isolation::Private, Isolation::Vepa];

    /// As `ip link` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Isolation::Bridge => "bridge",
            Isolation::Private => "private",
            Isolation::Vepa => "vepa",
        }
    }
}

impl Ipvlan {
    /// The driver.
    pub const KIND: &'static str = "ipvlan";

    pub(crate) fn describe(self, message: Message) -> Message {
        message.u16(a::IPVLAN_MODE, self.mode as u16).u16(a::IPVLAN_FLAGS, self.isolation as u16)
    }

    /// What `link` is, if it is one, in a mode that is known here.
    pub fn of(link: &Link) -> Option<Ipvlan> {
        let mode = link.setting(a::IPVLAN_MODE)?.u16()?;
        let isolation = link.setting(a::IPVLAN_FLAGS).and_then(|flags| flags.u16()).unwrap_or(0);
        Some(Ipvlan {
            mode: Mode::ALL.into_iter().find(|known| *known as u16 == mode)?,
            isolation: Isolation::ALL.into_iter().find(|known| *known as u16 == isolation)?,
        })
    }
}

impl fmt::Display for Ipvlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ipvlan of mode {} {}", self.mode.name(), self.isolation.name())
    }
}
