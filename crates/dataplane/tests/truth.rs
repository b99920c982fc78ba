//! The tables of `tests/policies`, by real packets: who reaches whom in the kernel is what the tables say, over IPv4 and
//! IPv6, TCP and UDP. What they say of nodes, strangers, ping and SCTP is left to other tests.

mod stage;

use std::collections::BTreeMap;
use std::path::Path;

use dataplane::{Dataplane, Nftables};
use policy::{compile, Protocol, Snapshot};
use serde_json::Value;
use stage::probe::{self, Question};
use stage::{on_a_node, Place};

/// One connection: from, to, protocol, port.
type Connection = (String, String, Protocol, u16);

#[test]
fn network_policies_do_what_the_tables_say() {
    on_a_node(|nft| play(nft, "network-policy.yaml", 45));
}

#[test]
fn cluster_network_policies_do_what_the_tables_say() {
    on_a_node(|nft| play(nft, "cluster-network-policy.yaml", 60));
}

fn play(nft: &mut Nftables, file: &str, at_least: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/policies").join(file);
    let text = std::fs::read_to_string(&path).expect("the tables");
    let file: Value = serde_saphyr::from_str(&text).expect("YAML");
    let objects = |value: &Value| value["objects"].as_array().cloned().unwrap_or_default();
    let mut base = stage::snapshot(&objects(&file));
    let networks: Vec<_> = file["podNetworks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|net| net.as_str().unwrap().parse().unwrap())
        .collect();
    base.give_addresses(&networks);
    let places = build(&base);
    let mut played = 0;
    for table in file["tests"].as_array().unwrap() {
        let snapshot = with(&base, &objects(table));
        let expected = expected(table, &snapshot);
        if expected.is_empty() {
            continue;
        }
        nft.apply(&compile(&snapshot, None).program, &[]).expect("applied");
        probe::ask(table["name"].as_str().unwrap(), &questions(&expected, &places), &places);
        played += 1;
    }
    assert!(played >= at_least, "{played} tables");
}

fn build(base: &Snapshot) -> BTreeMap<String, Place> {
    let place = |(number, pod): (usize, &policy::api::Pod)| {
        let ips: Vec<String> = pod.addresses().iter().map(ToString::to_string).collect();
        let (four, six) = ((ips[0].as_str(), "10.244.0.1"), (ips[1].as_str(), "fd00:10:244::1"));
        let place = Place::on_bridge(&format!("pod{number}"), four, six);
        (pod.full_name(), place)
    };
    base.pods.iter().enumerate().map(place).collect()
}

/// Each connection over IPv4 and over IPv6.
fn questions(expected: &BTreeMap<Connection, bool>, places: &BTreeMap<String, Place>) -> Vec<Question> {
    let both = |((from, to, protocol, port), allowed): (&Connection, &bool)| {
        let place = &places[to];
        [&place.ip4, &place.ip6].map(|ip| Question {
            from: from.clone(),
            ip: ip.clone(),
            protocol: *protocol,
            port: *port,
            allowed: *allowed,
        })
    };
    expected.iter().flat_map(both).collect()
}

/// A table's own objects in the place of those with their names; pods keep their addresses.
fn with(base: &Snapshot, own: &[Value]) -> Snapshot {
    let mut own = stage::snapshot(own);
    let mut all = base.clone();
    for pod in &mut own.pods {
        let name = pod.full_name();
        pod.status = base.pod(&name).expect("a pod that is there").status.clone();
        all.pods.retain(|other| other.full_name() != name);
    }
    for namespace in &own.namespaces {
        all.namespaces.retain(|other| other.metadata.name != namespace.metadata.name);
    }
    all.pods.append(&mut own.pods);
    all.namespaces.append(&mut own.namespaces);
    all.network_policies.append(&mut own.network_policies);
    all.cluster_network_policies.append(&mut own.cluster_network_policies);
    all
}

/// What the table says of connections between pods: the last line that speaks of one counts.
fn expected(table: &Value, snapshot: &Snapshot) -> BTreeMap<Connection, bool> {
    let mut all = BTreeMap::new();
    let ports = match &table["port"] {
        Value::Null => vec![Value::from(80)],
        Value::Array(many) => many.clone(),
        one => vec![one.clone()],
    };
    for line in table["expect"].as_array().unwrap() {
        let (verdict, pair) = line.as_object().unwrap().iter().next().unwrap();
        let (from, to) = pair.as_str().unwrap().split_once(" -> ").unwrap();
        for (from, to) in pods(from, snapshot)
            .iter()
            .flat_map(|f| pods(to, snapshot).into_iter().map(move |t| (f.clone(), t)))
        {
            for (protocol, port) in ports.iter().filter_map(|port| service(port, &to, snapshot)) {
                if from != to {
                    all.insert((from.clone(), to.clone(), protocol, port), verdict == "allow");
                }
            }
        }
    }
    all
}

fn pods(pattern: &str, snapshot: &Snapshot) -> Vec<String> {
    let (namespace, name) = pattern.split_once('/').unwrap_or((pattern, pattern));
    let fits = |wanted: &str, is: &str| wanted == "*" || wanted == is;
    let fitting = snapshot
        .pods
        .iter()
        .filter(|pod| fits(namespace, &pod.metadata.namespace) && fits(name, &pod.metadata.name));
    fitting.map(policy::api::Pod::full_name).collect()
}

/// Protocol and port, if there are sockets for it.
fn service(port: &Value, to: &str, snapshot: &Snapshot) -> Option<(Protocol, u16)> {
    if let Some(number) = port.as_u64() {
        return Some((Protocol::Tcp, number as u16));
    }
    let text = port.as_str()?;
    let found = match text.split_once('/') {
        Some((number, protocol)) => (Protocol::named(protocol)?, number.parse().ok()?),
        None => snapshot.pod(to)?.named_ports(text).next()?,
    };
    (found.0 != Protocol::Sctp).then_some(found)
}
