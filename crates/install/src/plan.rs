//! What is to be done, decided from what is wished for and what was found. Nothing is touched here.

use std::path::{Path, PathBuf};

use crate::record::aside_of;
use crate::{Entry, Identity, Kind, Record, Survey};

/// A file that is wished for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where, on the node.
    pub path: PathBuf,
    /// What.
    pub content: Content,
    /// What it will be.
    pub identity: Identity,
}

/// What a file is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The plugins' program.
    Program,
    /// A network.
    Network(Vec<u8>),
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Removes what an installer that was killed was about to make.
    Sweep(PathBuf),
    /// Makes a folder.
    MakeFolder(PathBuf),
    /// Puts a file.
    Put {
        /// Which.
        target: Target,
        /// What is there is kept as a backup.
        backup: bool,
        /// One of ours is there already.
        update: bool,
    },
    /// Brings back what was there before.
    Restore(PathBuf),
    /// Removes a file of ours.
    Remove(PathBuf),
    /// Removes a backup that nobody needs: what it keeps is in its place.
    DropBackup(PathBuf),
    /// Gives a backup a name by which people find it.
    SetAside(PathBuf),
    /// Removes a folder that was made by us, if nothing is in it.
    RemoveFolder(PathBuf),
}

/// Something that people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The file that it is about.
    pub path: PathBuf,
    /// Why it is not as they may expect.
    pub why: Why,
}

/// Why a file is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// It is what was wished for.
    AlreadyThere,
    /// It is not ours, and may be replaced only when that is asked for.
    Foreign,
    /// It was ours, and somebody changed it.
    Changed,
    /// It is a folder.
    Folder,
    /// Somebody else has removed it.
    Gone,
    /// What was there before is lost.
    BackupLost,
}

/// Steps in their order, and the record before and after them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What is done.
    pub steps: Vec<Step>,
    /// What is not done.
    pub remarks: Vec<Remark>,
    /// Written before the first step: true at any moment until the last.
    pub before: Record,
    /// Written after the last step.
    pub after: Record,
}

impl Plan {
    /// To have `targets` on the node. With `replace`, files that are not ours give way, and are kept.
    pub fn install(targets: &[Target], replace: bool, survey: &Survey) -> Plan {
        let mut plan =
            Plan { before: survey.record.clone(), after: survey.record.clone(), ..Plan::default() };
        plan.steps.extend(survey.drafts.iter().cloned().map(Step::Sweep));
        plan.steps.extend(survey.missing_folders.iter().cloned().map(Step::MakeFolder));
        for record in [&mut plan.before, &mut plan.after] {
            record.folders.extend(survey.missing_folders.iter().cloned());
        }
        // Plugins first: a runtime that sees the network may start a pod at once.
        for kind in [Kind::Plugin, Kind::Network] {
            for target in targets.iter().filter(|target| target.kind() == kind) {
                plan.put(target, replace, survey);
            }
        }
        plan
    }

    fn put(&mut self, target: &Target, replace: bool, survey: &Survey) {
        let path = &target.path;
        let entry = survey.record.files.get(path).cloned();
        let ours = |id: &Identity| entry.as_ref().is_some_and(|entry| entry.ours.contains(id));
        let was = |id: &Identity| entry.as_ref().is_some_and(|entry| entry.replaced.as_ref() == Some(id));
        let replaced = entry.as_ref().and_then(|entry| entry.replaced.clone());
        match survey.identity(path) {
            Some(here) if !here.is_file() => self.remark(path, Why::Folder),
            Some(here) if *here == target.identity => {
                self.remark(path, Why::AlreadyThere);
                if entry.is_some() {
                    self.own(target, None, replaced);
                }
            }
            Some(here) if ours(here) => {
                self.own(target, Some(here), replaced);
                self.steps.push(Step::Put { target: target.clone(), backup: false, update: true });
            }
            Some(here) if replace => {
                self.keep_orphan(path, &entry, survey);
                self.own(target, None, Some(here.clone()));
                self.steps.push(Step::Put { target: target.clone(), backup: true, update: false });
            }
            Some(here) if was(here) => {
                // An installer was killed before it replaced this file.
                self.remark(path, Why::Foreign);
                self.steps.extend(survey.has_backup(path).then(|| Step::DropBackup(path.clone())));
                self.after.files.remove(path);
            }
            Some(_) => self.remark(path, if entry.is_some() { Why::Changed } else { Why::Foreign }),
            None => {
                self.own(target, None, replaced);
                self.steps.push(Step::Put { target: target.clone(), backup: false, update: false });
            }
        }
    }

