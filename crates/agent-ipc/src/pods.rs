//! What a cluster knows of a pod, and what a node says about it.
//!
//! A plugin links no client of Kubernetes: whoever owns the node's blocks has one, and is asked. When the pod is connected, the plugin tells
//! what became of it, its [`Endpoint`], and the cluster hears of it afterwards.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{notes, Owner};

/// Texts by their keys: labels, annotations.
pub type Texts = BTreeMap<String, String>;

/// What Kubernetes knows of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Which of several that had this name, one after the other.
    pub uid: String,
    /// What its name was made from, if the cluster has named it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    /// Its labels.
    pub labels: Texts,
    /// Its annotations, as far as they are [for networks](is_for_networks).
    #[serde(skip_serializing_if = "Texts::is_empty")]
    pub annotations: Texts,
    /// Those of its namespace, likewise.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    pub namespace_annotations: Texts,
    /// Who it acts as.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account: String,
    /// Its ports that have a name, or one of the node's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
}

/// A port of a pod, as Calico writes it down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Its number.
    pub port: u16,
    /// The node's port that leads to it; 0 if none does.
    #[serde(rename = "hostPort")]
    pub host_port: u16,
    /// At which of the node's addresses.
    #[serde(rename = "hostIP")]
    pub host_ip: String,
}

/// Whether an annotation is for networks. The others of a pod may be long, and concern nobody here.
pub fn is_for_networks(annotation: &str) -> bool {
    ["cni.projectcalico.org/", "qos.projectcalico.org/"].iter().any(|group| annotation.starts_with(group))
        || ["kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"].contains(&annotation)
}

/// A connected pod, for others to know: Calico calls it a workload endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// Whose.
    pub owner: Owner,
    /// The pod's namespace in the cluster; empty if the runtime knows no pods.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// What is known of the pod. What it has asked for is in the other fields already.
    pub known: Pod,
    /// Which of Calico's profiles hold for it.
    pub profiles: Vec<String>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Addresses outside that lead to it: inside, outside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub floating: Vec<(IpAddr, IpAddr)>,
    /// The node's end of its cable.
    pub interface: String,
    /// The hardware address of its own end.
    pub mac: String,
    /// Networks that it may send as.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<IpNet>,
    /// How much it may send and receive, by Calico's names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, u64>,
    /// In which life of the machine it was connected.
    pub boot: String,
    /// The network namespace in which the node's end of its cable is; 0 if it is not known. See [`network_namespace`].
    #[serde(skip_serializing_if = "is_zero")]
    pub namespace_of_cable: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The kernel's number for the network namespace of this thread; 0 if it cannot be told. Who looks for a cable in another one finds none, and learns nothing
/// from that.
pub fn network_namespace() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |it| it.ino())
}

/// The folder of the endpoints in the state of the blocks' owner. The [`notes`] in it are of those that are told, and of those that are to be
/// withdrawn.
pub fn endpoints(state: &Path) -> PathBuf {
    state.join("endpoints")
}

/// Notes that an endpoint is to be withdrawn. One that is noted as told is moved, and says more; of one that another program has told, the
/// pod's name is enough.
pub fn withdraw(state: &Path, gone: &Endpoint) -> std::io::Result<()> {
    let (state, name) = (endpoints(state), notes::file_name(&gone.owner));
    let folder = notes::released(&state);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    notes::leave(&state, &gone.owner)?;
    match notes::is_readable::<Endpoint>(&folder.join(&name)) {
        true => Ok(()),
        false => notes::write(&folder, &name, gone),
    }
}

/// Who knows the pods and the nodes of a cluster.
pub trait Cluster: Send + Sync {
    /// What is known of a pod, and of the one with this uid if it is not empty.
    fn pod(&self, namespace: &str, name: &str, uid: &str) -> Result<Pod, String>;

    /// The labels of a namespace.
    fn namespace_labels(&self, namespace: &str) -> Result<Texts, String>;

    /// Whether the cluster is known to have a node of this name. Nobody is asked for that.
    fn has_node(&self, node: &str) -> bool;

    /// The ranges of addresses that a node was given.
    fn ranges(&self, node: &str) -> Result<Vec<IpNet>, String>;
}
