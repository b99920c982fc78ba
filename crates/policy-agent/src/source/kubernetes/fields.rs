//! The fields of pods, namespaces and nodes that [`podwire_policy::Snapshot`] reads.

use podwire_kubernetes::Fields::{self, All, Only};
use podwire_kubernetes::Selection;

const METADATA: Fields = Only(&[
    ("name", All),
    ("namespace", All),
    ("resourceVersion", All),
    ("labels", All),
    ("annotations", Only(&[("cni.projectcalico.org/allowedSourcePrefixes", All)])),
]);

const CONTAINERS: Fields = Only(&[("ports", All), ("restartPolicy", All)]);

#[derive(Clone, Debug)]
pub(super) struct PodFields;

impl Selection for PodFields {
    const FIELDS: Fields = Only(&[
        ("metadata", METADATA),
        (
            "spec",
            Only(&[
                ("hostNetwork", All),
                ("nodeName", All),
                ("containers", CONTAINERS),
                ("initContainers", CONTAINERS),
            ]),
        ),
        ("status", Only(&[("phase", All), ("podIP", All), ("podIPs", All)])),
    ]);
}

#[derive(Clone, Debug)]
pub(super) struct NamespaceFields;

impl Selection for NamespaceFields {
    const FIELDS: Fields = Only(&[("metadata", METADATA)]);
}

#[derive(Clone, Debug)]
pub(super) struct NodeFields;

impl Selection for NodeFields {
    const FIELDS: Fields = Only(&[("metadata", METADATA), ("status", Only(&[("addresses", All)]))]);
}

#[cfg(test)]
mod tests {
    use podwire_kubernetes::PartialObject;
    use podwire_policy::api::{
        Annotations, Container, ContainerPort, Namespace, Node, NodeAddress, NodeStatus, ObjectMeta, Pod,
        PodIp, PodSpec, PodStatus,
    };
    use podwire_policy::{Protocol, Snapshot};
    use serde_json::Value;

    use super::*;

    fn decode<S: Selection>(object: &Value) -> Value {
        let mut value = serde_json::from_value::<PartialObject<S>>(object.clone()).unwrap().into_value();
        value["apiVersion"] = object["apiVersion"].clone();
        value["kind"] = object["kind"].clone();
        value
    }

    /// No struct here has `..`: a new field of the policy crate does not compile until it is selected, too.
    #[test]
    fn every_field_that_policies_depend_on_is_decoded() {
        let metadata = |namespace: &str| ObjectMeta {
            name: "a".into(),
            namespace: namespace.into(),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            annotations: Annotations { allowed_source_prefixes: Some("[\"10.0.0.0/8\"]".into()) },
        };
        let container = |name: &str| Container {
            ports: vec![ContainerPort { name: name.into(), container_port: 80, protocol: Protocol::Udp }],
            restart_policy: "Always".into(),
        };
        let ip = "10.0.0.1".parse().unwrap();
        let mut snapshot = Snapshot::new();
        snapshot.pods.push(Pod {
            metadata: metadata("shop"),
            spec: PodSpec {
                host_network: true,
                node_name: "n".into(),
                containers: vec![container("http")],
                init_containers: vec![container("sidecar")],
            },
            status: PodStatus { phase: "Running".into(), pod_ip: Some(ip), pod_ips: vec![PodIp { ip }] },
        });
        snapshot.namespaces.push(Namespace { metadata: metadata("") });
        let address = NodeAddress { kind: "InternalIP".into(), address: "192.0.2.1".into() };
        snapshot.nodes.push(Node { metadata: metadata(""), status: NodeStatus { addresses: vec![address] } });
        let objects: Vec<Value> = snapshot.objects().collect();
        let mut decoded = Snapshot::new();
        decoded.add(decode::<PodFields>(&objects[0])).unwrap();
        decoded.add(decode::<NamespaceFields>(&objects[1])).unwrap();
        decoded.add(decode::<NodeFields>(&objects[2])).unwrap();
        assert_eq!(decoded.objects().collect::<Vec<_>>(), objects);
    }
}
