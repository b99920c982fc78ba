//! The Node object, reduced to the fields that the controller uses.

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::core::{ApiResource, NotUsed, Object};
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};

/// A Node object without the ten to fifty kilobytes of images, conditions and capacities that a real one has.
pub(crate) type NodeObject = Object<Spec, NotUsed>;

/// The used part of `spec`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Spec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

/// The API of all nodes.
pub(crate) fn nodes(client: Client) -> Api<NodeObject> {
    Api::all_with(client, &ApiResource::erase::<Node>(&()))
}

/// A node as the API server showed it at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeState {
    pub name: String,
    /// Distinguishes a node from a later one with the same name.
    pub uid: String,
    /// `spec.podCIDRs` as text.
    pub pod_cidrs: Vec<String>,
    pub is_deleting: bool,
}

impl From<NodeObject> for NodeState {
    fn from(node: NodeObject) -> NodeState {
        let (name, uid) = (node.name_any(), node.uid().unwrap_or_default());
        let is_deleting = node.metadata.deletion_timestamp.is_some();
        // Before Kubernetes 1.16 a node had only `spec.podCIDR`.
        let pod_cidrs = match node.spec.pod_cidrs {
            Some(several) if !several.is_empty() => several,
            _ => node.spec.pod_cidr.into_iter().filter(|one| !one.is_empty()).collect(),
        };
        NodeState { name, uid, pod_cidrs, is_deleting }
    }
}

/// The reference of an event to its node. Controllers use the object's uid and kubelet uses the node's name; `kubectl
/// describe` looks for both.
pub(crate) fn reference(name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(name.into()),
        uid: Some(uid.into()),
        ..ObjectReference::default()
    }
}
