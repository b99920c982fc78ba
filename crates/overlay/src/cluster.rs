//! Who is there: what somebody else has learned of the cluster, in plain words.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_kernel::Mac;
use podwire_netlink::wireguard::Key;

use crate::Uplink;

/// All that roads are made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The networks that all pods are in (flannel's `Network` and `IPv6Network`).
    pub networks: Vec<IpNet>,
    /// This node.
    pub own: Own,
    /// The others, in any order.
    pub peers: Vec<Peer>,
}

/// This node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Its name.
    pub name: String,
    /// One for each family that its pods have.
    pub sides: Vec<OwnSide>,
}

/// This node, for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnSide {
    /// The range of its pods.
    pub pods: IpNet,
    /// Where it meets the other nodes.
    pub uplink: Uplink,
}

/// Another node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// One for each family that its pods have.
    pub sides: Vec<PeerSide>,
}

/// Another node, for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSide {
    /// The range of its pods.
    pub pods: IpNet,
    /// The address at which other nodes reach it.
    pub address: IpAddr,
    /// The hardware address of its VXLAN device, once it has told it.
    pub vtep: Option<Mac>,
    /// The key of its WireGuard device, once it has told it.
    pub key: Option<PublicKey>,
}

/// How a WireGuard peer is known and found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey {
    /// Its key.
    pub key: Key,
    /// The UDP port at which it listens.
    pub port: u16,
}

impl Own {
    /// The side of one family.
    pub fn side(&self, v4: bool) -> Option<&OwnSide> {
        self.sides.iter().find(|side| side.pods.addr().is_ipv4() == v4)
    }
}

impl Peer {
    /// The side of one family.
    pub fn side(&self, v4: bool) -> Option<&PeerSide> {
        self.sides.iter().find(|side| side.pods.addr().is_ipv4() == v4)
    }
}

impl PeerSide {
    /// A node with these pods at this address.
    pub fn new(pods: IpNet, address: IpAddr) -> PeerSide {
        PeerSide { pods, address, vtep: None, key: None }
    }
}
