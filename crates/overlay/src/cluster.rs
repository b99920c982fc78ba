//! The cluster as the agent knows it: the input of every backend.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_kernel::Mac;
use podwire_netlink::wireguard::Key;

use crate::uplink::Uplink;

/// The nodes and networks of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The networks that contain all pods (flannel's `Network` and `IPv6Network`).
    pub networks: Vec<IpNet>,
    /// This node.
    pub local: LocalNode,
    /// The other nodes, in any order.
    pub peers: Vec<Peer>,
}

/// This node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalNode {
    /// Its name.
    pub name: String,
    /// Its pod CIDRs: one of each IP family, or many blocks.
    pub subnets: Vec<LocalSubnet>,
}

/// A pod CIDR of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalSubnet {
    /// The pod CIDR.
    pub pod_cidr: IpNet,
    /// The interface to the other nodes.
    pub uplink: Uplink,
}

/// Another node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its pod CIDRs, one of each IP family.
    pub subnets: Vec<PeerSubnet>,
}

/// A pod CIDR of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSubnet {
    /// The pod CIDR.
    pub pod_cidr: IpNet,
    /// The address that other nodes use to reach the node.
    pub address: IpAddr,
    /// The hardware address of its VXLAN device, once the node has published it.
    pub vtep_mac: Option<Mac>,
    /// Its WireGuard device, once the node has published it.
    pub wireguard: Option<WireguardEndpoint>,
}

/// The public key and the port of a node's WireGuard device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireguardEndpoint {
    /// The public key.
    pub public_key: Key,
    /// The UDP port.
    pub port: u16,
}

impl LocalNode {
    /// The pod CIDR of one family.
    pub fn subnet(&self, family: IpFamily) -> Option<&LocalSubnet> {
        self.subnets.iter().find(|subnet| IpFamily::of_net(subnet.pod_cidr) == family)
    }
}

impl Peer {
    /// The pod CIDR of one family.
    pub fn subnet(&self, family: IpFamily) -> Option<&PeerSubnet> {
        self.subnets.iter().find(|subnet| IpFamily::of_net(subnet.pod_cidr) == family)
    }
}

impl PeerSubnet {
    /// A pod CIDR without tunnel data.
    pub fn new(pod_cidr: IpNet, address: IpAddr) -> PeerSubnet {
        PeerSubnet { pod_cidr, address, vtep_mac: None, wireguard: None }
    }
}
