//! The records of both plugins, in either store.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{json, Value};

const PREFIX: &str = "/calico/ipam/v2/";
const ENDPOINTS: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/";
/// Calico's annotation with the addresses of an attached pod.
const SAYS: [&str; 3] = ["podIP", "podIPs", "containerID"];

/// The records by their names: the end of an etcd key, or the name of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    pub blocks: BTreeMap<String, Value>,
    pub affinities: BTreeMap<String, Value>,
    pub handles: BTreeMap<String, Value>,
    pub endpoints: BTreeMap<String, Value>,
}

impl Records {
    /// Parses the output of etcdctl: a key and a value in turns, a line each.
    pub fn of_etcd(text: &str) -> Records {
        let mut all = Records::default();
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.chunks(2) {
            let (key, value) = (pair[0], pair.get(1).copied().unwrap_or_default());
            let into = |records: &mut BTreeMap<String, Value>, name: &str| {
                let value =
                    serde_json::from_str(value).unwrap_or_else(|error| panic!("{key}: {error}: {value}"));
                records.insert(name.into(), value);
            };
            if let Some(name) = key.strip_prefix(ENDPOINTS) {
                into(&mut all.endpoints, name);
            } else if let Some((kind, name)) = key.strip_prefix(PREFIX).and_then(|rest| rest.split_once('/'))
            {
                match kind {
                    "assignment" => into(&mut all.blocks, name),
                    "host" => into(&mut all.affinities, name),
                    "handle" => into(&mut all.handles, name),
                    _ => {}
                }
            }
        }
        all
    }

    /// Parses custom resources, and pods with Calico's annotations.
    pub fn of_kubernetes(get: impl Fn(&str) -> Value) -> Records {
        let all = |plural: &str| -> BTreeMap<String, Value> {
            let list = get(&format!("/apis/crd.projectcalico.org/v1/{plural}"));
            let items = list["items"].as_array().expect("items").iter();
            items.map(|item| (text(&item["metadata"]["name"]), item["spec"].clone())).collect()
        };
        let pods = get("/api/v1/pods");
        let endpoints = pods["items"].as_array().expect("items").iter().filter_map(|pod| {
            let says =
                |name: &str| pod["metadata"]["annotations"][format!("cni.projectcalico.org/{name}")].clone();
            let reported: serde_json::Map<String, Value> =
                SAYS.iter().map(|name| (name.to_string(), says(name))).collect();
            let connected = reported["podIP"].as_str().is_some_and(|ip| !ip.is_empty());
            connected.then(|| (text(&pod["metadata"]["name"]), Value::Object(reported)))
        });
        Records {
            blocks: all("ipamblocks"),
            affinities: all("blockaffinities"),
            handles: all("ipamhandles"),
            endpoints: endpoints.collect(),
        }
    }

    /// The owners of the blocks: a node's name for each block.
    pub fn owners(&self) -> Vec<String> {
        let mut all: Vec<String> = self
            .blocks
            .values()
            .filter_map(|block| block["affinity"].as_str()?.strip_prefix("host:").map(str::to_owned))
            .collect();
        all.sort();
        all
    }

    /// The handles with the number of their addresses, without those of a node.
    pub fn holders(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for block in self.blocks.values() {
            let given = block["allocations"].as_array().into_iter().flatten().filter_map(Value::as_u64);
            for index in given {
                let attributes = &block["attributes"][usize::try_from(index).expect("an index")];
                let handle = attributes["handle_id"].as_str().unwrap_or("no handle");
                if !is_the_nodes(handle) {
                    *all.entry(handle.to_owned()).or_default() += 1;
                }
            }
        }
        all
    }

    /// The handles of pods.
    pub fn pods(&self) -> BTreeSet<&str> {
        self.handles.keys().map(String::as_str).filter(|name| !is_the_nodes(name)).collect()
    }

    /// Whether there are no records.
    pub fn are_empty(&self) -> bool {
        self.holders().is_empty() && self.pods().is_empty() && self.endpoints.is_empty()
    }
}

/// Whether a handle is of the warm pool, of the claim to the node, or of a tunnel address.
fn is_the_nodes(handle: &str) -> bool {
    handle.starts_with("podwire-") || handle.contains("-tunnel-addr-")
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").into()
}

/// Fields that differ between any two records.
const VARIES: [&str; 9] = [
    "affinityClaimTime",
    "affinity_claim_time",
    "cidr",
    "creationTimestamp",
    "ipNetworks",
    "mac",
    "sequenceNumber",
    "timestamp",
    "uid",
];

/// All values of a record, with their path. Of fields that always differ, only that they exist.
pub fn lines(value: &Value) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    walk(value, "", &mut all);
    all
}

fn walk(value: &Value, at: &str, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                match key.as_str() {
                    varies if VARIES.contains(&varies) || varies.starts_with("podIP") => {
                        all.insert(format!("{at}.{key}"));
                    }
                    // Lists of address numbers, and blocks.
                    "sequenceNumberForAllocation" | "block" => {
                        let count = value.as_object().map_or(0, serde_json::Map::len);
                        all.insert(format!("{at}.{key}: {count}"));
                    }
                    _ => walk(value, &format!("{at}.{key}"), all),
                }
            }
        }
        Value::Array(members) => members
            .iter()
            .enumerate()
            .for_each(|(number, member)| walk(member, &format!("{at}.{number}"), all)),
        other => drop(all.insert(format!("{at}: {other}"))),
    }
}

/// The first record of a kind that names the pod.
pub fn about(records: &BTreeMap<String, Value>, pod: &str) -> Value {
    let found = records.iter().find(|(name, value)| name.contains(pod) || value.to_string().contains(pod));
    found.map_or(json!(null), |(_, value)| value.clone())
}
