//! The steps of an install or uninstall, from the requested files and the state of the node. Nothing is changed here.

use std::path::{Path, PathBuf};

use crate::record::aside_of;
use crate::{Entry, Identity, Kind, NodeState, Record};

/// A requested file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its path on the node.
    pub path: PathBuf,
    /// Its content.
    pub content: Content,
    /// Its identity.
    pub identity: Identity,
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The program of the plugins.
    Program,
    /// A network config.
    Network(Vec<u8>),
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Removes a temporary file of an installer that was killed.
    RemoveDraft(PathBuf),
    /// Creates a directory.
    CreateDir(PathBuf),
    /// Installs a file.
    Put {
        /// The file.
        target: Target,
        /// The existing file is kept as a backup.
        backup: bool,
        /// The existing file is an older version of ours.
        update: bool,
    },
    /// Restores the backup.
    Restore(PathBuf),
    /// Removes an installed file.
    Remove(PathBuf),
    /// Removes a backup whose original is in place.
    DropBackup(PathBuf),
    /// Renames a backup that cannot be restored, for the user to find.
    SetAside(PathBuf),
    /// Removes a directory that was created by an install, if it is empty.
    RemoveDir(PathBuf),
}

/// A file that is not changed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub reason: Reason,
}

/// Why a file is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It is already installed.
    AlreadyThere,
    /// It is not ours; only `--replace` replaces it.
    Foreign,
    /// It was changed after the install.
    Changed,
    /// It is a directory.
    Directory,
    /// It was removed after the install.
    Gone,
    /// The backup of the replaced file is missing.
    BackupLost,
}

/// The steps in order, and the record before and after them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstallPlan {
    /// The steps.
    pub steps: Vec<Step>,
    /// The files that are not changed.
    pub remarks: Vec<Remark>,
    /// Written before the first step; valid until the last.
    pub before: Record,
    /// Written after the last step.
    pub after: Record,
}

impl InstallPlan {
    /// Installs `targets`. With `replace`, files that are not ours are replaced and kept as backups.
    pub fn install(targets: &[Target], replace: bool, state: &NodeState) -> InstallPlan {
        let mut plan = InstallPlan {
            before: state.record.clone(),
            after: state.record.clone(),
            ..InstallPlan::default()
        };
        plan.steps.extend(state.drafts.iter().cloned().map(Step::RemoveDraft));
        plan.steps.extend(state.missing_dirs.iter().cloned().map(Step::CreateDir));
        for record in [&mut plan.before, &mut plan.after] {
            record.dirs.extend(state.missing_dirs.iter().cloned());
        }
        // Plugins first: a runtime that sees the network config may start a pod at once.
        for kind in [Kind::Plugin, Kind::Network] {
            for target in targets.iter().filter(|target| target.kind() == kind) {
                plan.put(target, replace, state);
            }
        }
        plan
    }

    fn put(&mut self, target: &Target, replace: bool, state: &NodeState) {
        let path = &target.path;
        let entry = state.record.files.get(path).cloned();
        let ours = |id: &Identity| entry.as_ref().is_some_and(|entry| entry.ours.contains(id));
        let was = |id: &Identity| entry.as_ref().is_some_and(|entry| entry.replaced.as_ref() == Some(id));
        let replaced = entry.as_ref().and_then(|entry| entry.replaced.clone());
        match state.identity(path) {
            Some(here) if !here.is_file() => self.remark(path, Reason::Directory),
            Some(here) if *here == target.identity => {
                self.remark(path, Reason::AlreadyThere);
                if entry.is_some() {
                    self.own(target, None, replaced);
                }
            }
            Some(here) if ours(here) => {
                self.own(target, Some(here), replaced);
                self.steps.push(Step::Put { target: target.clone(), backup: false, update: true });
            }
            Some(here) if replace => {
                self.keep_orphan(path, &entry, state);
                self.own(target, None, Some(here.clone()));
                self.steps.push(Step::Put { target: target.clone(), backup: true, update: false });
            }
            Some(here) if was(here) => {
                // An installer was killed before it replaced this file.
                self.remark(path, Reason::Foreign);
                self.steps.extend(state.has_backup(path).then(|| Step::DropBackup(path.clone())));
                self.after.files.remove(path);
            }
            Some(_) => self.remark(path, if entry.is_some() { Reason::Changed } else { Reason::Foreign }),
            None => {
                self.own(target, None, replaced);
                self.steps.push(Step::Put { target: target.clone(), backup: false, update: false });
            }
        }
    }

