//! Following keys of etcd: one list of them all, and from the revision behind it every change. If the thread is lost (the connection broke, the
//! server forgot so old a revision), the list is read again and compared.

use std::time::Duration;

use etcd_client::{
    Client, EventType, GetOptions, Txn, TxnOp, TxnOpResponse, WatchOptions, WatchResponse, WatchStream,
};
use podwire_block_ipam::store::{Change, Follow, Known, StoreError};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::{entry, words, PATIENCE};

pub(crate) struct EtcdFollow {
    pub(crate) name: String,
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
    pub(crate) prefixes: Vec<String>,
    pub(crate) known: Known,
    pub(crate) watch: Option<WatchStream>,
}

impl Follow for EtcdFollow {
    fn wait(&mut self, patience: Duration) -> Result<Option<Vec<Change>>, StoreError> {
        let EtcdFollow { name, runtime, client, prefixes, known, watch } = self;
        let fail = |why: String| StoreError::Unavailable {
            store: name.clone(),
            verb: "follow",
            key: prefixes.join(", "),
            why,
        };
        runtime.block_on(async {
            let Some(stream) = watch else {
                let begun = async { begin(client, prefixes, known).await.map_err(|error| words(&error)) };
                let (changes, begun) = match timeout(PATIENCE, begun).await {
                    Ok(done) => done.map_err(fail)?,
                    Err(_) => return Err(fail(format!("no answer within {} s", PATIENCE.as_secs()))),
                };
                *watch = Some(begun);
                return Ok(Some(changes));
            };
            let message = match timeout(patience, stream.message()).await {
                Err(_) => return Ok(None),
                Ok(Ok(Some(message))) if !message.canceled() => message,
                Ok(lost) => {
                    *watch = None;
                    return match lost {
                        Err(error) => Err(fail(words(&error))),
                        // The server has forgotten where we were, or goes away: the next question reads the list.
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

/// Reads all keys at one revision, and watches them from the next on.
async fn begin(
    client: &mut Client,
    prefixes: &[String],
    known: &mut Known,
) -> Result<(Vec<Change>, WatchStream), etcd_client::Error> {
    let gets: Vec<TxnOp> = prefixes
        .iter()
        .map(|prefix| TxnOp::get(prefix.as_str(), Some(GetOptions::new().with_prefix())))
        .collect();
    let mut kv = client.kv_client().max_decoding_message_size(usize::MAX);
    let answer = kv.txn(Txn::new().and_then(gets)).await?;
    let next = answer.header().map_or(0, |header| header.revision()) + 1;
    let mut entries = Vec::new();
    for found in answer.op_responses() {
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
            EventType::Delete => Change::Deleted(String::from_utf8_lossy(found.key()).into_owned()),
        })
    };
    message.events().iter().filter_map(change).collect()
}
