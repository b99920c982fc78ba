//! The tables of this directory, for tests with real packets: the objects, what each table adds, and the connections
//! between pods that it expects. Expectations about nodes, external addresses and ping are left to other tests.

use std::collections::BTreeMap;

use podwire_policy::{Protocol, Snapshot};
use serde_json::Value;

pub const NETWORK_POLICY: &str = include_str!("network-policy.yaml");
pub const CLUSTER_NETWORK_POLICY: &str = include_str!("cluster-network-policy.yaml");

/// One connection: from, to, protocol, port.
pub type Connection = (String, String, Protocol, u16);

/// A file of tables.
pub struct Tables {
    /// The objects of all tables.
    pub objects: Vec<Value>,
    /// The networks from which pods without addresses get one.
    pub networks: Vec<String>,
    pub tables: Vec<Table>,
}

/// A table: objects and expected connections.
pub struct Table {
    pub name: String,
    /// Additional objects; they replace objects of the same name.
    pub objects: Vec<Value>,
    ports: Vec<Value>,
    expect: Vec<Value>,
}

impl Tables {
    pub fn read(text: &str) -> Tables {
        let file: Value = serde_saphyr::from_str(text).expect("YAML");
        let networks = list(&file["podNetworks"]).into_iter().map(|net| net.as_str().unwrap().to_owned());
        let table = |table: &Value| Table {
            name: table["name"].as_str().unwrap().to_owned(),
            objects: list(&table["objects"]),
            ports: match &table["port"] {
                Value::Null => vec![Value::from(80)],
                Value::Array(many) => many.clone(),
                one => vec![one.clone()],
            },
            expect: list(&table["expect"]),
        };
        Tables {
            objects: list(&file["objects"]),
            networks: networks.collect(),
            tables: list(&file["tests"]).iter().map(table).collect(),
        }
    }
}

impl Table {
    /// The expected connections between the pods; the last matching line counts.
    pub fn expected(&self, snapshot: &Snapshot) -> BTreeMap<Connection, bool> {
        let mut all = BTreeMap::new();
        for line in &self.expect {
            let (verdict, pair) = line.as_object().unwrap().iter().next().unwrap();
            let (from, to) = pair.as_str().unwrap().split_once(" -> ").unwrap();
            for (from, to) in pods(from, snapshot)
                .iter()
                .flat_map(|f| pods(to, snapshot).into_iter().map(move |t| (f.clone(), t)))
            {
                for (protocol, port) in self.ports.iter().filter_map(|port| service(port, &to, snapshot)) {
                    if from != to {
                        all.insert((from.clone(), to.clone(), protocol, port), verdict == "allow");
                    }
                }
            }
        }
        all
    }
}

/// A snapshot of the objects.
pub fn snapshot(objects: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::new();
    for object in objects {
        assert!(snapshot.add(object.clone()).expect("an object"));
    }
    snapshot
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn pods(pattern: &str, snapshot: &Snapshot) -> Vec<String> {
    let (namespace, name) = pattern.split_once('/').unwrap_or((pattern, pattern));
    let matches = |wanted: &str, is: &str| wanted == "*" || wanted == is;
    let matching = snapshot
        .pods
        .iter()
        .filter(|pod| matches(namespace, &pod.metadata.namespace) && matches(name, &pod.metadata.name));
    matching.map(podwire_policy::api::Pod::full_name).collect()
}

/// Protocol and port of a `port` entry; `None` for ping.
fn service(port: &Value, to: &str, snapshot: &Snapshot) -> Option<(Protocol, u16)> {
    if let Some(number) = port.as_u64() {
        return Some((Protocol::Tcp, number as u16));
    }
    let text = port.as_str()?;
    match text.split_once('/') {
        Some((number, protocol)) => Some((Protocol::named(protocol)?, number.parse().ok()?)),
        None => snapshot.pod(to)?.named_ports(text).next(),
    }
}
