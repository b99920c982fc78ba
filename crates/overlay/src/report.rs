//! What [`apply`](crate::apply) did, and what it could not do.

use std::fmt;

use podwire_kernel::Mac;
use podwire_netlink::wireguard::Key;

/// What was changed. Nothing, if all was as wanted.
#[derive(Debug, Default)]
pub struct Report {
    /// Each change, in words: `add route to 10.244.2.0/24 via 10.244.2.0`.
    pub changed: Vec<String>,
    /// What the kernel refused. The rest was done; it is tried again with the next call.
    pub failed: Vec<podwire_kernel::Error>,
    /// Peers (or parts of them) that have no road, and why.
    pub unreachable: Vec<UnreachablePeer>,
    /// The devices that peers must know of.
    pub tunnels: Vec<TunnelDevice>,
    /// How much of ours is in the kernel, if nothing failed.
    pub objects: ObjectCounts,
}

/// How many things of ours the kernel holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Devices.
    pub devices: usize,
    /// Routes.
    pub routes: usize,
    /// Neighbours: who has which hardware address.
    pub neighbours: usize,
    /// Forwarding entries: behind which node a hardware address is.
    pub forwarding: usize,
}

/// A device of ours, as it is now: what this node tells its peers of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelDevice {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its MTU.
    pub mtu: u32,
    /// The hardware address of a VXLAN device.
    pub mac: Option<Mac>,
    /// The public key of a WireGuard device.
    pub public_key: Option<Key>,
}

/// A peer, or one family of it, that cannot have a road as things are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreachablePeer {
    /// The peer's name.
    pub peer: String,
    /// Why, and what to do.
    pub reason: String,
}

impl UnreachablePeer {
    /// Why this peer has no road.
    pub fn new(peer: impl Into<String>, reason: impl Into<String>) -> UnreachablePeer {
        UnreachablePeer { peer: peer.into(), reason: reason.into() }
    }
}

impl fmt::Display for UnreachablePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no road to {}: {}", self.peer, self.reason)
    }
}

impl Report {
    /// Whether all is as wanted and nothing had to be done for it.
    pub fn is_quiet(&self) -> bool {
        self.changed.is_empty() && self.failed.is_empty()
    }
}
