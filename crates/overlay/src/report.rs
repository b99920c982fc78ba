//! The result of [`apply`](crate::apply).

use std::collections::BTreeSet;
use std::fmt;

use podwire_kernel::Mac;
use podwire_netlink::wireguard::Key;

/// The changes that were made and the problems that were found.
#[derive(Debug, Default)]
pub struct Report {
    /// Each change, such as `add route to 10.244.2.0/24 via 10.244.2.0`. Empty if the kernel state was as desired.
    pub changed: Vec<String>,
    /// Changes that the kernel refused. All other changes were made; the next call retries these.
    pub failed: Vec<podwire_kernel::Error>,
    /// Peers, or pod CIDRs of peers, without a route.
    pub unreachable: Vec<UnreachablePeer>,
    /// The devices whose data this node publishes to its peers.
    pub tunnels: Vec<TunnelDevice>,
    /// The owned objects in the kernel, if nothing failed.
    pub objects: ObjectCounts,
    /// The links by which packets leave with the addresses of pods: tunnels, links of direct routes, and the uplinks
    /// unless all pods are masqueraded.
    pub pod_links: BTreeSet<String>,
    /// The UDP ports of VXLAN. The guard of the tunnels drops packets to them that no peer sent.
    pub vxlan_ports: BTreeSet<u16>,
}

/// The number of owned objects in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Devices.
    pub devices: usize,
    /// Routes.
    pub routes: usize,
    /// Neighbour entries: the hardware address of an IP address.
    pub neighbours: usize,
    /// Forwarding entries: the node behind a hardware address.
    pub forwarding: usize,
}

/// An owned device as it is now.
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

/// A peer, or a pod CIDR of a peer, that cannot get a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreachablePeer {
    /// The peer's name.
    pub peer: String,
    /// The reason, and what to do.
    pub reason: String,
}

impl UnreachablePeer {
    /// A peer and the reason why it has no route.
    pub fn new(peer: impl Into<String>, reason: impl Into<String>) -> UnreachablePeer {
        UnreachablePeer { peer: peer.into(), reason: reason.into() }
    }
}

impl fmt::Display for UnreachablePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no route to {}: {}", self.peer, self.reason)
    }
}

impl Report {
    /// Whether nothing had to be changed and nothing failed.
    pub fn is_quiet(&self) -> bool {
        self.changed.is_empty() && self.failed.is_empty()
    }
}
