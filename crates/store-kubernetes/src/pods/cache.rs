//! The known pods and namespaces, and the parsed fields of their objects.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use podwire_agent_ipc::pods::{is_network_annotation, PodMetadata, PodPort, StringMap};
use serde_json::Value;

/// The annotation of a static pod's mirror: the uid by which the node knows the pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What the watches have reported.
#[derive(Default)]
pub(super) struct PodCache {
    /// By namespace and name.
    pub(super) pods: BTreeMap<(String, String), KnownPod>,
    pub(super) namespaces: BTreeMap<String, Namespace>,
    /// The pod CIDRs of nodes.
    pub(super) pod_cidrs: BTreeMap<String, Vec<IpNet>>,
}

/// A pod, with the uid by which the node knows it if it is a static pod.
#[derive(Clone)]
pub(super) struct KnownPod {
    pub(super) pod: PodMetadata,
    pub(super) mirrored_uid: String,
}

/// The used fields of a namespace.
#[derive(Clone, Default)]
pub(super) struct Namespace {
    pub(super) annotations: StringMap,
    pub(super) labels: StringMap,
}

impl Namespace {
    pub(super) fn parse(object: &Value) -> Namespace {
        Namespace { annotations: annotations(object), labels: texts(&object["metadata"]["labels"]).collect() }
    }
}

pub(super) fn lock(cache: &Mutex<PodCache>) -> MutexGuard<'_, PodCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parses the used fields of a pod.
pub(super) fn parse_pod(object: &Value) -> KnownPod {
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
    KnownPod { pod, mirrored_uid: text(&metadata["annotations"][MIRROR]) }
}

/// Parses a port, if it has a name or a host port.
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

/// The pod CIDRs of a node.
pub(super) fn parse_pod_cidrs(node: &Value) -> Vec<IpNet> {
    let all = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
    all.filter_map(|cidr| cidr.as_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use podwire_kubernetes::PartialObject;
    use serde_json::json;

    use super::*;
    use crate::pods::fields::PodFields;

    #[test]
    fn only_the_fields_about_networks_are_kept() {
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
        // A watch decodes only what is parsed.
        let watched: PartialObject<PodFields> = serde_json::from_value(object.clone()).unwrap();
        let KnownPod { pod, mirrored_uid } = parse_pod(&watched.into_value());
        assert_eq!(pod, parse_pod(&object).pod);
        assert_eq!((pod.uid.as_str(), pod.generate_name.as_str(), mirrored_uid.as_str()), ("u", "web-", "m"));
        assert_eq!(
            pod.annotations.keys().collect::<Vec<_>>(),
            ["cni.projectcalico.org/ipAddrs", "kubernetes.io/ingress-bandwidth"]
        );
        let ports: Vec<_> =
            pod.ports.iter().map(|port| (port.name.as_str(), port.protocol.as_str(), port.port)).collect();
        assert_eq!(ports, [("http", "TCP", 80), ("", "UDP", 53)]);
    }
}
