//! The block store in etcd, under Calico's own keys, so that nodes with Calico and nodes with podwire can share one
//! cluster.
//!
//! A revision is etcd's `mod_revision`. Each write is one transaction: *if the key still has that revision, write it,
//! else return the current entry*. A list has pages of one revision, so it is consistent.
//!
//! The trait is synchronous and etcd's client is not: a store has its own small runtime, which runs on the caller's
//! thread (docs/decisions/0017-synchronous-store.md). It must not be called on a thread that runs async tasks.

#![forbid(unsafe_code)]

mod connection;
mod entry;
mod follow;
mod tls;

use std::future::Future;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, ConnectOptions, Error, KeyValue, KvClient, Txn, TxnOp, TxnOpResponse};
use podwire_block_ipam::store::{Entry, Follow, Known, Revision, Store, StoreError};
use podwire_etcd::List;
use tokio::runtime::Runtime;

use connection::{connect, describe, revision, REQUEST_TIMEOUT};
use entry::{entry, key};
use follow::EtcdFollow;
pub use tls::TlsFiles;

/// The interval of keep-alive pings of a connection that only follows changes and may be idle for hours.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A store in etcd.
pub struct EtcdStore {
    name: String,
    endpoints: Vec<String>,
    tls: Option<TlsFiles>,
    runtime: Runtime,
    kv: KvClient,
}

impl EtcdStore {
    /// Connects to a cluster through some of its members, such as `http://10.0.0.1:2379`.
    pub fn connect(endpoints: &[String], tls: Option<&TlsFiles>) -> Result<EtcdStore, StoreError> {
        let options = ConnectOptions::new().with_timeout(REQUEST_TIMEOUT);
        let (runtime, client) = connect(endpoints, tls, options)?;
        let kv = client.kv_client().max_decoding_message_size(podwire_etcd::MAX_MESSAGE);
        let name = endpoints.join(",");
        Ok(EtcdStore { name, endpoints: endpoints.into(), tls: tls.cloned(), runtime, kv })
    }

    /// Waits for a response.
    fn request<T>(
        &self,
        verb: &'static str,
        key: &str,
        response: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StoreError> {
        let limited = async { podwire_etcd::with_timeout(REQUEST_TIMEOUT, response).await };
        self.runtime.block_on(limited).map_err(|error| self.failed(verb, key, &error))
    }

    /// Lists keys in pages, at one revision. Each page has a time limit.
    fn pages<T>(
        &self,
        prefix: &str,
        keys_only: bool,
        read: impl FnMut(&KeyValue) -> T,
    ) -> Result<Vec<T>, StoreError> {
        let list = List { prefix, keys_only, revision: None, timeout: REQUEST_TIMEOUT };
        let listed = self.runtime.block_on(podwire_etcd::list(&mut self.kv.clone(), list, read));
        listed.map(|(found, _)| found).map_err(|error| self.failed("list", prefix, &error))
    }

    fn failed(&self, verb: &'static str, key: &str, error: &Error) -> StoreError {
        StoreError::Unavailable { store: self.name.clone(), verb, key: key.into(), why: describe(error) }
    }

    /// Does `action` if `compare` holds. Returns the new revision, or the current entry.
    fn write(
        &self,
        verb: &'static str,
        key: &str,
        compare: Compare,
        action: TxnOp,
    ) -> Result<Result<Revision, Option<Entry>>, StoreError> {
        let transaction = Txn::new().when([compare]).and_then([action]).or_else([TxnOp::get(key, None)]);
        let mut kv = self.kv.clone();
        let response = self.request(verb, key, kv.txn(transaction))?;
        if response.succeeded() {
            return Ok(Ok(revision(response.header().map_or(0, |header| header.revision()))));
        }
        let current = match response.op_responses().into_iter().next() {
            Some(TxnOpResponse::Get(found)) => found.kvs().first().map(entry),
            _ => None,
        };
        Ok(Err(current))
    }

    fn write_at(
        &self,
        verb: &'static str,
        key: &str,
        expected: Revision,
        action: TxnOp,
    ) -> Result<Revision, StoreError> {
        let compare =
            Compare::mod_revision(key, CompareOp::Equal, i64::try_from(expected.0).unwrap_or(i64::MAX));
        let key_copy = key.to_owned();
        self.write(verb, key, compare, action)?.map_err(|current| match current {
            Some(_) => StoreError::Changed { key: key_copy },
            None => StoreError::Missing { key: key_copy },
        })
    }
}

impl Store for EtcdStore {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let mut kv = self.kv.clone();
        let response = self.request("get", key, kv.get(key, None))?;
        Ok(response.kvs().first().map(entry))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.pages(prefix, false, entry)
    }

    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.pages(prefix, true, key)
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

    /// Uses its own connection without a request timeout.
    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        let options = ConnectOptions::new()
            .with_keep_alive(KEEP_ALIVE, REQUEST_TIMEOUT)
            .with_keep_alive_while_idle(true);
        let (runtime, client) = connect(&self.endpoints, self.tls.as_ref(), options)?;
        let (name, prefixes) = (self.name.clone(), prefixes.iter().map(ToString::to_string).collect());
        Ok(Box::new(EtcdFollow { name, runtime, client, prefixes, known: Known::default(), watch: None }))
    }
}
