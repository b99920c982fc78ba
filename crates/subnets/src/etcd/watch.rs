//! Following all nodes: a list, then every change since its revision.
//!
//! After a broken connection the watch goes on from the revision behind the last one seen: nothing is missed and nothing listed
//! again. Three things make that impossible, and lead to a new list: etcd has compacted that revision away; etcd was restored
//! from a backup and its revisions begin lower; or another cluster answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use etcd_client::{EventType, WatchOptions, WatchResponse};

use super::lease::Record;
use super::session::patiently;
use super::Etcd;
use crate::snapshot::SnapshotSender;
use crate::Result;
use podwire_kubernetes::Backoff;

/// What is known, and as of when.
#[derive(Default)]
struct Known {
    records: BTreeMap<String, Record>,
    /// The cluster, and the revision from which changes are not known yet. `None`: a list is needed.
    from: Option<(u64, i64)>,
}

/// Feeds a watch, for ever.
pub(super) async fn follow(etcd: Etcd, sender: SnapshotSender) {
    let mut backoff = Backoff::new();
    let mut known = Known::default();
    loop {
        let begun = Instant::now();
        let ended = listen(&etcd, &sender, &mut known, &mut backoff).await;
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

/// Feeds a watch until it breaks. `Ok` if a new list is needed.
async fn listen(
    etcd: &Etcd,
    sender: &SnapshotSender,
    known: &mut Known,
    backoff: &mut Backoff,
) -> Result<()> {
    let mut session = etcd.connect().await?;
    if known.from.is_none() {
        let (records, revision) = session.list().await?;
        known.records = records.into_iter().map(|record| (record.key.clone(), record)).collect();
        // The cluster is not known from the list; the watch's first answer tells it.
        known.from = Some((0, revision + 1));
        known.tell(sender);
    }
    let from = known.from.map_or(0, |(_, from)| from);
    let options = WatchOptions::new().with_prefix().with_start_revision(from).with_progress_notify();
    let failed = session.failed(format!("watch {}", etcd.keys.subnets()));
    let mut watch =
        patiently(session.client.watch(etcd.keys.subnets(), Some(options))).await.map_err(&failed)?;
    loop {
        let message = watch.message().await.map_err(&failed)?;
        let Some(message) = message else {
            return Err(failed(etcd_client::Error::WatchError("the server closed the watch".into())));
        };
        if message.canceled() && message.compact_revision() == 0 {
            return Err(failed(etcd_client::Error::WatchError(message.cancel_reason().to_string())));
        }
        if !known.take(etcd, &message) {
            known.from = None;
            return Ok(());
        }
        backoff.reset();
        match message.events().is_empty() {
            true => sender.mark_current(),
            false => known.tell(sender),
        }
    }
}

impl Known {
    /// Takes what a message says. `false` if it cannot be told from here on, and a new list is needed.
    fn take(&mut self, etcd: &Etcd, message: &WatchResponse) -> bool {
        let (cluster, revision) =
            message.header().map_or((0, 0), |header| (header.cluster_id(), header.revision()));
        let Some((known_cluster, from)) = self.from else { return false };
        let another = known_cluster != 0 && cluster != known_cluster;
        if message.canceled() || another || (message.created() && revision < from - 1) {
            return false;
        }
        for event in message.events() {
            let Some(kv) = event.kv() else { continue };
            let key = String::from_utf8_lossy(kv.key()).into_owned();
            match event.event_type() {
                EventType::Delete => self.records.remove(&key),
                EventType::Put => self.records.insert(key, Record::read(&etcd.keys, kv)),
            };
        }
        // A message that creates the watch may carry the server's revision, with the changes before it still to come.
        let seen = if message.created() { from } else { from.max(revision + 1) };
        self.from = Some((cluster, seen));
        true
    }

    fn tell(&self, sender: &SnapshotSender) {
        let (nodes, refused): (Vec<_>, Vec<_>) =
            self.records.values().partition(|record| record.node.is_ok());
        sender.publish(
            nodes.into_iter().filter_map(|record| record.node.clone().ok()).collect(),
            refused.into_iter().filter_map(|record| record.node.clone().err()).collect(),
        );
    }
}
