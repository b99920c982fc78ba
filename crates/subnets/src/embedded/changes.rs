//! Hearing of what other processes write.
//!
//! SQLite tells nobody outside of its process. But every commit is written to the log beside the file (`-wal`), and the
//! kernel tells who watches the folder (inotify). The notice comes while the writer still holds the write lock: its last
//! page is in the log, and the shared index does not name it yet. So the lock is taken here too, for the time of the
//! read: when it is ours, the commit that woke us is done (or its process is dead, and the kernel took its lock away).
//! Nothing is asked while nothing is written, and no notice can be lost between a look and a wait.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use inotify::WatchMask;
use rusqlite::Connection;

use super::{blocking, connect, row, Embedded};
use crate::folder::Folder;
use crate::snapshot::{SkippedNode, SnapshotSender};
use crate::{Error, Node, Result};
use podwire_kubernetes::Backoff;

/// Feeds a watch, for ever.
pub(super) async fn follow(store: Embedded, sender: SnapshotSender) {
    let mut backoff = Backoff::new();
    loop {
        let error = match listen(&store, &sender, &mut backoff).await {
            Ok(()) => format!("{}: the folder is gone", store.path.display()),
            Err(error) => error.to_string(),
        };
        sender.mark_stale(error);
        backoff.wait().await;
    }
}

/// Feeds a watch, until the folder is gone or something fails.
async fn listen(store: &Embedded, sender: &SnapshotSender, backoff: &mut Backoff) -> Result<()> {
    let folder = store.path.parent().unwrap_or(Path::new("/"));
    // First the ear, then the eye: what is written between the two is heard.
    let kinds = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::DELETE;
    let mut changes = Folder::watch(folder, kinds | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF)?;
    let file = store.path.file_name().unwrap_or_default().to_os_string();
    let mut log = file.clone();
    log.push("-wal");
    let concerns = |name: &OsString| *name == log || *name == file;
    let mut open: Option<(Connection, u64)> = None;
    loop {
        let (nodes, refused);
        (open, nodes, refused) = read(store, open).await?;
        sender.publish(nodes, refused);
        backoff.reset();
        if !changes.change(concerns).await {
            return Ok(());
        }
    }
}

/// All nodes, with the connection that was open, unless the file has been replaced by another.
async fn read(
    store: &Embedded,
    open: Option<(Connection, u64)>,
) -> Result<(Option<(Connection, u64)>, Vec<Node>, Vec<SkippedNode>)> {
    let store = store.clone();
    blocking(move || {
        let inode = fs::metadata(&store.path).map_err(Error::file("look at", &store.path))?.ino();
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
        let (nodes, refused) = under_lock().map_err(store.failed("read nodes"))?;
        Ok((Some((connection, inode)), nodes, refused))
    })
    .await
}
