//! A node whose pods a chain of plugins attaches, without an agent: bridge with ipMasq, portmap, firewall.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context, Result};
use podwire_kernel::Netns;
use podwire_tests::{Chain, Node};
use serde_json::{json, Value};

use crate::case::{Case, Network, Path, Setup};
use crate::raw::netns;
use crate::traffic::{Ends, Server, PORT};

const HOST_PORT: u16 = 30_080;
const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// A machine outside of the cluster.
const SCRIPT: &str = "set -e
ip netns add outside
ip link add uplink type veth peer name eth0 netns outside
ip address add 192.0.2.1/24 dev uplink && ip link set uplink up
ip -n outside address add 192.0.2.2/24 dev eth0 && ip -n outside link set eth0 up";

/// A node with two pods; it ends with this value.
pub struct ChainNode {
    network: Network,
    node: Node,
    /// The address of the pod `server`.
    server: Ipv4Addr,
}

impl ChainNode {
    /// A node with the plugins of this directory.
    pub fn new(network: Network, directory: &str) -> Result<ChainNode> {
        let node = Node::new();
        node.sh(SCRIPT);
        attach(&node, directory, "client", &json!([]))?;
        let ports = json!([{ "hostPort": HOST_PORT, "containerPort": PORT, "protocol": "tcp" }]);
        let server = attach(&node, directory, "server", &ports)?;
        Ok(ChainNode { network, node, server })
    }

    /// The paths.
    pub fn cases(&self) -> Result<Vec<Case>> {
        let node = Arc::new(Netns::open(format!("/proc/{}/ns/net", self.node.pid()))?);
        let open = |name| netns(&self.node, name);
        let client = Arc::new(open("client")?);
        let server = Server::listen(&open("server")?)?;
        let from_outside = Arc::new(open("outside")?);
        let outside = Server::listen(&from_outside)?;
        let all = [
            (Path::SameNode, &client, &server, (self.server, PORT)),
            (Path::FromNode, &node, &server, (self.server, PORT)),
            (Path::Outside, &client, &outside, (OUTSIDE, PORT)),
            (Path::HostPort, &from_outside, &server, (NODE, HOST_PORT)),
        ];
        let case = |(path, client, server, target): (Path, &Arc<Netns>, &Arc<Server>, (Ipv4Addr, u16))| {
            let (client, server, nodes) = (client.clone(), server.clone(), vec![node.clone()]);
            let ends = Ends { client, server, target: target.into(), nodes };
            Case { network: self.network, setup: Setup::NONE, path, ends }
        };
        Ok(all.into_iter().map(case).collect())
    }
}

/// Attaches a pod; returns its address.
fn attach(node: &Node, directory: &str, name: &str, ports: &Value) -> Result<Ipv4Addr> {
    let plugins = [
        json!({ "type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.22.0.0/16" }]] } }),
        json!({ "type": "portmap", "capabilities": { "portMappings": true }, "snat": true,
            "runtimeConfig": { "portMappings": ports } }),
        json!({ "type": "firewall" }),
    ];
    let pod = node.pod(name);
    let result = Chain::new(directory, "datapath", &plugins).add(node, &pod);
    let address = result["ips"][0]["address"].as_str().and_then(|text| text.split('/').next());
    Ok(address.context("a pod without an address")?.parse()?)
}
