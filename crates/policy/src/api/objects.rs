//! Pods, namespaces and nodes, as far as policies look at them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Labels, ObjectMeta};
use crate::Protocol;

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, namespace and labels.
    pub metadata: ObjectMeta,
    /// What was asked for.
    pub spec: PodSpec,
    /// What is.
    pub status: PodStatus,
}

/// What a pod asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// Whether it uses its node's network; policies do not see it then.
    pub host_network: bool,
    /// Where it runs.
    pub node_name: String,
    /// Its containers.
    pub containers: Vec<Container>,
    /// Containers that run before those, or, if they always restart, beside them.
    pub init_containers: Vec<Container>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// Ports that it names.
    pub ports: Vec<ContainerPort>,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: String,
}

/// A port of a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPort {
    /// Its name, if it has one.
    #[serde(default)]
    pub name: String,
    /// Its number.
    pub container_port: u16,
    /// TCP if it does not say.
    #[serde(default = "tcp")]
    pub protocol: Protocol,
}

fn tcp() -> Protocol {
    Protocol::Tcp
}

/// What is known of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// `Running` …
    pub phase: String,
    /// Its first address.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<IpAddr>,
    /// All of its addresses.
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
}

/// An address of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodIp {
    /// The address.
    pub ip: IpAddr,
}

impl Pod {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    /// Whether it has a network of its own that policies are about: it is no guest of its node's, and not over.
    pub fn is_wired(&self) -> bool {
        !self.spec.host_network && !matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Its addresses, each once.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut all: Vec<IpAddr> = self.status.pod_ip.into_iter().collect();
        for PodIp { ip } in &self.status.pod_ips {
            if !all.contains(ip) {
                all.push(*ip);
            }
        }
        all
    }

    /// Whether one of its addresses is such.
    pub fn has_address(&self, such: impl Fn(&IpAddr) -> bool) -> bool {
        self.status.pod_ip.iter().chain(self.status.pod_ips.iter().map(|one| &one.ip)).any(such)
    }

    /// Ports of its containers that have this name.
    pub fn named_ports<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (Protocol, u16)> + 'a {
        let sidecars =
            self.spec.init_containers.iter().filter(|container| container.restart_policy == "Always");
        let ports = self.spec.containers.iter().chain(sidecars).flat_map(|container| &container.ports);
        ports.filter(move |port| port.name == name).map(|port| (port.protocol, port.container_port))
    }
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Name and labels.
    pub metadata: ObjectMeta,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// What is known of it.
    pub status: NodeStatus,
}

/// What is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Names and addresses.
    pub addresses: Vec<NodeAddress>,
}

/// A name or an address of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `Hostname` …
    #[serde(rename = "type")]
    pub kind: String,
    /// The name or address.
    pub address: String,
}

impl Node {
    /// Those of its addresses that are addresses.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.status.addresses.iter().filter_map(|address| address.address.parse().ok()).collect()
    }
}

/// The template of a Deployment and its kin: what its pods are made from.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Template {
    pub metadata: TemplateMeta,
    pub spec: PodSpec,
}

/// The labels of a template.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct TemplateMeta {
    pub labels: Labels,
}
