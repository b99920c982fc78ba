//! Watches all nodes: a list, then every change since its revision.
//!
//! After a broken connection, the watch continues after the last seen revision: nothing is missed and nothing is listed
//! again. A new list is needed in three cases: etcd has compacted that revision; etcd was restored from a backup with
//! lower revisions; or another cluster answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use etcd_client::{EventType, KeyValue, WatchOptions, WatchResponse};
use podwire_etcd::MAX_MESSAGE;
use podwire_kubernetes::Backoff;

use super::record::Record;
use super::session::with_timeout;
use super::Etcd;
use crate::error::Result;
use crate::snapshot::{SnapshotSender, Watch};

impl Etcd {
    /// Watches all nodes.
    pub fn watch(&self) -> Watch {
        let etcd = self.clone();
        SnapshotSender::start(|sender| watch(etcd, sender))
    }
}

/// The known records.
#[derive(Default)]
struct Known {
    records: BTreeMap<String, Record>,
    /// Where the watch continues. `None`: a list is needed.
    position: Option<Position>,
}

/// Where a watch continues.
#[derive(Clone, Copy)]
struct Position {
    /// The cluster id; 0 before the first response of the watch.
    cluster: u64,
    /// The first revision that is not known.
    revision: i64,
}

/// Publishes snapshots forever.
async fn watch(etcd: Etcd, sender: SnapshotSender) {
    let mut backoff = Backoff::new();
    let mut known = Known::default();
    loop {
        let begun = Instant::now();
        let ended = publish_changes(&etcd, &sender, &mut known, &mut backoff).await;
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

/// Publishes a snapshot at every change until the watch breaks. `Ok` if a new list is needed.
async fn publish_changes(
    etcd: &Etcd,
    sender: &SnapshotSender,
    known: &mut Known,
    backoff: &mut Backoff,
) -> Result<()> {
    let mut session = etcd.connect().await?;
    if known.position.is_none() {
        let (records, revision) = session.list().await?;
        known.records = records.into_iter().map(|record| (record.key.clone(), record)).collect();
        // The first response of the watch has the cluster id.
        known.position = Some(Position { cluster: 0, revision: revision + 1 });
        known.publish(sender);
    }
    let from = known.position.map_or(0, |position| position.revision);
    // In fragments: after an outage, one response may have thousands of changes.
    let options = WatchOptions::new().with_prefix().with_start_revision(from);
    let options = options.with_progress_notify().with_fragment();
    let failed = session.failed(format!("watch {}", etcd.keys.subnets()));
    let mut client = session.client.watch_client().max_decoding_message_size(MAX_MESSAGE);
    let mut watch = with_timeout(client.watch(etcd.keys.subnets(), Some(options))).await.map_err(&failed)?;
    loop {
        let message = watch.message().await.map_err(&failed)?;
        let Some(message) = message else {
            return Err(failed(etcd_client::Error::WatchError("the server closed the watch".into())));
        };
        if message.canceled() && message.compact_revision() == 0 {
            return Err(failed(etcd_client::Error::WatchError(message.cancel_reason().to_string())));
        }
        if !known.apply(etcd, &message) {
            known.position = None;
            return Ok(());
        }
        backoff.reset();
        if message.events().is_empty() {
            sender.mark_current();
        } else {
            known.publish(sender);
        }
    }
}

impl Known {
    /// Applies a message. `false` if a new list is needed.
    fn apply(&mut self, etcd: &Etcd, message: &WatchResponse) -> bool {
        let (cluster, revision) =
            message.header().map_or((0, 0), |header| (header.cluster_id(), header.revision()));
        let Some(known) = self.position else { return false };
        let is_other_cluster = known.cluster != 0 && cluster != known.cluster;
        let is_older = message.created() && revision < known.revision - 1;
        if message.canceled() || is_other_cluster || is_older {
            return false;
        }
        for event in message.events() {
            let Some(kv) = event.kv() else { continue };
            let key = String::from_utf8_lossy(kv.key()).into_owned();
            match event.event_type() {
                EventType::Delete => self.records.remove(&key),
                EventType::Put => self.records.insert(key, Record::parse(&etcd.keys, kv)),
            };
        }
        let last = message.events().last().and_then(|event| event.kv()).map(KeyValue::mod_revision);
        let next = match last {
            // The message that creates the watch may have the server's current revision, with older changes still to
            // come.
            _ if message.created() => known.revision,
            // Later fragments may have changes of the same revision.
            Some(last) => known.revision.max(last),
            None => known.revision.max(revision + 1),
        };
        self.position = Some(Position { cluster, revision: next });
        true
    }

    fn publish(&self, sender: &SnapshotSender) {
        let (nodes, skipped): (Vec<_>, Vec<_>) =
            self.records.values().partition(|record| record.node.is_ok());
        sender.publish(
            nodes.into_iter().filter_map(|record| record.node.clone().ok()).collect(),
            skipped.into_iter().filter_map(|record| record.node.clone().err()).collect(),
        );
    }
}
