//! Pods, namespaces and nodes, as far as policies depend on them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::meta::{Labels, ObjectMeta};
use crate::Protocol;

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, namespace and labels.
    pub metadata: ObjectMeta,
    /// The specification.
    pub spec: PodSpec,
    /// The status.
    pub status: PodStatus,
}

/// The specification of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// Whether it uses the node's network; policies do not apply to it then.
    pub host_network: bool,
    /// The node that runs it.
    pub node_name: String,
    /// The containers.
    pub containers: Vec<Container>,
    /// The init containers; those with the restart policy `Always` are sidecars.
    pub init_containers: Vec<Container>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// The declared ports.
    pub ports: Vec<ContainerPort>,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: String,
}

/// A port of a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPort {
    /// The name; may be empty.
    #[serde(default)]
    pub name: String,
    /// The number.
    pub container_port: u16,
    /// The protocol; TCP by default.
    #[serde(default = "tcp")]
    pub protocol: Protocol,
}

fn tcp() -> Protocol {
    Protocol::Tcp
}

/// The status of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// `Running`, `Succeeded`, `Failed`, …
    pub phase: String,
    /// The first address.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<IpAddr>,
    /// All addresses.
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

    /// Whether policies apply to the pod: it has its own network namespace and has not ended.
    pub fn has_pod_network(&self) -> bool {
        !self.spec.host_network && !matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// The addresses without duplicates.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut all: Vec<IpAddr> = self.status.pod_ip.into_iter().collect();
        for PodIp { ip } in &self.status.pod_ips {
            if !all.contains(ip) {
                all.push(*ip);
            }
        }
        all
    }

    /// Whether the predicate holds for one of its addresses.
    pub fn has_address(&self, predicate: impl Fn(&IpAddr) -> bool) -> bool {
        self.status.pod_ip.iter().chain(self.status.pod_ips.iter().map(|one| &one.ip)).any(predicate)
    }

    /// The containers' ports with this name.
    pub fn named_ports<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (Protocol, u16)> + 'a {
        let sidecars =
            self.spec.init_containers.iter().filter(|container| container.restart_policy == "Always");
        let ports = self.spec.containers.iter().chain(sidecars).flat_map(|container| &container.ports);
        ports.filter(move |port| port.name == name).map(|port| (port.protocol, port.container_port))
    }
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Name and labels.
    pub metadata: ObjectMeta,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// The status.
    pub status: NodeStatus,
}

/// The status of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// The names and addresses.
    pub addresses: Vec<NodeAddress>,
}

/// A name or an address of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `Hostname`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The name or address.
    pub address: String,
}

impl Node {
    /// The IP addresses, without hostnames.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.status.addresses.iter().filter_map(|address| address.address.parse().ok()).collect()
    }
}

/// The pod template of a Deployment or another workload.
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
