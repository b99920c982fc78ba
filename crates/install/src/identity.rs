//! The identity of a file: a short text that can be compared and stored.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// `sha256:…` of a file's content, `link:…` with a symbolic link's target, or `directory`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity(String);

impl Identity {
    /// The identity of a file with this content.
    pub fn of_bytes(content: &[u8]) -> Identity {
        Identity::finish(Sha256::new_with_prefix(content))
    }

    /// Whether it can be replaced and backed up as a file.
    pub fn is_file(&self) -> bool {
        self.0 != "directory"
    }

    fn finish(hash: Sha256) -> Identity {
        let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Identity(format!("sha256:{hex}"))
    }
}

/// Computes identities. Plugins are hard links to one file, which is read once.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    seen: HashMap<(u64, u64), Identity>,
}

impl Reader {
    /// The identity of the file at `path`; `None` if it does not exist.
    pub(crate) fn identity(&mut self, path: &Path) -> Result<Option<Identity>> {
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::file("stat", path)(error)),
        };
        if metadata.is_symlink() {
            let target = fs::read_link(path).map_err(Error::file("read link", path))?;
            return Ok(Some(Identity(format!("link:{}", target.display()))));
        }
        if !metadata.is_file() {
            return Ok(Some(Identity("directory".into())));
        }
        let key = (metadata.dev(), metadata.ino());
        if let Some(known) = self.seen.get(&key) {
            return Ok(Some(known.clone()));
        }
        let identity = hash(path)?;
        self.seen.insert(key, identity.clone());
        Ok(Some(identity))
    }
}

fn hash(path: &Path) -> Result<Identity> {
    let mut file = fs::File::open(path).map_err(Error::file("open", path))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer).map_err(Error::file("read", path))? {
            0 => return Ok(Identity::finish(hash)),
            length => hash.update(&buffer[..length]),
        }
    }
}
