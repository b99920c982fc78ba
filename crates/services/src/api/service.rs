//! Services.

use serde::Deserialize;

use super::ObjectMeta;

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Name, namespace, labels and age.
    pub metadata: ObjectMeta,
    /// The specification.
    pub spec: ServiceSpec,
    /// The status.
    pub status: ServiceStatus,
}

/// The specification of a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// `ClusterIP` (also if empty), `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The first address; `None` for a headless Service.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// An address of each family.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    /// The ports.
    pub ports: Vec<ServicePort>,
    /// Further addresses, which routers send to the nodes.
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<String>,
    /// `None` or `ClientIP`.
    pub session_affinity: String,
    /// The timeout of the affinity.
    pub session_affinity_config: SessionAffinityConfig,
    /// `Cluster` (also if empty) or `Local`, for clients outside the cluster.
    pub external_traffic_policy: String,
    /// `Cluster` (also if empty) or `Local`, for the cluster IPs.
    pub internal_traffic_policy: String,
    /// The port at which load balancers ask whether this node has endpoints; 0 is none.
    pub health_check_node_port: i64,
    /// The clients that may use the load balancer's addresses; empty is all.
    pub load_balancer_source_ranges: Vec<String>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// The name, which the slices use too. May be empty if there is only one port.
    pub name: String,
    /// `TCP` (also if empty), `UDP` or `SCTP`.
    pub protocol: String,
    /// The port of the Service's addresses.
    pub port: i64,
    /// The port of the nodes' addresses; 0 is none.
    pub node_port: i64,
}

/// The configuration of the session affinity.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SessionAffinityConfig {
    /// For `ClientIP`.
    #[serde(rename = "clientIP")]
    pub client_ip: ClientIpConfig,
}

/// The configuration of `ClientIP`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    /// How long a client keeps its endpoint after its last connection.
    pub timeout_seconds: Option<i64>,
}

/// The status of a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    /// The addresses of the load balancer.
    pub load_balancer: LoadBalancerStatus,
}

/// The addresses of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// One for each address or host name.
    pub ingress: Vec<LoadBalancerIngress>,
}

/// An address of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoadBalancerIngress {
    /// The address; empty if there is only a host name.
    pub ip: String,
    /// `VIP` (also if empty): packets arrive with this destination. `Proxy`: they arrive with a node's.
    pub ip_mode: String,
}
