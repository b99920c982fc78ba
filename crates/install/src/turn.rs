//! One installer at a time.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result, Root, STATE};

/// Whoever holds it may change what is installed. The lock is on the folder of the record, so that no file of a lock
/// stays behind; the folder goes with the last turn that leaves nothing in it.
#[derive(Debug)]
pub struct Turn {
    folder: PathBuf,
    parent: PathBuf,
    _lock: File,
}

impl Turn {
    /// Waits for it.
    pub fn take(root: &Root) -> Result<Turn> {
        let folder = root.target(Path::new(STATE));
        let parent = folder.parent().unwrap_or(&folder).to_owned();
        loop {
            fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
            let lock = match File::open(&folder) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                opened => opened.map_err(Error::file("open", &folder))?,
            };
            lock.lock().map_err(Error::file("lock", &folder))?;
            // Who held it before may have removed the folder, and another may have made it again.
            if is_same(&lock, &folder) {
                return Ok(Turn { folder, parent, _lock: lock });
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Only empty folders can be removed: a record keeps them.
        if fs::remove_dir(&self.folder).is_ok() {
            let _ = fs::remove_dir(&self.parent);
        }
    }
}

fn is_same(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}
