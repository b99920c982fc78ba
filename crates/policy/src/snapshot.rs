//! The objects that policies depend on, at one point in time.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::Value;

use crate::api::{ClusterNetworkPolicy, Labels, Namespace, NetworkPolicy, Node, ObjectMeta, Pod, Template};
use crate::{Error, Result};

/// The label that the API server sets on every namespace; the value is the name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Workload kinds, with the JSON pointer of their pod template.
const WORKLOADS: [(&str, &str); 7] = [
    ("Deployment", "/spec/template"),
    ("StatefulSet", "/spec/template"),
    ("DaemonSet", "/spec/template"),
    ("ReplicaSet", "/spec/template"),
    ("ReplicationController", "/spec/template"),
    ("Job", "/spec/template"),
    ("CronJob", "/spec/jobTemplate/spec/template"),
];

/// The pods, namespaces, nodes and policies of one point in time.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Snapshot {
    pub pods: Vec<Pod>,
    pub namespaces: Vec<Namespace>,
    pub nodes: Vec<Node>,
    pub network_policies: Vec<NetworkPolicy>,
    pub cluster_network_policies: Vec<ClusterNetworkPolicy>,
    /// The kinds and names of the added objects.
    added: BTreeSet<String>,
}

impl Snapshot {
    /// A snapshot without objects.
    pub fn new() -> Snapshot {
        Snapshot::default()
    }

