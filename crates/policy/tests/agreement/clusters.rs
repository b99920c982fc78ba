//! Random clusters. There are few names, labels, networks and ports, so that policies concern the same pods; some
//! values are invalid.

use std::net::IpAddr;

use podwire_policy::api::{ClusterNetworkPolicy, NetworkPolicy, Pod};
use podwire_policy::{Compiler, Packet, Protocol, Snapshot};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;
use serde_json::{json, Value};

#[derive(Clone, Debug)]
pub struct Cluster {
    pub snapshot: Snapshot,
    pub packets: Vec<Packet>,
}

pub fn cluster() -> impl Strategy<Value = Cluster> {
    let pods = vec(pod(), 1..7);
    let namespaces = vec((select(vec!["x", "y", "z"]), labels()), 0..3);
    let nodes = vec(labels(), 0..3);
    let policies = vec(network_policy(), 0..5);
    let cluster_policies = vec(cluster_policy(), 0..5);
    (pods, namespaces, nodes, policies, cluster_policies, vec(packet(), 12)).prop_map(build)
}

type Parts = (Vec<Value>, Vec<(&'static str, Value)>, Vec<Value>, Vec<Value>, Vec<Value>, Vec<Packet>);

fn build((pods, namespaces, nodes, policies, cluster, packets): Parts) -> Cluster {
    let mut snapshot = Snapshot::new();
    for (number, pod) in pods.into_iter().enumerate() {
        snapshot.pods.push(numbered_pod(pod, number, number));
    }
    for (name, labels) in namespaces {
        // A duplicate name is refused, which is fine.
        let _ = snapshot.add(json!({ "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "labels": labels } }));
    }
    for (number, labels) in nodes.into_iter().enumerate() {
        let addresses = json!([{ "type": "InternalIP", "address": format!("192.168.0.{number}") },
            { "type": "InternalIP", "address": format!("fd99::{number}") }, { "type": "Hostname", "address": "n" }]);
        let node = json!({ "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": format!("n{number}"), "labels": labels }, "status": { "addresses": addresses } });
        snapshot.add(node).expect("node");
    }
    for (number, mut policy) in policies.into_iter().chain(cluster).enumerate() {
        policy["metadata"]["name"] = json!(format!("policy{number}"));
        snapshot.add(policy.clone()).unwrap_or_else(|error| panic!("{error}: {policy:#}"));
    }
    Cluster { snapshot, packets }
}

/// An added, changed or deleted pod or policy.
#[derive(Clone, Debug)]
pub enum Change {
    Pod(String, Option<Pod>),
    NetworkPolicy(String, Option<NetworkPolicy>),
    ClusterNetworkPolicy(String, Option<ClusterNetworkPolicy>),
}

impl Change {
    /// Applies the change to the objects and to the compiler.
    pub fn apply(self, snapshot: &mut Snapshot, compiler: &mut Compiler) {
        match self {
            Change::Pod(name, pod) => {
                snapshot.pods.retain(|pod| pod.full_name() != name);
                snapshot.pods.extend(pod.clone());
                compiler.set_pod(&name, pod);
            }
            Change::NetworkPolicy(name, policy) => {
                let named = |one: &NetworkPolicy| format!("{}/{}", one.metadata.namespace, one.metadata.name);
                snapshot.network_policies.retain(|one| named(one) != name);
                snapshot.network_policies.extend(policy.clone());
                compiler.set_network_policy(&name, policy.as_ref());
            }
            Change::ClusterNetworkPolicy(name, policy) => {
                snapshot.cluster_network_policies.retain(|one| one.metadata.name != name);
                snapshot.cluster_network_policies.extend(policy.clone());
                compiler.set_cluster_network_policy(&name, policy.as_ref());
            }
        }
    }
}

pub fn changes() -> impl Strategy<Value = Vec<Change>> {
    let stays = || prop::bool::weighted(0.7);
    // Names and addresses of the cluster and a few more; two pods may get the same address.
    let pods = (pod(), 0..9usize, 0..9usize, stays()).prop_map(|(pod, number, address, stays)| {
        let pod = numbered_pod(pod, number, address);
        Change::Pod(pod.full_name(), stays.then_some(pod))
    });
    let policies = (network_policy(), 0..7usize, stays()).prop_map(|(mut policy, number, stays)| {
        policy["metadata"]["name"] = json!(format!("policy{number}"));
        let policy = only(policy).network_policies.remove(0);
        let name = format!("{}/{}", policy.metadata.namespace, policy.metadata.name);
        Change::NetworkPolicy(name, stays.then_some(policy))
    });
    let cluster = (cluster_policy(), 0..9usize, stays()).prop_map(|(mut policy, number, stays)| {
        policy["metadata"]["name"] = json!(format!("policy{number}"));
        let policy = only(policy).cluster_network_policies.remove(0);
        Change::ClusterNetworkPolicy(policy.metadata.name.clone(), stays.then_some(policy))
    });
    vec(prop_oneof![2 => pods, 1 => policies, 1 => cluster], 1..12)
}

fn numbered_pod(mut pod: Value, number: usize, address: usize) -> Pod {
    pod["metadata"]["name"] = json!(format!("p{number}"));
    pod["status"]["podIPs"] =
        json!([{ "ip": format!("10.0.0.{}", address + 2) }, { "ip": format!("fd00::{}", address + 2) }]);
    only(pod).pods.remove(0)
}

fn only(object: Value) -> Snapshot {
    let mut snapshot = Snapshot::new();
    snapshot.add(object.clone()).unwrap_or_else(|error| panic!("{error}: {object:#}"));
    snapshot
}

fn labels() -> impl Strategy<Value = Value> {
    (weighted(0.6, select(vec!["1", "2"])), weighted(0.4, select(vec!["1", "2"]))).prop_map(|(a, b)| {
        let mut labels = json!({});
        if let Some(a) = a {
            labels["a"] = json!(a);
        }
        if let Some(b) = b {
            labels["b"] = json!(b);
        }
        labels
    })
}

fn pod() -> impl Strategy<Value = Value> {
    let port =
        (select(vec!["web", "dns", ""]), select(vec![80u16, 81, 53]), select(vec!["TCP", "UDP", "SCTP"]));
    let node = select(vec!["", "n0", "n1"]);
    let phase = prop_oneof![9 => Just("Running"), 1 => Just("Succeeded")];
    (select(vec!["x", "y", "z"]), labels(), vec(port, 0..3), node, phase, prop::bool::weighted(0.1)).prop_map(
        |(namespace, labels, ports, node, phase, host_network)| {
            let ports: Vec<_> = ports
                .into_iter()
                .map(|(name, port, protocol)| json!({ "name": name, "containerPort": port, "protocol": protocol }))
                .collect();
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": namespace, "labels": labels },
                "spec": { "nodeName": node, "hostNetwork": host_network, "containers": [{ "ports": ports }] },
                "status": { "phase": phase } })
        },
    )
}

fn selector() -> impl Strategy<Value = Value> {
    let key = || select(vec!["a", "b", "kubernetes.io/metadata.name"]);
    let value = || select(vec!["1", "2", "x", "y"]);
    let requirement = prop_oneof![
        6 => (key(), select(vec!["In", "NotIn"]), vec(value(), 1..3)),
        3 => (key(), select(vec!["Exists", "DoesNotExist"]), vec(value(), 0..1)),
        1 => (key(), select(vec!["In", "Exists", "Is"]), vec(value(), 0..2)),
    ];
    let requirement =
        requirement.prop_map(|(key, op, values)| json!({ "key": key, "operator": op, "values": values }));
    prop_oneof![
        3 => Just(json!({})),
        4 => (key(), value()).prop_map(|(key, value)| json!({ "matchLabels": { key: value } })),
        3 => vec(requirement, 1..3).prop_map(|all| json!({ "matchExpressions": all })),
        1 => Just(Value::Null),
    ]
}

fn network() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        12 => select(vec!["10.0.0.0/8", "10.0.0.0/30", "10.0.0.4/31", "10.0.0.5/32", "0.0.0.0/0", "::/0", "fd00::/125",
            "fd00::2/128", "192.168.0.0/31", "10.0.0.3/30", "fd99::/16"]),
        1 => select(vec!["10.0.0.0", "10.0.0.0/40", "nonsense", ""]),
    ]
}

