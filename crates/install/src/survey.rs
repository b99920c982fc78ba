//! What is on the node now, as far as a plan asks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::identity::Reader;
use crate::record::{backup_of, draft_of};
use crate::{Identity, Record, Result, Root};

/// What was found. Paths are the node's.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// What we put there earlier.
    pub record: Record,
    /// What is at the paths that a plan asks about.
    pub files: BTreeMap<PathBuf, Identity>,
    /// Those of them that have a backup beside them.
    pub backups: BTreeSet<PathBuf>,
    /// What an installer that was killed left.
    pub drafts: Vec<PathBuf>,
    /// Folders that have to be made, the outer ones first.
    pub missing_folders: Vec<PathBuf>,
}

impl Survey {
    /// Looks at everything in the record and at `paths`.
    pub fn new<'p>(root: &Root, paths: impl IntoIterator<Item = &'p Path>) -> Result<Survey> {
        let record = Record::read(root)?;
        let wished: BTreeSet<PathBuf> = paths.into_iter().map(Path::to_owned).collect();
        let all: BTreeSet<PathBuf> = wished.iter().chain(record.files.keys()).cloned().collect();
        let mut survey = Survey { record, ..Survey::default() };
        let mut reader = Reader::default();
        for path in &all {
            survey.files.extend(reader.identity(&root.place(path))?.map(|identity| (path.clone(), identity)));
            let has_backup = fs::symlink_metadata(root.place(&backup_of(path))).is_ok();
            survey.backups.extend(has_backup.then(|| path.clone()));
        }
        let folders = |paths: &BTreeSet<PathBuf>| -> BTreeSet<PathBuf> {
            paths.iter().filter_map(|path| path.parent()).map(Path::to_owned).collect()
        };
        survey.drafts = folders(&all).iter().flat_map(|folder| drafts(root, folder)).collect();
        let mut missing = BTreeSet::new();
        for folder in folders(&wished) {
            let absent = folder.ancestors().filter(|folder| !root.has(folder));
            missing.extend(absent.map(Path::to_owned));
        }
        // A folder sorts before those within it.
        survey.missing_folders = missing.into_iter().collect();
        Ok(survey)
    }

    pub(crate) fn identity(&self, path: &Path) -> Option<&Identity> {
        self.files.get(path)
    }

    pub(crate) fn has_backup(&self, path: &Path) -> bool {
        self.backups.contains(path)
    }
}

/// Drafts in a folder: by their ending, since the file that one of them was to be may not be wished for any more.
fn drafts(root: &Root, folder: &Path) -> Vec<PathBuf> {
    let ending = draft_of(Path::new("x")).to_string_lossy().trim_start_matches(".x").to_owned();
    let names =
        fs::read_dir(root.target(folder)).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut found: Vec<_> = names
        .filter(|name| {
            let name = name.to_string_lossy();
            name.starts_with('.') && name.ends_with(&ending)
        })
        .map(|name| folder.join(name))
        .collect();
    found.sort();
    found
}

#[cfg(test)]
pub(crate) mod scratch {
    //! A root in a folder that vanishes with the test.

    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::Root;

    pub(crate) struct Scratch(PathBuf);

    impl Scratch {
        pub(crate) fn new() -> Scratch {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("podwire-install-{}-{number}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        pub(crate) fn root(&self) -> Root {
            Root::at(&self.0)
        }

        pub(crate) fn path(&self, path: &str) -> PathBuf {
            self.0.join(path.trim_start_matches('/'))
        }

        pub(crate) fn write(&self, path: &str, text: &str) {
            let path = self.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
