//! Doing what a plan says. Whoever is killed here leaves a record that is true, and files that are whole.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::record::{aside_of, backup_of, draft_of, sync_folder};
use crate::{Content, Error, Kind, Plan, Result, Root, Step, Target, Turn};

/// Applies `plan`; `program` is the plugins' program. A [`Turn`] shows that nobody else is at it.
pub fn apply(root: &Root, plan: &Plan, program: &Path, _turn: &Turn) -> Result<()> {
    if !plan.before.is_empty() {
        plan.before.write(root)?;
    }
    let mut hand = Hand { root, program, copies: BTreeSet::new(), touched: BTreeSet::new() };
    let done = plan.steps.iter().try_for_each(|step| hand.step(step));
    let cleaned = hand.drop_copies();
    done.and(cleaned)?;
    hand.settle()?;
    plan.after.write(root)
}

struct Hand<'a> {
    root: &'a Root,
    program: &'a Path,
    /// Copies of the program, one in each folder: every plugin of the folder is a link to it.
    copies: BTreeSet<PathBuf>,
    /// Folders in which names were changed.
    touched: BTreeSet<PathBuf>,
}

impl Hand<'_> {
    fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Sweep(path) => remove(&self.root.place(path)),
            Step::MakeFolder(path) => make_folder(&self.root.target(path)),
            Step::Put { target, backup, .. } => self.put(target, *backup),
            Step::Restore(path) => self.rename(&backup_of(path), path),
            Step::Remove(path) => {
                let place = self.place(path);
                remove(&place)
            }
            Step::DropBackup(path) => remove(&self.root.place(&backup_of(path))),
            Step::SetAside(path) => self.rename(&backup_of(path), &aside_of(path)),
            Step::RemoveFolder(path) => {
                // Somebody else's file in it keeps it.
                let _ = fs::remove_dir(self.root.target(path));
                Ok(())
            }
        }
    }

    fn put(&mut self, target: &Target, backup: bool) -> Result<()> {
        let (place, draft) = (self.place(&target.path), self.root.place(&draft_of(&target.path)));
        if target.kind() == Kind::Network {
            // A network that outlives a power cut finds its plugins.
            self.settle()?;
        }
        match &target.content {
            Content::Program => {
                let copy = self.copy_in(&place)?;
                link_or_copy(&copy, &draft)?;
            }
            Content::Network(text) => write(&draft, 0o644, |file| file.write_all(text))?,
        }
        if backup {
            keep(&place, &self.root.place(&backup_of(&target.path)))?;
        }
        fs::rename(&draft, &place).map_err(Error::file("rename", &draft))
    }

    /// The copy of the program in the folder of `place`.
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
        let (from, to) = (self.root.place(from), self.place(to));
        fs::rename(&from, &to).map_err(Error::file("rename", &from))
    }

    fn place(&mut self, path: &Path) -> PathBuf {
        let place = self.root.place(path);
        self.touched.extend(place.parent().map(Path::to_owned));
        place
    }

    fn settle(&mut self) -> Result<()> {
        let touched = std::mem::take(&mut self.touched);
        touched.iter().filter(|folder| folder.exists()).try_for_each(|folder| sync_folder(folder))
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

/// Keeps what is at `place` as `backup`: the same file under a second name, so that owner, mode, times and labels come
/// back with it.
fn keep(place: &Path, backup: &Path) -> Result<()> {
    remove(backup)?;
    link_or_copy(place, backup)
}

/// A second name for a file (or for a link), or a copy where the file system has no second names.
fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    remove(to)?;
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let is_link = fs::symlink_metadata(from).is_ok_and(|metadata| metadata.is_symlink());
    let copied = match is_link {
        true => fs::read_link(from).and_then(|target| std::os::unix::fs::symlink(target, to)),
        false => fs::copy(from, to).and_then(|_| File::open(to)?.sync_all()),
    };
    copied.map_err(Error::file("copy", from))
}

fn make_folder(path: &Path) -> Result<()> {
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