fn protocol() -> impl Strategy<Value = &'static str> {
    prop_oneof![12 => select(vec!["TCP", "UDP", "SCTP"]), 1 => select(vec!["tcp", "ICMP"])]
}

fn np_port() -> impl Strategy<Value = Value> {
    let number = || prop_oneof![10 => 78i64..84, 1 => select(vec![0i64, -1, 70000])];
    let port = prop_oneof![
        4 => (number(), Just(None)).prop_map(|(port, end)| (json!(port), end)),
        2 => (number(), number().prop_map(Some)).prop_map(|(port, end)| (json!(port), end)),
        3 => (select(vec!["web", "dns", "none"]), weighted(0.1, 80i64..90)).prop_map(|(name, end)| (json!(name), end)),
        1 => weighted(0.2, 80i64..90).prop_map(|end| (Value::Null, end)),
    ];
    (weighted(0.8, protocol()), port)
        .prop_map(|(protocol, (port, end))| json!({ "protocol": protocol, "port": port, "endPort": end }))
}

fn np_peer() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => selector().prop_map(|pods| json!({ "podSelector": pods })),
        3 => selector().prop_map(|namespaces| json!({ "namespaceSelector": namespaces })),
        3 => (selector(), selector()).prop_map(|(n, p)| json!({ "namespaceSelector": n, "podSelector": p })),
        4 => (network(), vec(network(), 0..3)).prop_map(|(cidr, except)| json!({ "ipBlock": { "cidr": cidr, "except": except } })),
        1 => select(vec![json!({}), json!({ "serviceSelector": {} }), json!({ "ipBlock": { "cidr": "::/0" }, "podSelector": {} })]),
    ]
}

