//! Following all nodes by their metadata.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{ListParams, PartialObjectMeta, WatchEvent, WatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};

use super::object::LeanNode;
use super::{object, Kubernetes};
use crate::snapshot::{SkippedNode, SnapshotSender};
use crate::{Error, NetConf, Node, Result};
use podwire_kubernetes::{request, Backoff, REQUEST_TIMEOUT};

/// A watch is asked for anew after so many seconds: a connection that died without a word is noticed then.
const WATCH_SECONDS: u32 = 120;

/// Up to so many nodes are read one by one; more, all at once.
const FEW: usize = 8;

/// How many nodes the server tells at a time.
const PAGE: u32 = 500;
/// The same if they are told whole.
const WHOLE_PAGE: u32 = 100;

/// HTTP's word for history that is not kept any more.
const GONE: u16 = 410;

/// What is kept of a node: a few hundred bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    uid: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Default)]
struct Known {
    /// As of when. `None`: a list is needed.
    revision: Option<String>,
    /// Whether the pod_cidrs of some nodes may still have to be read.
    is_unread: bool,
    /// By name.
    nodes: BTreeMap<String, Kept>,
    /// By uid: what `spec.podCIDRs` was, once it was anything.
    pod_cidrs: HashMap<String, Vec<String>>,
}

type Meta = PartialObjectMeta<NodeObject>;

/// Feeds a watch, for ever.
pub(super) async fn follow(kubernetes: Kubernetes, sender: SnapshotSender) {
    let mut backoff = Backoff::new();
    let mut known = Known::default();
    loop {
        let begun = Instant::now();
        let ended = listen(&kubernetes, &sender, &mut known, &mut backoff).await;
        let was_short = begun.elapsed() < Duration::from_secs(1);
        if let Err(error) = &ended {
            sender.mark_stale(error);
        }
        // One that ends at once is not asked for again at once.
        if ended.is_err() || was_short {
            backoff.wait().await;
        }
    }
}

/// Feeds a watch until it breaks. `Ok` if it is to be asked for anew, at once.
///
/// The library has a loop like this one, but it does not tell when a broken watch is whole again: what is known would
/// count as stale until the next change, which may be minutes away.
async fn listen(
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
    // After trouble, too: what could not be read then is read now.
    if known.is_unread {
        known.read_ranges(kubernetes).await?;
        known.tell(kubernetes, &conf, sender);
    }
    let revision = known.revision.clone().unwrap_or_default();
    let params = WatchParams::default().timeout(WATCH_SECONDS);
    let begun =
        tokio::time::timeout(REQUEST_TIMEOUT, api.watch(&params, &revision)).await.map_err(|_| mute())?;
    let mut events = match begun {
        Ok(events) => events.boxed(),
        Err(kube::Error::Api(status)) if status.code == GONE => return known.forget(),
        Err(error) => return Err(watch_failed(error)),
    };
    sender.mark_current();
    let silence = Duration::from_secs(u64::from(WATCH_SECONDS) + 10);
    while let Some(event) = tokio::time::timeout(silence, events.next()).await.map_err(|_| mute())? {
        let changed = match event.map_err(watch_failed)? {
            WatchEvent::Error(status) if status.code == GONE => return known.forget(),
            WatchEvent::Error(status) => return Err(watch_failed(kube::Error::Api(status.boxed()))),
            WatchEvent::Bookmark(mark) => {
                known.revision = Some(mark.metadata.resource_version);
                false
            }
            WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                known.revision = node.resource_version();
                // Most changes are heartbeats, which change nothing that is kept. But while a range is missing, any may set it.
                let (name, node) = (node.name_any(), kept(kubernetes, node));
                let missing = !known.pod_cidrs.contains_key(&node.uid);
                known.nodes.insert(name, node.clone()) != Some(node) || missing
            }
            WatchEvent::Deleted(node) => {
                known.revision = node.resource_version();
                known.nodes.remove(&node.name_any()).is_some()
            }
        };
        backoff.reset();
        if changed {
            known.is_unread = true;
            known.read_ranges(kubernetes).await?;
            known.tell(kubernetes, &conf, sender);
        }
    }
    // The server ends a watch after its time.
    Ok(())
}

fn mute() -> Error {
    podwire_kubernetes::Error { doing: "watch nodes".into(), why: "the connection is mute".into() }.into()
}

fn kept(kubernetes: &Kubernetes, node: Meta) -> Kept {
    let uid = node.uid().unwrap_or_default();
    Kept { uid, annotations: kubernetes.annotations.own(node.metadata.annotations.unwrap_or_default()) }
}

impl Known {
    /// The history since our revision is gone: all is listed anew. PodCidrs stay, since they never change.
    fn forget(&mut self) -> Result<()> {
        self.revision = None;
        Ok(())
    }

