//! `policy.networking.k8s.io/v1alpha2` ClusterNetworkPolicy.

use serde::Deserialize;

use super::{LabelSelector, ObjectMeta, Unknown};

/// What an administrator demands of all pods, or allows them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClusterNetworkPolicy {
    /// Its name.
    pub metadata: ObjectMeta,
    /// The policy.
    pub spec: ClusterNetworkPolicySpec,
}

/// The policy itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClusterNetworkPolicySpec {
    /// Before or behind the NetworkPolicies.
    pub tier: CnpTier,
    /// Its place among the policies of its tier: 0 to 1000, the lower the earlier.
    pub priority: i64,
    /// The pods that it is about.
    pub subject: CnpSubject,
    /// Rules for what reaches them, the first that fits decides.
    pub ingress: Vec<CnpIngressRule>,
    /// Rules for what they send.
    pub egress: Vec<CnpEgressRule>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Where a policy stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub enum CnpTier {
    /// Before all NetworkPolicies, which cannot overrule it.
    #[default]
    Admin,
    /// For what no NetworkPolicy has decided about.
    Baseline,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub enum CnpAction {
    /// The traffic passes, with its replies.
    Accept,
    /// The traffic is dropped.
    #[default]
    Deny,
    /// The next tier decides.
    Pass,
}

/// Pods that a policy is about: exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CnpSubject {
    /// All pods of these namespaces.
    pub namespaces: Option<LabelSelector>,
    /// These pods.
    pub pods: Option<NamespacedPod>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Pods of namespaces.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NamespacedPod {
    /// The namespaces.
    pub namespace_selector: LabelSelector,
    /// The pods in them.
    pub pod_selector: LabelSelector,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A rule for what reaches the subject.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CnpIngressRule {
    /// For people.
    pub name: String,
    /// What it does.
    pub action: CnpAction,
    /// With traffic from whom.
    pub from: Vec<CnpPeer>,
    /// At which ports.
    pub protocols: Option<Vec<CnpProtocol>>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A rule for what the subject sends.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CnpEgressRule {
    /// For people.
    pub name: String,
    /// What it does.
    pub action: CnpAction,
    /// With traffic to whom.
    pub to: Vec<CnpPeer>,
    /// At which ports.
    pub protocols: Option<Vec<CnpProtocol>>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Somebody else: exactly one field is set. `nodes`, `networks` and `domainNames` are for egress only.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CnpPeer {
    /// All pods of these namespaces.
    pub namespaces: Option<LabelSelector>,
    /// These pods.
    pub pods: Option<NamespacedPod>,
    /// These nodes' own addresses.
    pub nodes: Option<LabelSelector>,
    /// These networks.
    pub networks: Option<Vec<String>>,
    /// These names.
    pub domain_names: Option<Vec<String>>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What to look at in the traffic: exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CnpProtocol {
    /// TCP.
    pub tcp: Option<CnpTransport>,
    /// UDP.
    pub udp: Option<CnpTransport>,
    /// SCTP.
    pub sctp: Option<CnpTransport>,
    /// The name of a container's port.
    pub destination_named_port: Option<String>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What to look at in a transport header.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CnpTransport {
    /// The destination port.
    pub destination_port: Option<CnpPort>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A port or a range: exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CnpPort {
    /// One port.
    pub number: Option<i64>,
    /// Several.
    pub range: Option<CnpPortRange>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Ports from one to another, both included.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CnpPortRange {
    /// The first.
    pub start: i64,
    /// The last.
    pub end: i64,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}