    /// The record says that `target` is ours, and so is `also` until it has been replaced.
    fn own(&mut self, target: &Target, also: Option<&Identity>, replaced: Option<Identity>) {
        let entry = |ours| Entry { kind: target.kind(), ours, replaced: replaced.clone() };
        let both = std::iter::once(target.identity.clone()).chain(also.cloned()).collect();
        self.before.files.insert(target.path.clone(), entry(both));
        self.after.files.insert(target.path.clone(), entry(vec![target.identity.clone()]));
    }

    /// A backup that no record knows is somebody's only copy.
    fn keep_orphan(&mut self, path: &Path, entry: &Option<Entry>, survey: &Survey) {
        if entry.is_none() && survey.has_backup(path) {
            self.steps.push(Step::SetAside(path.to_owned()));
        }
    }

    /// To have nothing of ours on the node.
    pub fn uninstall(survey: &Survey) -> Plan {
        let mut plan = Plan { before: survey.record.clone(), ..Plan::default() };
        plan.steps.extend(survey.drafts.iter().cloned().map(Step::Sweep));
        // The network first: nobody should start a pod whose plugins are about to go.
        for kind in [Kind::Network, Kind::Plugin] {
            for (path, entry) in survey.record.files.iter().filter(|(_, entry)| entry.kind == kind) {
                plan.take_back(path, entry, survey);
            }
        }
        let mut folders = survey.record.folders.clone();
        folders.sort_by_key(|folder| std::cmp::Reverse(folder.components().count()));
        plan.steps.extend(folders.into_iter().map(Step::RemoveFolder));
        plan
    }

    fn take_back(&mut self, path: &Path, entry: &Entry, survey: &Survey) {
        let has_backup = survey.has_backup(path);
        let own = path.to_owned();
        match survey.identity(path) {
            None if has_backup => self.steps.push(Step::Restore(own)),
            None => self.remark(path, Why::Gone),
            Some(here) if entry.ours.contains(here) => {
                let lost = entry.replaced.is_some() && !has_backup;
                self.steps.push(if has_backup { Step::Restore(own) } else { Step::Remove(own) });
                if lost {
                    self.remark(path, Why::BackupLost);
                }
            }
            Some(here) if entry.replaced.as_ref() == Some(here) => {
                self.steps.extend(has_backup.then_some(Step::DropBackup(own)));
            }
            Some(_) => {
                self.remark(path, Why::Changed);
                self.steps.extend(has_backup.then_some(Step::SetAside(own)));
            }
        }
    }

    fn remark(&mut self, path: &Path, why: Why) {
        self.remarks.push(Remark { path: path.to_owned(), why });
    }
}

impl Target {
    /// A plugin at `path`.
    pub fn plugin(path: PathBuf, identity: Identity) -> Target {
        Target { path, content: Content::Program, identity }
    }

    /// A network at `path`.
    pub fn network(path: PathBuf, text: Vec<u8>) -> Target {
        let identity = Identity::of_bytes(&text);
        Target { path, content: Content::Network(text), identity }
    }

    /// What it is to the runtime.
    pub fn kind(&self) -> Kind {
        match self.content {
            Content::Program => Kind::Plugin,
            Content::Network(_) => Kind::Network,
        }
    }
}

impl Step {
    /// In a word, for programs.
    pub fn verb(&self) -> &'static str {
        match self {
            Step::Sweep(_) => "sweep",
            Step::MakeFolder(_) => "makeFolder",
            Step::Put { backup: true, .. } => "replace",
            Step::Put { update: true, .. } => "update",
            Step::Put { .. } => "put",
            Step::Restore(_) => "restore",
            Step::Remove(_) => "remove",
            Step::DropBackup(_) => "dropBackup",
            Step::SetAside(_) => "setAside",
            Step::RemoveFolder(_) => "removeFolder",
        }
    }

    /// The file or folder that it is about.
    pub fn path(&self) -> PathBuf {
        match self {
            Step::Put { target, .. } => target.path.clone(),
            Step::SetAside(path) => aside_of(path),
            Step::Sweep(path)
            | Step::MakeFolder(path)
            | Step::Restore(path)
            | Step::Remove(path)
            | Step::DropBackup(path)
            | Step::RemoveFolder(path) => path.clone(),
        }
    }
}

impl Why {
    /// In a word, for programs.
    pub fn word(self) -> &'static str {
        match self {
            Why::AlreadyThere => "alreadyThere",
            Why::Foreign => "foreign",
            Why::Changed => "changed",
            Why::Folder => "folder",
            Why::Gone => "gone",
            Why::BackupLost => "backupLost",
        }
    }
}

#[cfg(test)]
mod tests;
