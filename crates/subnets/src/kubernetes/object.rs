//! The Node object, reduced to the fields that this crate uses.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::ClusterResourceScope;
use serde::Deserialize;

use crate::netconf::NetConf;
use crate::node::PodCidrs;

/// A Node object without the ten to fifty kilobytes of images, conditions and capacities that a real one has.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LeanNode {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Option<Vec<Condition>>,
    addresses: Option<Vec<Address>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Address {
    r#type: String,
    address: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

impl LeanNode {
    pub(super) fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(super) fn annotations(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.metadata.annotations.as_ref().unwrap_or(&NONE)
    }

    /// Whether the condition `NetworkUnavailable` is false.
    pub(super) fn is_available(&self) -> bool {
        let conditions = self.status.conditions.iter().flatten();
        conditions
            .into_iter()
            .any(|condition| condition.r#type == "NetworkUnavailable" && condition.status == "False")
    }

    /// The InternalIPs, in their order.
    pub(super) fn internal_ips(&self) -> Vec<IpAddr> {
        let all = self.status.addresses.iter().flatten().filter(|one| one.r#type == "InternalIP");
        all.filter_map(|one| one.address.parse().ok()).collect()
    }

    /// `spec.podCIDRs` as text. Before Kubernetes 1.16 a node had only `spec.podCIDR`.
    pub(super) fn pod_cidr_texts(&self) -> Vec<String> {
        match &self.spec.pod_cidrs {
            Some(several) if !several.is_empty() => several.clone(),
            _ => self.spec.pod_cidr.iter().filter(|one| !one.is_empty()).cloned().collect(),
        }
    }

    /// The pod CIDRs of the families that the network enables.
    pub(super) fn pod_cidrs(&self, conf: &NetConf) -> Result<PodCidrs, String> {
        parse_pod_cidrs(&self.pod_cidr_texts(), conf)
    }
}

/// Parses a node's `spec.podCIDRs`. Each family that the network enables must have one.
pub(super) fn parse_pod_cidrs(texts: &[String], conf: &NetConf) -> Result<PodCidrs, String> {
    let mut pod_cidrs = PodCidrs::default();
    if texts.len() > 2 {
        return Err(format!("pod cidrs should be IPv4/IPv6 only or dualstack, and are {}", texts.join(", ")));
    }
    for text in texts {
        let cidr: IpNet = text.parse().map_err(|error| format!("podCIDR {text:?}: {error}"))?;
        match cidr.trunc() {
            IpNet::V4(cidr) => pod_cidrs.v4 = pod_cidrs.v4.or(Some(cidr)).filter(|_| conf.enable_ipv4),
            IpNet::V6(cidr) => pod_cidrs.v6 = pod_cidrs.v6.or(Some(cidr)).filter(|_| conf.enable_ipv6),
        }
    }
    let missing = |family: &str| {
        format!("missing {family} address on podCIDRs ({}), which net-conf.json enables", texts.join(", "))
    };
    if conf.enable_ipv4 && pod_cidrs.v4.is_none() {
        return Err(missing("IPv4"));
    }
    if conf.enable_ipv6 && pod_cidrs.v6.is_none() {
        return Err(missing("IPv6"));
    }
    Ok(pod_cidrs)
}

impl kube::Resource for LeanNode {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Node".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "nodes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The reference of an event to its node. kubelet's events have the node's name as uid, and `kubectl describe` looks
/// for that.
pub(super) fn reference(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(name.into()),
        uid: Some(name.into()),
        ..ObjectReference::default()
    }
}
