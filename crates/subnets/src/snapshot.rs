//! Snapshots: the output of every source.
//!
//! A [`Snapshot`] is everything that a source knows, and whether it is current. The consumer compares it with the
//! kernel and applies the difference. It needs no history, so snapshots do not queue up: a reader gets the latest.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::node::Node;

/// Everything that a source knows.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Counts changes. A consumer that skips some misses nothing that still matters.
    pub number: u64,
    /// All nodes, sorted by name; `None` until the source has answered once. Unknown is not the same as empty: an agent
    /// that mistook it for empty would remove every route while its server starts.
    pub nodes: Option<Arc<Vec<Node>>>,
    /// Nodes with invalid records.
    pub skipped: Arc<Vec<SkippedNode>>,
    /// Whether the snapshot is current.
    pub health: Health,
}

/// A node with an invalid record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SkippedNode {
    /// The node or key.
    pub name: String,
    /// What is wrong with the record.
    pub reason: String,
}

/// Whether a snapshot is current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The source has not answered yet.
    Waiting,
    /// The source is connected and reports changes.
    Current,
    /// The source does not answer. The snapshot keeps the last known nodes.
    Stale {
        /// The source and its error.
        why: String,
        /// Since when.
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

/// A watch of a source. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    receiver: watch::Receiver<Snapshot>,
    task: JoinHandle<()>,
}

impl Watch {
    /// The latest snapshot.
    pub fn latest(&mut self) -> Snapshot {
        self.receiver.borrow_and_update().clone()
    }

    /// Waits for a snapshot newer than the last that this function or [`latest`](Watch::latest) returned. Cancel-safe.
    pub async fn changed(&mut self) -> Snapshot {
        if self.receiver.changed().await.is_err() {
            // The watching task ends only with the runtime.
            std::future::pending::<()>().await;
        }
        self.latest()
    }

    /// Waits for a snapshot whose nodes are known.
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

/// The source's end of a [`Watch`].
#[derive(Debug)]
pub(crate) struct SnapshotSender(watch::Sender<Snapshot>);

impl SnapshotSender {
    /// Starts a task that publishes snapshots.
    pub(crate) fn start<F, T>(task: F) -> Watch
    where
        F: FnOnce(SnapshotSender) -> T,
        T: std::future::Future<Output = ()> + Send + 'static,
    {
        let initial = Snapshot { number: 0, nodes: None, skipped: Arc::default(), health: Health::Waiting };
        let (sender, receiver) = watch::channel(initial);
        Watch { receiver, task: tokio::spawn(task(SnapshotSender(sender))) }
    }

    /// Publishes all nodes. If nothing has changed, no consumer is woken.
    pub(crate) fn publish(&self, mut nodes: Vec<Node>, mut skipped: Vec<SkippedNode>) {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        skipped.sort();
        self.0.send_if_modified(|known| {
            let same = known.nodes.as_deref() == Some(&nodes)
                && *known.skipped == skipped
                && known.health == Health::Current;
            if !same {
                known.nodes = Some(Arc::new(nodes));
                known.skipped = Arc::new(skipped);
                known.health = Health::Current;
                known.number += 1;
            }
            !same
        });
    }

    /// Marks the snapshot as current: the source answers and nothing has changed.
    pub(crate) fn mark_current(&self) {
        self.0.send_if_modified(|known| {
            let changed = known.health != Health::Current && known.nodes.is_some();
            if changed {
                known.health = Health::Current;
                known.number += 1;
            }
            changed
        });
    }

    /// Marks the snapshot as stale. The same error again wakes no consumer.
    pub(crate) fn mark_stale(&self, error: impl fmt::Display) {
        let error = error.to_string();
        self.0.send_if_modified(|known| {
            let since = match &known.health {
                Health::Stale { why, .. } if *why == error => return false,
                Health::Stale { since, .. } => *since,
                _ => SystemTime::now(),
            };
            known.health = Health::Stale { why: error, since };
            known.number += 1;
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Backend, LeaseTerm, PodCidrs, Underlay};

    fn node(name: &str) -> Node {
        let (pod_cidrs, underlay, backend) = (PodCidrs::default(), Underlay::default(), Backend::default());
        Node { name: name.into(), pod_cidrs, underlay, backend, lease_term: LeaseTerm::Permanent }
    }

    #[tokio::test]
    async fn a_reader_gets_the_latest_snapshot_and_an_error_keeps_the_nodes() {
        let (go, started) = tokio::sync::oneshot::channel::<()>();
        let mut watch = SnapshotSender::start(|sender| async move {
            sender.mark_stale("etcd: connection refused");
            sender.publish(vec![node("b"), node("a")], Vec::new());
            sender.publish(vec![node("a"), node("b")], Vec::new());
            let _ = started.await;
            sender.mark_stale("etcd: connection refused");
            sender.mark_stale("etcd: connection refused");
            std::future::pending().await
        });
        let first = watch.changed().await;
        assert_eq!(first.number, 2, "an unchanged snapshot is not published");
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
