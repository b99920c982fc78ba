//! `networking.k8s.io/v1` NetworkPolicy.

use serde::{Deserialize, Serialize};

use super::meta::{IntOrString, LabelSelector, ObjectMeta, UnknownFields};

/// A policy for pods of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkPolicy {
    /// Name and namespace.
    pub metadata: ObjectMeta,
    /// The policy.
    pub spec: NetworkPolicySpec,
}

/// The policy itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkPolicySpec {
    /// The pods that the policy isolates.
    pub pod_selector: LabelSelector,
    /// What they may receive.
    pub ingress: Vec<IngressRule>,
    /// What they may send.
    pub egress: Vec<EgressRule>,
    /// `Ingress`, `Egress` or both. If empty: ingress, and egress if there are egress rules.
    pub policy_types: Vec<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// Allows packets from any of the sources to any of the ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IngressRule {
    /// The sources; empty means all.
    pub from: Vec<NetworkPolicyPeer>,
    /// The ports; empty means all.
    pub ports: Vec<NetworkPolicyPort>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// Allows packets to any of the destinations at any of the ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EgressRule {
    /// The destinations; empty means all.
    pub to: Vec<NetworkPolicyPeer>,
    /// The ports; empty means all.
    pub ports: Vec<NetworkPolicyPort>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A peer: pods, or a block of addresses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkPolicyPeer {
    /// The pods; in the policy's namespace unless `namespace_selector` is set.
    pub pod_selector: Option<LabelSelector>,
    /// The namespaces; all of their pods unless `pod_selector` is set.
    pub namespace_selector: Option<LabelSelector>,
    /// Addresses.
    pub ip_block: Option<IpBlock>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A block of addresses with exceptions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IpBlock {
    /// The block: `10.0.0.0/8`.
    pub cidr: String,
    /// The exceptions.
    pub except: Vec<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A port or a range of ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkPolicyPort {
    /// The protocol; `None` means TCP.
    pub protocol: Option<String>,
    /// The number or name; `None` means all ports of the protocol.
    pub port: Option<IntOrString>,
    /// The last port of a range.
    pub end_port: Option<i64>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}
