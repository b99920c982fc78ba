//! The store of blocks in one SQLite file: for a machine, or a few processes of one, without a cluster.
//!
//! One table of keys and values. A revision is the number of the write that made it, counted over the whole file and kept beside the
//! table, so that none is used twice. Each verb is one transaction that takes the write lock at its beginning: between looking at a
//! revision and writing there is nobody else. The file is in WAL mode (readers do not wait for a writer), and a writer waits for
//! another for up to ten seconds.

#![forbid(unsafe_code)]

mod follow;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use follow::SqliteFollow;
use podwire_block_ipam::store::{Entry, Follow, Revision, Store, StoreError};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

/// How long a process waits for another that is writing.
const PATIENCE: Duration = Duration::from_secs(10);

/// A store in a file.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    connection: Mutex<Connection>,
}

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL, revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS writes (only INTEGER PRIMARY KEY CHECK (only = 1), count INTEGER NOT NULL);
INSERT OR IGNORE INTO writes VALUES (1, 0);
";

impl SqliteStore {
    /// Opens a file, which is made if it is not there.
    pub fn open(path: &Path) -> Result<SqliteStore, StoreError> {
        let fail = |error: rusqlite::Error| unavailable(path, "open", "", &error.to_string());
        // Nobody else is to read who has which address. What SQLite makes beside the file has the file's mode.
        if !path.exists() {
            let made = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
            made.map_err(|error| unavailable(path, "open", "", &error.to_string()))?;
        }
        let mut connection = Connection::open(path).map_err(fail)?;
        connection.busy_timeout(PATIENCE).map_err(fail)?;
        // The first to come turns WAL on; while it does, others are told to wait.
        connection.pragma_update(None, "journal_mode", "wal").map_err(fail)?;
        // A power failure may cost the last writes, as it costs the pods that they were made for, but never the file.
        connection.pragma_update(None, "synchronous", "normal").map_err(fail)?;
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fail)?;
        transaction.execute_batch(SCHEMA).and_then(|()| transaction.commit()).map_err(fail)?;
        Ok(SqliteStore { path: path.into(), connection: Mutex::new(connection) })
    }

    /// A transaction that a panic interrupted was rolled back: the connection is as good as before.
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail<'a>(&'a self, verb: &'static str, key: &'a str) -> impl Fn(rusqlite::Error) -> StoreError + 'a {
        move |error| unavailable(&self.path, verb, key, &error.to_string())
    }

    /// What a query finds under a prefix, with the keys: a prefix is a range of keys, up to the first that does not begin with it.
    fn read_while<T>(
        &self,
        query: &str,
        prefix: &str,
        read: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<(String, T)>,
    ) -> Result<Vec<T>, StoreError> {
        let connection = self.connection();
        let read_all = || -> rusqlite::Result<Vec<T>> {
            let mut query = connection.prepare_cached(query)?;
            let mut rows = query.query([prefix])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let (key, one) = read(row)?;
                if !key.starts_with(prefix) {
                    break;
                }
                found.push(one);
            }
            Ok(found)
        };
        read_all().map_err(self.fail("list", prefix))
    }

    /// Looks at the revision under `key`, and does `act` if `wanted` is it.
    fn write(
        &self,
        verb: &'static str,
        key: &str,
        wanted: Option<Revision>,
        act: impl FnOnce(&Transaction<'_>, i64) -> rusqlite::Result<usize>,
    ) -> Result<Revision, StoreError> {
        let fail = self.fail(verb, key);
        let mut connection = self.connection();
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&fail)?;
        let found = transaction
            .prepare_cached("SELECT revision FROM entries WHERE key = ?1")
            .and_then(|mut query| query.query_row([key], |row| row.get::<_, i64>(0)).optional())
            .map_err(&fail)?
            .map(revision);
        let key = key.to_owned();
        match (found, wanted) {
            (Some(_), None) => return Err(StoreError::Exists { key }),
            (None, Some(_)) => return Err(StoreError::Missing { key }),
            (Some(found), Some(wanted)) if found != wanted => return Err(StoreError::Changed { key }),
            _ => {}
        }
        let number: i64 = transaction
            .query_row("UPDATE writes SET count = count + 1 RETURNING count", [], |row| row.get(0))
            .map_err(&fail)?;
        act(&transaction, number).map_err(&fail)?;
        transaction.commit().map_err(&fail)?;
        Ok(revision(number))
    }
}

impl Store for SqliteStore {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let connection = self.connection();
        connection
            .prepare_cached("SELECT key, value, revision FROM entries WHERE key = ?1")
            .and_then(|mut query| query.query_row([key], entry).optional())
            .map_err(self.fail("get", key))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        let query = "SELECT key, value, revision FROM entries WHERE key >= ?1 ORDER BY key";
        self.read_while(query, prefix, |row| entry(row).map(|entry| (entry.key.clone(), entry)))
    }

    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let query = "SELECT key FROM entries WHERE key >= ?1 ORDER BY key";
        self.read_while(query, prefix, |row| row.get(0).map(|key: String| (key.clone(), key)))
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        self.write("create", key, None, |transaction, number| {
            transaction.execute("INSERT INTO entries VALUES (?1, ?2, ?3)", (key, value, number))
        })
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        self.write("update", key, Some(revision), |transaction, number| {
            transaction
                .execute("UPDATE entries SET value = ?2, revision = ?3 WHERE key = ?1", (key, value, number))
        })
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        let deleted = self.write("delete", key, Some(revision), |transaction, _| {
            transaction.execute("DELETE FROM entries WHERE key = ?1", [key])
        });
        deleted.map(drop)
    }

    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        Ok(Box::new(SqliteFollow::new(&self.path, prefixes)?))
    }
}

fn entry(row: &rusqlite::Row<'_>) -> rusqlite::Result<Entry> {
    Ok(Entry { key: row.get(0)?, value: row.get(1)?, revision: revision(row.get(2)?) })
}

/// Counted from 1 up, so that it fits.
fn revision(number: i64) -> Revision {
    Revision(number.unsigned_abs())
}

fn unavailable(path: &Path, verb: &'static str, key: &str, why: &str) -> StoreError {
    StoreError::Unavailable {
        store: format!("sqlite:{}", path.display()),
        verb,
        key: key.into(),
        why: why.into(),
    }
}
