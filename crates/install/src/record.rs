//! What was put on the node, and what was there before.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, Identity, Result, Root, STATE};

const FORMAT: u32 = 1;

/// Everything that is on the node because of us. Paths are the node's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    #[serde(default)]
    format: u32,
    /// Files by their path.
    pub files: BTreeMap<PathBuf, Entry>,
    /// Folders that were made.
    pub folders: Vec<PathBuf>,
}

/// A file of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What it is to the runtime.
    pub kind: Kind,
    /// What it is when nobody changed it. Two while one version takes the place of another.
    pub ours: Vec<Identity>,
    /// What was there before; it lies beside the file as its backup.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub replaced: Option<Identity>,
}

/// What a file is to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A program.
    Plugin,
    /// A config that names programs, and so comes after them.
    Network,
}

impl Record {
    fn path() -> PathBuf {
        Path::new(STATE).join("record.json")
    }

    /// Nothing is ours.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.folders.is_empty()
    }

    /// Reads it; empty if there is none.
    pub fn read(root: &Root) -> Result<Record> {
        let path = root.place(&Record::path());
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Record::default()),
            Err(error) => return Err(Error::file("read", &path)(error)),
        };
        let broken = |message: String| Error::Record { path: path.clone(), message };
        let record: Record = serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?;
        match record.format {
            FORMAT => Ok(record),
            other => Err(broken(format!("format {other} is not known to this version"))),
        }
    }

    /// Writes it so that it is there after a power cut; removes it if nothing is ours.
    pub(crate) fn write(&self, root: &Root) -> Result<()> {
        let (path, draft) = (root.place(&Record::path()), root.place(&draft_of(&Record::path())));
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
        sync_folder(path.parent().unwrap_or(&path))
    }
}

/// The name under which a file is made before it appears. It ends in nothing that a runtime takes for a config, and it
/// is in the same folder: containerd is told of a file that is renamed within the folder, and not of one that is
/// created there or moved in from elsewhere.
pub(crate) fn draft_of(path: &Path) -> PathBuf {
    beside(path, "podwire-new")
}

/// Where that which was there before is kept. In the same folder for the same reason.
pub(crate) fn backup_of(path: &Path) -> PathBuf {
    beside(path, "podwire-backup")
}

/// Where that which was there before goes when it cannot come back to its place.
pub(crate) fn aside_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{name}.before-podwire"))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{ending}"))
}

/// Makes renames in a folder outlive a power cut.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    fs::File::open(folder).and_then(|file| file.sync_all()).map_err(Error::file("flush", folder))
}
