//! Follows keys of etcd: a list, then every change since its revision. If the watch breaks, or the revision was
//! compacted, the keys are listed again and compared.

use std::time::Duration;

use etcd_client::{Client, EventType, WatchOptions, WatchResponse, WatchStream};
use podwire_block_ipam::store::{Change, Follow, Known, StoreError};
use podwire_etcd::{with_timeout, List, MAX_MESSAGE};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::connection::{describe, REQUEST_TIMEOUT};
use crate::entry::{entry, key};

pub(crate) struct EtcdFollow {
    pub(crate) name: String,
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
    pub(crate) prefixes: Vec<String>,
    pub(crate) known: Known,
    pub(crate) watch: Option<WatchStream>,
}

impl Follow for EtcdFollow {
    fn wait(&mut self, limit: Duration) -> Result<Option<Vec<Change>>, StoreError> {
        let EtcdFollow { name, runtime, client, prefixes, known, watch } = self;
        let fail = |why: String| StoreError::Unavailable {
            store: name.clone(),
            verb: "follow",
            key: prefixes.join(", "),
            why,
        };
        runtime.block_on(async {
            let Some(stream) = watch else {
                let started = start(client, prefixes, known).await;
                let (changes, started) = started.map_err(|error| fail(describe(&error)))?;
                *watch = Some(started);
                return Ok(Some(changes));
            };
            let message = match timeout(limit, stream.message()).await {
                Err(_) => return Ok(None),
                Ok(Ok(Some(message))) if !message.canceled() => message,
                Ok(broken) => {
                    *watch = None;
                    return match broken {
                        Err(error) => Err(fail(describe(&error))),
                        // The revision was compacted, or the server stops: the next call lists all keys.
                        Ok(_) => Ok(None),
                    };
                }
            };
            let changes = changes(&message);
            changes.iter().for_each(|change| known.record(change));
            Ok(Some(changes).filter(|changes| !changes.is_empty()))
        })
    }
}

/// Lists all keys at one revision, and watches them from the next one.
async fn start(
    client: &mut Client,
    prefixes: &[String],
    known: &mut Known,
) -> Result<(Vec<Change>, WatchStream), etcd_client::Error> {
    let mut kv = client.kv_client().max_decoding_message_size(MAX_MESSAGE);
    let (mut entries, mut revision) = (Vec::new(), None);
    for prefix in prefixes {
        let list = List { prefix, keys_only: false, revision, timeout: REQUEST_TIMEOUT };
        let (found, listed) = podwire_etcd::list(&mut kv, list, entry).await?;
        entries.extend(found);
        revision = Some(listed);
    }
    let next = revision.unwrap_or(0) + 1;
    // In fragments: after an outage, one response may have thousands of changes.
    let options = || Some(WatchOptions::new().with_prefix().with_start_revision(next).with_fragment());
    let mut watches = client.watch_client().max_decoding_message_size(MAX_MESSAGE);
    let (first, others) =
        prefixes.split_first().ok_or_else(|| etcd_client::Error::WatchError("nothing to follow".into()))?;
    let mut watch = with_timeout(REQUEST_TIMEOUT, watches.watch(first.as_str(), options())).await?;
    for prefix in others {
        with_timeout(REQUEST_TIMEOUT, watch.watch(prefix.as_str(), options())).await?;
    }
    Ok((known.compare(prefixes, entries), watch))
}

fn changes(message: &WatchResponse) -> Vec<Change> {
    let change = |event: &etcd_client::Event| {
        let found = event.kv()?;
        Some(match event.event_type() {
            EventType::Put => Change::Put(entry(found)),
            EventType::Delete => Change::Deleted(key(found)),
        })
    };
    message.events().iter().filter_map(change).collect()
}
