//! ipvlan: interfaces that share the hardware address of their master. Packets go to the child with their destination
//! IP address.

use std::fmt;

use podwire_netlink::rt::link::{attribute as a, Link};
use podwire_netlink::Message;

/// The settings of an ipvlan. All children of one master have the same settings: those of the child created last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipvlan {
    /// The mode.
    pub mode: Mode,
    /// Whether children reach each other.
    pub isolation: Isolation,
}

/// How the master passes packets to its children (`IPVLAN_MODE_…` of linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It switches: children receive broadcasts and ARP.
    L2 = 0,
    /// It routes in the master's namespace: no broadcasts, no ARP, and the firewall of the pod's namespace does not
    /// apply.
    L3 = 1,
    /// As L3, and incoming packets pass the node's connection tracking.
    L3s = 2,
}

/// Whether children of one master reach each other (`IPVLAN_F_…` of linux/if_link.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Directly.
    #[default]
    Bridge = 0,
    /// Not at all.
    Private = 1,
    /// Through an external switch in hairpin mode.
    Vepa = 2,
}

impl Mode {
    /// All values.
    pub const ALL: [Mode; 3] = [Mode::L2, Mode::L3, Mode::L3s];

    /// The name in `ip link`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::L2 => "l2",
            Mode::L3 => "l3",
            Mode::L3s => "l3s",
        }
    }
}

impl Isolation {
    /// All values.
    pub const ALL: [Isolation; 3] = [Isolation::Bridge, Isolation::Private, Isolation::Vepa];

    /// The name in `ip link`.
    pub fn name(self) -> &'static str {
        match self {
            Isolation::Bridge => "bridge",
            Isolation::Private => "private",
            Isolation::Vepa => "vepa",
        }
    }
}

impl Ipvlan {
    /// The driver name.
    pub const KIND: &'static str = "ipvlan";

    pub(crate) fn describe(self, message: Message) -> Message {
        message.u16(a::IPVLAN_MODE, self.mode as u16).u16(a::IPVLAN_FLAGS, self.isolation as u16)
    }

    /// The settings of `link`, if it is an ipvlan with a known mode.
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
