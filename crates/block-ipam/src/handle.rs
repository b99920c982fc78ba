//! The way back from a container to its blocks.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::json::{self, Unknown};
use super::record::Value;

/// What the ids of nodes' stocks begin with.
const STOCK: &str = "podwire-stock-";
/// What the ids of tunnels' ends have between the kind and the node.
const TUNNEL: &str = "-tunnel-addr-";

/// How many addresses each block holds for one container. It may promise too much (a node died between two writes), never
/// too little.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    #[serde(default, deserialize_with = "json::null_is_empty")]
    block: BTreeMap<String, usize>,
    #[serde(default)]
    deleted: bool,
    #[serde(flatten)]
    unknown: Unknown,
}

impl Handle {
    /// The id of a container on a network: `k8s-pod-network.<container>`.
    pub fn id(network: &str, container: &str) -> String {
        format!("{network}.{container}")
    }

    /// The id of the addresses that a node has in stock for pods to come.
    pub fn for_warm_pool(node: &str) -> String {
        format!("{STOCK}{node}")
    }

    /// The node whose stock, or whose end of a tunnel (`vxlan-tunnel-addr-NODE` and its like), an id stands for.
    pub(super) fn node_of(id: &str) -> Option<&str> {
        id.strip_prefix(STOCK).or_else(|| id.split_once(TUNNEL).map(|(_, node)| node))
    }

    /// Whether an id stands for the end of a tunnel.
    pub(super) fn is_of_tunnel(id: &str) -> bool {
        id.contains(TUNNEL)
    }

    /// The id without what a migration once appended to it by mistake.
    pub(super) fn plain(id: &str) -> &str {
        id.split_once('\r').map_or(id, |(plain, _)| plain)
    }

    /// The blocks, and how many addresses each holds at most.
    pub fn blocks(&self) -> impl Iterator<Item = (&str, usize)> {
        self.block.iter().map(|(block, count)| (block.as_str(), *count))
    }

    /// How many addresses `block` holds at most.
    pub fn count(&self, block: IpNet) -> usize {
        self.block.get(&block.to_string()).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, block: IpNet, count: usize) {
        *self.block.entry(block.to_string()).or_default() += count;
    }

    pub(super) fn subtract(&mut self, block: IpNet, count: usize) {
        let name = block.to_string();
        match self.block.get_mut(&name) {
            Some(counted) if *counted > count => *counted -= count,
            _ => drop(self.block.remove(&name)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.block.is_empty()
    }
}

impl Value for Handle {
    fn decode(bytes: &[u8]) -> Result<Handle, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    fn encode(&self) -> Result<Vec<u8>, String> {
        json::encode(self).map_err(|error| error.to_string())
    }

    fn is_deleted(&self) -> bool {
        self.deleted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_calicos_and_the_count_ends_at_nothing() {
        let block: IpNet = "10.244.1.0/26".parse().unwrap();
        let mut handle = Handle::default();
        handle.add(block, 1);
        let text = br#"{"block":{"10.244.1.0/26":1},"deleted":false}"#;
        assert_eq!(handle.encode().unwrap(), text);
        assert_eq!(Handle::decode(text).unwrap(), handle);
        handle.add(block, 2);
        handle.subtract(block, 1);
        assert_eq!((handle.count(block), handle.is_empty()), (2, false));
        handle.subtract(block, 7);
        assert!(handle.is_empty());
        assert!(Handle::decode(br#"{"block":null,"deleted":false}"#).unwrap().is_empty());
    }

    #[test]
    fn ids_are_calicos() {
        assert_eq!(Handle::id("k8s-pod-network", "4711"), "k8s-pod-network.4711");
        assert_eq!(Handle::node_of(&Handle::for_warm_pool("node1")), Some("node1"));
        assert_eq!(Handle::node_of("vxlan-v6-tunnel-addr-node1"), Some("node1"));
        assert_eq!(Handle::node_of("k8s-pod-network.4711"), None);
        assert_eq!(Handle::plain("k8s-pod-network.4711\r\neth0"), "k8s-pod-network.4711");
    }
}
