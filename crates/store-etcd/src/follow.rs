//! Follows keys of etcd: a list, then every change since its revision. If the watch breaks, or the revision was
//! compacted, the keys are listed again and compared.

use std::time::Duration;

use etcd_client::{
    Client, EventType, GetOptions, Txn, TxnOp, TxnOpResponse, WatchOptions, WatchResponse, WatchStream,
};
use podwire_block_ipam::store::{Change, Follow, Known, StoreError};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::connection::{describe, entry, key, REQUEST_TIMEOUT};

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
                let started =
                    async { start(client, prefixes, known).await.map_err(|error| describe(&error)) };
                let (changes, started) = match timeout(REQUEST_TIMEOUT, started).await {
                    Ok(done) => done.map_err(fail)?,
                    Err(_) => {
                        return Err(fail(format!("no response within {} s", REQUEST_TIMEOUT.as_secs())))
                    }
                };
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
    let gets: Vec<TxnOp> = prefixes
        .iter()
        .map(|prefix| TxnOp::get(prefix.as_str(), Some(GetOptions::new().with_prefix())))
        .collect();
    let mut kv = client.kv_client().max_decoding_message_size(usize::MAX);
    let response = kv.txn(Txn::new().and_then(gets)).await?;
    let next = response.header().map_or(0, |header| header.revision()) + 1;
    let mut entries = Vec::new();
    for found in response.op_responses() {
        if let TxnOpResponse::Get(found) = found {
            entries.extend(found.kvs().iter().map(entry));
        }
    }
    let options = || Some(WatchOptions::new().with_prefix().with_start_revision(next));
    let mut watches = client.watch_client().max_decoding_message_size(usize::MAX);
    let (first, others) =
        prefixes.split_first().ok_or_else(|| etcd_client::Error::WatchError("nothing to follow".into()))?;
    let mut watch = watches.watch(first.as_str(), options()).await?;
    for prefix in others {
        watch.watch(prefix.as_str(), options()).await?;
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
