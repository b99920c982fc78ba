//! The pods of a node, as Kubernetes knows them, for plugins, which have no client of their own.
//!
//! They are followed on a thread of its own, with all namespaces and the node's own object: who asks is answered from memory. What is not known
//! there, because it is new or nobody may follow it, is read once.

mod following;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use podwire_agent_ipc::pods::{is_network_annotation, Cluster, PodMetadata, PodPort, StringMap};
use serde_json::Value;

use crate::name;
use crate::server::{Refusal, Server};

/// The mirror of a pod that a node has from a file: here stands the uid by which the node knows it.
const MIRRORED: &str = "kubernetes.io/config.mirror";

/// Who knows the pods of a cluster.
pub struct Pods {
    server: Server,
    kubeconfig: Option<PathBuf>,
    seen: Arc<Mutex<Seen>>,
}

/// What was heard.
#[derive(Default)]
struct Seen {
    /// By namespace and name, with the uid that the node may know it by.
    pods: BTreeMap<(String, String), (PodMetadata, String)>,
    namespaces: BTreeMap<String, Namespace>,
    ranges: BTreeMap<String, Vec<IpNet>>,
}

/// What is kept of a namespace.
#[derive(Clone, Default)]
struct Namespace {
    annotations: StringMap,
    labels: StringMap,
}

impl Namespace {
    fn of(object: &Value) -> Namespace {
        Namespace { annotations: annotations(object), labels: texts(&object["metadata"]["labels"]).collect() }
    }
}

impl Pods {
    /// Those of the cluster behind a kubeconfig, or in whose pod we run. Nothing is asked yet.
    pub fn connect(kubeconfig: Option<&Path>) -> Result<Pods, String> {
        let server = Server::new(kubeconfig)?;
        Ok(Pods { server, kubeconfig: kubeconfig.map(Path::to_owned), seen: Arc::default() })
    }

