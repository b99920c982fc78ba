//! Watches the metadata of all nodes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{ListParams, PartialObjectMeta, WatchEvent, WatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};

use podwire_kubernetes::{request, Backoff, REQUEST_TIMEOUT};

use super::object::LeanNode;
use super::{object, Kubernetes};
use crate::error::{Error, Result};
use crate::netconf::NetConf;
use crate::node::Node;
use crate::snapshot::{SkippedNode, SnapshotSender, Watch};

/// A watch is renewed after this time, so that a connection that died silently is noticed.
const WATCH_SECONDS: u32 = 120;

/// Up to this number, nodes are read one by one; more are listed.
const MAX_SINGLE_READS: usize = 8;

/// The page size of metadata lists.
const PAGE: u32 = 500;
/// The page size of lists of whole objects.
const WHOLE_PAGE: u32 = 100;

/// The HTTP status code for a revision that is not available any more.
const GONE: u16 = 410;

/// The stored part of a node's metadata: a few hundred bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Metadata {
    uid: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Default)]
struct Known {
    /// The resource version. `None`: a list is needed.
    revision: Option<String>,
    /// Whether pod CIDRs of some nodes may be missing.
    needs_pod_cidrs: bool,
    /// By name.
    nodes: BTreeMap<String, Metadata>,
    /// `spec.podCIDRs` by uid, once they are set.
    pod_cidrs: HashMap<String, Vec<String>>,
}

type Meta = PartialObjectMeta<NodeObject>;

impl Kubernetes {
    /// Watches all nodes that flannel or podwire manages.
    pub fn watch(&self) -> Watch {
        let kubernetes = self.clone();
        SnapshotSender::start(|sender| watch(kubernetes, sender))
    }

    /// Waits until the controller has assigned this node its pod CIDRs. The node's metadata change then, and the node
    /// is read.
    pub async fn wait_for_pod_cidr(&self) -> Result<()> {
        let api: Api<Meta> = Api::all(self.client.clone());
        let own = format!("metadata.name={}", self.name);
        let config = watcher::Config::default().timeout(WATCH_SECONDS).fields(&own);
        let mut events = pin!(watcher::watcher(api, config));
        let mut backoff = Backoff::new();
        while let Some(event) = events.next().await {
            match event {
                Err(_) => backoff.wait().await,
                Ok(Event::Apply(_) | Event::InitDone) => match self.own().await {
                    Ok(node) if !node.pod_cidr_texts().is_empty() => return Ok(()),
                    // Not registered yet: the watch reports it when kubelet registers it.
                    Ok(_) | Err(Error::UnknownNode { .. }) => {}
                    Err(error) => return Err(error),
                },
                Ok(_) => {}
            }
        }
        Ok(())
    }
}

/// Publishes snapshots forever.
async fn watch(kubernetes: Kubernetes, sender: SnapshotSender) {
    let mut backoff = Backoff::new();
    let mut known = Known::default();
    loop {
        let begun = Instant::now();
        let ended = publish_changes(&kubernetes, &sender, &mut known, &mut backoff).await;
        let was_short = begun.elapsed() < Duration::from_secs(1);
        if let Err(error) = &ended {
            sender.mark_stale(error);
        }
        // A watch that ends at once is not restarted at once.
        if ended.is_err() || was_short {
            backoff.wait().await;
        }
    }
}

/// Publishes a snapshot at every change until the watch breaks. `Ok` if it can be restarted at once.
///
/// The library has a similar loop, but does not report when a broken watch works again: the snapshot would stay stale
/// until the next change, which may be minutes away.
async fn publish_changes(
    kubernetes: &Kubernetes,
    sender: &SnapshotSender,
    known: &mut Known,
    backoff: &mut Backoff,
) -> Result<()> {
    let conf = kubernetes.network().await?;
    let api: Api<Meta> = Api::all(kubernetes.client.clone());
    if known.revision.is_none() {
        known.list(kubernetes, &api).await?;
    }
    // Also after an error: what could not be read then is read now.
    if known.needs_pod_cidrs {
        known.read_pod_cidrs(kubernetes).await?;
        known.publish(kubernetes, &conf, sender);
    }
    let revision = known.revision.clone().unwrap_or_default();
    let params = WatchParams::default().timeout(WATCH_SECONDS);
    let begun =
        tokio::time::timeout(REQUEST_TIMEOUT, api.watch(&params, &revision)).await.map_err(|_| silent())?;
    let mut events = match begun {
        Ok(events) => events.boxed(),
        Err(kube::Error::Api(status)) if status.code == GONE => return known.discard_revision(),
        Err(error) => return Err(watch_failed(error)),
    };
    sender.mark_current();
    let max_silence = Duration::from_secs(u64::from(WATCH_SECONDS) + 10);
    while let Some(event) = tokio::time::timeout(max_silence, events.next()).await.map_err(|_| silent())? {
        let changed = match event.map_err(watch_failed)? {
            WatchEvent::Error(status) if status.code == GONE => return known.discard_revision(),
            WatchEvent::Error(status) => return Err(watch_failed(kube::Error::Api(status.boxed()))),
            WatchEvent::Bookmark(mark) => {
                known.revision = Some(mark.metadata.resource_version);
                false
            }
            WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                known.revision = node.resource_version();
                // Most changes are heartbeats, which change nothing that is stored. But any of them may set missing pod
                // CIDRs.
                let (name, node) = (node.name_any(), metadata(kubernetes, node));
                let is_missing = !known.pod_cidrs.contains_key(&node.uid);
                known.nodes.insert(name, node.clone()) != Some(node) || is_missing
            }
            WatchEvent::Deleted(node) => {
                known.revision = node.resource_version();
                known.nodes.remove(&node.name_any()).is_some()
            }
        };
        backoff.reset();
        if changed {
            known.needs_pod_cidrs = true;
            known.read_pod_cidrs(kubernetes).await?;
            known.publish(kubernetes, &conf, sender);
        }
    }
    // The server ends a watch after the requested time.
    Ok(())
}

