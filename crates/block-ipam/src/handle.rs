//! Handles: from a container to its blocks.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::json::{self, Unknown};
use super::record::Value;

/// The prefix of the ids of warm pools.
const WARM_POOL: &str = "podwire-warm-";
/// The part of a tunnel address's id between the kind and the node.
const TUNNEL: &str = "-tunnel-addr-";

/// The number of addresses in each block for one container. It may be too high, if a node died between two writes, but
/// never too low.
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
    /// The id for a container and a network: `k8s-pod-network.<container>`.
    pub fn id(network: &str, container: &str) -> String {
        format!("{network}.{container}")
    }

    /// The id of a node's warm pool: addresses that it holds for future pods.
    pub fn for_warm_pool(node: &str) -> String {
        format!("{WARM_POOL}{node}")
    }

    /// The node of a warm pool's id or of a tunnel address's id (`vxlan-tunnel-addr-NODE` and similar).
    pub(super) fn node_of(id: &str) -> Option<&str> {
        id.strip_prefix(WARM_POOL).or_else(|| id.split_once(TUNNEL).map(|(_, node)| node))
    }

    /// Whether an id is that of a node's tunnel address.
    pub(super) fn is_tunnel_handle(id: &str) -> bool {
        id.contains(TUNNEL)
    }

    /// The id without the suffix that a migration of Calico once appended by mistake.
    pub(super) fn plain(id: &str) -> &str {
        id.split_once('\r').map_or(id, |(plain, _)| plain)
    }

    /// The blocks, with the maximum number of addresses in each.
    pub fn blocks(&self) -> impl Iterator<Item = (&str, usize)> {
        self.block.iter().map(|(block, count)| (block.as_str(), *count))
    }

    /// The maximum number of addresses in `block`.
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
    fn the_bytes_are_calicos_and_counts_do_not_underflow() {
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