    /// Follows the pods of a node from now on.
    pub fn follow(&self, node: &str) -> Result<(), String> {
        following::start(self.kubeconfig.as_deref(), node, self.seen.clone())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    fn get(&self, path: &str, name: &str) -> Result<Value, String> {
        if !name::is_possible(name) {
            return Err(format!("{name:?} cannot be the name of an object of Kubernetes"));
        }
        self.server.get(path, name).map_err(Refusal::words)
    }

    fn namespace(&self, namespace: &str) -> Result<Namespace, String> {
        if let Some(known) = self.seen().namespaces.get(namespace) {
            return Ok(known.clone());
        }
        self.get("/api/v1/namespaces", namespace).map(|object| Namespace::of(&object))
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster for Pods {
    fn pod(&self, namespace: &str, name: &str, uid: &str) -> Result<PodMetadata, String> {
        if !name::is_possible(namespace) {
            return Err(format!("{namespace:?} cannot be the name of a namespace"));
        }
        let is_meant =
            |(pod, mirrored): &(PodMetadata, String)| uid.is_empty() || uid == pod.uid || uid == mirrored;
        let known = self.seen().pods.get(&(namespace.into(), name.into())).cloned();
        let (pod, _) = match known.filter(is_meant) {
            Some(known) => known,
            None => {
                let found = of(&self.get(&format!("/api/v1/namespaces/{namespace}/pods"), name)?);
                if !is_meant(&found) {
                    return Err(format!("there is a pod of that name, {}, but not {uid}", found.0.uid));
                }
                found
            }
        };
        Ok(PodMetadata { namespace_annotations: self.namespace(namespace)?.annotations, ..pod })
    }

    fn namespace_labels(&self, namespace: &str) -> Result<StringMap, String> {
        self.namespace(namespace).map(|known| known.labels)
    }

    fn has_node(&self, node: &str) -> bool {
        self.seen().ranges.contains_key(node)
    }

    fn pod_cidrs(&self, node: &str) -> Result<Vec<IpNet>, String> {
        if let Some(known) = self.seen().ranges.get(node).filter(|known| !known.is_empty()) {
            return Ok(known.clone());
        }
        match &ranges(&self.get("/api/v1/nodes", node)?)[..] {
            [] => Err(format!("no podCidr for node {node}")),
            ranges => Ok(ranges.to_vec()),
        }
    }
}

/// What is kept of a pod.
fn of(object: &Value) -> (PodMetadata, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    let containers = ["containers", "initContainers"].map(|kind| object["spec"][kind].as_array());
    let containers = containers.into_iter().flatten().flatten();
    let ports = containers.filter_map(|container| container["ports"].as_array()).flatten();
    let pod = PodMetadata {
        uid: text(&metadata["uid"]),
        generate_name: text(&metadata["generateName"]),
        labels: texts(&metadata["labels"]).collect(),
        annotations: annotations(object),
        service_account: text(&object["spec"]["serviceAccountName"]),
        ports: ports.filter_map(port).collect(),
        ..PodMetadata::default()
    };
    (pod, text(&metadata["annotations"][MIRRORED]))
}

/// A port that has a name or leads in from the node.
fn port(port: &Value) -> Option<PodPort> {
    let number =
        |field: &str| port[field].as_u64().and_then(|number| u16::try_from(number).ok()).unwrap_or(0);
    let text = |field: &str| port[field].as_str().unwrap_or_default().to_owned();
    let protocol = match text("protocol").as_str() {
        "" => "TCP".to_owned(),
        known @ ("TCP" | "UDP" | "SCTP") => known.to_owned(),
        _ => return None,
    };
    let found = PodPort {
        name: text("name"),
        protocol,
        port: number("containerPort"),
        host_port: number("hostPort"),
        host_ip: text("hostIP"),
    };
    (found.port != 0 && (found.host_port != 0 || !found.name.is_empty())).then_some(found)
}

fn annotations(object: &Value) -> StringMap {
    texts(&object["metadata"]["annotations"]).filter(|(key, _)| is_network_annotation(key)).collect()
}

fn texts(map: &Value) -> impl Iterator<Item = (String, String)> + '_ {
    let pairs = map.as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
}

fn ranges(node: &Value) -> Vec<IpNet> {
    let all = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
    all.filter_map(|range| range.as_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_concerns_networks_is_kept_of_a_pod() {
        let object = json!({
            "metadata": {
                "name": "web", "uid": "u", "generateName": "web-", "labels": {"app": "web"},
                "annotations": {
                    "cni.projectcalico.org/ipAddrs": "[\"10.0.0.1\"]", "kubernetes.io/ingress-bandwidth": "1M",
                    "kubectl.kubernetes.io/last-applied-configuration": "long", "kubernetes.io/config.mirror": "m",
                },
            },
            "spec": {
                "serviceAccountName": "web",
                "containers": [{"ports": [
                    {"name": "http", "containerPort": 80}, {"containerPort": 81},
                    {"containerPort": 53, "hostPort": 5353, "hostIP": "192.0.2.1", "protocol": "UDP"},
                ]}],
                "initContainers": [{"ports": [{"name": "odd", "containerPort": 1, "protocol": "DCCP"}]}, {}],
            },
        });
        let (pod, mirrored) = of(&object);
        assert_eq!((pod.uid.as_str(), pod.generate_name.as_str(), mirrored.as_str()), ("u", "web-", "m"));
        assert_eq!(
            pod.annotations.keys().collect::<Vec<_>>(),
            ["cni.projectcalico.org/ipAddrs", "kubernetes.io/ingress-bandwidth"]
        );
        let ports: Vec<_> =
            pod.ports.iter().map(|port| (port.name.as_str(), port.protocol.as_str(), port.port)).collect();
        assert_eq!(ports, [("http", "TCP", 80), ("", "UDP", 53)]);
    }
}
