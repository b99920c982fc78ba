//! The lock of install and uninstall.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result, Root, STATE};

/// The lock that install and uninstall hold. It is on the directory of the record, so that no lock file stays behind; the
/// directory is removed with the lock if it is empty.
#[derive(Debug)]
pub struct InstallLock {
    dir: PathBuf,
    parent: PathBuf,
    _lock: File,
}

impl InstallLock {
    /// Waits for the lock.
    pub fn acquire(root: &Root) -> Result<InstallLock> {
        let dir = root.target(Path::new(STATE));
        let parent = dir.parent().unwrap_or(&dir).to_owned();
        loop {
            podwire_fs::create_state_dir(&dir).map_err(Error::file("create", &dir))?;
            let lock = match File::open(&dir) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                opened => opened.map_err(Error::file("open", &dir))?,
            };
            lock.lock().map_err(Error::file("lock", &dir))?;
            // The previous holder may have removed the directory, and another process may have created it again.
            if is_same(&lock, &dir) {
                return Ok(InstallLock { dir, parent, _lock: lock });
            }
        }
    }
}

impl Drop for InstallLock {
    fn drop(&mut self) {
        // Only an empty directory can be removed: a record keeps it.
        if fs::remove_dir(&self.dir).is_ok() {
            let _ = fs::remove_dir(&self.parent);
        }
    }
}

fn is_same(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}
