//! Pods as Kubernetes knows them, and their endpoints as the node publishes them.
//!
//! Plugins link no Kubernetes client; the agent has one and answers for it. After a pod is attached, the plugin sends its
//! [`Endpoint`] to the agent, and the agent writes it to the datastore in the background.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{pending, Owner};

/// Labels or annotations.
pub type StringMap = BTreeMap<String, String>;

/// The parts of a Kubernetes pod that plugins and endpoints need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodMetadata {
    /// The UID; it distinguishes pods that had the same name.
    pub uid: String,
    /// The prefix that the API server made the name from, if it did.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    /// The labels.
    pub labels: StringMap,
    /// The [network annotations](is_network_annotation).
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    pub annotations: StringMap,
    /// The network annotations of the pod's namespace.
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    pub namespace_annotations: StringMap,
    /// The service account.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account: String,
    /// The container ports that have a name or a host port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PodPort>,
}

/// A container port, as Calico stores it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPort {
    /// Its name.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Its number.
    pub port: u16,
    /// The host port that is forwarded to it; 0 if there is none.
    #[serde(rename = "hostPort")]
    pub host_port: u16,
    /// The host address of the host port.
    #[serde(rename = "hostIP")]
    pub host_ip: String,
}

/// Whether a plugin or the agent reads this annotation. The others can be large and are not transferred.
pub fn is_network_annotation(annotation: &str) -> bool {
    ["cni.projectcalico.org/", "qos.projectcalico.org/"].iter().any(|group| annotation.starts_with(group))
        || ["kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"].contains(&annotation)
}

/// A NAT from an external address to an address of the pod (a floating IP).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpNat {
    /// The pod's address.
    pub internal: IpAddr,
    /// The external address.
    pub external: IpAddr,
}

/// The interface of an attached pod; Calico calls it a workload endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Endpoint {
    /// The attachment.
    pub owner: Owner,
    /// The pod's Kubernetes namespace; empty if the runtime has no pods.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's metadata, without annotations: the other fields contain what those ask for.
    pub metadata: PodMetadata,
    /// The Calico profiles that apply to it.
    pub profiles: Vec<String>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its floating IPs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_nats: Vec<IpNat>,
    /// The host end of its veth pair.
    pub interface: String,
    /// The MAC address of the pod's end.
    pub mac: String,
    /// Networks that it may use as source addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_source_prefixes: Vec<IpNet>,
    /// Bandwidth, packet and connection limits, by Calico's names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, u64>,
    /// The [boot](crate::pending::boot_id) during which it was attached.
    pub boot_id: String,
    /// The inode of the network namespace of the host end, or 0. See [`current_netns_inode`].
    #[serde(skip_serializing_if = "is_zero")]
    pub host_netns: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The inode of the calling thread's network namespace, or 0 if it cannot be read. The agent can only tell whether a host
/// interface is gone if it runs in the namespace in which the plugin created it.
pub fn current_netns_inode() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |it| it.ino())
}

/// The directory of the endpoints in the agent's state directory. It has the layout of [`pending`]: published endpoints, and
/// endpoints to be withdrawn.
pub fn endpoints_dir(state: &Path) -> PathBuf {
    state.join("endpoints")
}

/// Records that an endpoint is to be withdrawn. The file of a published endpoint is moved, because it has more detail; for an
/// endpoint that Calico published, the pod's name is enough.
pub fn withdraw(state: &Path, gone: &Endpoint) -> std::io::Result<()> {
    let (state, name) = (endpoints_dir(state), pending::file_name(&gone.owner));
    let dir = pending::released_dir(&state);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    pending::release(&state, &gone.owner)?;
    if pending::is_readable::<Endpoint>(&dir.join(&name)) {
        return Ok(());
    }
    pending::write(&dir, &name, gone)
}

/// A source of pods and nodes: the Kubernetes API.
pub trait Cluster: Send + Sync {
    /// The pod of this name, and of this UID unless it is empty.
    fn pod(&self, namespace: &str, name: &str, uid: &str) -> Result<PodMetadata, String>;

    /// The labels of a namespace.
    fn namespace_labels(&self, namespace: &str) -> Result<StringMap, String>;

    /// Whether a node of this name is in the local cache. Makes no request.
    fn has_node(&self, node: &str) -> bool;

    /// The pod CIDRs of a node.
    fn pod_cidrs(&self, node: &str) -> Result<Vec<IpNet>, String>;
}
