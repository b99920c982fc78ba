//! The store of blocks in etcd, under Calico's own keys: nodes with Calico and nodes with Podwire share one cluster.
//!
//! A revision is etcd's `mod_revision`. Each write is one transaction: *if the key still has that revision, then write it, else tell what
//! is there*. A list is one request, and so one moment.
//!
//! The store's trait is synchronous, etcd's client is not: a store holds a small runtime of its own, on the caller's thread
//! (docs/decisions/0017-synchronous-store.md). It must not be called on a thread that runs async tasks.

#![forbid(unsafe_code)]

mod follow;
mod tls;

use std::future::Future;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, KeyValue, KvClient, Txn, TxnOp,
    TxnOpResponse,
};
use follow::EtcdFollow;
use podwire_block_ipam::store::{Entry, Follow, Known, Revision, Store, StoreError};
use tokio::runtime::{Builder, Runtime};

pub use tls::TlsFiles;

/// How long etcd may take for an answer, a quorum of its members included.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a member may take to be reached.
const CONNECT: Duration = Duration::from_secs(3);

/// Who follows asks nothing for hours: whether the server is still there is asked by the connection itself.
const PULSE: Duration = Duration::from_secs(10);

/// A store in etcd.
pub struct EtcdStore {
    name: String,
    endpoints: Vec<String>,
    tls: Option<TlsFiles>,
    runtime: Runtime,
    kv: KvClient,
}

impl EtcdStore {
    /// Connects to a cluster by some of its members, such as `http://10.0.0.1:2379`.
    pub fn connect(endpoints: &[String], tls: Option<&TlsFiles>) -> Result<EtcdStore, StoreError> {
        let options = ConnectOptions::new().with_timeout(PATIENCE);
        let (runtime, client) = dial(endpoints, tls, options)?;
        // A list of all blocks of a large cluster is larger than a client expects by default.
        let kv = client.kv_client().max_decoding_message_size(usize::MAX);
        let name = endpoints.join(",");
        Ok(EtcdStore { name, endpoints: endpoints.into(), tls: tls.cloned(), runtime, kv })
    }

    fn wait<T>(
        &self,
        verb: &'static str,
        key: &str,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StoreError> {
        let fail = |why| StoreError::Unavailable { store: self.name.clone(), verb, key: key.into(), why };
        let patient = async { tokio::time::timeout(PATIENCE, answer).await };
        match self.runtime.block_on(patient) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(fail(words(&error))),
            Err(_) => Err(fail(format!("no answer within {} s", PATIENCE.as_secs()))),
        }
    }

    /// Does `act` if `compare` holds, and returns the revision of that; else what is there now.
    fn write(
        &self,
        verb: &'static str,
        key: &str,
        compare: Compare,
        act: TxnOp,
    ) -> Result<Result<Revision, Option<Entry>>, StoreError> {
        let transaction = Txn::new().when([compare]).and_then([act]).or_else([TxnOp::get(key, None)]);
        let mut kv = self.kv.clone();
        let response = self.wait(verb, key, kv.txn(transaction))?;
        if response.succeeded() {
            return Ok(Ok(revision(response.header().map_or(0, |header| header.revision()))));
        }
        let there = match response.op_responses().into_iter().next() {
            Some(TxnOpResponse::Get(found)) => found.kvs().first().map(entry),
            _ => None,
        };
        Ok(Err(there))
    }

    fn write_at(
        &self,
        verb: &'static str,
        key: &str,
        at: Revision,
        act: TxnOp,
    ) -> Result<Revision, StoreError> {
        let compare = Compare::mod_revision(key, CompareOp::Equal, i64::try_from(at.0).unwrap_or(i64::MAX));
        let key_again = key.to_owned();
        self.write(verb, key, compare, act)?.map_err(|there| match there {
            Some(_) => StoreError::Changed { key: key_again },
            None => StoreError::Missing { key: key_again },
        })
    }
}

impl Store for EtcdStore {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let mut kv = self.kv.clone();
        let response = self.wait("get", key, kv.get(key, None))?;
        Ok(response.kvs().first().map(entry))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        let mut kv = self.kv.clone();
        let response = self.wait("list", prefix, kv.get(prefix, Some(under(prefix))))?;
        Ok(response.kvs().iter().map(entry).collect())
    }

    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let mut kv = self.kv.clone();
        let options = under(prefix).with_keys_only();
        let response = self.wait("list", prefix, kv.get(prefix, Some(options)))?;
        Ok(response.kvs().iter().map(key).collect())
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        let compare = Compare::version(key, CompareOp::Equal, 0);
        let written = self.write("create", key, compare, TxnOp::put(key, value, None))?;
        written.map_err(|_| StoreError::Exists { key: key.into() })
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        self.write_at("update", key, revision, TxnOp::put(key, value, None))
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        self.write_at("delete", key, revision, TxnOp::delete(key, None)).map(drop)
    }

    /// By a connection of its own, on which an answer may take as long as it takes until somebody writes.
    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        let options = ConnectOptions::new().with_keep_alive(PULSE, PATIENCE).with_keep_alive_while_idle(true);
        let (runtime, client) = dial(&self.endpoints, self.tls.as_ref(), options)?;
        let (name, prefixes) = (self.name.clone(), prefixes.iter().map(ToString::to_string).collect());
        Ok(Box::new(EtcdFollow { name, runtime, client, prefixes, known: Known::default(), watch: None }))
    }
}

/// A connection, and the runtime that it lives in.
fn dial(
    endpoints: &[String],
    tls: Option<&TlsFiles>,
    options: ConnectOptions,
) -> Result<(Runtime, Client), StoreError> {
    let fail = |why: String| StoreError::Unavailable {
        store: endpoints.join(","),
        verb: "open",
        key: String::new(),
        why,
    };
    let runtime =
        Builder::new_current_thread().enable_all().build().map_err(|error| fail(error.to_string()))?;
    let mut options = options.with_connect_timeout(CONNECT);
    if let Some(files) = tls {
        options = options.with_tls(files.read().map_err(fail)?);
    }
    let client = runtime.block_on(Client::connect(endpoints, Some(options)));
    let client = client.map_err(|error| fail(words(&error)))?;
    Ok((runtime, client))
}

/// Whatever begins with a prefix, in the order of the keys.
fn under(prefix: &str) -> GetOptions {
    match prefix {
        "" => GetOptions::new().with_all_keys(),
        _ => GetOptions::new().with_prefix(),
    }
}

fn key(found: &KeyValue) -> String {
    String::from_utf8_lossy(found.key()).into_owned()
}

fn entry(found: &KeyValue) -> Entry {
    Entry { key: key(found), value: found.value().to_vec(), revision: revision(found.mod_revision()) }
}

/// etcd counts from 1 up.
fn revision(number: i64) -> Revision {
    Revision(number.unsigned_abs())
}

/// etcd's own words, and those of whatever is behind them.
fn words(error: &Error) -> String {
    let status = match error {
        Error::GRpcStatus(status) => return format!("{} ({:?})", status.message(), status.code()),
        error => error,
    };
    let mut text = status.to_string();
    let mut cause = std::error::Error::source(status);
    while let Some(deeper) = cause {
        text += &format!(": {deeper}");
        cause = deeper.source();
    }
    text
}
