//! Everything that policies depend on, at one moment.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{
    without_nulls, ClusterNetworkPolicy, Labels, Namespace, NetworkPolicy, Node, ObjectMeta, Pod, Template,
};
use crate::{Error, Result};

/// The label that every namespace has, with its name as the value: the API server sees to it.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Kinds that make pods from a template, and where in them it is.
const WORKLOADS: [(&str, &str); 7] = [
    ("Deployment", "/spec/template"),
    ("StatefulSet", "/spec/template"),
    ("DaemonSet", "/spec/template"),
    ("ReplicaSet", "/spec/template"),
    ("ReplicationController", "/spec/template"),
    ("Job", "/spec/template"),
    ("CronJob", "/spec/jobTemplate/spec/template"),
];

/// Pods, namespaces, nodes and policies.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Snapshot {
    pub pods: Vec<Pod>,
    pub namespaces: Vec<Namespace>,
    pub nodes: Vec<Node>,
    pub network_policies: Vec<NetworkPolicy>,
    pub cluster_network_policies: Vec<ClusterNetworkPolicy>,
    /// Kinds and names of what was added.
    added: BTreeSet<String>,
}

impl Snapshot {
    /// Nothing yet.
    pub fn new() -> Snapshot {
        Snapshot::default()
    }

    /// Adds an object, or all objects of a list. A Deployment or its like becomes one pod with its name, since its pods
    /// are alike. Says whether the object matters to policies.
    pub fn add(&mut self, object: Value) -> Result<bool> {
        let object = without_nulls(object);
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        if kind.is_empty() {
            return Err(Error::NoObject("kind"));
        }
        if version.is_empty() {
            return Err(Error::NoObject("apiVersion"));
        }
        if kind.ends_with("List") {
            let items = object.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
            return items.into_iter().try_fold(false, |matters, item| Ok(self.add(item)? | matters));
        }
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let workload = WORKLOADS.iter().find(|(workload, _)| *workload == kind);
        match (group, kind.as_str(), workload) {
            ("", "Pod", _) => self.add_pod(read(object, &kind)?)?,
            ("", "Namespace", _) => {
                let namespace: Namespace = read(object, &kind)?;
                self.once(&kind, &namespace.metadata.name)?;
                self.namespaces.push(namespace);
            }
            ("", "Node", _) => {
                let node: Node = read(object, &kind)?;
                self.once(&kind, &node.metadata.name)?;
                self.nodes.push(node);
            }
            ("networking.k8s.io", "NetworkPolicy", _) => {
                let mut policy: NetworkPolicy = read(object, &kind)?;
                policy.metadata.namespace = in_namespace(policy.metadata.namespace);
                self.once(&kind, &full_name(&policy.metadata))?;
                self.network_policies.push(policy);
            }
            ("policy.networking.k8s.io", "ClusterNetworkPolicy", _) => {
                let policy: ClusterNetworkPolicy = read(object, &kind)?;
                self.once(&kind, &policy.metadata.name)?;
                self.cluster_network_policies.push(policy);
            }
            (_, _, Some((_, pointer))) => {
                let template: Template = match object.pointer(pointer) {
                    Some(template) => read(template.clone(), &format!("{kind} {name}"))?,
                    None => return Err(malformed(format!("{kind} {name}"), "it has no template")),
                };
                let mut pod = Pod { spec: template.spec, ..Pod::default() };
                pod.metadata.name = name;
                pod.metadata.namespace = text("/metadata/namespace");
                pod.metadata.labels = template.metadata.labels;
                self.add_pod(pod)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Refuses what has no name, and what is there already.
    fn once(&mut self, kind: &str, name: &str) -> Result<()> {
        if name.is_empty() {
            return Err(Error::NoObject("metadata.name"));
        }
        let object = format!("{kind} {name}");
        match self.added.insert(object.clone()) {
            true => Ok(()),
            false => Err(Error::Twice { object }),
        }
    }

    fn add_pod(&mut self, mut pod: Pod) -> Result<()> {
        pod.metadata.namespace = in_namespace(pod.metadata.namespace);
        self.once("Pod", &full_name(&pod.metadata))?;
        self.pods.push(pod);
        Ok(())
    }

    /// The labels of a namespace. One that nobody described exists all the same if somebody lives in it.
    pub fn labels_of(&self, namespace: &str) -> Labels {
        let known = self.namespaces.iter().find(|known| known.metadata.name == namespace);
        let mut labels = known.map(|known| known.metadata.labels.clone()).unwrap_or_default();
        labels.insert(NAME_LABEL.to_owned(), namespace.to_owned());
        labels
    }

    /// The pod with this address, among those that have a network of their own.
    pub fn pod_at(&self, address: IpAddr) -> Option<&Pod> {
        self.pods.iter().find(|pod| pod.is_wired() && pod.addresses().contains(&address))
    }

    /// The pod named `namespace/name`, or `name` in the namespace `default`.
    pub fn pod(&self, name: &str) -> Option<&Pod> {
        let full = if name.contains('/') { name.to_owned() } else { format!("default/{name}") };
        self.pods.iter().find(|pod| pod.full_name() == full)
    }

    /// The addresses of the node where a pod runs.
    pub fn own_node(&self, pod: &Pod) -> Vec<IpAddr> {
        let named = |node: &&Node| !pod.spec.node_name.is_empty() && node.metadata.name == pod.spec.node_name;
        self.nodes.iter().find(named).map(Node::addresses).unwrap_or_default()
    }

    /// Gives every pod without an address one of each network, as a cluster would; a pod in its node's network gets its
    /// node's addresses. For policies that are tried without a cluster.
    pub fn give_addresses(&mut self, networks: &[IpNet]) {
        let mut taken: BTreeSet<IpAddr> = self.pods.iter().flat_map(Pod::addresses).collect();
        taken.extend(self.nodes.iter().flat_map(Node::addresses));
        let mut pods = std::mem::take(&mut self.pods);
        for pod in pods.iter_mut().filter(|pod| pod.addresses().is_empty()) {
            let given = match pod.spec.host_network {
                true => self.own_node(pod),
                false => networks.iter().filter_map(|network| free(network, &taken)).collect(),
            };
            taken.extend(&given);
            pod.status.pod_ips = given.into_iter().map(|ip| crate::api::PodIp { ip }).collect();
        }
        self.pods = pods;
    }
}

fn free(network: &IpNet, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    // The first one is the gateway's nearly everywhere; IPv6 has one before it that is nobody's.
    network
        .hosts()
        .skip(if network.addr().is_ipv4() { 1 } else { 2 })
        .find(|address| !taken.contains(address))
}

fn in_namespace(name: String) -> String {
    if name.is_empty() {
        "default".to_owned()
    } else {
        name
    }
}

/// `namespace/name`; nothing for what has no name.
fn full_name(meta: &ObjectMeta) -> String {
    match meta.name.is_empty() {
        true => String::new(),
        false => format!("{}/{}", meta.namespace, meta.name),
    }
}

fn read<T: DeserializeOwned>(object: Value, kind: &str) -> Result<T> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let name = match (text("/metadata/namespace"), text("/metadata/name")) {
        (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
        (None, Some(name)) => format!("{kind} {name}"),
        (_, None) => kind.to_owned(),
    };
    serde_json::from_value(object).map_err(|error| malformed(name, &error.to_string()))
}

fn malformed(object: String, reason: &str) -> Error {
    Error::Malformed { object, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_deployment_is_a_pod_with_its_name() {
        let mut snapshot = Snapshot::new();
        let template = json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } });
        let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "namespace": "shop" }, "spec": { "template": template } });
        assert!(snapshot.add(deployment).unwrap());
        assert_eq!(snapshot.pod("shop/web").unwrap().metadata.labels["app"], "web");
    }

    #[test]
    fn lists_are_opened_and_what_is_no_matter_is_left() {
        let mut snapshot = Snapshot::new();
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a" } });
        let other = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" } });
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": [pod, other] });
        assert!(snapshot.add(list).unwrap());
        assert!(!snapshot.add(other).unwrap());
        assert_eq!(snapshot.pods.len(), 1);
        assert_eq!(
            snapshot.add(pod).unwrap_err().to_string(),
            "Pod default/a is there twice: keep one of them"
        );
    }

    #[test]
    fn pods_without_addresses_get_one_of_each_network() {
        let mut snapshot = Snapshot::new();
        for name in ["a", "b"] {
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name } });
            snapshot.add(pod).unwrap();
        }
        snapshot.give_addresses(&["10.1.0.0/16".parse().unwrap(), "fd00::/64".parse().unwrap()]);
        let addresses = |name| snapshot.pod(name).unwrap().addresses();
        assert_eq!(addresses("a"), ["10.1.0.2".parse::<IpAddr>().unwrap(), "fd00::2".parse().unwrap()]);
        assert_eq!(addresses("b"), ["10.1.0.3".parse::<IpAddr>().unwrap(), "fd00::3".parse().unwrap()]);
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_told_with_the_object() {
        let policy = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": "web", "namespace": "shop" }, "spec": { "podSelector": { "matchLabels": { "v": 1 } } } });
        let error = Snapshot::new().add(policy).unwrap_err().to_string();
        assert!(
            error.starts_with("NetworkPolicy shop/web: invalid type: integer `1`, expected a string"),
            "{error}"
        );
    }
}
