//! The block store in one SQLite file, for one machine without a cluster.
//!
//! There is one table of keys and values. A revision is the number of the write, counted over the whole file in a
//! second table, so that no revision is used twice. Each operation is one transaction that takes the write lock at its
//! beginning, so no other client can write between the check of a revision and the write. The file is in WAL mode:
//! readers do not wait for a writer, and a writer waits for another for up to ten seconds.

#![forbid(unsafe_code)]

mod database;
mod follow;

use std::path::Path;

use podwire_block_ipam::store::{Entry, Follow, Revision, Store, StoreError};

use database::Database;
use follow::SqliteFollow;

/// A store in a file.
#[derive(Debug)]
pub struct SqliteStore(Database);

impl SqliteStore {
    /// Opens a file, and creates it if it does not exist.
    pub fn open(path: &Path) -> Result<SqliteStore, StoreError> {
        Database::open(path).map(SqliteStore)
    }
}

impl Store for SqliteStore {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.0.get(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.0.list(prefix)
    }

    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.0.keys(prefix)
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        self.0.write("create", key, None, |transaction, number| {
            transaction.execute("INSERT INTO entries VALUES (?1, ?2, ?3)", (key, value, number))
        })
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        self.0.write("update", key, Some(revision), |transaction, number| {
            let update = "UPDATE entries SET value = ?2, revision = ?3 WHERE key = ?1";
            transaction.execute(update, (key, value, number))
        })
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        let deleted = self.0.write("delete", key, Some(revision), |transaction, _| {
            transaction.execute("DELETE FROM entries WHERE key = ?1", [key])
        });
        deleted.map(drop)
    }

    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        Ok(Box::new(SqliteFollow::new(&self.0.path, prefixes)?))
    }
}
