//! The file format of `podwire policy test`: objects and tables of expected verdicts.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_policy::{Packet, Protocol, Snapshot, Verdict};
use serde::Deserialize;
use serde_json::Value;

/// A whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Expectations {
    /// Files and directories with objects, relative to this file.
    #[serde(default)]
    pub sources: Vec<PathBuf>,
    /// Objects in this file.
    #[serde(default)]
    pub objects: Vec<Value>,
    /// Networks for pods without addresses.
    #[serde(default)]
    pub pod_networks: Option<Vec<IpNet>>,
    /// The tables.
    pub tests: Vec<Table>,
}

/// One table of verdicts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// The name of the table.
    pub name: String,
    /// Objects for this table only. They replace objects of the same kind and name.
    #[serde(default)]
    pub objects: Vec<Value>,
    /// Ports: `80`, `53/UDP`, `http`, `ping`.
    #[serde(default)]
    pub port: Option<OneOrMany>,
    /// Expected verdicts. The last one that matches a connection counts.
    pub expect: Vec<Expectation>,
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

/// `allow: x/a -> y/b` or `deny: …`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Expectation {
    Allow(String),
    Deny(String),
}

impl Expectation {
    /// The verdict and the patterns of both ends.
    pub(super) fn parse(&self) -> Result<(Verdict, &str, &str), String> {
        let (verdict, text) = match self {
            Expectation::Allow(text) => (Verdict::Allow, text),
            Expectation::Deny(text) => (Verdict::Deny, text),
        };
        match text.split_once("->") {
            Some((from, to)) => Ok((verdict, from.trim(), to.trim())),
            None => Err(format!("{text:?} is not FROM -> TO")),
        }
    }
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Endpoint {
    /// The pod, node or address, for messages.
    pub name: String,
    pub addresses: Vec<IpAddr>,
}

/// The endpoints that a pattern matches: `shop/web`, `shop/*`, `*/web`, `*` (all pods), `node:worker`, an address.
pub(super) fn endpoints(pattern: &str, snapshot: &Snapshot) -> Result<Vec<Endpoint>, String> {
    if let Ok(address) = pattern.parse::<IpAddr>() {
        return Ok(vec![Endpoint { name: pattern.to_owned(), addresses: vec![address] }]);
    }
    if let Some(name) = pattern.strip_prefix("node:") {
        let node = snapshot.nodes.iter().find(|node| node.metadata.name == name);
        let node = node.ok_or_else(|| format!("node {name:?} does not exist"))?;
        return Ok(vec![Endpoint { name: pattern.to_owned(), addresses: node.addresses() }]);
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
    let mut found: Vec<Endpoint> =
        pods.map(|pod| Endpoint { name: pod.full_name(), addresses: pod.addresses() }).collect();
    found.sort();
    if found.is_empty() {
        return Err(format!("no pod matches {pattern:?}"));
    }
    Ok(found)
}

/// The packets of a connection, one for each address family that both ends have. A port name is looked up at the receiver.
pub(super) fn packets(
    from: &Endpoint,
    to: &Endpoint,
    port: &str,
    snapshot: &Snapshot,
) -> Result<Vec<Packet>, String> {
    let service = service(port, to, snapshot)?;
    let mut packets = Vec::new();
    for source in &from.addresses {
        for destination in to.addresses.iter().filter(|ip| IpFamily::of(**ip) == IpFamily::of(*source)) {
            packets.push(Packet { source: *source, destination: *destination, service });
        }
    }
    if packets.is_empty() {
        return Err(format!("{} and {} have no addresses of the same family", from.name, to.name));
    }
    Ok(packets)
}

fn service(port: &str, to: &Endpoint, snapshot: &Snapshot) -> Result<Option<(Protocol, u16)>, String> {
    if port.eq_ignore_ascii_case("ping") {
        return Ok(None);
    }
    let (text, protocol) = match port.split_once('/') {
        Some((text, protocol)) => {
            let known = Protocol::named(protocol);
            (text, known.ok_or_else(|| format!("{protocol:?} is not TCP, UDP or SCTP"))?)
        }
        None => (port, Protocol::Tcp),
    };
    match text.parse::<u16>() {
        Ok(0) => Err("0 is not a port".into()),
        Ok(number) => Ok(Some((protocol, number))),
        Err(_) => {
            let named = |pod: &podwire_policy::api::Pod| pod.named_ports(text).next();
            let found = snapshot.pod(&to.name).and_then(named);
            found.map(Some).ok_or_else(|| format!("{} has no port named {text:?}", to.name))
        }
    }
}
