//! Nodes, as far as Services depend on them.

use serde::Deserialize;

use super::ObjectMeta;

/// The taint of a node that the cluster autoscaler is about to delete.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name, labels and deletion.
    pub metadata: ObjectMeta,
    /// The specification.
    pub spec: NodeSpec,
    /// The status.
    pub status: NodeStatus,
}

impl Node {
    /// Whether load balancers may send new connections to the node: it is not about to be deleted.
    pub fn is_eligible(&self) -> bool {
        self.metadata.deletion_timestamp.is_empty()
            && !self.spec.taints.iter().any(|taint| taint.key == TO_BE_DELETED)
    }
}

/// The specification of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// The taints.
    pub taints: Vec<Taint>,
}

/// A taint of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// The key.
    pub key: String,
}

/// The status of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// The names and addresses.
    pub addresses: Vec<NodeAddress>,
}

/// A name or an address of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `Hostname`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The name or address.
    pub address: String,
}
