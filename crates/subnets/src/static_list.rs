//! All nodes in one JSON file, for example written by configuration management.
//!
//! ```json
//! {
//!   "network": {"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}},
//!   "nodes": [
//!     {"name": "a", "ranges": ["10.244.1.0/24"], "underlay": ["192.0.2.1"]},
//!     {"name": "b", "ranges": ["10.244.2.0/24"], "underlay": ["192.0.2.2"]}
//!   ]
//! }
//! ```
//!
//! `network` is the content of net-conf.json. `ranges` are the node's pod CIDRs. A node may have a `backend` (`type`,
//! `data`, `dataV6`); the default is the network's type without data. The file is read again when it changes. An
//! invalid file is reported, and the last valid one stays in effect.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use inotify::WatchMask;
use ipnet::IpNet;
use podwire_cni_spec::json;
use serde::Deserialize;
use serde_json::{Map, Value};

use podwire_fs::FileError;
use podwire_kubernetes::Backoff;

use crate::dir_watch::DirWatch;
use crate::error::{Error, Result};
use crate::go_json;
use crate::netconf::NetConf;
use crate::node::{find_overlaps, Backend, LeaseTerm, Node, PodCidrs, Registration, Underlay};
use crate::snapshot::{SnapshotSender, Watch};

/// A file that lists all nodes.
#[derive(Clone, Debug)]
pub struct StaticList {
    path: PathBuf,
}

#[derive(Deserialize)]
struct Document {
    network: Map<String, Value>,
    nodes: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    ranges: Vec<String>,
    underlay: Vec<IpAddr>,
    backend: Option<BackendEntry>,
}

#[derive(Deserialize)]
struct BackendEntry {
    r#type: String,
    data: Option<Value>,
    #[serde(rename = "dataV6")]
    data_v6: Option<Value>,
}

impl StaticList {
    /// A source that reads this file when needed.
    pub fn new(path: impl Into<PathBuf>) -> StaticList {
        StaticList { path: path.into() }
    }

    /// The network config.
    pub async fn network(&self) -> Result<NetConf> {
        Ok(self.read().await?.0)
    }

    /// This node's entry, if there is one.
    pub async fn find_previous(&self, registration: &Registration) -> Result<Option<Node>> {
        let (_, nodes) = self.read().await?;
        Ok(nodes.into_iter().find(|node| node.name == registration.name))
    }

    /// This node's entry. Nothing is assigned and nothing is written: the file is authoritative, also about this node's
    /// tunnel endpoint.
    pub async fn acquire(&self, registration: &Registration) -> Result<Node> {
        self.find_previous(registration).await?.ok_or_else(|| Error::UnknownNode {
            name: registration.name.clone(),
            place: self.path.display().to_string(),
            hint: "add it to the file's nodes".into(),
        })
    }

    /// Watches the file.
    pub fn watch(&self) -> Watch {
        let list = self.clone();
        SnapshotSender::start(|sender| async move {
            let mut backoff = Backoff::new();
            loop {
                if let Err(error) = list.publish_changes(&sender, &mut backoff).await {
                    sender.mark_stale(error);
                }
                backoff.wait().await;
            }
        })
    }

    /// Publishes the nodes at every change, until the directory is gone.
    async fn publish_changes(&self, sender: &SnapshotSender, backoff: &mut Backoff) -> Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        // A ConfigMap volume changes by renaming a symlink beside the file, so every change in the directory counts.
        let kinds = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::CREATE | WatchMask::DELETE;
        let mut changes = DirWatch::start(dir, kinds | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF)?;
        loop {
            match self.read().await {
                Ok((_, nodes)) => sender.publish(nodes, Vec::new()),
                Err(error) => sender.mark_stale(error),
            }
            backoff.reset();
            if !changes.changed(|_| true).await {
                return Ok(());
            }
        }
    }

    async fn read(&self) -> Result<(NetConf, Vec<Node>)> {
        let bytes = tokio::fs::read(&self.path).await.map_err(FileError::at("read", &self.path))?;
        parse(&self.path.display().to_string(), &bytes)
    }
}

fn parse(origin: &str, bytes: &[u8]) -> Result<(NetConf, Vec<Node>)> {
    let wrong = |why: String| Error::Config { origin: origin.into(), why };
    let value = json::parse(bytes).map_err(|error| wrong(error.msg))?;
    let document: Document = json::decode(&value).map_err(|error| wrong(error.msg))?;
    let conf = NetConf::parse(&format!("{origin}: network"), &go_json::compact(&document.network))?;
    let mut nodes = Vec::new();
    for entry in document.nodes {
        let (name, kind) = (entry.name.clone(), conf.backend_type.clone());
        let node = node(entry, kind).map_err(|why| wrong(format!("node {name:?}: {why}")))?;
        conf.check_pod_cidrs(&node.name, node.pod_cidrs)?;
        if nodes.iter().any(|other: &Node| other.name == node.name) {
            return Err(wrong(format!("node {name:?} is listed twice")));
        }
        nodes.push(node);
    }
    if let Some((a, b)) = find_overlaps(&nodes).first() {
        return Err(wrong(format!("the ranges of nodes {a:?} and {b:?} overlap")));
    }
    Ok((conf, nodes))
}

