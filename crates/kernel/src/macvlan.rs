//! macvlan: an additional hardware address on a master. Frames go to the child with their destination address.

use std::fmt;

use podwire_netlink::rt::link::{attribute as a, Link};
use podwire_netlink::Message;

/// The settings of a macvlan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Macvlan {
    /// How children of one master reach each other.
    pub mode: Mode,
    /// The length of the broadcast queue; 0 is the kernel's default.
    pub broadcast_queue: u32,
}

/// How children of one master reach each other (`MACVLAN_MODE_…` of linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not at all.
    Private = 1,
    /// Through an external switch in hairpin mode.
    Vepa = 2,
    /// Directly.
    Bridge = 4,
    /// There is only one child, with the master's own address.
    Passthru = 8,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 4] = [Mode::Bridge, Mode::Private, Mode::Vepa, Mode::Passthru];

    /// The name in `ip link`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Private => "private",
            Mode::Vepa => "vepa",
            Mode::Bridge => "bridge",
            Mode::Passthru => "passthru",
        }
    }
}

impl Macvlan {
    /// The driver name.
    pub const KIND: &'static str = "macvlan";

    pub(crate) fn describe(self, message: Message) -> Message {
        message
            .u32(a::MACVLAN_MODE, self.mode as u32)
            .maybe((self.broadcast_queue > 0).then_some(self.broadcast_queue), |m, length| {
                m.u32(a::MACVLAN_BC_QUEUE_LEN, length)
            })
    }

    /// The settings of `link`, if it is a macvlan with a known mode.
    pub fn of(link: &Link) -> Option<Macvlan> {
        let mode = link.setting(a::MACVLAN_MODE)?.u32()?;
        Some(Macvlan {
            mode: Mode::ALL.into_iter().find(|known| *known as u32 == mode)?,
            broadcast_queue: link
                .setting(a::MACVLAN_BC_QUEUE_LEN)
                .and_then(|length| length.u32())
                .unwrap_or(0),
        })
    }

    /// Whether `found` is as desired.
    pub(crate) fn fits(self, found: Macvlan) -> bool {
        self.mode == found.mode
            && (self.broadcast_queue == 0 || self.broadcast_queue == found.broadcast_queue)
    }

    /// The kernel cannot change a child to or from passthru.
    pub(crate) fn can_change_from(self, found: Macvlan) -> bool {
        self.mode == found.mode || (self.mode != Mode::Passthru && found.mode != Mode::Passthru)
    }
}

impl fmt::Display for Macvlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "macvlan of mode {}", self.mode.name())?;
        match self.broadcast_queue {
            0 => Ok(()),
            length => write!(f, " with a broadcast queue of {length}"),
        }
    }
}
