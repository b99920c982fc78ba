//! `networking.k8s.io/v1` NetworkPolicy.

use serde::Deserialize;

use super::{IntOrString, LabelSelector, ObjectMeta, Unknown};

/// What the pods of one namespace may do.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NetworkPolicy {
    /// Name and namespace.
    pub metadata: ObjectMeta,
    /// The policy.
    pub spec: NetworkPolicySpec,
}

/// The policy itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkPolicySpec {
    /// The pods that it isolates.
    pub pod_selector: LabelSelector,
    /// What may reach them.
    pub ingress: Vec<IngressRule>,
    /// What they may reach.
    pub egress: Vec<EgressRule>,
    /// `Ingress`, `Egress` or both; see [`NetworkPolicySpec::isolates`].
    pub policy_types: Vec<String>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What may reach a pod: all of these sources at all of these ports.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IngressRule {
    /// Sources; none means all.
    pub from: Vec<NetworkPolicyPeer>,
    /// Ports; none means all.
    pub ports: Vec<NetworkPolicyPort>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What a pod may reach: all of these destinations at all of these ports.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EgressRule {
    /// Destinations; none means all.
    pub to: Vec<NetworkPolicyPeer>,
    /// Ports; none means all.
    pub ports: Vec<NetworkPolicyPort>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Somebody else: pods, or a block of addresses.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkPolicyPeer {
    /// Pods, of the policy's namespace unless namespaces are selected too.
    pub pod_selector: Option<LabelSelector>,
    /// Namespaces; all of their pods unless pods are selected too.
    pub namespace_selector: Option<LabelSelector>,
    /// Addresses.
    pub ip_block: Option<IpBlock>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A block of addresses with holes in it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IpBlock {
    /// The block: `10.0.0.0/8`.
    pub cidr: String,
    /// The holes.
    pub except: Vec<String>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A port, or several.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkPolicyPort {
    /// `TCP` if it does not say.
    pub protocol: Option<String>,
    /// Number or name; all ports of the protocol if it does not say.
    pub port: Option<IntOrString>,
    /// The last port of a range.
    pub end_port: Option<i64>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}
