//! Follows the commits of other processes.
//!
//! SQLite notifies no other process. But every commit is written to the log beside the file (`-wal`), and inotify
//! reports that while the writer still holds the write lock. So the reader takes the write lock too: when it has the
//! lock, the commit that woke it is complete.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use inotify::{Inotify, WatchMask};
use podwire_block_ipam::store::{Change, Entry, Follow, Known, StoreError};
use podwire_netlink::sys;

use crate::database::{unavailable, Database};

pub(crate) struct SqliteFollow {
    database: Database,
    prefixes: Vec<String>,
    known: Known,
    dir: Inotify,
    /// The names of the file and its log.
    names: [OsString; 2],
    has_read: bool,
}

impl SqliteFollow {
    pub(crate) fn new(path: &Path, prefixes: &[&str]) -> Result<SqliteFollow, StoreError> {
        let database = Database::open(path)?;
        let fail = |error: io::Error| unavailable(path, "follow", "", &error.to_string());
        let dir = Inotify::init().map_err(fail)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // The removal of the file or of its directory is noticed too: the next read fails.
        let removal = WatchMask::DELETE | WatchMask::MOVE | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF;
        dir.watches().add(parent, WatchMask::MODIFY | WatchMask::CREATE | removal).map_err(fail)?;
        let file = path.file_name().unwrap_or_default().to_os_string();
        let mut log = file.clone();
        log.push("-wal");
        Ok(SqliteFollow {
            database,
            prefixes: prefixes.iter().map(ToString::to_string).collect(),
            known: Known::default(),
            dir,
            names: [file, log],
            has_read: false,
        })
    }

    /// Waits for a write to the file. `false` after the timeout.
    fn wait_for_write(&mut self, timeout: Duration) -> io::Result<bool> {
        if !sys::readable(&[self.dir.as_fd()], timeout)?.contains(&true) {
            return Ok(false);
        }
        let mut buffer = [0; 4096];
        let mut is_written = false;
        for event in self.dir.read_events(&mut buffer)? {
            // An event without a name: events were lost, or it is about the directory itself.
            is_written |= event.name.is_none_or(|name| self.names.iter().any(|own| own == name));
        }
        Ok(is_written)
    }

    fn read(&self) -> Result<Vec<Entry>, StoreError> {
        self.database.wait_for_writers()?;
        let mut entries = Vec::new();
        for prefix in &self.prefixes {
            entries.extend(self.database.list(prefix)?);
        }
        Ok(entries)
    }
}

impl Follow for SqliteFollow {
    fn wait(&mut self, timeout: Duration) -> Result<Option<Vec<Change>>, StoreError> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let is_written = !self.has_read
                || self
                    .wait_for_write(left)
                    .map_err(|error| unavailable(&self.database.path, "follow", "", &error.to_string()))?;
            if is_written {
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