fn np_rules(name: &'static str) -> impl Strategy<Value = Vec<Value>> {
    let rule = (vec(np_peer(), 0..3), vec(np_port(), 0..3));
    vec(rule.prop_map(move |(peers, ports)| json!({ name: peers, "ports": ports })), 0..3)
}

fn network_policy() -> impl Strategy<Value = Value> {
    let types = prop_oneof![
        4 => Just(json!([])),
        4 => select(vec![json!(["Ingress"]), json!(["Egress"]), json!(["Ingress", "Egress"])]),
        1 => Just(json!(["ingress"])),
    ];
    (select(vec!["x", "y"]), selector(), np_rules("from"), np_rules("to"), types).prop_map(
        |(namespace, pods, ingress, egress, types)| {
            json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "namespace": namespace },
                "spec": { "podSelector": pods, "ingress": ingress, "egress": egress, "policyTypes": types } })
        },
    )
}

fn cnp_protocol() -> impl Strategy<Value = Value> {
    let number = || prop_oneof![12 => 78i64..84, 1 => select(vec![0i64, 70000])];
    let port = prop_oneof![
        4 => number().prop_map(|number| json!({ "number": number })),
        3 => (number(), 79i64..86).prop_map(|(start, end)| json!({ "range": { "start": start, "end": end } })),
        1 => select(vec![json!({}), json!({ "number": 80, "range": { "start": 1, "end": 2 } })]),
    ];
    prop_oneof![
        6 => (select(vec!["tcp", "udp", "sctp"]), port).prop_map(|(name, port)| json!({ name: { "destinationPort": port } })),
        3 => select(vec!["web", "dns"]).prop_map(|name| json!({ "destinationNamedPort": name })),
        1 => select(vec![json!({}), json!({ "icmp": {} }), json!({ "tcp": {} }), json!({ "destinationNamedPort": "" }),
            json!({ "tcp": { "destinationPort": { "number": 80 } }, "udp": { "destinationPort": { "number": 80 } } })]),
    ]
}

