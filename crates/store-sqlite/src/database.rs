//! The SQLite file and its tables.
//!
//! Only SQLite may open this file, and only [`create`] may close it: when a process closes a file, the kernel ends all
//! locks that the process has on it (fcntl(2)), those of SQLite's connections among them. Another process then believes
//! to be the last one that has the file open, and deletes the log under the others.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use podwire_block_ipam::store::{Entry, Revision, StoreError};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};
use rustix::fs::Access;

/// How long a process waits for the write of another.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL, revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS writes (only INTEGER PRIMARY KEY CHECK (only = 1), count INTEGER NOT NULL);
INSERT OR IGNORE INTO writes VALUES (1, 0);
";

/// An open file.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) path: PathBuf,
    /// Device and inode of the open file.
    identity: (u64, u64),
    connection: Mutex<Connection>,
}

impl Database {
    /// Opens a file, and creates it if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Database, StoreError> {
        let fail = |error: rusqlite::Error| unavailable(path, "open", "", &describe(&error));
        create(path).map_err(|error| unavailable(path, "create", "", &error.to_string()))?;
        // SQLite's own error does not say that rights are missing.
        rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK)
            .map_err(|error| unavailable(path, "open", "", &io::Error::from(error).to_string()))?;
        let mut connection = Connection::open(path).map_err(fail)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(fail)?;
        // The first client turns WAL on; meanwhile the others wait.
        connection.pragma_update(None, "journal_mode", "wal").map_err(fail)?;
        // A power failure may lose the last writes, together with the pods that they were made for, but it never
        // corrupts the file.
        connection.pragma_update(None, "synchronous", "normal").map_err(fail)?;
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fail)?;
        transaction.execute_batch(SCHEMA).and_then(|()| transaction.commit()).map_err(fail)?;
        let identity = identity(path).map_err(|error| unavailable(path, "open", "", &error.to_string()))?;
        Ok(Database { path: path.into(), identity, connection: Mutex::new(connection) })
    }

    pub(crate) fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let connection = self.connection("read", key)?;
        connection
            .prepare_cached("SELECT key, value, revision FROM entries WHERE key = ?1")
            .and_then(|mut query| query.query_row([key], entry).optional())
            .map_err(self.fail("get", key))
    }

    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        let query = "SELECT key, value, revision FROM entries WHERE key >= ?1 ORDER BY key";
        self.read_while(query, prefix, |row| entry(row).map(|entry| (entry.key.clone(), entry)))
    }

    pub(crate) fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let query = "SELECT key FROM entries WHERE key >= ?1 ORDER BY key";
        self.read_while(query, prefix, |row| row.get(0).map(|key: String| (key.clone(), key)))
    }

    /// Waits until no other client writes.
    pub(crate) fn wait_for_writers(&self) -> Result<(), StoreError> {
        let fail = self.fail("follow", "");
        let mut connection = self.connection("follow", "")?;
        let lock = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&fail)?;
        lock.rollback().map_err(&fail)
    }

    /// Checks the revision of `key`, and does `action` if it is `expected`.
    pub(crate) fn write(
        &self,
        verb: &'static str,
        key: &str,
        expected: Option<Revision>,
        action: impl FnOnce(&Transaction<'_>, i64) -> rusqlite::Result<usize>,
    ) -> Result<Revision, StoreError> {
        let fail = self.fail(verb, key);
        let mut connection = self.connection(verb, key)?;
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&fail)?;
        let found = transaction
            .prepare_cached("SELECT revision FROM entries WHERE key = ?1")
            .and_then(|mut query| query.query_row([key], |row| row.get::<_, i64>(0)).optional())
            .map_err(&fail)?
            .map(revision);
        let key = key.to_owned();
        match (found, expected) {
            (Some(_), None) => return Err(StoreError::Exists { key }),
            (None, Some(_)) => return Err(StoreError::Missing { key }),
            (Some(found), Some(expected)) if found != expected => return Err(StoreError::Changed { key }),
            _ => {}
        }
        let number: i64 = transaction
            .query_row("UPDATE writes SET count = count + 1 RETURNING count", [], |row| row.get(0))
            .map_err(&fail)?;
        action(&transaction, number).map_err(&fail)?;
        transaction.commit().map_err(&fail)?;
        Ok(revision(number))
    }

    /// The connection, if the path still leads to its file. SQLite would go on with a removed file, which no other
    /// client sees and which is lost when this one ends.
    fn connection(&self, verb: &'static str, key: &str) -> Result<MutexGuard<'_, Connection>, StoreError> {
        let why = match identity(&self.path) {
            // A transaction that a panic interrupts is rolled back, so that a poisoned lock does not matter.
            Ok(found) if found == self.identity => {
                return Ok(self.connection.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Ok(_) => "the file was replaced by another one while it was open".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                "the file was removed while it was open; put it back, or restart this program to begin with an empty one".into()
            }
            Err(error) => error.to_string(),
        };
        Err(unavailable(&self.path, verb, key, &why))
    }

    fn fail<'a>(&'a self, verb: &'static str, key: &'a str) -> impl Fn(rusqlite::Error) -> StoreError + 'a {
        move |error| unavailable(&self.path, verb, key, &describe(&error))
    }

    /// Reads rows with their keys from `prefix` on, up to the first key that does not begin with it.
    fn read_while<T>(
        &self,
        query: &str,
        prefix: &str,
        read: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<(String, T)>,
    ) -> Result<Vec<T>, StoreError> {
        let connection = self.connection("list", prefix)?;
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
}

/// Creates an empty file if there is none. Only the owner may read it; SQLite gives the files beside it the same mode.
fn create(path: &Path) -> io::Result<()> {
    // No other thread may see the new file, and open a connection to it, before it is closed here.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match OpenOptions::new().create_new(true).write(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// SQLite's message with its extended code: "disk I/O error" alone has forty causes.
fn describe(error: &rusqlite::Error) -> String {
    match error.sqlite_error() {
        Some(code) => format!("{error} (SQLite's code {})", code.extended_code),
        None => error.to_string(),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

fn entry(row: &rusqlite::Row<'_>) -> rusqlite::Result<Entry> {
    Ok(Entry { key: row.get(0)?, value: row.get(1)?, revision: revision(row.get(2)?) })
}

/// Writes are counted from 1, so the number is never negative.
fn revision(number: i64) -> Revision {
    Revision(number.unsigned_abs())
}

pub(crate) fn unavailable(path: &Path, verb: &'static str, key: &str, why: &str) -> StoreError {
    StoreError::Unavailable {
        store: format!("sqlite:{}", path.display()),
        verb,
        key: key.into(),
        why: why.into(),
    }
}
