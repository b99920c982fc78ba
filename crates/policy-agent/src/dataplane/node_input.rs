//! What the rules of a node depend on besides the policy program.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

/// This node's pod networks and pod ports, and which optional rules the table has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInput {
    /// Networks that contain only pod addresses. An address in them that no pod of the program has belongs to a pod
    /// that starts, or that was deleted and still runs: the rules drop its packets.
    pub pod_networks: Vec<IpNet>,
    /// UDP ports of the node to which no pod can send: the guard of the tunnels drops it. Packets to them that conntrack
    /// does not track need no check.
    pub guarded_ports: BTreeSet<u16>,
    /// The node's ends of the pods' veth pairs.
    pub ports: Vec<PodPort>,
    /// Whether the kernel sends some of the dropped packets to [`DropSamples`](super::DropSamples).
    pub sample_drops: bool,
    /// Whether the table has the sets for
    /// [`Nftables::block_closed_connections`](super::Nftables::block_closed_connections).
    pub block_closed_connections: bool,
}

/// The node's end of a pod's veth pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPort {
    /// The device name.
    pub device: String,
    /// The device's index. Without it, or if it is outdated, the rules look up each packet by the device's name, which takes
    /// longer.
    pub index: Option<u32>,
    /// The pod, `namespace/name`.
    pub pod: String,
    /// Whether the device is a bridge port.
    pub bridged: bool,
    /// The pod's own addresses.
    pub addresses: Vec<IpAddr>,
    /// Further source networks that the pod may use. The pod's policies apply to them. The networks of two pods never
    /// overlap.
    pub prefixes: Vec<IpNet>,
    /// The pod's MAC address. On a bridge it is the only source MAC that the pod may use.
    pub mac: Option<[u8; 6]>,
    /// Its MAC address when it was attached, if another plugin changed it since. The pod's link-local address follows from
    /// the first one.
    pub first_mac: Option<[u8; 6]>,
    /// Whether the network's config makes the bridge port a VLAN trunk: the pod may send any frames.
    pub is_trunk: bool,
    /// Whether the pod's addresses come from DHCP.
    pub uses_dhcp: bool,
}
