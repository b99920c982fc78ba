//! This node: what its Services depend on besides the objects of the API.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_ip::IpFamily;

use crate::api::Node;

/// The label with a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// What the agent knows about its node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeInput {
    /// The node's name: endpoints with this `nodeName` are local.
    pub name: String,
    /// The addresses at which NodePorts are served.
    pub node_port_addresses: NodePortAddresses,
    /// The networks of this node's pods. Clients in them keep their address when they use a Service.
    pub pod_networks: Vec<IpNet>,
}

/// The addresses at which a node serves NodePorts. Loopback addresses are never among them.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NodePortAddresses {
    /// The first address of each family in the status of the Node, as kube-proxy in nftables mode does.
    #[default]
    Primary,
    /// These addresses.
    These(Vec<IpAddr>),
}

/// This node, from both sources.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LocalNode {
    pub name: String,
    pub zone: Option<String>,
    /// The first address of each family.
    pub primary: Vec<IpAddr>,
    pub node_port_addresses: Vec<IpAddr>,
}

impl LocalNode {
    pub fn new(input: &NodeInput, object: Option<&Node>) -> LocalNode {
        let primary = object.map(primary_addresses).unwrap_or_default();
        let addresses = match &input.node_port_addresses {
            NodePortAddresses::Primary => &primary,
            NodePortAddresses::These(addresses) => addresses,
        };
        LocalNode {
            name: input.name.clone(),
            zone: object.and_then(|node| node.metadata.labels.get(ZONE)).cloned(),
            node_port_addresses: addresses.iter().copied().filter(|ip| !ip.is_loopback()).collect(),
            primary,
        }
    }
}

/// The first internal address of each family, or the first external one if there is none.
fn primary_addresses(node: &Node) -> Vec<IpAddr> {
    let of_kind = |kind: &'static str| {
        let addresses = node.status.addresses.iter().filter(move |address| address.kind == kind);
        addresses.filter_map(|address| address.address.parse::<IpAddr>().ok())
    };
    let first = |family: IpFamily| {
        of_kind("InternalIP").chain(of_kind("ExternalIP")).find(|ip| IpFamily::of(*ip) == family)
    };
    IpFamily::ALL.into_iter().filter_map(first).collect()
}
