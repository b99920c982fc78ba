//! Following all nodes by their metadata.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{ListParams, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};

use super::{failed, object, told, Kubernetes};
use crate::backoff::Backoff;
use crate::generation::{Feed, Refusal};
use crate::{NetConf, Node, Result};

/// A watch is asked for anew after so many seconds: a connection that died without a word is noticed then.
const WATCH_SECONDS: u32 = 120;

/// Up to so many nodes are read one by one; more, all at once.
const FEW: usize = 8;

/// What is kept of a node: a few hundred bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    uid: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Default)]
struct Known {
    /// By name.
    nodes: BTreeMap<String, Kept>,
    /// By uid: what `spec.podCIDRs` was, once it was anything.
    ranges: HashMap<String, Vec<String>>,
}

type Meta = PartialObjectMeta<NodeObject>;

/// Feeds a watch, for ever.
pub(super) async fn follow(kubernetes: Kubernetes, feed: Feed) {
    let mut backoff = Backoff::new();
    let conf = loop {
        match kubernetes.network().await {
            Ok(conf) => break conf,
            Err(error) => feed.stale(error),
        }
        backoff.wait().await;
    };
    let mut known = Known::default();
    let mut listed: Option<BTreeMap<String, Kept>> = None;
    let api: Api<Meta> = Api::all(kubernetes.client.clone());
    let mut events = pin!(watcher::watcher(api, watcher::Config::default().timeout(WATCH_SECONDS)));
    while let Some(event) = events.next().await {
        let changed = match event {
            Err(error) => {
                feed.stale(trouble(&error));
                backoff.wait().await;
                continue;
            }
            Ok(Event::Init) => {
                listed = Some(BTreeMap::new());
                false
            }
            Ok(Event::InitApply(node)) => {
                listed.get_or_insert_default().insert(node.name_any(), kept(&kubernetes, node));
                false
            }
            Ok(Event::InitDone) => {
                known.nodes = listed.take().unwrap_or_default();
                true
            }
            Ok(Event::Apply(node)) => {
                // Most changes are heartbeats, which change nothing that is kept. But while a range is missing, any may set it.
                let (name, node) = (node.name_any(), kept(&kubernetes, node));
                let missing = !known.ranges.contains_key(&node.uid);
                known.nodes.insert(name, node.clone()) != Some(node) || missing
            }
            Ok(Event::Delete(node)) => known.nodes.remove(&node.name_any()).is_some(),
        };
        if !changed {
            if listed.is_none() {
                feed.current();
            }
            continue;
        }
        while let Err(error) = known.read_ranges(&kubernetes).await {
            feed.stale(error);
            backoff.wait().await;
        }
        backoff.reset();
        known.tell(&kubernetes, &conf, &feed);
    }
}

fn kept(kubernetes: &Kubernetes, node: Meta) -> Kept {
    let uid = node.uid().unwrap_or_default();
    Kept { uid, annotations: kubernetes.annotations.own(node.metadata.annotations.unwrap_or_default()) }
}

fn trouble(error: &watcher::Error) -> String {
    use watcher::Error as E;
    match error {
        E::InitialListFailed(error) => format!("kubernetes: list nodes: {}", told(error)),
        E::WatchStartFailed(error) | E::WatchFailed(error) => {
            format!("kubernetes: watch nodes: {}", told(error))
        }
        E::WatchError(status) => format!("kubernetes: watch nodes: {} ({})", status.message, status.code),
        other => format!("kubernetes: watch nodes: {other}"),
    }
}

impl Known {
    /// Reads the ranges of nodes that have a network and whose range is not known.
    async fn read_ranges(&mut self, kubernetes: &Kubernetes) -> Result<()> {
        let uids: std::collections::HashSet<&str> =
            self.nodes.values().map(|node| node.uid.as_str()).collect();
        self.ranges.retain(|uid, _| uids.contains(uid.as_str()));
        let wanted = self.nodes.iter().filter(|(_, node)| {
            kubernetes.annotations.is_managed(&node.annotations) && !self.ranges.contains_key(&node.uid)
        });
        let wanted: Vec<String> = wanted.map(|(name, _)| name.clone()).collect();
        let found = match wanted.len() {
            0 => Vec::new(),
            few if few <= FEW => {
                let mut found = Vec::new();
                for name in &wanted {
                    let node = kubernetes.nodes().get_opt(name).await;
                    // One that is not there any more has an event coming that says so.
                    found.extend(node.map_err(failed(format!("get node {name}")))?);
                }
                found
            }
            // From the API server's memory: a node newer than that is read alone, at its next event.
            _ => {
                kubernetes
                    .nodes()
                    .list(&ListParams::default().match_any())
                    .await
                    .map_err(failed("list nodes"))?
                    .items
            }
        };
        for node in found {
            let ranges = node.pod_cidrs();
            if !ranges.is_empty() {
                self.ranges.insert(node.uid().into(), ranges);
            }
        }
        Ok(())
    }

    fn tell(&self, kubernetes: &Kubernetes, conf: &NetConf, feed: &Feed) {
        let (mut nodes, mut refused) = (Vec::new(), Vec::new());
        for (name, node) in
            self.nodes.iter().filter(|(_, node)| kubernetes.annotations.is_managed(&node.annotations))
        {
            match self.node(kubernetes, conf, name, node) {
                Ok(node) => nodes.push(node),
                Err(why) => refused.push(Refusal { name: name.clone(), why }),
            }
        }
        feed.all(nodes, refused);
    }

    fn node(&self, kubernetes: &Kubernetes, conf: &NetConf, name: &str, node: &Kept) -> Result<Node, String> {
        let ranges = self.ranges.get(&node.uid).ok_or("pod cidr not assigned")?;
        let ranges = object::ranges(ranges, conf)?;
        kubernetes.annotations.read(name, &node.annotations, ranges, conf)
    }
}

/// Waits until this node's object has a range. Its metadata change when it gets one, and then it is read.
pub(super) async fn range_is_set(kubernetes: &Kubernetes) -> Result<()> {
    let api: Api<Meta> = Api::all(kubernetes.client.clone());
    let own = format!("metadata.name={}", kubernetes.name);
    let config = watcher::Config::default().timeout(WATCH_SECONDS).fields(&own);
    let mut events = pin!(watcher::watcher(api, config));
    let mut backoff = Backoff::new();
    while let Some(event) = events.next().await {
        match event {
            Err(_) => backoff.wait().await,
            Ok(Event::Apply(_) | Event::InitDone) => match kubernetes.own().await {
                Ok(node) if !node.pod_cidrs().is_empty() => return Ok(()),
                // Not registered yet: kubelet will, and the watch tells.
                Ok(_) | Err(crate::Error::UnknownNode { .. }) => {}
                Err(error) => return Err(error),
            },
            Ok(_) => {}
        }
    }
    Ok(())
}
