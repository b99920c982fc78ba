//! EndpointSlices (`discovery.k8s.io/v1`).

use serde::Deserialize;

use super::ObjectMeta;

/// The label with the name of the slice's Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Some endpoints of a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Name, namespace and labels.
    pub metadata: ObjectMeta,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: String,
    /// The ports of all endpoints.
    pub ports: Vec<EndpointPort>,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
}

impl EndpointSlice {
    /// The name of the slice's Service, which is in the same namespace.
    pub fn service_name(&self) -> Option<&str> {
        self.metadata.labels.get(SERVICE_NAME).map(String::as_str).filter(|name| !name.is_empty())
    }
}

/// A port of the endpoints of a slice.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// The name of the Service's port.
    pub name: String,
    /// `TCP` (also if empty), `UDP` or `SCTP`.
    pub protocol: String,
    /// The port number.
    pub port: Option<i64>,
}

/// An endpoint.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Endpoint {
    /// The addresses. Proxies use the first.
    pub addresses: Vec<String>,
    /// Its state.
    pub conditions: Conditions,
    /// The node that it runs on; empty if it is not known.
    pub node_name: String,
    /// Who should use it.
    pub hints: Hints,
}

/// The state of an endpoint. A missing condition has its usual value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// Accepts connections and is not terminating. With `publishNotReadyAddresses` the controller sets it always.
    pub ready: Option<bool>,
    /// Accepts connections.
    pub serving: Option<bool>,
    /// Is being deleted.
    pub terminating: Option<bool>,
}

/// Who should use an endpoint. The controller writes them for `trafficDistribution` and topology-aware routing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    /// Clients in these zones.
    pub for_zones: Vec<NamedHint>,
    /// Clients on these nodes.
    pub for_nodes: Vec<NamedHint>,
}

/// A zone or a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NamedHint {
    /// The name.
    pub name: String,
}
