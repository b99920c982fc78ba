//! A lock for each pod: two interfaces that are attached at once must not choose the same free table. sbr and vrf use
//! it.
//!
//! The lock is a file on the node, named after the inode of the namespace. Its holder removes it, so nothing is left
//! behind. A process that waited for a removed file starts again with a new one.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use podwire_cni_plugin::{Error, Result};
use podwire_kernel::Host;

const FOLDER: &str = "/run/podwire/sbr";

/// The lock of a pod, held until dropped.
#[derive(Debug)]
pub struct PodLock {
    path: PathBuf,
    _locked: File,
}

impl PodLock {
    /// Waits for the lock of `pod`.
    pub fn acquire(pod: &Host) -> Result<PodLock> {
        let inode = match pod.netns() {
            Some(netns) => netns
                .as_fd()
                .try_clone_to_owned()
                .and_then(|fd| File::from(fd).metadata())
                .map(|found| found.ino()),
            None => Ok(0),
        };
        let folder = Path::new(FOLDER);
        let path = inode.map(|inode| folder.join(format!("{inode}.lock")));
        let path = path.map_err(|source| failed("read the inode of the namespace for", folder, source))?;
        podwire_fs::create_state_dir(folder).map_err(|source| failed("create folder", folder, source))?;
        PodLock::at(path)
    }

    fn at(path: PathBuf) -> Result<PodLock> {
        let locked = || -> io::Result<Option<File>> {
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            file.lock()?;
            Ok(is_at(&file, &path)?.then_some(file))
        };
        loop {
            match locked() {
                Ok(Some(file)) => return Ok(PodLock { path, _locked: file }),
                Ok(None) => {}
                Err(source) => return Err(failed("lock", &path, source)),
            }
        }
    }
}

impl Drop for PodLock {
    fn drop(&mut self) {
        // Still locked: a waiting process then sees that the file was removed.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the files of killed processes.
pub fn collect() -> Result<()> {
    let entries = match fs::read_dir(FOLDER) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(failed("read", Path::new(FOLDER), source)),
    };
    let mut errors = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        errors.extend(remove_idle(&path).err().map(|source| failed("remove", &path, source)));
    }
    Error::all(errors)
}

fn remove_idle(path: &Path) -> io::Result<()> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    match file.try_lock() {
        Ok(()) if is_at(&file, path)? => fs::remove_file(path),
        Ok(()) | Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) => Ok(found.ino() == file.metadata()?.ino()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> Error {
    podwire_kernel::Error::from(podwire_fs::FileError { doing, path: path.to_owned(), source }).into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn only_one_holds_the_lock_and_no_file_is_left() {
        let path = std::env::temp_dir().join(format!("podwire-sbr-lock-{}.lock", std::process::id()));
        let holders = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _lock = PodLock::at(path.clone()).unwrap();
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                        holders.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(!path.exists());
    }

    #[test]
    fn a_held_lock_is_not_collected() {
        let path = std::env::temp_dir().join(format!("podwire-sbr-held-{}.lock", std::process::id()));
        let lock = PodLock::at(path.clone()).unwrap();
        remove_idle(&path).unwrap();
        assert!(path.exists());
        drop(lock);
        fs::write(&path, "").unwrap();
        remove_idle(&path).unwrap();
        assert!(!path.exists());
    }
}