fn silent() -> Error {
    podwire_kubernetes::Error { doing: "watch nodes".into(), why: "the connection is silent".into() }.into()
}

fn metadata(kubernetes: &Kubernetes, node: Meta) -> Metadata {
    let uid = node.uid().unwrap_or_default();
    Metadata { uid, annotations: kubernetes.annotations.own(node.metadata.annotations.unwrap_or_default()) }
}

impl Known {
    /// The revision is not available any more, so a new list is needed. Pod CIDRs stay: they never change.
    fn discard_revision(&mut self) -> Result<()> {
        self.revision = None;
        Ok(())
    }

    /// Lists the metadata of all nodes, page by page.
    async fn list(&mut self, kubernetes: &Kubernetes, api: &Api<Meta>) -> Result<()> {
        let (mut nodes, mut page) = (BTreeMap::new(), ListParams::default().limit(PAGE));
        loop {
            let list = request("list nodes", api.list(&page)).await?;
            nodes.extend(list.items.into_iter().map(|node| (node.name_any(), metadata(kubernetes, node))));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => {
                    (self.nodes, self.revision, self.needs_pod_cidrs) =
                        (nodes, list.metadata.resource_version, true);
                    return Ok(());
                }
            }
        }
    }

    /// Reads the missing pod CIDRs of managed nodes.
    async fn read_pod_cidrs(&mut self, kubernetes: &Kubernetes) -> Result<()> {
        let uids: HashSet<&str> = self.nodes.values().map(|node| node.uid.as_str()).collect();
        self.pod_cidrs.retain(|uid, _| uids.contains(uid.as_str()));
        let wanted = self.nodes.iter().filter(|(_, node)| {
            kubernetes.annotations.is_managed(&node.annotations) && !self.pod_cidrs.contains_key(&node.uid)
        });
        let wanted: Vec<String> = wanted.map(|(name, _)| name.clone()).collect();
        let found = match wanted.len() {
            0 => Vec::new(),
            count if count <= MAX_SINGLE_READS => {
                let mut found = Vec::new();
                for name in &wanted {
                    // If the node does not exist any more, an event follows.
                    let nodes = kubernetes.nodes();
                    found.extend(request(format!("get node {name}"), nodes.get_opt(name)).await?);
                }
                found
            }
            _ => return self.read_all_pod_cidrs(kubernetes).await,
        };
        self.store_pod_cidrs(found);
        self.needs_pod_cidrs = false;
        Ok(())
    }

    /// Reads the pod CIDRs of all nodes, page by page: five thousand whole objects are a hundred megabytes.
    async fn read_all_pod_cidrs(&mut self, kubernetes: &Kubernetes) -> Result<()> {
        let mut page = ListParams::default().limit(WHOLE_PAGE);
        loop {
            let list = request("list nodes", kubernetes.nodes().list(&page)).await?;
            self.store_pod_cidrs(list.items);
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => {
                    self.needs_pod_cidrs = false;
                    return Ok(());
                }
            }
        }
    }

    fn store_pod_cidrs(&mut self, found: Vec<LeanNode>) {
        for node in found {
            let pod_cidrs = node.pod_cidr_texts();
            if !pod_cidrs.is_empty() {
                self.pod_cidrs.insert(node.uid().into(), pod_cidrs);
            }
        }
    }

    fn publish(&self, kubernetes: &Kubernetes, conf: &NetConf, sender: &SnapshotSender) {
        let (mut nodes, mut skipped) = (Vec::new(), Vec::new());
        for (name, node) in
            self.nodes.iter().filter(|(_, node)| kubernetes.annotations.is_managed(&node.annotations))
        {
            match self.node(kubernetes, conf, name, node) {
                Ok(node) => nodes.push(node),
                Err(why) => skipped.push(SkippedNode { name: name.clone(), reason: why }),
            }
        }
        sender.publish(nodes, skipped);
    }

    fn node(
        &self,
        kubernetes: &Kubernetes,
        conf: &NetConf,
        name: &str,
        node: &Metadata,
    ) -> Result<Node, String> {
        let pod_cidrs = self.pod_cidrs.get(&node.uid).ok_or("pod cidr not assigned")?;
        let pod_cidrs = object::parse_pod_cidrs(pod_cidrs, conf)?;
        kubernetes.annotations.read(name, &node.annotations, pod_cidrs, conf)
    }
}

fn watch_failed(error: kube::Error) -> Error {
    podwire_kubernetes::Error::while_doing("watch nodes")(error).into()
}
