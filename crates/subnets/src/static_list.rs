//! All nodes in one JSON file, written by whoever rolls out machines.
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
//! `network` is net-conf.json's content. A node may have a `backend` (`type`, `data`, `dataV6`); without, it has the network's
//! type and no data. The file is read again when it changes. A file with a mistake changes nothing: the mistake is told,
//! and what the last good one said stays.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use inotify::WatchMask;
use ipnet::IpNet;
use podwire_cni_spec::json;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::folder::Folder;
use crate::node::find_overlaps;
use crate::snapshot::{SnapshotSender, Watch};
use crate::{go_json, Backend, Error, LeaseTerm, NetConf, Node, PodCidrs, Registration, Result, Underlay};
use podwire_kubernetes::Backoff;

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
    /// Names the file, which is read when it is needed.
    pub fn new(path: impl Into<PathBuf>) -> StaticList {
        StaticList { path: path.into() }
    }

    /// The network's config.
    pub async fn network(&self) -> Result<NetConf> {
        Ok(self.read().await?.0)
    }

    /// The node's own entry, if there is one.
    pub async fn find_previous(&self, registration: &Registration) -> Result<Option<Node>> {
        let (_, nodes) = self.read().await?;
        Ok(nodes.into_iter().find(|node| node.name == registration.name))
    }

    /// The node's own entry. Nothing is given out and nothing written: what the file says is so, also of this node's own
    /// tunnel.
    pub async fn acquire(&self, registration: &Registration) -> Result<Node> {
        self.find_previous(registration).await?.ok_or_else(|| Error::UnknownNode {
            name: registration.name.clone(),
            place: self.path.display().to_string(),
            hint: "add it to the file's nodes".into(),
        })
    }

    /// All nodes, and again when the file changes.
    pub fn watch(&self) -> Watch {
        let list = self.clone();
        SnapshotSender::start(|sender| async move {
            let mut backoff = Backoff::new();
            loop {
                if let Err(error) = list.listen(&sender, &mut backoff).await {
                    sender.mark_stale(error);
                }
                backoff.wait().await;
            }
        })
    }

    /// Feeds a watch, until the folder is gone.
    async fn listen(&self, sender: &SnapshotSender, backoff: &mut Backoff) -> Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        // A ConfigMap in a pod changes by a link beside the file being renamed, so anything in the folder counts.
        let kinds = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::CREATE | WatchMask::DELETE;
        let mut changes = Folder::watch(folder, kinds | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF)?;
        loop {
            match self.read().await {
                Ok((_, nodes)) => sender.publish(nodes, Vec::new()),
                Err(error) => sender.mark_stale(error),
            }
            backoff.reset();
            if !changes.change(|_| true).await {
                return Ok(());
            }
        }
    }

    async fn read(&self) -> Result<(NetConf, Vec<Node>)> {
        let bytes = tokio::fs::read(&self.path).await.map_err(Error::file("read", &self.path))?;
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
        return Err(wrong(format!("the ranges of nodes {a:?} and {b:?} share addresses")));
    }
    Ok((conf, nodes))
}

fn node(entry: Entry, kind: String) -> std::result::Result<Node, String> {
    let Entry { name, ranges, underlay, backend } = entry;
    let (mut own, mut reached) = (PodCidrs::default(), Underlay::default());
    if name.is_empty() {
        return Err("it has no name".into());
    }
    for text in ranges {
        let range: IpNet = text.parse().map_err(|error| format!("{error}: {text:?}"))?;
        let twice = match range {
            range if range != range.trunc() => {
                return Err(format!("{range} is an address in {}, not a range", range.trunc()))
            }
            IpNet::V4(range) => own.v4.replace(range).is_some(),
            IpNet::V6(range) => own.v6.replace(range).is_some(),
        };
        if twice {
            return Err(format!("{range} is its second range of that family, and one is possible"));
        }
    }
    for ip in underlay {
        let twice = match ip {
            IpAddr::V4(ip) => reached.v4.replace(ip).is_some(),
            IpAddr::V6(ip) => reached.v6.replace(ip).is_some(),
        };
        if twice {
            return Err(format!("{ip} is its second underlay address of that family, and one is possible"));
        }
    }
    if own.is_empty() || reached == Underlay::default() {
        return Err("it needs at least one range and one underlay address".into());
    }
    let backend = match backend {
        Some(BackendEntry { r#type, data, data_v6 }) => Backend { kind: r#type, data, data_v6 },
        None => Backend::named(&kind),
    };
    Ok(Node { name, pod_cidrs: own, underlay: reached, backend, lease_term: LeaseTerm::Permanent })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: &str = r#""network": {"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;

    fn refused(nodes: &str) -> String {
        parse("nodes.json", format!("{{{NETWORK}, \"nodes\": [{nodes}]}}").as_bytes())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn nodes_are_read() {
        let text = format!(
            r#"{{{NETWORK}, "nodes": [
                {{"name": "a", "ranges": ["10.244.1.0/24"], "underlay": ["192.0.2.1", "2001:db8::1"],
                  "backend": {{"type": "vxlan", "data": {{"VNI": 1, "VtepMAC": "02:00:00:00:00:01"}}}}}},
                {{"Name": "b", "PodCidrs": ["10.244.2.0/24"], "Underlay": ["192.0.2.2"]}}]}}"#
        );
        let (conf, nodes) = parse("nodes.json", text.as_bytes()).unwrap();
        assert_eq!(conf.network.unwrap().to_string(), "10.244.0.0/16");
        assert_eq!(nodes[0].backend.vtep().unwrap().mac, "02:00:00:00:00:01");
        assert_eq!(nodes[0].underlay.v6.unwrap().to_string(), "2001:db8::1");
        assert_eq!((nodes[1].name.as_str(), &nodes[1].backend), ("b", &Backend::named("vxlan")));
    }

    #[test]
    fn mistakes_are_named() {
        for (nodes, words) in [
            (
                r#"{"name": "a", "ranges": ["10.244.1.1/24"], "underlay": ["192.0.2.1"]}"#,
                "10.244.1.1/24 is an address in 10.244.1.0/24",
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
                "the ranges of nodes \"a\" and \"b\" share addresses",
            ),
        ] {
            let error = refused(nodes);
            assert!(error.contains(words), "{nodes}: {error}");
        }
    }
}
