//! What a source says: the whole state, again and again.
//!
//! A [`Snapshot`] is everything that is known, and whether it is known to be current. The consumer compares it with
//! the kernel and makes the difference go away; it needs no history, so nothing queues up: whoever asks gets the latest.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Node;

/// Everything that a source knows.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Counts changes. A consumer may have missed some; it has not missed anything that still matters.
    pub number: u64,
    /// All nodes, by name; `None` until the source has answered once. Nothing known is not the same as no nodes: an
    /// agent that took it for that would close every road while its server starts.
    pub nodes: Option<Arc<Vec<Node>>>,
    /// Nodes that are there but cannot be understood.
    pub skipped: Arc<Vec<SkippedNode>>,
    /// Whether this is current.
    pub health: Health,
}

/// A node that is left out, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SkippedNode {
    /// The node or key.
    pub name: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Whether what is known is current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The source has not answered yet.
    Waiting,
    /// The source would tell us of changes.
    Current,
    /// The source does not answer. What is known stays known.
    Stale {
        /// Which source, and its words.
        why: String,
        /// When it began.
        since: SystemTime,
    },
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Waiting => f.write_str("waiting for the first answer"),
            Health::Current => f.write_str("current"),
            Health::Stale { why, since } => {
                let since = Timestamp::try_from(*since).unwrap_or_default();
                write!(f, "{why} since {since:.0}; keeping what is known")
            }
        }
    }
}

/// A source being watched, until this is dropped.
#[derive(Debug)]
pub struct Watch {
    receiver: watch::Receiver<Snapshot>,
    task: JoinHandle<()>,
}

impl Watch {
    /// What is known now.
    pub fn latest(&mut self) -> Snapshot {
        self.receiver.borrow_and_update().clone()
    }

    /// Waits until more is known than was last returned, by this or by [`latest`](Watch::latest). May be cancelled.
    pub async fn changed(&mut self) -> Snapshot {
        if self.receiver.changed().await.is_err() {
            // The watching task never ends by itself; it ends with the runtime, and then nobody waits.
            std::future::pending::<()>().await;
        }
        self.latest()
    }

    /// Waits for a snapshot with nodes in it, the first snapshot or any later one.
    pub async fn known(&mut self) -> (Arc<Vec<Node>>, Snapshot) {
        let mut snapshot = self.latest();
        loop {
            if let Some(nodes) = snapshot.nodes.clone() {
                return (nodes, snapshot);
            }
            snapshot = self.changed().await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The source's side of a [`Watch`].
#[derive(Debug)]
pub(crate) struct SnapshotSender(watch::Sender<Snapshot>);

impl SnapshotSender {
    /// Starts a task that feeds a watch.
    pub(crate) fn start<F, T>(task: F) -> Watch
    where
        F: FnOnce(SnapshotSender) -> T,
        T: std::future::Future<Output = ()> + Send + 'static,
    {
        let nothing = Snapshot { number: 0, nodes: None, skipped: Arc::default(), health: Health::Waiting };
        let (sender, receiver) = watch::channel(nothing);
        Watch { receiver, task: tokio::spawn(task(SnapshotSender(sender))) }
    }

    /// All nodes as they are now. Nobody is woken if nothing has changed.
    pub(crate) fn publish(&self, mut nodes: Vec<Node>, mut refused: Vec<SkippedNode>) {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        refused.sort();
        self.0.send_if_modified(|known| {
            let same = known.nodes.as_deref() == Some(&nodes)
                && *known.skipped == refused
                && known.health == Health::Current;
            if !same {
                known.nodes = Some(Arc::new(nodes));
                known.skipped = Arc::new(refused);
                known.health = Health::Current;
                known.number += 1;
            }
            !same
        });
    }

    /// The source answers, and nothing has changed.
    pub(crate) fn mark_current(&self) {
        self.0.send_if_modified(|known| {
            let better = known.health != Health::Current && known.nodes.is_some();
            if better {
                known.health = Health::Current;
                known.number += 1;
            }
            better
        });
    }

    /// The source does not answer. That it goes on not answering is no news, unless it says something else.
    pub(crate) fn mark_stale(&self, words: impl fmt::Display) {
        let words = words.to_string();
        self.0.send_if_modified(|known| {
            let since = match &known.health {
                Health::Stale { why, .. } if *why == words => return false,
                Health::Stale { since, .. } => *since,
                _ => SystemTime::now(),
            };
            known.health = Health::Stale { why: words, since };
            known.number += 1;
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, LeaseTerm, PodCidrs, Underlay};

    fn node(name: &str) -> Node {
        let (pod_cidrs, underlay, backend) = (PodCidrs::default(), Underlay::default(), Backend::default());
        Node { name: name.into(), pod_cidrs, underlay, backend, lease_term: LeaseTerm::Permanent }
    }

    #[tokio::test]
    async fn who_is_late_gets_the_latest_and_trouble_forgets_nothing() {
        let (go, told) = tokio::sync::oneshot::channel::<()>();
        let mut watch = SnapshotSender::start(|sender| async move {
            sender.mark_stale("etcd: connection refused");
            sender.publish(vec![node("b"), node("a")], Vec::new());
            sender.publish(vec![node("a"), node("b")], Vec::new());
            let _ = told.await;
            sender.mark_stale("etcd: connection refused");
            sender.mark_stale("etcd: connection refused");
            std::future::pending().await
        });
        let first = watch.changed().await;
        assert_eq!(first.number, 2, "the same again is not a snapshot");
        let names: Vec<_> = first.nodes.unwrap().iter().map(|node| node.name.clone()).collect();
        assert_eq!((names, first.health), (vec!["a".to_string(), "b".to_string()], Health::Current));
        go.send(()).unwrap();
        let second = watch.changed().await;
        assert_eq!((second.number, second.nodes.unwrap().len()), (3, 2));
        let text = second.health.to_string();
        assert!(
            text.starts_with("etcd: connection refused since 20")
                && text.ends_with("Z; keeping what is known"),
            "{text}"
        );
    }
}