    /// Records `target` as ours, and `also` until it is replaced.
    fn own(&mut self, target: &Target, also: Option<&Identity>, replaced: Option<Identity>) {
        let entry = |ours| Entry { kind: target.kind(), ours, replaced: replaced.clone() };
        let both = std::iter::once(target.identity.clone()).chain(also.cloned()).collect();
        self.before.files.insert(target.path.clone(), entry(both));
        self.after.files.insert(target.path.clone(), entry(vec![target.identity.clone()]));
    }

    /// Keeps a backup that is not in the record: it may be the only copy.
    fn keep_orphan(&mut self, path: &Path, entry: &Option<Entry>, state: &NodeState) {
        if entry.is_none() && state.has_backup(path) {
            self.steps.push(Step::SetAside(path.to_owned()));
        }
    }

    /// Removes everything that was installed.
    pub fn uninstall(state: &NodeState) -> InstallPlan {
        let mut plan = InstallPlan { before: state.record.clone(), ..InstallPlan::default() };
        plan.steps.extend(state.drafts.iter().cloned().map(Step::RemoveDraft));
        // The network config first: no pod should start whose plugins are about to be removed.
        for kind in [Kind::Network, Kind::Plugin] {
            for (path, entry) in state.record.files.iter().filter(|(_, entry)| entry.kind == kind) {
                plan.remove(path, entry, state);
            }
        }
        let mut dirs = state.record.dirs.clone();
        dirs.sort_by_key(|dir| std::cmp::Reverse(dir.components().count()));
        plan.steps.extend(dirs.into_iter().map(Step::RemoveDir));
        plan
    }

    fn remove(&mut self, path: &Path, entry: &Entry, state: &NodeState) {
        let has_backup = state.has_backup(path);
        let own = path.to_owned();
        match state.identity(path) {
            None if has_backup => self.steps.push(Step::Restore(own)),
            None => self.remark(path, Reason::Gone),
            Some(here) if entry.ours.contains(here) => {
                let lost = entry.replaced.is_some() && !has_backup;
                self.steps.push(if has_backup { Step::Restore(own) } else { Step::Remove(own) });
                if lost {
                    self.remark(path, Reason::BackupLost);
                }
            }
            Some(here) if entry.replaced.as_ref() == Some(here) => {
                self.steps.extend(has_backup.then_some(Step::DropBackup(own)));
            }
            Some(_) => {
                self.remark(path, Reason::Changed);
                self.steps.extend(has_backup.then_some(Step::SetAside(own)));
            }
        }
    }

    fn remark(&mut self, path: &Path, reason: Reason) {
        self.remarks.push(Remark { path: path.to_owned(), reason });
    }
}

impl Target {
    /// A plugin at `path`.
    pub fn plugin(path: PathBuf, identity: Identity) -> Target {
        Target { path, content: Content::Program, identity }
    }

    /// A network config at `path`.
    pub fn network(path: PathBuf, text: Vec<u8>) -> Target {
        let identity = Identity::of_bytes(&text);
        Target { path, content: Content::Network(text), identity }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self.content {
            Content::Program => Kind::Plugin,
            Content::Network(_) => Kind::Network,
        }
    }
}

impl Step {
    /// Its name in JSON output.
    pub fn verb(&self) -> &'static str {
        match self {
            Step::RemoveDraft(_) => "removeDraft",
            Step::CreateDir(_) => "createDir",
            Step::Put { backup: true, .. } => "replace",
            Step::Put { update: true, .. } => "update",
            Step::Put { .. } => "put",
            Step::Restore(_) => "restore",
            Step::Remove(_) => "remove",
            Step::DropBackup(_) => "dropBackup",
            Step::SetAside(_) => "setAside",
            Step::RemoveDir(_) => "removeDir",
        }
    }

    /// The file or directory.
    pub fn path(&self) -> PathBuf {
        match self {
            Step::Put { target, .. } => target.path.clone(),
            Step::SetAside(path) => aside_of(path),
            Step::RemoveDraft(path)
            | Step::CreateDir(path)
            | Step::Restore(path)
            | Step::Remove(path)
            | Step::DropBackup(path)
            | Step::RemoveDir(path) => path.clone(),
        }
    }
}

impl Reason {
    /// Its name in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Reason::AlreadyThere => "alreadyThere",
            Reason::Foreign => "foreign",
            Reason::Changed => "changed",
            Reason::Directory => "directory",
            Reason::Gone => "gone",
            Reason::BackupLost => "backupLost",
        }
    }
}

#[cfg(test)]
mod tests;