fn node(entry: Entry, kind: String) -> std::result::Result<Node, String> {
    let Entry { name, ranges, underlay, backend } = entry;
    let (mut pod_cidrs, mut addresses) = (PodCidrs::default(), Underlay::default());
    if name.is_empty() {
        return Err("it has no name".into());
    }
    for text in ranges {
        let range: IpNet = text.parse().map_err(|error| format!("{error}: {text:?}"))?;
        let twice = match range {
            range if range != range.trunc() => {
                return Err(format!("{range} has host bits set: write {}", range.trunc()))
            }
            IpNet::V4(range) => pod_cidrs.v4.replace(range).is_some(),
            IpNet::V6(range) => pod_cidrs.v6.replace(range).is_some(),
        };
        if twice {
            return Err(format!("{range} is a second range of the same family: only one is possible"));
        }
    }
    for ip in underlay {
        let twice = match ip {
            IpAddr::V4(ip) => addresses.v4.replace(ip).is_some(),
            IpAddr::V6(ip) => addresses.v6.replace(ip).is_some(),
        };
        if twice {
            return Err(format!(
                "{ip} is a second underlay address of the same family: only one is possible"
            ));
        }
    }
    if pod_cidrs.is_empty() || addresses == Underlay::default() {
        return Err("it needs at least one range and one underlay address".into());
    }
    let backend = match backend {
        Some(BackendEntry { r#type, data, data_v6 }) => Backend { kind: r#type, data, data_v6 },
        None => Backend::named(&kind),
    };
    Ok(Node { name, pod_cidrs, underlay: addresses, backend, lease_term: LeaseTerm::Permanent })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: &str = r#""network": {"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;

    fn parse_error(nodes: &str) -> String {
        parse("nodes.json", format!("{{{NETWORK}, \"nodes\": [{nodes}]}}").as_bytes())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn nodes_are_parsed() {
        let text = format!(
            r#"{{{NETWORK}, "nodes": [
                {{"name": "a", "ranges": ["10.244.1.0/24"], "underlay": ["192.0.2.1", "2001:db8::1"],
                  "backend": {{"type": "vxlan", "data": {{"VNI": 1, "VtepMAC": "02:00:00:00:00:01"}}}}}},
                {{"Name": "b", "Ranges": ["10.244.2.0/24"], "Underlay": ["192.0.2.2"]}}]}}"#
        );
        let (conf, nodes) = parse("nodes.json", text.as_bytes()).unwrap();
        assert_eq!(conf.network.unwrap().to_string(), "10.244.0.0/16");
        assert_eq!(nodes[0].backend.vtep().unwrap().mac, "02:00:00:00:00:01");
        assert_eq!(nodes[0].underlay.v6.unwrap().to_string(), "2001:db8::1");
        assert_eq!((nodes[1].name.as_str(), &nodes[1].backend), ("b", &Backend::named("vxlan")));
    }

    #[test]
    fn invalid_files_are_rejected_with_a_reason() {
        for (nodes, text) in [
            (
                r#"{"name": "a", "ranges": ["10.244.1.1/24"], "underlay": ["192.0.2.1"]}"#,
                "10.244.1.1/24 has host bits set: write 10.244.1.0/24",
            ),
            (
                r#"{"name": "a", "ranges": ["10.1.1.0/24"], "underlay": ["192.0.2.1"]}"#,
                "doesn't contain 10.1.1.0/24",
            ),
            (
                r#"{"name": "a", "ranges": [], "underlay": ["192.0.2.1"]}"#,
                "node \"a\": it needs at least one range",
            ),
            (r#"{"name": "", "ranges": [], "underlay": []}"#, "it has no name"),
            (
                r#"{"name": "a", "ranges": ["10.244.1.0/24", "10.244.2.0/24"], "underlay": ["192.0.2.1"]}"#,
                "second range",
            ),
            (
                r#"{"name": "a", "ranges": ["x"], "underlay": []}"#,
                "node \"a\": invalid IP address syntax: \"x\"",
            ),
            (
                r#"{"name": "a", "ranges": ["10.244.1.0/24"], "underlay": ["192.0.2.1"]},
                   {"name": "a", "ranges": ["10.244.2.0/24"], "underlay": ["192.0.2.2"]}"#,
                "node \"a\" is listed twice",
            ),
            (
                r#"{"name": "a", "ranges": ["10.244.0.0/17"], "underlay": ["192.0.2.1"]},
                   {"name": "b", "ranges": ["10.244.2.0/24"], "underlay": ["192.0.2.2"]}"#,
                "the ranges of nodes \"a\" and \"b\" overlap",
            ),
        ] {
            let error = parse_error(nodes);
            assert!(error.contains(text), "{nodes}: {error}");
        }
    }
}
