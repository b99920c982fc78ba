//! Hearing of what other processes write.
//!
//! SQLite tells nobody outside of its process. But every commit is written to the log beside the file (`-wal`), and the kernel tells who watches the
//! folder. The notice comes while the writer still holds the write lock, so the lock is taken here too for the time of the read: when it is ours,
//! the commit that woke us is done.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use inotify::{Inotify, WatchMask};
use podwire_block_ipam::store::{Change, Entry, Follow, Known, Store, StoreError};
use podwire_netlink::sys;
use rusqlite::TransactionBehavior;

use crate::{unavailable, SqliteStore};

pub(crate) struct SqliteFollow {
    store: SqliteStore,
    prefixes: Vec<String>,
    known: Known,
    folder: Inotify,
    /// The file and its log.
    names: [OsString; 2],
    has_read: bool,
}

impl SqliteFollow {
    pub(crate) fn new(path: &Path, prefixes: &[&str]) -> Result<SqliteFollow, StoreError> {
        let store = SqliteStore::open(path)?;
        let fail = |error: io::Error| unavailable(path, "follow", "", &error.to_string());
        let folder = Inotify::init().map_err(fail)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        folder.watches().add(parent, WatchMask::MODIFY | WatchMask::CREATE).map_err(fail)?;
        let file = path.file_name().unwrap_or_default().to_os_string();
        let mut log = file.clone();
        log.push("-wal");
        let prefixes = prefixes.iter().map(ToString::to_string).collect();
        Ok(SqliteFollow {
            store,
            prefixes,
            known: Known::default(),
            folder,
            names: [file, log],
            has_read: false,
        })
    }

    /// Whether the file was written, within some time.
    fn is_written(&mut self, patience: Duration) -> io::Result<bool> {
        if !sys::readable(&[self.folder.as_fd()], patience)?.contains(&true) {
            return Ok(false);
        }
        let mut buffer = [0; 4096];
        let mut is_written = false;
        for event in self.folder.read_events(&mut buffer)? {
            // Without a name: notices were lost, or it is about the folder itself.
            is_written |= event.name.is_none_or(|name| self.names.iter().any(|ours| ours == name));
        }
        Ok(is_written)
    }

    fn read(&self) -> Result<Vec<Entry>, StoreError> {
        let fail = self.store.fail("follow", "");
        let mut connection = self.store.connection();
        let lock = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&fail)?;
        lock.rollback().map_err(&fail)?;
        drop(connection);
        let mut entries = Vec::new();
        for prefix in &self.prefixes {
            entries.extend(self.store.list(prefix)?);
        }
        Ok(entries)
    }
}

impl Follow for SqliteFollow {
    fn wait(&mut self, patience: Duration) -> Result<Option<Vec<Change>>, StoreError> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let written = !self.has_read
                || self
                    .is_written(left)
                    .map_err(|error| unavailable(&self.store.path, "follow", "", &error.to_string()))?;
            if written {
                let changes = self.known.compare(&self.prefixes, self.read()?);
                if !std::mem::replace(&mut self.has_read, true) || !changes.is_empty() {
                    return Ok(Some(changes));
                }
            }
            if Instant::now() >= until {
                return Ok(None);
            }
        }
    }
}
