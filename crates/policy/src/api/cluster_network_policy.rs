//! `policy.networking.k8s.io/v1alpha2` ClusterNetworkPolicy.

use serde::{Deserialize, Serialize};

use super::meta::{LabelSelector, ObjectMeta, UnknownFields};

/// An administrator's policy for pods of all namespaces.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterNetworkPolicy {
    /// The name.
    pub metadata: ObjectMeta,
    /// The policy.
    pub spec: ClusterNetworkPolicySpec,
}

/// The policy itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterNetworkPolicySpec {
    /// Before or after the NetworkPolicies.
    pub tier: CnpTier,
    /// The order in its tier: 0 to 1000, the lowest first.
    pub priority: i64,
    /// The pods that it selects.
    pub subject: CnpSubject,
    /// Rules for received packets; the first that matches decides.
    pub ingress: Vec<CnpIngressRule>,
    /// Rules for sent packets; the first that matches decides.
    pub egress: Vec<CnpEgressRule>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// The tier of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CnpTier {
    /// Before all NetworkPolicies, which cannot override it.
    #[default]
    Admin,
    /// For pods that no NetworkPolicy selects.
    Baseline,
}

/// The action of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CnpAction {
    /// The traffic and its replies are accepted.
    Accept,
    /// The traffic is dropped.
    #[default]
    Deny,
    /// The next tier decides.
    Pass,
}

/// The pods that a policy selects. Exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CnpSubject {
    /// All pods of these namespaces.
    pub namespaces: Option<LabelSelector>,
    /// These pods.
    pub pods: Option<NamespacedPod>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// Pods by namespace and labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NamespacedPod {
    /// The namespaces.
    pub namespace_selector: LabelSelector,
    /// The pods in them.
    pub pod_selector: LabelSelector,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A rule for packets that the subject receives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CnpIngressRule {
    /// The name, for users.
    pub name: String,
    /// The action.
    pub action: CnpAction,
    /// The senders.
    pub from: Vec<CnpPeer>,
    /// The destination ports; `None` means all.
    pub protocols: Option<Vec<CnpProtocol>>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A rule for packets that the subject sends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CnpEgressRule {
    /// The name, for users.
    pub name: String,
    /// The action.
    pub action: CnpAction,
    /// The receivers.
    pub to: Vec<CnpPeer>,
    /// The destination ports; `None` means all.
    pub protocols: Option<Vec<CnpProtocol>>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A peer. Exactly one field is set. `nodes`, `networks` and `domainNames` are for egress only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CnpPeer {
    /// All pods of these namespaces.
    pub namespaces: Option<LabelSelector>,
    /// These pods.
    pub pods: Option<NamespacedPod>,
    /// The addresses of these nodes.
    pub nodes: Option<LabelSelector>,
    /// These networks.
    pub networks: Option<Vec<String>>,
    /// These domain names.
    pub domain_names: Option<Vec<String>>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A match on the transport protocol. Exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CnpProtocol {
    /// TCP.
    pub tcp: Option<CnpTransport>,
    /// UDP.
    pub udp: Option<CnpTransport>,
    /// SCTP.
    pub sctp: Option<CnpTransport>,
    /// The name of a container port.
    pub destination_named_port: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A match on the transport header.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CnpTransport {
    /// The destination port.
    pub destination_port: Option<CnpPort>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A port or a range. Exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CnpPort {
    /// One port.
    pub number: Option<i64>,
    /// A range of ports.
    pub range: Option<CnpPortRange>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A range of ports, both ends included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CnpPortRange {
    /// The first port.
    pub start: i64,
    /// The last port.
    pub end: i64,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}
