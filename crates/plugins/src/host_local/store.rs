//! A network's folder, `<dataDir>/<network>`, under its lock.
//!
//! The files equal those of the reference plugin byte for byte, because it may use the same folder: `lock`, which is
//! locked with flock(2), one file for each assigned address ([`super::entry`]), and `last_reserved_ip.<set>` with the
//! last assigned address. This plugin adds `podwire.boot` ([`super::boot`]) and, for `cooldown` and `sticky`,
//! `podwire.history` ([`super::history`]).

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwire_cni_plugin::Result;
use podwire_cni_spec::code;

use super::boot::Boot;
use super::entry::{address, AttachmentId, Entry, Holder};
use super::environment::Environment;
use super::index::Index;

/// More than an id and an interface's name: longer files are not address files.
const CONTENT_LIMIT: usize = 4096;

#[cfg(test)]
thread_local! {
    /// How often this thread read a whole folder.
    pub(super) static SCANS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The folder, locked until dropped.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    folder: File,
    _lock: File,
    index: Option<Index>,
    /// All entries of the folder, if it was read.
    entries: Option<Vec<Entry>>,
}

/// The last assigned address of a set, and its file.
#[derive(Debug)]
pub(super) struct Last {
    path: PathBuf,
    file: Option<File>,
    length: u64,
    /// The address, if the file holds one.
    pub(super) ip: Option<IpAddr>,
}

impl Store {
    /// Locks the folder, which is created if it is missing.
    pub(super) fn create(path: &Path, env: &Environment) -> Result<Store> {
        let folder = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
                made.and_then(|()| File::open(path)).map_err(failed("create", path))?
            }
            opened => opened.map_err(failed("open", path))?,
        };
        Store::lock(path, folder, env)
    }

    /// Locks the folder if it exists.
    pub(super) fn find(path: &Path, env: &Environment) -> Result<Option<Store>> {
        match File::open(path) {
            Err(error) if is_absent(&error) => Ok(None),
            Ok(file) if file.metadata().is_ok_and(|metadata| !metadata.is_dir()) => Ok(None),
            opened => Store::lock(path, opened.map_err(failed("open", path))?, env).map(Some),
        }
    }

    fn lock(path: &Path, folder: File, env: &Environment) -> Result<Store> {
        let name = path.join("lock");
        let lock = match File::open(&name) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&name)
            }
            opened => opened,
        };
        let lock = lock.map_err(failed("open", &name))?;
        while let Err(error) = lock.lock() {
            if error.kind() != ErrorKind::Interrupted {
                return Err(failed("lock", &name)(error));
            }
        }
        let metadata = folder.metadata().map_err(failed("stat", path))?;
        let index = Index::open(&env.index_root, &metadata);
        let is_fresh = index.as_ref().is_some_and(|index| index.is_fresh(&metadata));
        let mut store = Store { path: path.to_owned(), folder, _lock: lock, index, entries: None };
        // A fresh index was created in this boot, because /run does not survive a reboot.
        if !is_fresh {
            if let Some(boot) = Boot::current(&env.proc) {
                // If this fails, the next call tries again. Until then some addresses stay assigned.
                let _ = boot.release_older(path);
            }
            store.read()?;
        }
        Ok(store)
    }

    /// Reads the whole folder, removes empty files that crashes left, and rebuilds the index.
    pub(super) fn read(&mut self) -> Result<&[Entry]> {
        #[cfg(test)]
        SCANS.set(SCANS.get() + 1);
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.path).map_err(failed("read", &self.path))? {
            let file = file.map_err(failed("read", &self.path))?;
            // A pipe or symlink with such a name is no address file, and opening a pipe may block.
            let (Some(ip), Ok(true)) =
                (address(&file.file_name()), file.file_type().map(|kind| kind.is_file()))
            else {
                continue;
            };
            match self.holder(ip) {
                Ok(Some(Holder::Empty)) => drop(fs::remove_file(file.path())),
                Ok(Some(holder)) => entries.push(Entry { ip, holder }),
                Ok(None) => {}
                Err(_) => entries.push(Entry { ip, holder: Holder::Unknown }),
            }
        }
        self.reindex(&entries);
        Ok(self.entries.insert(entries))
    }

    fn reindex(&mut self, entries: &[Entry]) {
        if self.index.as_ref().is_some_and(|index| index.rebuild(entries).is_err()) {
            self.index = None;
        }
    }

    /// Who has the address; `None` if it is free.
    pub(super) fn holder(&self, ip: IpAddr) -> Result<Option<Holder>> {
        let path = self.file(ip);
        let mut buffer = [0; CONTENT_LIMIT];
        match File::open(&path).and_then(|mut file| file.read(&mut buffer)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error)),
            Ok(CONTENT_LIMIT) => Ok(Some(Holder::Unknown)),
            Ok(read) => Ok(Some(Holder::parse(&buffer[..read]))),
        }
    }

    /// The addresses of an attachment, including entries without an interface, which count for all interfaces of a
    /// container.
    pub(super) fn held(&mut self, owner: &AttachmentId) -> Result<Vec<Entry>> {
        if self.entries.is_none() {
            match self.index.as_ref().map(|index| index.find(owner)) {
                Some(Ok(hints)) => return self.verify(&hints, owner),
                _ => drop(self.read()?),
            }
        }
        let entries = self.entries.iter().flatten();
        Ok(entries.filter(|entry| entry.holder.is(owner)).cloned().collect())
    }

    fn verify(&self, hints: &[IpAddr], owner: &AttachmentId) -> Result<Vec<Entry>> {
        let mut held = Vec::with_capacity(hints.len());
        for ip in hints {
            if let Some(holder) = self.holder(*ip)?.filter(|holder| holder.is(owner)) {
                held.push(Entry { ip: *ip, holder });
            }
        }
        Ok(held)
    }

    /// Claims an address. Returns false if it is taken.
    pub(super) fn claim(&self, ip: IpAddr, owner: &AttachmentId) -> Result<bool> {
        let path = self.file(ip);
        let create = || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let mut created = create();
        if created.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
            if !is_empty(&path) {
                return Ok(false);
            }
            // Removed and created again, instead of written: the folder's modification time must change, or a crash of
            // this process would go unnoticed.
            fs::remove_file(&path).map_err(failed("remove", &path))?;
            created = create();
        }
        let mut file = created.map_err(failed("create", &path))?;
        match file.write_all(owner.content().as_bytes()) {
            Ok(()) => Ok(true),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(failed("write", &path)(error))
            }
        }
    }

    /// Releases an address.
    pub(super) fn release(&self, ip: IpAddr) -> Result<()> {
        let path = self.file(ip);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// All addresses that have a file, without reading the files.
    pub(super) fn taken(&self) -> Result<HashSet<IpAddr>> {
        taken(&self.path).map_err(failed("read", &self.path))
    }

    /// The last assigned address of the set with this number. An invalid file counts as missing.
    pub(super) fn last(&self, set: usize) -> Last {
        let path = self.path.join(format!("last_reserved_ip.{set}"));
        let mut buffer = [0; 64];
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let read = opened.and_then(|file| Ok((file.read_at(&mut buffer, 0)?, file)));
        let Ok((length, file)) = read else { return Last { path, file: None, length: 0, ip: None } };
        let ip = std::str::from_utf8(&buffer[..length]).ok().and_then(|text| text.trim().parse().ok());
        Last { path, file: Some(file), length: length as u64, ip }
    }

    /// Updates the index after a change: the attachment has `ips` now.
    pub(super) fn finish(&self, owner: &AttachmentId, ips: &[IpAddr]) {
        let Some(index) = &self.index else { return };
        let recorded = match ips {
            [] => {
                index.forget(owner);
                Ok(())
            }
            _ => index.record(owner, ips),
        };
        if recorded.is_ok() {
            self.seal();
        }
    }

    /// Updates the index after a change of the whole folder, which has `entries` now.
    pub(super) fn finish_all(&mut self, entries: &[Entry]) {
        self.reindex(entries);
        self.seal();
    }

    /// Marks the index as valid. Call this after the last change.
    pub(super) fn seal(&self) {
        if let Some(index) = &self.index {
            // If it fails, the next call reads the folder.
            let _ = index.seal(&self.folder);
        }
    }

    /// Whether the folder was read, so that the index must be sealed even if nothing changed.
    pub(super) fn was_read(&self) -> bool {
        self.entries.is_some()
    }

    /// The file of an address.
    pub(super) fn file(&self, ip: IpAddr) -> PathBuf {
        self.path.join(ip.to_string())
    }
}

