//! The file that says what is expected: objects, and tables of verdicts.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use podwire_policy::{Packet, Protocol, Snapshot, Verdict};
use serde::Deserialize;
use serde_json::Value;

/// A whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Expectations {
    /// Files and folders with objects, seen from this file's folder.
    #[serde(default)]
    pub sources: Vec<PathBuf>,
    /// Objects that stand here.
    #[serde(default)]
    pub objects: Vec<Value>,
    /// Where pods without addresses get theirs from.
    #[serde(default)]
    pub pod_networks: Option<Vec<IpNet>>,
    /// The tables.
    pub tests: Vec<Table>,
}

/// One table of verdicts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// What it is about.
    pub name: String,
    /// Objects of this table only; those with the name of another take its place.
    #[serde(default)]
    pub objects: Vec<Value>,
    /// Ports: `80`, `53/UDP`, `http`, `ping`.
    #[serde(default)]
    pub port: Option<OneOrMany>,
    /// Lines: the last one that speaks of a connection says what is expected of it.
    pub expect: Vec<Line>,
}

/// One or several ports.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    Number(u16),
    Text(String),
    Many(Vec<OneOrMany>),
}

impl OneOrMany {
    pub(super) fn texts(&self) -> Vec<String> {
        match self {
            OneOrMany::Number(number) => vec![number.to_string()],
            OneOrMany::Text(text) => vec![text.clone()],
            OneOrMany::Many(many) => many.iter().flat_map(OneOrMany::texts).collect(),
        }
    }
}

/// `allow: x/a -> y/b`, or `deny: …`
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Line {
    Allow(String),
    Deny(String),
}

impl Line {
    /// The verdict, and both ends.
    pub(super) fn read(&self) -> Result<(Verdict, &str, &str), String> {
        let (verdict, text) = match self {
            Line::Allow(text) => (Verdict::Allow, text),
            Line::Deny(text) => (Verdict::Deny, text),
        };
        match text.split_once("->") {
            Some((from, to)) => Ok((verdict, from.trim(), to.trim())),
            None => Err(format!("{text:?} is not FROM -> TO")),
        }
    }
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct End {
    /// Pod, node or address, in words.
    pub name: String,
    pub addresses: Vec<IpAddr>,
}

/// The ends that a pattern names: `shop/web`, `shop/*`, `*/web`, `*` (all pods), `node:worker`, an address.
pub(super) fn ends(pattern: &str, snapshot: &Snapshot) -> Result<Vec<End>, String> {
    if let Ok(address) = pattern.parse::<IpAddr>() {
        return Ok(vec![End { name: pattern.to_owned(), addresses: vec![address] }]);
    }
    if let Some(name) = pattern.strip_prefix("node:") {
        let node = snapshot.nodes.iter().find(|node| node.metadata.name == name);
        let node = node.ok_or_else(|| format!("there is no node {name:?}"))?;
        return Ok(vec![End { name: pattern.to_owned(), addresses: node.addresses() }]);
    }
    let (namespace, name) = match pattern.split_once('/') {
        Some(parts) => parts,
        None if pattern == "*" => ("*", "*"),
        None => ("default", pattern),
    };
    let fits = |wanted: &str, is: &str| wanted == "*" || wanted == is;
    let pods = snapshot
        .pods
        .iter()
        .filter(|pod| fits(namespace, &pod.metadata.namespace) && fits(name, &pod.metadata.name));
    let mut found: Vec<End> =
        pods.map(|pod| End { name: pod.full_name(), addresses: pod.addresses() }).collect();
    found.sort();
    match found.is_empty() {
        true => Err(format!("no pod is {pattern:?}")),
        false => Ok(found),
    }
}

/// The packets of a connection, one for each family that both ends have. A name of a port is the receiver's.
pub(super) fn packets(from: &End, to: &End, port: &str, snapshot: &Snapshot) -> Result<Vec<Packet>, String> {
    let service = service(port, to, snapshot)?;
    let mut packets = Vec::new();
    for source in &from.addresses {
        for destination in to.addresses.iter().filter(|address| address.is_ipv4() == source.is_ipv4()) {
            packets.push(Packet { source: *source, destination: *destination, service });
        }
    }
    match packets.is_empty() {
        true => Err(format!("{} and {} have no addresses of the same family", from.name, to.name)),
        false => Ok(packets),
    }
}

fn service(port: &str, to: &End, snapshot: &Snapshot) -> Result<Option<(Protocol, u16)>, String> {
    if port.eq_ignore_ascii_case("ping") {
        return Ok(None);
    }
    let (text, protocol) = match port.split_once('/') {
        Some((text, protocol)) => {
            let known = Protocol::named(protocol);
            (text, known.ok_or_else(|| format!("{protocol:?} is none of TCP, UDP, SCTP"))?)
        }
        None => (port, Protocol::Tcp),
    };
    match text.parse::<u16>() {
        Ok(0) => Err("0 is no port".into()),
        Ok(number) => Ok(Some((protocol, number))),
        Err(_) => {
            let named = |pod: &podwire_policy::api::Pod| pod.named_ports(text).next();
            let found = snapshot.pod(&to.name).and_then(named);
            found.map(Some).ok_or_else(|| format!("{} has no port named {text:?}", to.name))
        }
    }
}
