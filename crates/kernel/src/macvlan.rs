//! macvlan: a second hardware address on a network card. Frames go to the child that has their destination's address.

use std::fmt;

use podwire_netlink::rt::link::{attribute as a, Link};
use podwire_netlink::Message;

/// What a macvlan is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Macvlan {
    /// How the children of one card see each other.
    pub mode: Mode,
    /// How many broadcast frames may wait for the children; 0 is the kernel's choice.
    pub broadcast_queue: u32,
}

/// How the children of one card see each other (`MACVLAN_MODE_…` of linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They do not.
    Private = 1,
    /// Through a switch that sends frames back to where they came from.
    Vepa = 2,
    /// Directly.
    Bridge = 4,
    /// There is only one, which has the card's own address.
    Passthru = 8,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 4] = [Mode::Bridge, Mode::Private, Mode::Vepa, Mode::Passthru];

    /// As `ip link` calls it.
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
    /// The driver.
    pub const KIND: &'static str = "macvlan";

    pub(crate) fn describe(self, message: Message) -> Message {
        message
            .u32(a::MACVLAN_MODE, self.mode as u32)
            .maybe((self.broadcast_queue > 0).then_some(self.broadcast_queue), |m, length| {
                m.u32(a::MACVLAN_BC_QUEUE_LEN, length)
            })
    }

    /// What `link` is, if it is one, in a mode that is known here.
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

    /// Whether `found` is as wanted.
    pub(crate) fn fits(self, found: Macvlan) -> bool {
        self.mode == found.mode
            && (self.broadcast_queue == 0 || self.broadcast_queue == found.broadcast_queue)
    }

    /// The kernel makes a child the only one, or one of many, at its birth and never later.
    pub(crate) fn can_follow(self, found: Macvlan) -> bool {
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
