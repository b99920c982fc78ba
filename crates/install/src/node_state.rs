//! The current state of the files that a plan concerns.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::identity::Reader;
use crate::record::{backup_of, draft_of};
use crate::{Identity, Record, Result, Root};

/// The files of the node. Paths are those of the node.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// The record of earlier installs.
    pub record: Record,
    /// The identity of each file that exists.
    pub files: BTreeMap<PathBuf, Identity>,
    /// The files that have a backup.
    pub backups: BTreeSet<PathBuf>,
    /// Temporary files of an installer that was killed.
    pub drafts: Vec<PathBuf>,
    /// Directories to create, outer ones first.
    pub missing_dirs: Vec<PathBuf>,
}

impl NodeState {
    /// Reads the state of every file of the record and of `paths`.
    pub fn read<'p>(root: &Root, paths: impl IntoIterator<Item = &'p Path>) -> Result<NodeState> {
        let record = Record::read(root)?;
        let requested: BTreeSet<PathBuf> = paths.into_iter().map(Path::to_owned).collect();
        let all: BTreeSet<PathBuf> = requested.iter().chain(record.files.keys()).cloned().collect();
        let mut state = NodeState { record, ..NodeState::default() };
        let mut reader = Reader::default();
        for path in &all {
            state
                .files
                .extend(reader.identity(&root.host_path(path))?.map(|identity| (path.clone(), identity)));
            let has_backup = fs::symlink_metadata(root.host_path(&backup_of(path))).is_ok();
            state.backups.extend(has_backup.then(|| path.clone()));
        }
        let dirs = |paths: &BTreeSet<PathBuf>| -> BTreeSet<PathBuf> {
            paths.iter().filter_map(|path| path.parent()).map(Path::to_owned).collect()
        };
        state.drafts = dirs(&all).iter().flat_map(|dir| drafts(root, dir)).collect();
        let mut missing = BTreeSet::new();
        for dir in dirs(&requested) {
            let absent = dir.ancestors().filter(|dir| !root.has(dir));
            missing.extend(absent.map(Path::to_owned));
        }
        // A directory sorts before its subdirectories.
        state.missing_dirs = missing.into_iter().collect();
        Ok(state)
    }

    pub(crate) fn identity(&self, path: &Path) -> Option<&Identity> {
        self.files.get(path)
    }

    pub(crate) fn has_backup(&self, path: &Path) -> bool {
        self.backups.contains(path)
    }
}

/// The temporary files of a directory, found by their ending: their final file may no longer be requested.
fn drafts(root: &Root, dir: &Path) -> Vec<PathBuf> {
    let ending = draft_of(Path::new("x")).to_string_lossy().trim_start_matches(".x").to_owned();
    let names = fs::read_dir(root.target(dir)).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut found: Vec<_> = names
        .filter(|name| {
            let name = name.to_string_lossy();
            name.starts_with('.') && name.ends_with(&ending)
        })
        .map(|name| dir.join(name))
        .collect();
    found.sort();
    found
}
