//! Watches the file for commits of other processes.
//!
//! SQLite notifies no other process. But every commit is written to the log beside the file (`-wal`), and inotify
//! reports that while the writer still holds the write lock: its last page is in the log, but the shared index does not
//! name it yet. So the reader takes the write lock too. When it has the lock, the commit that woke it is complete, or
//! its process is dead and the kernel has released its lock. The watch starts before the first read, so no commit is
//! missed, and nothing is polled.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use inotify::WatchMask;
use rusqlite::Connection;

use podwire_fs::FileError;
use podwire_kubernetes::Backoff;

use super::{blocking, connect, row, Embedded};
use crate::dir_watch::DirWatch;
use crate::error::{Error, Result};
use crate::node::Node;
use crate::snapshot::{SkippedNode, SnapshotSender, Watch};

impl Embedded {
    /// Watches all nodes.
    pub fn watch(&self) -> Watch {
        let store = self.clone();
        SnapshotSender::start(|sender| watch(store, sender))
    }
}

/// Publishes snapshots forever.
async fn watch(store: Embedded, sender: SnapshotSender) {
    let mut backoff = Backoff::new();
    loop {
        let error = match publish_changes(&store, &sender, &mut backoff).await {
            Ok(()) => format!("{}: the directory is gone", store.path.display()),
            Err(error) => error.to_string(),
        };
        sender.mark_stale(error);
        backoff.wait().await;
    }
}

/// Publishes a snapshot at every change, until the directory is gone or an operation fails.
async fn publish_changes(store: &Embedded, sender: &SnapshotSender, backoff: &mut Backoff) -> Result<()> {
    let dir = store.path.parent().unwrap_or(Path::new("/"));
    // The watch starts before the first read, so that no commit is missed in between.
    let kinds = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVE | WatchMask::DELETE;
    let mut changes = DirWatch::start(dir, kinds | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF)?;
    let file = store.path.file_name().unwrap_or_default().to_os_string();
    let mut log = file.clone();
    log.push("-wal");
    let is_relevant = |name: &OsString| *name == log || *name == file;
    let mut open = None;
    loop {
        let (nodes, skipped);
        (open, nodes, skipped) = read(store, open).await?;
        sender.publish(nodes, skipped);
        backoff.reset();
        if !changes.changed(is_relevant).await {
            return Ok(());
        }
    }
}

/// A connection, with device and inode of its file.
type Open = (Connection, (u64, u64));

/// Reads all nodes with the open connection. Fails if the path no longer leads to its file: SQLite would go on with a
/// removed file, which no other process writes to. A file that took its place is read after the failure was reported.
async fn read(store: &Embedded, open: Option<Open>) -> Result<(Option<Open>, Vec<Node>, Vec<SkippedNode>)> {
    let store = store.clone();
    blocking(move || {
        let changed =
            |why: &str| Error::Unreadable { object: store.path.display().to_string(), why: why.into() };
        let (connection, file) = match (open, fs::metadata(&store.path)) {
            (None, Ok(found)) => (connect(&store.path)?, (found.dev(), found.ino())),
            (Some((connection, file)), Ok(found)) if file == (found.dev(), found.ino()) => (connection, file),
            (Some(_), Ok(_)) => {
                return Err(changed("the file was replaced by another one while it was open"))
            }
            (Some(_), Err(error)) if error.kind() == ErrorKind::NotFound => {
                return Err(changed("the file was removed while it was open"));
            }
            (_, Err(error)) => return Err(FileError::at("stat", &store.path)(error).into()),
        };
        let under_lock = || {
            connection.execute_batch("BEGIN IMMEDIATE")?;
            let nodes = row::all(&connection);
            connection.execute_batch("ROLLBACK")?;
            nodes
        };
        let (nodes, skipped) = under_lock().map_err(store.failed("read nodes"))?;
        Ok((Some((connection, file)), nodes, skipped))
    })
    .await
}
