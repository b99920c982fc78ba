//! The record of what was installed and what it replaced.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, Identity, Result, Root, STATE};

const FORMAT: u32 = 1;

/// All files and directories that Podwire installed. Paths are those of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    #[serde(default)]
    format: u32,
    /// Files by path.
    pub files: BTreeMap<PathBuf, Entry>,
    /// Directories that were created.
    pub dirs: Vec<PathBuf>,
}

/// An installed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Plugin or network config.
    pub kind: Kind,
    /// Its identity when unchanged. Two while one version replaces another.
    pub ours: Vec<Identity>,
    /// The file that it replaced; the backup is beside it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub replaced: Option<Identity>,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A program.
    Plugin,
    /// A config that names programs, so it is installed after them.
    Network,
}

impl Record {
    fn path() -> PathBuf {
        Path::new(STATE).join("record.json")
    }

    /// Whether nothing is installed.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.dirs.is_empty()
    }

    /// Selection it; empty if there is none.
    pub fn read(root: &Root) -> Result<Record> {
        let path = root.host_path(&Record::path());
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Record::default()),
            Err(error) => return Err(Error::file("read", &path)(error)),
        };
        let invalid = |message: String| Error::Record { path: path.clone(), message };
        let record: Record = serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
        match record.format {
            FORMAT => Ok(record),
            other => Err(invalid(format!("this version does not support format {other}"))),
        }
    }

    /// Writes the record and flushes it, so that it survives a power loss; removes it if nothing is installed. Not
    /// `podwire_fs::replace`, because that does not flush.
    pub(crate) fn write(&self, root: &Root) -> Result<()> {
        let (path, draft) = (root.host_path(&Record::path()), root.host_path(&draft_of(&Record::path())));
        if self.is_empty() {
            for file in [&draft, &path] {
                match fs::remove_file(file) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(Error::file("remove", file)(error));
                    }
                    _ => {}
                }
            }
            return Ok(());
        }
        let stamped = Record { format: FORMAT, ..self.clone() };
        let text = serde_json::to_vec_pretty(&stamped)
            .map_err(|error| Error::Record { path: path.clone(), message: error.to_string() })?;
        let mut file = fs::File::create(&draft).map_err(Error::file("create", &draft))?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(Error::file("write", &draft))?;
        fs::rename(&draft, &path).map_err(Error::file("rename", &draft))?;
        sync_dir(path.parent().unwrap_or(&path))
    }
}

/// The temporary name of a file. Its ending is not one of a config, and it is in the same directory: containerd notices a file
/// that is renamed within the directory, and not one that is created there or moved in from elsewhere.
pub(crate) fn draft_of(path: &Path) -> PathBuf {
    beside(path, "podwire-new")
}

/// The backup of a replaced file, in the same directory for the same reason.
pub(crate) fn backup_of(path: &Path) -> PathBuf {
    beside(path, "podwire-backup")
}

/// The name of a backup that cannot be restored, for the user to find.
pub(crate) fn aside_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{name}.before-podwire"))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{ending}"))
}

/// Flushes a directory, so that renames in it survive a power loss.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    fs::File::open(dir).and_then(|file| file.sync_all()).map_err(Error::file("flush", dir))
}