    /// All nodes' metadata, page by page.
    async fn list(&mut self, kubernetes: &Kubernetes, api: &Api<Meta>) -> Result<()> {
        let (mut nodes, mut page) = (BTreeMap::new(), ListParams::default().limit(PAGE));
        loop {
            let list = request("list nodes", api.list(&page)).await?;
            nodes.extend(list.items.into_iter().map(|node| (node.name_any(), kept(kubernetes, node))));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => {
                    (self.nodes, self.revision, self.is_unread) =
                        (nodes, list.metadata.resource_version, true);
                    return Ok(());
                }
            }
        }
    }

    /// Reads the pod_cidrs of nodes that have a network and whose range is not known.
    async fn read_ranges(&mut self, kubernetes: &Kubernetes) -> Result<()> {
        let uids: HashSet<&str> = self.nodes.values().map(|node| node.uid.as_str()).collect();
        self.pod_cidrs.retain(|uid, _| uids.contains(uid.as_str()));
        let wanted = self.nodes.iter().filter(|(_, node)| {
            kubernetes.annotations.is_managed(&node.annotations) && !self.pod_cidrs.contains_key(&node.uid)
        });
        let wanted: Vec<String> = wanted.map(|(name, _)| name.clone()).collect();
        let found = match wanted.len() {
            0 => Vec::new(),
            few if few <= FEW => {
                let mut found = Vec::new();
                for name in &wanted {
                    // One that is not there any more has an event coming that says so.
                    let nodes = kubernetes.nodes();
                    found.extend(request(format!("get node {name}"), nodes.get_opt(name)).await?);
                }
                found
            }
            _ => return self.read_all_ranges(kubernetes).await,
        };
        self.keep_ranges(found);
        self.is_unread = false;
        Ok(())
    }

    /// The same of all nodes, page by page: of five thousand whole ones a page would be a hundred megabytes.
    async fn read_all_ranges(&mut self, kubernetes: &Kubernetes) -> Result<()> {
        let mut page = ListParams::default().limit(WHOLE_PAGE);
        loop {
            let list = request("list nodes", kubernetes.nodes().list(&page)).await?;
            self.keep_ranges(list.items);
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => {
                    self.is_unread = false;
                    return Ok(());
                }
            }
        }
    }

    fn keep_ranges(&mut self, found: Vec<LeanNode>) {
        for node in found {
            let pod_cidrs = node.pod_cidr_texts();
            if !pod_cidrs.is_empty() {
                self.pod_cidrs.insert(node.uid().into(), pod_cidrs);
            }
        }
    }

    fn tell(&self, kubernetes: &Kubernetes, conf: &NetConf, sender: &SnapshotSender) {
        let (mut nodes, mut refused) = (Vec::new(), Vec::new());
        for (name, node) in
            self.nodes.iter().filter(|(_, node)| kubernetes.annotations.is_managed(&node.annotations))
        {
            match self.node(kubernetes, conf, name, node) {
                Ok(node) => nodes.push(node),
                Err(why) => refused.push(SkippedNode { name: name.clone(), reason: why }),
            }
        }
        sender.publish(nodes, refused);
    }

    fn node(&self, kubernetes: &Kubernetes, conf: &NetConf, name: &str, node: &Kept) -> Result<Node, String> {
        let pod_cidrs = self.pod_cidrs.get(&node.uid).ok_or("pod cidr not assigned")?;
        let pod_cidrs = object::parse_pod_cidrs(pod_cidrs, conf)?;
        kubernetes.annotations.read(name, &node.annotations, pod_cidrs, conf)
    }
}

/// Waits until this node's object has a range. Its metadata change when it gets one, and then it is read.
pub(super) async fn wait_for_pod_cidr(kubernetes: &Kubernetes) -> Result<()> {
    let api: Api<Meta> = Api::all(kubernetes.client.clone());
    let own = format!("metadata.name={}", kubernetes.name);
    let config = watcher::Config::default().timeout(WATCH_SECONDS).fields(&own);
    let mut events = pin!(watcher::watcher(api, config));
    let mut backoff = Backoff::new();
    while let Some(event) = events.next().await {
        match event {
            Err(_) => backoff.wait().await,
            Ok(Event::Apply(_) | Event::InitDone) => match kubernetes.own().await {
                Ok(node) if !node.pod_cidr_texts().is_empty() => return Ok(()),
                // Not registered yet: kubelet will, and the watch tells.
                Ok(_) | Err(Error::UnknownNode { .. }) => {}
                Err(error) => return Err(error),
            },
            Ok(_) => {}
        }
    }
    Ok(())
}

fn watch_failed(error: kube::Error) -> Error {
    podwire_kubernetes::Error::while_doing("watch nodes")(error).into()
}
