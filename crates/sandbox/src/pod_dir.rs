//! A pod's directory: it contains the checkpoint, and the process that works on the pod holds a lock on it.
//!
//! The lock is a flock(2) on the directory itself: it ends with its holder and leaves no file.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::checkpoint::Checkpoint;
use crate::{Error, PodName, Result};

/// A pod's directory, locked.
#[derive(Debug)]
pub(crate) struct PodDir {
    path: PathBuf,
    _lock: File,
}

const CHECKPOINT: &str = "pod.json";

impl PodDir {
    /// Opens or creates the pod's directory and waits for its lock.
    pub(crate) fn ensure(pods: &Path, name: &PodName) -> Result<PodDir> {
        let path = pods.join(name.key());
        loop {
            match DirBuilder::new().recursive(true).mode(0o700).create(&path) {
                // Another process removed it meanwhile, and may have created it again.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_other(&path) => continue,
                made => made.map_err(Error::file("create", &path))?,
            }
            if let Some(dir) = PodDir::lock(&path)? {
                return Ok(dir);
            }
        }
    }

    /// The pod's directory, locked, if it exists.
    pub(crate) fn find(pods: &Path, name: &PodName) -> Result<Option<PodDir>> {
        let path = pods.join(name.key());
        loop {
            match PodDir::lock(&path)? {
                None if path.exists() => {}
                found => return Ok(found),
            }
        }
    }

    /// Locks a directory; `None` if it is gone or was replaced while waiting for the lock.
    fn lock(path: &Path) -> Result<Option<PodDir>> {
        let lock = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(Error::file("open", path))?,
        };
        lock.lock().map_err(Error::file("lock", path))?;
        let which = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let held = lock.metadata().map(which).map_err(Error::file("stat", path))?;
        let there = fs::metadata(path).map(which).ok();
        Ok((there == Some(held)).then(|| PodDir { path: path.to_owned(), _lock: lock }))
    }

    /// Whether another process works on the pod of this directory.
    pub(crate) fn is_busy(path: &Path) -> bool {
        File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// The path of a file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file that is mounted into the pod: in place, because a rename would not be visible in the pod.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.file(name);
        let mut options = OpenOptions::new();
        let open = options.write(true).create(true).truncate(true).mode(0o644).open(&path);
        open.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::file("write", &path))
    }

    /// The checkpoint; `None` if the process that started the pod died before it wrote one.
    pub(crate) fn checkpoint(&self) -> Result<Option<Checkpoint>> {
        read(&self.path)
    }

    /// Replaces the checkpoint in one step. It need not survive a boot, so nothing is flushed.
    pub(crate) fn save(&self, checkpoint: &Checkpoint) -> Result<()> {
        let path = self.file(CHECKPOINT);
        podwire_fs::replace(&path, checkpoint.to_json().to_string().as_bytes(), 0o600)
            .map_err(Error::file("write checkpoint", &path))
    }

    /// Removes the directory.
    pub(crate) fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.path).map_err(Error::file("remove", &self.path))
    }
}

/// Whether the path exists and is not a directory.
fn is_other(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.is_dir())
}

/// The checkpoint of a directory, without the lock.
pub(crate) fn read(dir: &Path) -> Result<Option<Checkpoint>> {
    let path = dir.join(CHECKPOINT);
    match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file("read", &path)(error)),
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(checkpoint) => Ok(Some(checkpoint)),
            Err(error) => Err(Error::Checkpoint { path, reason: error.to_string() }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_process_holds_a_pod_while_its_directory_is_recreated() {
        let root = std::env::temp_dir().join(format!("podwire-dir-{}", std::process::id()));
        let name = PodName::new("default", "a").unwrap();
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 0..200 {
                        let dir = PodDir::ensure(&root, &name).unwrap();
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        assert!(PodDir::is_busy(&root.join(name.key())));
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        if round % 2 == 0 {
                            dir.remove().unwrap();
                        }
                    }
                });
            }
        });
        PodDir::find(&root, &name).unwrap().map(PodDir::remove);
        assert!(PodDir::find(&root, &name).unwrap().is_none() && !PodDir::is_busy(&root.join(name.key())));
        fs::remove_dir_all(root).unwrap();
    }
}
