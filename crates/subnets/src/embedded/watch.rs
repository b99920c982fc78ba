//! Watches the file for commits of other processes.
//!
//! SQLite notifies no other process. But every commit is written to the log beside the file (`-wal`), and inotify
//! reports that while the writer still holds the write lock: its last page is in the log, but the shared index does not
//! name it yet. So the reader takes the write lock too. When it has the lock, the commit that woke it is complete, or
//! its process is dead and the kernel has released its lock. The watch starts before the first read, so no commit is
//! missed, and nothing is polled.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use inotify::WatchMask;
use rusqlite::Connection;

use podwire_fs::FileError;
use podwire_kubernetes::Backoff;

use super::{blocking, connect, row, Embedded};
use crate::dir_watch::DirWatch;
use crate::error::Result;
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
    let kinds = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::DELETE;
    let mut changes = DirWatch::start(dir, kinds | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF)?;
    let file = store.path.file_name().unwrap_or_default().to_os_string();
    let mut log = file.clone();
    log.push("-wal");
    let is_relevant = |name: &OsString| *name == log || *name == file;
    let mut open: Option<(Connection, u64)> = None;
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

/// Reads all nodes with the open connection, or with a new one if the file was replaced.
async fn read(
    store: &Embedded,
    open: Option<(Connection, u64)>,
) -> Result<(Option<(Connection, u64)>, Vec<Node>, Vec<SkippedNode>)> {
    let store = store.clone();
    blocking(move || {
        let inode = fs::metadata(&store.path).map_err(FileError::at("stat", &store.path))?.ino();
        let connection = match open {
            Some((connection, same)) if same == inode => connection,
            _ => connect(&store.path)?,
        };
        let under_lock = || {
            connection.execute_batch("BEGIN IMMEDIATE")?;
            let nodes = row::all(&connection);
            connection.execute_batch("ROLLBACK")?;
            nodes
        };
        let (nodes, skipped) = under_lock().map_err(store.failed("read nodes"))?;
        Ok((Some((connection, inode)), nodes, skipped))
    })
    .await
}
