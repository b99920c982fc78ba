//! Applies a plan. If the process is killed here, the record is valid and every file is complete.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::record::{aside_of, backup_of, draft_of, sync_dir};
use crate::{Content, Error, InstallLock, InstallPlan, Kind, Result, Root, Step, Target};

/// Applies `plan`; `program` is the program of the plugins. The lock proves that no other install is running.
pub fn apply(root: &Root, plan: &InstallPlan, program: &Path, _lock: &InstallLock) -> Result<()> {
    if !plan.before.is_empty() {
        plan.before.write(root)?;
    }
    let mut installer = Installer { root, program, copies: BTreeSet::new(), unflushed: BTreeSet::new() };
    let done = plan.steps.iter().try_for_each(|step| installer.step(step));
    let cleaned = installer.drop_copies();
    done.and(cleaned)?;
    installer.flush()?;
    plan.after.write(root)
}

struct Installer<'a> {
    root: &'a Root,
    program: &'a Path,
    /// Copies of the program, one in each directory: every plugin of the directory is a hard link to it.
    copies: BTreeSet<PathBuf>,
    /// Directories to flush.
    unflushed: BTreeSet<PathBuf>,
}

impl Installer<'_> {
    fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::RemoveDraft(path) => remove(&self.root.host_path(path)),
            Step::CreateDir(path) => create_dir(&self.root.target(path)),
            Step::Put { target, backup, .. } => self.put(target, *backup),
            Step::Restore(path) => self.rename(&backup_of(path), path),
            Step::Remove(path) => {
                let place = self.changed_path(path);
                remove(&place)
            }
            Step::DropBackup(path) => remove(&self.root.host_path(&backup_of(path))),
            Step::SetAside(path) => self.rename(&backup_of(path), &aside_of(path)),
            Step::RemoveDir(path) => {
                // Fails if it contains other files.
                let _ = fs::remove_dir(self.root.target(path));
                Ok(())
            }
        }
    }

    fn put(&mut self, target: &Target, backup: bool) -> Result<()> {
        let (place, draft) = (self.changed_path(&target.path), self.root.host_path(&draft_of(&target.path)));
        if target.kind() == Kind::Network {
            // A network config that survives a power loss must find its plugins.
            self.flush()?;
        }
        match &target.content {
            Content::Program => {
                let copy = self.copy_in(&place)?;
                link_or_copy(&copy, &draft)?;
            }
            Content::Network(text) => write(&draft, 0o644, |file| file.write_all(text))?,
        }
        if backup {
            keep(&place, &self.root.host_path(&backup_of(&target.path)))?;
        }
        fs::rename(&draft, &place).map_err(Error::file("rename", &draft))
    }

    /// The copy of the program in the directory of `place`.
    fn copy_in(&mut self, place: &Path) -> Result<PathBuf> {
        let copy = draft_of(&place.with_file_name("podwire-cni"));
        if self.copies.insert(copy.clone()) {
            let mut program = File::open(self.program).map_err(Error::file("open", self.program))?;
            write(&copy, 0o755, |file| io::copy(&mut program, file).map(drop))?;
        }
        Ok(copy)
    }

    fn drop_copies(&mut self) -> Result<()> {
        std::mem::take(&mut self.copies).iter().try_for_each(|copy| remove(copy))
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (self.root.host_path(from), self.changed_path(to));
        fs::rename(&from, &to).map_err(Error::file("rename", &from))
    }

    fn changed_path(&mut self, path: &Path) -> PathBuf {
        let place = self.root.host_path(path);
        self.unflushed.extend(place.parent().map(Path::to_owned));
        place
    }

    fn flush(&mut self) -> Result<()> {
        let unflushed = std::mem::take(&mut self.unflushed);
        unflushed.iter().filter(|dir| dir.exists()).try_for_each(|dir| sync_dir(dir))
    }
}

fn write(path: &Path, mode: u32, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    remove(path)?;
    let mut file = File::create_new(path).map_err(Error::file("create", path))?;
    fill(&mut file)
        .and_then(|()| file.set_permissions(Permissions::from_mode(mode)))
        .and_then(|()| file.sync_all())
        .map_err(Error::file("write", path))
}

/// Keeps the file at `place` as `backup`, by a hard link, so that owner, mode, times and labels are restored with it.
fn keep(place: &Path, backup: &Path) -> Result<()> {
    remove(backup)?;
    link_or_copy(place, backup)
}

/// Makes a hard link to a file or symbolic link, or a copy if the file system has no hard links.
fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    remove(to)?;
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let is_link = fs::symlink_metadata(from).is_ok_and(|metadata| metadata.is_symlink());
    let copied = if is_link {
        fs::read_link(from).and_then(|target| std::os::unix::fs::symlink(target, to))
    } else {
        fs::copy(from, to).and_then(|_| File::open(to)?.sync_all())
    };
    copied.map_err(Error::file("copy", from))
}

fn create_dir(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Error::file("create", path)(error)),
        _ => Ok(()),
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
        _ => Ok(()),
    }
}
