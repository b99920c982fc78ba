//! Who is there: what somebody else has learned of the cluster, in plain words.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_kernel::Mac;
use podwire_netlink::wireguard::Key;

use podwire_ip::IpFamily;

use crate::Uplink;

/// All that roads are made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The networks that all pods are in (flannel's `Network` and `IPv6Network`).
    pub networks: Vec<IpNet>,
    /// This node.
    pub local: LocalNode,
    /// The others, in any order.
    pub peers: Vec<Peer>,
}

/// This node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalNode {
    /// Its name.
    pub name: String,
    /// One for each family that its pods have.
    pub subnets: Vec<LocalSubnet>,
}

/// This node, for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalSubnet {
    /// The range of its pods.
    pub pod_cidr: IpNet,
    /// Where it meets the other nodes.
    pub uplink: Uplink,
}

/// Another node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// One for each family that its pods have.
    pub subnets: Vec<PeerSubnet>,
}

/// Another node, for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSubnet {
    /// The range of its pods.
    pub pod_cidr: IpNet,
    /// The address at which other nodes reach it.
    pub address: IpAddr,
    /// The hardware address of its VXLAN device, once it has told it.
    pub vtep_mac: Option<Mac>,
    /// The key of its WireGuard device, once it has told it.
    pub wireguard: Option<WireguardEndpoint>,
}

/// How a WireGuard peer is known and found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireguardEndpoint {
    /// Its key.
    pub public_key: Key,
    /// The UDP port at which it listens.
    pub port: u16,
}

impl LocalNode {
    /// The side of one family.
    pub fn subnet(&self, family: IpFamily) -> Option<&LocalSubnet> {
        self.subnets.iter().find(|subnet| IpFamily::of_net(subnet.pod_cidr) == family)
    }
}

impl Peer {
    /// The side of one family.
    pub fn subnet(&self, family: IpFamily) -> Option<&PeerSubnet> {
        self.subnets.iter().find(|subnet| IpFamily::of_net(subnet.pod_cidr) == family)
    }
}

impl PeerSubnet {
    /// A node with these pods at this address.
    pub fn new(pod_cidr: IpNet, address: IpAddr) -> PeerSubnet {
        PeerSubnet { pod_cidr, address, vtep_mac: None, wireguard: None }
    }
}