fn cnp_peer(egress: bool) -> impl Strategy<Value = Value> {
    let mut kinds: Vec<(u32, BoxedStrategy<Value>)> = vec![
        (6, selector().prop_map(|namespaces| json!({ "namespaces": namespaces })).boxed()),
        (
            6,
            (selector(), selector())
                .prop_map(|(n, p)| json!({ "pods": { "namespaceSelector": n, "podSelector": p } }))
                .boxed(),
        ),
        (
            1,
            select(vec![
                json!({}),
                json!({ "services": {} }),
                json!({ "namespaces": {}, "pods": {} }),
                json!({ "networks": ["10.0.0.0/8"] }),
                json!({ "domainNames": ["example.org"] }),
            ])
            .boxed(),
        ),
    ];
    if egress {
        kinds.push((4, vec(network(), 1..3).prop_map(|networks| json!({ "networks": networks })).boxed()));
        kinds.push((3, selector().prop_map(|nodes| json!({ "nodes": nodes })).boxed()));
    }
    Union::new_weighted(kinds)
}

fn cnp_rules(name: &'static str, egress: bool) -> impl Strategy<Value = Vec<Value>> {
    let peers = prop_oneof![20 => vec(cnp_peer(egress), 1..3), 1 => Just(Vec::new())];
    let protocols = prop_oneof![4 => Just(Value::Null), 6 => vec(cnp_protocol(), 1..3).prop_map(Value::Array),
        1 => Just(json!([]))];
    let rule = (select(vec!["Accept", "Deny", "Pass"]), peers, protocols);
    let rule = rule.prop_map(move |(action, peers, protocols)| {
        json!({ "name": "rule", "action": action, name: peers, "protocols": protocols })
    });
    vec(rule, 0..4)
}

fn cluster_policy() -> impl Strategy<Value = Value> {
    let subject = prop_oneof![
        4 => selector().prop_map(|namespaces| json!({ "namespaces": namespaces })),
        4 => (selector(), selector()).prop_map(|(n, p)| json!({ "pods": { "namespaceSelector": n, "podSelector": p } })),
        1 => select(vec![json!({}), json!({ "namespaces": {}, "pods": {} })]),
    ];
    (select(vec!["Admin", "Baseline"]), 0i64..3, subject, cnp_rules("from", false), cnp_rules("to", true))
        .prop_map(|(tier, priority, subject, ingress, egress)| {
            json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
                "metadata": {}, "spec": { "tier": tier, "priority": priority, "subject": subject,
                    "ingress": ingress, "egress": egress } })
        })
}

/// Between pods, nodes and other addresses of one family.
fn packet() -> impl Strategy<Value = Packet> {
    let end = || prop_oneof![8 => (2u8..10).prop_map(|n| (0, n)), 2 => (0u8..3).prop_map(|n| (1, n)), 1 => (0u8..2).prop_map(|n| (2, n))];
    let service = (select(Protocol::ALL.to_vec()), prop_oneof![4 => 78u16..85, 1 => Just(53)]);
    (end(), end(), any::<bool>(), weighted(0.9, service)).prop_map(|(from, to, v6, service)| {
        let address = |(kind, n): (u8, u8)| -> IpAddr {
            let text = match (kind, v6) {
                (0, false) => format!("10.0.0.{n}"),
                (0, true) => format!("fd00::{n}"),
                (1, false) => format!("192.168.0.{n}"),
                (1, true) => format!("fd99::{n}"),
                (_, false) => format!("8.8.8.{n}"),
                (_, true) => format!("2001:db8::{n}"),
            };
            text.parse().expect("address")
        };
        Packet { source: address(from), destination: address(to), service }
    })
}