    /// Adds an object, or all objects of a list. A workload such as a Deployment becomes one pod with its name, since
    /// its pods are alike. Returns whether policies depend on the object.
    pub fn add(&mut self, object: Value) -> Result<bool> {
        let object = without_nulls(object);
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        if kind.is_empty() {
            return Err(Error::MissingField("kind"));
        }
        if version.is_empty() {
            return Err(Error::MissingField("apiVersion"));
        }
        if kind.ends_with("List") {
            let items = object.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
            return items.into_iter().try_fold(false, |added, item| Ok(self.add(item)? | added));
        }
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let workload = WORKLOADS.iter().find(|(workload, _)| *workload == kind);
        match (group, kind.as_str(), workload) {
            ("", "Pod", _) => self.add_pod(read_object(object, &kind)?)?,
            ("", "Namespace", _) => {
                let namespace: Namespace = read_object(object, &kind)?;
                self.register(&kind, &namespace.metadata.name)?;
                self.namespaces.push(namespace);
            }
            ("", "Node", _) => {
                let node: Node = read_object(object, &kind)?;
                self.register(&kind, &node.metadata.name)?;
                self.nodes.push(node);
            }
            ("networking.k8s.io", "NetworkPolicy", _) => {
                let mut policy: NetworkPolicy = read_object(object, &kind)?;
                policy.metadata.namespace = in_namespace(policy.metadata.namespace);
                self.register(&kind, &full_name(&policy.metadata))?;
                self.network_policies.push(policy);
            }
            ("policy.networking.k8s.io", "ClusterNetworkPolicy", _) => {
                let policy: ClusterNetworkPolicy = read_object(object, &kind)?;
                self.register(&kind, &policy.metadata.name)?;
                self.cluster_network_policies.push(policy);
            }
            (_, _, Some((_, pointer))) => {
                let template: Template = match object.pointer(pointer) {
                    Some(template) => read_object(template.clone(), &format!("{kind} {name}"))?,
                    None => return Err(malformed(format!("{kind} {name}"), "it has no pod template")),
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

    /// All objects, as [`add`](Snapshot::add) reads them.
    pub fn objects(&self) -> impl Iterator<Item = Value> + '_ {
        let pods = self.pods.iter().map(|one| object("v1", "Pod", one));
        let namespaces = self.namespaces.iter().map(|one| object("v1", "Namespace", one));
        let nodes = self.nodes.iter().map(|one| object("v1", "Node", one));
        let policies =
            self.network_policies.iter().map(|one| object("networking.k8s.io/v1", "NetworkPolicy", one));
        let cluster = self
            .cluster_network_policies
            .iter()
            .map(|one| object("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", one));
        pods.chain(namespaces).chain(nodes).chain(policies).chain(cluster)
    }

    /// Registers an object by name. Fails if it has no name or if it was already added.
    fn register(&mut self, kind: &str, name: &str) -> Result<()> {
        if name.is_empty() {
            return Err(Error::MissingField("metadata.name"));
        }
        let object = format!("{kind} {name}");
        if self.added.insert(object.clone()) {
            Ok(())
        } else {
            Err(Error::Duplicate { object })
        }
    }

    fn add_pod(&mut self, mut pod: Pod) -> Result<()> {
        pod.metadata.namespace = in_namespace(pod.metadata.namespace);
        self.register("Pod", &full_name(&pod.metadata))?;
        self.pods.push(pod);
        Ok(())
    }

    /// The labels of a namespace. A namespace without an object has only the name label.
    pub fn namespace_labels(&self, namespace: &str) -> Labels {
        let known = self.namespaces.iter().find(|known| known.metadata.name == namespace);
        let mut labels = known.map(|known| known.metadata.labels.clone()).unwrap_or_default();
        labels.insert(NAME_LABEL.to_owned(), namespace.to_owned());
        labels
    }

    /// The pod with this address, among the pods that policies apply to.
    pub fn pod_with_address(&self, address: IpAddr) -> Option<&Pod> {
        self.pods.iter().find(|pod| pod.has_pod_network() && pod.addresses().contains(&address))
    }

    /// The pod named `namespace/name`, or `name` in the namespace `default`.
    pub fn pod(&self, name: &str) -> Option<&Pod> {
        let full = if name.contains('/') { name.to_owned() } else { format!("default/{name}") };
        self.pods.iter().find(|pod| pod.full_name() == full)
    }

    /// The addresses of the pod's node.
    pub fn node_addresses_of(&self, pod: &Pod) -> Vec<IpAddr> {
        let named = |node: &&Node| !pod.spec.node_name.is_empty() && node.metadata.name == pod.spec.node_name;
        self.nodes.iter().find(named).map(Node::addresses).unwrap_or_default()
    }

    /// Assigns an address of each network to every pod that has none; a host-network pod gets the addresses of its
    /// node. Used to test policies without a cluster.
    pub fn assign_addresses(&mut self, networks: &[IpNet]) {
        let mut taken: BTreeSet<IpAddr> = self.pods.iter().flat_map(Pod::addresses).collect();
        taken.extend(self.nodes.iter().flat_map(Node::addresses));
        let mut pods = std::mem::take(&mut self.pods);
        for pod in pods.iter_mut().filter(|pod| pod.addresses().is_empty()) {
            let assigned: Vec<IpAddr> = if pod.spec.host_network {
                self.node_addresses_of(pod)
            } else {
                networks.iter().filter_map(|network| free(network, &taken)).collect()
            };
            taken.extend(&assigned);
            pod.status.pod_ips = assigned.into_iter().map(|ip| crate::api::PodIp { ip }).collect();
        }
        self.pods = pods;
    }
}

fn free(network: &IpNet, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    // The first host address is usually the gateway's; an IPv6 network has the subnet-router anycast address before it.
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

/// `namespace/name`; empty if the object has no name.
fn full_name(meta: &ObjectMeta) -> String {
    if meta.name.is_empty() {
        String::new()
    } else {
        format!("{}/{}", meta.namespace, meta.name)
    }
}

/// Reads an object of this kind. An error names the object.
pub fn read_object<T: DeserializeOwned>(object: Value, kind: &str) -> Result<T> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let name = match (text("/metadata/namespace"), text("/metadata/name")) {
        (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
        (None, Some(name)) => format!("{kind} {name}"),
        (_, None) => kind.to_owned(),
    };
    serde_json::from_value(object).map_err(|error| malformed(name, &error.to_string()))
}

/// An object with its version and kind.
fn object(version: &str, kind: &str, of: &impl Serialize) -> Value {
    // The types of the API have string keys only, so this cannot fail.
    let mut value = serde_json::to_value(of).unwrap_or_default();
    value["apiVersion"] = version.into();
    value["kind"] = kind.into();
    value
}

fn malformed(object: String, reason: &str) -> Error {
    Error::Malformed { object, reason: reason.to_owned() }
}

/// Removes members that are `null`: as in Go, `null` means absent. A `null` in a list becomes an empty object.
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(items) => {
            let item = |item: Value| {
                if item.is_null() {
                    Value::Object(Default::default())
                } else {
                    without_nulls(item)
                }
            };
            Value::Array(items.into_iter().map(item).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_deployment_becomes_a_pod_with_its_name() {
        let mut snapshot = Snapshot::new();
        let template = json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } });
        let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "namespace": "shop" }, "spec": { "template": template } });
        assert!(snapshot.add(deployment).unwrap());
        assert_eq!(snapshot.pod("shop/web").unwrap().metadata.labels["app"], "web");
    }

    #[test]
    fn list_items_are_added_and_other_kinds_are_ignored() {
        let mut snapshot = Snapshot::new();
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a" } });
        let other = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" } });
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": [pod, other] });
        assert!(snapshot.add(list).unwrap());
        assert!(!snapshot.add(other).unwrap());
        assert_eq!(snapshot.pods.len(), 1);
        assert_eq!(
            snapshot.add(pod).unwrap_err().to_string(),
            "Pod default/a is defined twice: keep one definition"
        );
    }

    #[test]
    fn pods_without_addresses_get_one_of_each_network() {
        let mut snapshot = Snapshot::new();
        for name in ["a", "b"] {
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name } });
            snapshot.add(pod).unwrap();
        }
        snapshot.assign_addresses(&["10.1.0.0/16".parse().unwrap(), "fd00::/64".parse().unwrap()]);
        let addresses = |name| snapshot.pod(name).unwrap().addresses();
        assert_eq!(addresses("a"), ["10.1.0.2".parse::<IpAddr>().unwrap(), "fd00::2".parse().unwrap()]);
        assert_eq!(addresses("b"), ["10.1.0.3".parse::<IpAddr>().unwrap(), "fd00::3".parse().unwrap()]);
    }

    #[test]
    fn written_objects_are_read_as_the_same() {
        let selector = json!({ "matchLabels": { "app": "web" },
            "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["a"] }] });
        let ports = json!([{ "port": "http" }, { "port": 80, "endPort": 90, "protocol": "UDP" }]);
        let block = json!({ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"] } });
        let from = json!([block, { "podSelector": selector, "namespaceSelector": {} }]);
        let cluster_rule = json!({ "name": "r", "action": "Pass", "to": [{ "networks": ["10.0.0.0/8"] }, { "nodes": {} }],
            "protocols": [{ "tcp": { "destinationPort": { "range": { "start": 1, "end": 2 } } } }] });
        let objects = [
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a", "labels": { "app": "web" } },
                "spec": { "nodeName": "n", "containers": [{ "ports": [{ "name": "http", "containerPort": 80 }] }] },
                "status": { "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }] } }),
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "n", "labels": { "x": "y" } } }),
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n" },
                "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }] } }),
            json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "p" },
                "spec": { "podSelector": selector, "ingress": [{ "from": from, "ports": ports }], "polycyTypes": [] } }),
            json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
                "metadata": { "name": "c" }, "spec": { "tier": "Baseline", "priority": 5,
                "subject": { "pods": { "podSelector": {} } }, "egress": [cluster_rule] } }),
        ];
        let (mut snapshot, mut again) = (Snapshot::new(), Snapshot::new());
        objects.into_iter().for_each(|object| assert!(snapshot.add(object).unwrap()));
        snapshot.objects().for_each(|object| assert!(again.add(object).unwrap()));
        assert_eq!(again, snapshot);
        assert_eq!(again.objects().count(), 5);
    }

    #[test]
    fn a_type_error_names_the_object() {
        let policy = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": "web", "namespace": "shop" }, "spec": { "podSelector": { "matchLabels": { "v": 1 } } } });
        let error = Snapshot::new().add(policy).unwrap_err().to_string();
        assert!(
            error.starts_with("NetworkPolicy shop/web: invalid type: integer `1`, expected a string"),
            "{error}"
        );
    }
}
