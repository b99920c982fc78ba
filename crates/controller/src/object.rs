//! A Node object, of which only what matters here is read.

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::core::{ApiResource, NotUsed, Object};
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};

/// A Node object. A real one has ten to fifty kilobytes of images, conditions and capacities; they are skipped while reading.
pub(crate) type NodeObject = Object<Spec, NotUsed>;

/// What matters of its spec.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Spec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

/// All nodes.
pub(crate) fn nodes(client: Client) -> Api<NodeObject> {
    Api::all_with(client, &ApiResource::erase::<Node>(&()))
}

/// A node as it was seen at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub name: String,
    /// Tells a node from a later one of the same name.
    pub uid: String,
    /// `spec.podCIDRs`, as texts.
    pub cidrs: Vec<String>,
    /// It is being deleted.
    pub leaving: bool,
}

impl From<NodeObject> for Sighting {
    fn from(node: NodeObject) -> Sighting {
        let (name, uid) = (node.name_any(), node.uid().unwrap_or_default());
        let leaving = node.metadata.deletion_timestamp.is_some();
        // Before Kubernetes 1.16 there was only one.
        let cidrs = match node.spec.pod_cidrs {
            Some(several) if !several.is_empty() => several,
            _ => node.spec.pod_cidr.into_iter().filter(|one| !one.is_empty()).collect(),
        };
        Sighting { name, uid, cidrs, leaving }
    }
}

/// What an event is about. Controllers' events have the object's own uid, kubelet's the node's name; `kubectl describe` looks for both.
pub(crate) fn reference(name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(name.into()),
        uid: Some(uid.into()),
        ..ObjectReference::default()
    }
}