impl Last {
    /// Writes the address. The file is not truncated first, because some filesystems flush truncated files to disk.
    pub(super) fn set(self, ip: IpAddr) -> Result<()> {
        let Last { path, file, length, .. } = self;
        let text = ip.to_string();
        let file = match file {
            Some(file) => Ok(file),
            None => OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path),
        };
        let written = file.and_then(|file| {
            file.write_all_at(text.as_bytes(), 0)?;
            if length > text.len() as u64 {
                file.set_len(text.len() as u64)?;
            }
            Ok(())
        });
        written.map_err(failed("write", &path))
    }
}

/// Whether the file does not exist, or cannot exist because its name is impossible.
fn is_absent(error: &io::Error) -> bool {
    use ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename | InvalidInput)
}

/// Whether this is an empty address file, which a crash left.
pub(super) fn is_empty(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}

/// The addresses that have a file in a network's folder.
pub(super) fn taken(path: &Path) -> io::Result<HashSet<IpAddr>> {
    let mut taken = HashSet::new();
    for file in fs::read_dir(path)? {
        taken.extend(address(&file?.file_name()));
    }
    Ok(taken)
}

/// An error (code 5) that names the file, with a hint.
pub(super) fn failed<'p>(
    doing: &'p str,
    path: &'p Path,
) -> impl Fn(io::Error) -> podwire_cni_plugin::Error + 'p {
    move |error| {
        let hint = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space on that filesystem",
            ErrorKind::ReadOnlyFilesystem => "remount it writable, or choose another ipam.dataDir",
            ErrorKind::PermissionDenied => "run as root, or choose another ipam.dataDir",
            ErrorKind::NotADirectory => "choose another ipam.dataDir",
            _ => "",
        };
        let text = format!("{doing} {}: {error}", path.display());
        podwire_cni_spec::Error::new(code::IO, text).with_details(hint).into()
    }
}
