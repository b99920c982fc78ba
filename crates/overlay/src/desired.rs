//! The desired kernel state, as a backend computes it.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_kernel::tunnel::Tunnel;
use podwire_kernel::Mac;
use podwire_netlink::wireguard::{Key, Peer};

use crate::report::UnreachablePeer;

/// Everything that a backend needs in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// The devices.
    pub devices: Vec<Device>,
    /// The routes.
    pub routes: Vec<DesiredRoute>,
    /// Peers without a route.
    pub unreachable: Vec<UnreachablePeer>,
}

/// A device with its addresses and entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The link.
    pub tunnel: Tunnel,
    /// Its addresses, each with a full-length prefix. Other addresses from the cluster's networks are removed.
    pub addresses: Vec<IpAddr>,
    /// The hardware addresses of IP addresses on the link.
    pub neighbours: Vec<(IpAddr, Mac)>,
    /// The forwarding database: the node behind each hardware address.
    pub forwarding: Vec<(Mac, IpAddr)>,
    /// The configuration of a WireGuard device.
    pub wireguard: Option<WireguardConfig>,
}

/// The configuration of a WireGuard device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireguardConfig {
    /// The private key.
    pub private_key: Key,
    /// The listening port.
    pub port: u16,
    /// The peers.
    pub peers: Vec<Peer>,
}

/// A route to be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredRoute {
    /// The destination.
    pub to: IpNet,
    /// The next hop; `None` if the destination is on the link.
    pub via: Option<IpAddr>,
    /// The outgoing link.
    pub egress: Egress,
    /// Treat the next hop as on the link even if no other route says so.
    pub onlink: bool,
}

/// The outgoing link of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// An owned device, by its position in [`DesiredState::devices`].
    Tunnel(usize),
    /// Another link of the node, by its index.
    Link(u32),
}

impl Device {
    /// A device without entries.
    pub(crate) fn new(tunnel: Tunnel, addresses: Vec<IpAddr>) -> Device {
        Device { tunnel, addresses, neighbours: Vec::new(), forwarding: Vec::new(), wireguard: None }
    }
}

#[cfg(test)]
mod tests;
