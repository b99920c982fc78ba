//! The paths of the kernel alone: a veth pair, and two nodes without any firewall rule.
//!
//! The nodes are connected as in a lab, by a bridge in a third namespace, and have two pods each: one for direct routes,
//! one for a VXLAN device.

use std::sync::Arc;

use anyhow::Result;
use podwire_kernel::Netns;
use podwire_tests::Node;

use crate::case::{Case, Network, Path, Setup};
use crate::traffic::{Ends, Server, PORT};

/// The namespaces `left` and `right` are a bare pair. `n1` and `n2` are nodes; `d1`, `d2`, `v1` and `v2` are their pods.
const SCRIPT: &str = "set -e
for name in left right n1 n2 d1 d2 v1 v2; do ip netns add $name; ip -n $name link set lo up; done
ip link add eth0 netns left type veth peer name eth0 netns right
ip -n left address add 10.99.0.1/24 dev eth0 && ip -n left link set eth0 up
ip -n right address add 10.99.0.2/24 dev eth0 && ip -n right link set eth0 up
ip link add lan type bridge && ip link set lan up
pod() { # node number, pod, subnet, MTU
  ip link add pod-$2 mtu $4 netns n$1 type veth peer name eth0 mtu $4 netns $2
  ip -n n$1 link set pod-$2 up && ip -n n$1 address add $3.1/32 dev pod-$2
  ip -n n$1 route add $3.2/32 dev pod-$2
  ip -n $2 link set eth0 up && ip -n $2 address add $3.2/32 dev eth0
  ip -n $2 route add $3.1/32 dev eth0 && ip -n $2 route add default via $3.1 dev eth0
}
for node in 1 2; do
  peer=$((3 - node))
  ip link add n$node type veth peer name eth0 netns n$node && ip link set n$node master lan up
  ip -n n$node address add 10.90.0.$node/24 dev eth0 && ip -n n$node link set eth0 up
  ip netns exec n$node sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
  ip -n n$node link add vxlan0 mtu 1450 type vxlan id 1 local 10.90.0.$node remote 10.90.0.$peer dstport 8472 dev eth0
  ip -n n$node address add 10.91.0.$node/24 dev vxlan0 && ip -n n$node link set vxlan0 up
  pod $node d$node 10.92.$node 1500
  pod $node v$node 10.93.$node 1450
  ip -n n$node route add 10.92.$peer.0/24 via 10.90.0.$peer
  ip -n n$node route add 10.93.$peer.0/24 via 10.91.0.$peer
done";

/// The namespaces of the kernel alone; they end with this value.
pub struct Raw(Node);

impl Raw {
    pub fn new() -> Raw {
        let node = Node::new();
        node.sh(SCRIPT);
        Raw(node)
    }

    /// The paths.
    pub fn cases(&self) -> Result<Vec<Case>> {
        let pairs = [
            (Path::SameNode, "left", "right", "10.99.0.2"),
            (Path::Nodes, "n1", "n2", "10.90.0.2"),
            (Path::Vxlan, "v1", "v2", "10.93.2.2"),
            (Path::Direct, "d1", "d2", "10.92.2.2"),
        ];
        let case = |(path, from, to, address): (Path, &str, &str, &str)| {
            let target = (address.parse::<std::net::Ipv4Addr>()?, PORT).into();
            let (client, server) = (netns(&self.0, from)?, Server::listen(&netns(&self.0, to)?)?);
            let ends = Ends { client: Arc::new(client), server, target, nodes: Vec::new() };
            Ok(Case { network: Network::Raw, setup: Setup::NONE, path, ends })
        };
        pairs.into_iter().map(case).collect()
    }
}

/// A namespace on a node of the tests.
pub fn netns(node: &Node, name: &str) -> Result<Netns> {
    Ok(Netns::open(format!("/proc/{}/root/run/netns/{name}", node.pid()))?)
}
