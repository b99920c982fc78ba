//! A pod's folder: what is known of the pod is in it, and whoever works on the pod holds it locked.
//!
//! The lock is one of the kernel's on the folder itself, so it ends with its holder, by whatever end, and leaves no file.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::checkpoint::Checkpoint;
use crate::{Error, PodName, Result};

/// The folder of a pod that nobody else works on.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    _lock: File,
}

const CHECKPOINT: &str = "pod.json";
const DRAFT: &str = "pod.json.new";

impl Home {
    /// The pod's folder, made if it is missing. Waits until nobody else works on the pod.
    pub(crate) fn ensure(folder: &Path, name: &PodName) -> Result<Home> {
        let path = folder.join(name.key());
        loop {
            match DirBuilder::new().recursive(true).mode(0o700).create(&path) {
                // It was there, and somebody removed it meanwhile; it may be back by now.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_other(&path) => continue,
                made => made.map_err(Error::file("create", &path))?,
            }
            if let Some(home) = Home::lock(&path)? {
                return Ok(home);
            }
        }
    }

    /// The pod's folder, if there is one.
    pub(crate) fn find(folder: &Path, name: &PodName) -> Result<Option<Home>> {
        let path = folder.join(name.key());
        loop {
            match Home::lock(&path)? {
                None if path.exists() => {}
                found => return Ok(found),
            }
        }
    }

    /// Locks a folder; none if it is gone, or another one than it was when the lock was asked for.
    fn lock(path: &Path) -> Result<Option<Home>> {
        let lock = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(Error::file("open", path))?,
        };
        lock.lock().map_err(Error::file("lock", path))?;
        let which = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let held = lock.metadata().map(which).map_err(Error::file("look at", path))?;
        let there = fs::metadata(path).map(which).ok();
        Ok((there == Some(held)).then(|| Home { path: path.to_owned(), _lock: lock }))
    }

    /// Whether somebody works on the pod of this folder.
    pub(crate) fn is_busy(path: &Path) -> bool {
        File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// A file of it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file that the pod sees. It stays the same file if it is written again.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.file(name);
        let mut options = OpenOptions::new();
        let open = options.write(true).create(true).truncate(true).mode(0o644).open(&path);
        open.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::file("write", &path))
    }

    /// What is known of the pod; none if whoever began to run it died before writing it down.
    pub(crate) fn checkpoint(&self) -> Result<Option<Checkpoint>> {
        read(&self.path)
    }

    /// Writes down what is known. Nobody ever sees half of it; it need not outlive the boot, so nothing is flushed.
    pub(crate) fn save(&self, checkpoint: &Checkpoint) -> Result<()> {
        let (draft, path) = (self.file(DRAFT), self.file(CHECKPOINT));
        let mut options = OpenOptions::new();
        let open = options.write(true).create(true).truncate(true).mode(0o600).open(&draft);
        let written = open.and_then(|mut file| file.write_all(checkpoint.to_json().to_string().as_bytes()));
        written.and_then(|()| fs::rename(&draft, &path)).map_err(Error::file("write checkpoint", &path))
    }

    /// The pod is no more.
    pub(crate) fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.path).map_err(Error::file("remove", &self.path))
    }
}

/// Whether something is there that is no folder.
fn is_other(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.is_dir())
}

/// What is known of the pod of a folder, for those who only look.
pub(crate) fn read(folder: &Path) -> Result<Option<Checkpoint>> {
    let path = folder.join(CHECKPOINT);
    match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file("read", &path)(error)),
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(checkpoint) => Ok(Some(checkpoint)),
            Err(error) => Err(Error::Checkpoint { path, why: error.to_string() }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_holds_a_pod_even_while_its_folder_comes_and_goes() {
        let root = std::env::temp_dir().join(format!("podwire-home-{}", std::process::id()));
        let name = PodName::new("default", "a").unwrap();
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 0..200 {
                        let home = Home::ensure(&root, &name).unwrap();
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        assert!(Home::is_busy(&root.join(name.key())));
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        if round % 2 == 0 {
                            home.remove().unwrap();
                        }
                    }
                });
            }
        });
        Home::find(&root, &name).unwrap().map(Home::remove);
        assert!(Home::find(&root, &name).unwrap().is_none() && !Home::is_busy(&root.join(name.key())));
        fs::remove_dir_all(root).unwrap();
    }
}
