//! The objects of the Kubernetes API, as far as a node's Services depend on them. Field and type names are those of the
//! API.

mod endpoint_slice;
mod node;
mod service;

pub use endpoint_slice::{Conditions, Endpoint, EndpointPort, EndpointSlice, Hints, NamedHint};
pub use node::{Node, NodeAddress, NodeSpec, NodeStatus, Taint};
pub use podwire_policy::api::Labels;
pub use service::{ClientIpConfig, LoadBalancerIngress, LoadBalancerStatus, Service, ServicePort};
pub use service::{ServiceSpec, ServiceStatus, SessionAffinityConfig};

use serde::Deserialize;

/// Services and slices with this label belong to another proxy.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Services and slices with this label have no address of their own.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Name, namespace, labels, age and deletion.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectMeta {
    /// The name.
    pub name: String,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The labels.
    pub labels: Labels,
    /// The time of creation, as the API server writes it.
    pub creation_timestamp: String,
    /// The time at which the deletion began; empty if it did not.
    pub deletion_timestamp: String,
}

impl ObjectMeta {
    /// Whether the labels exclude the object from this proxy.
    pub fn is_excluded(&self) -> bool {
        self.labels.contains_key(PROXY_NAME) || self.labels.contains_key(HEADLESS)
    }
}

/// A range of Service addresses (`networking.k8s.io/v1`).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// The name.
    pub metadata: ObjectMeta,
    /// The specification.
    pub spec: ServiceCidrSpec,
}

/// The specification of a ServiceCIDR.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// One network, or one of each family.
    pub cidrs: Vec<String>,
}
