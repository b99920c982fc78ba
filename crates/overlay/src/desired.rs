//! What the kernel should have, computed and not yet compared.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_kernel::tunnel::Tunnel;
use podwire_kernel::Mac;
use podwire_netlink::wireguard::{Key, Peer};

use crate::UnreachablePeer;

/// All that a fabric needs of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// The devices.
    pub devices: Vec<Device>,
    /// The routes.
    pub routes: Vec<DesiredRoute>,
    /// Peers that have none of it.
    pub unreachable: Vec<UnreachablePeer>,
}

/// A device, and what hangs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The link.
    pub tunnel: Tunnel,
    /// Its addresses, each alone in its network. Others that lie in a network of the cluster are taken from it.
    pub addresses: Vec<IpAddr>,
    /// Who has which hardware address on it.
    pub neighbours: Vec<(IpAddr, Mac)>,
    /// Behind which node a hardware address is.
    pub forwarding: Vec<(Mac, IpAddr)>,
    /// What WireGuard is told.
    pub wireguard: Option<WireguardConfig>,
}

/// What WireGuard is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireguardConfig {
    /// The device's own.
    pub private_key: Key,
    /// The port at which it listens.
    pub port: u16,
    /// Its peers.
    pub peers: Vec<Peer>,
}

/// A route of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredRoute {
    /// Where it leads.
    pub to: IpNet,
    /// The next hop; `None` if all of it is on the wire.
    pub via: Option<IpAddr>,
    /// By which link.
    pub egress: Egress,
    /// The next hop is on the wire even if no other route says so.
    pub onlink: bool,
}

/// The link of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// A device of ours, by its place in [`DesiredState::devices`].
    Tunnel(usize),
    /// A link of the node, by its index.
    Link(u32),
}

impl Device {
    /// A device with nothing on it.
    pub(crate) fn new(tunnel: Tunnel, addresses: Vec<IpAddr>) -> Device {
        Device { tunnel, addresses, neighbours: Vec::new(), forwarding: Vec::new(), wireguard: None }
    }
}

#[cfg(test)]
mod tests;
