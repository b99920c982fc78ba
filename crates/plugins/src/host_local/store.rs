//! A network's folder, `<dataDir>/<network>`, under its lock.
//!
//! Files, byte for byte as the reference plugin has them, because it may work in the same folder:
//! `lock` (flock(2) is taken on it), one file for each address that is taken ([`super::entry`]), and
//! `last_reserved_ip.<set>` with the address that was given last. Ours adds `podwire.boot` ([`super::boot`]) and, where
//! the config asks for it, `podwire.history` ([`super::history`]).

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwire_cni_plugin::Result;
use podwire_cni_spec::code;

use super::boot::Boot;
use super::entry::{address, Entry, Holder, Owner};
use super::index::Index;
use super::Surroundings;

/// More than an id and an interface's name; what is longer is not ours.
const CONTENT_LIMIT: usize = 4096;

/// The folder, locked until dropped.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    folder: File,
    _lock: File,
    index: Option<Index>,
    /// Everything in the folder, if it had to be read.
    entries: Option<Vec<Entry>>,
}

/// The address that a set gave last, and the file that says so.
#[derive(Debug)]
pub(super) struct Last {
    path: PathBuf,
    file: Option<File>,
    length: u64,
    /// The address, if one is written down.
    pub(super) ip: Option<IpAddr>,
}

impl Store {
    /// Locks the folder, which is made if it is missing.
    pub(super) fn create(path: &Path, place: &Surroundings) -> Result<Store> {
        let folder = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
                made.and_then(|()| File::open(path)).map_err(failed("create", path))?
            }
            opened => opened.map_err(failed("open", path))?,
        };
        Store::lock(path, folder, place)
    }

    /// Locks the folder if there is one.
    pub(super) fn find(path: &Path, place: &Surroundings) -> Result<Option<Store>> {
        match File::open(path) {
            Err(error) if is_absent(&error) => Ok(None),
            Ok(file) if file.metadata().is_ok_and(|metadata| !metadata.is_dir()) => Ok(None),
            opened => Store::lock(path, opened.map_err(failed("open", path))?, place).map(Some),
        }
    }

    fn lock(path: &Path, folder: File, place: &Surroundings) -> Result<Store> {
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
        let index = Index::open(&place.index_root, &metadata);
        let fresh = index.as_ref().is_some_and(|index| index.is_fresh(&metadata));
        let mut store = Store { path: path.to_owned(), folder, _lock: lock, index, entries: None };
        // An index that is fresh was made in this boot: it is where nothing outlives one.
        if !fresh {
            if let Some(boot) = Boot::current(&place.proc) {
                // What cannot be swept now is swept the next time, and until then nothing is lost but addresses.
                let _ = boot.sweep(path);
            }
            store.read()?;
        }
        Ok(store)
    }

    /// Reads the whole folder, removes what crashes left, and starts the index anew.
    pub(super) fn read(&mut self) -> Result<&[Entry]> {
        #[cfg(test)]
        super::tests::count_a_scan();
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.path).map_err(failed("read", &self.path))? {
            let file = file.map_err(failed("read", &self.path))?;
            // A pipe or a link with such a name is not ours, and opening it may never return.
            let (Some(ip), Ok(true)) =
                (address(&file.file_name()), file.file_type().map(|kind| kind.is_file()))
            else {
                continue;
            };
            match self.holder(ip) {
                Ok(Some(Holder::Nobody)) => drop(fs::remove_file(file.path())),
                Ok(Some(holder)) => entries.push(Entry { ip, holder }),
                Ok(None) => {}
                Err(_) => entries.push(Entry { ip, holder: Holder::Stranger }),
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

    /// Whose the address is; None if it is free.
    pub(super) fn holder(&self, ip: IpAddr) -> Result<Option<Holder>> {
        let path = self.file(ip);
        let mut buffer = [0; CONTENT_LIMIT];
        match File::open(&path).and_then(|mut file| file.read(&mut buffer)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error)),
            Ok(CONTENT_LIMIT) => Ok(Some(Holder::Stranger)),
            Ok(read) => Ok(Some(Holder::parse(&buffer[..read]))),
        }
    }

    /// The addresses of an owner. Old entries, which are for all interfaces of a container, count.
    pub(super) fn held(&mut self, owner: &Owner) -> Result<Vec<Entry>> {
        if self.entries.is_none() {
            match self.index.as_ref().map(|index| index.find(owner)) {
                Some(Ok(hints)) => return self.verify(&hints, owner),
                _ => drop(self.read()?),
            }
        }
        let entries = self.entries.iter().flatten();
        Ok(entries.filter(|entry| entry.holder.is(owner)).cloned().collect())
    }

    fn verify(&self, hints: &[IpAddr], owner: &Owner) -> Result<Vec<Entry>> {
        let mut held = Vec::with_capacity(hints.len());
        for ip in hints {
            if let Some(holder) = self.holder(*ip)?.filter(|holder| holder.is(owner)) {
                held.push(Entry { ip: *ip, holder });
            }
        }
        Ok(held)
    }

    /// Takes an address. False if somebody has it.
    pub(super) fn claim(&self, ip: IpAddr, owner: &Owner) -> Result<bool> {
        let path = self.file(ip);
        let create = || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let mut created = create();
        if created.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
            if !is_empty(&path) {
                return Ok(false);
            }
            // Not written to as it is: the folder's time must change, lest this be unseen if we die.
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

    /// Gives an address back.
    pub(super) fn release(&self, ip: IpAddr) -> Result<()> {
        let path = self.file(ip);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Every address that has a file, without a look into them.
    pub(super) fn taken(&self) -> Result<HashSet<IpAddr>> {
        taken(&self.path).map_err(failed("read", &self.path))
    }

    /// The address that the set with this number gave last. A file that makes no sense is as good as none.
    pub(super) fn last(&self, set: usize) -> Last {
        let path = self.path.join(format!("last_reserved_ip.{set}"));
        let mut buffer = [0; 64];
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let read = opened.and_then(|file| Ok((file.read_at(&mut buffer, 0)?, file)));
        let Ok((length, file)) = read else { return Last { path, file: None, length: 0, ip: None } };
        let ip = std::str::from_utf8(&buffer[..length]).ok().and_then(|text| text.trim().parse().ok());
        Last { path, file: Some(file), length: length as u64, ip }
    }

    /// All is done: `ips` are the owner's now.
    pub(super) fn keep(&self, owner: &Owner, ips: &[IpAddr]) {
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

    /// All is done: `entries` are what is left of the folder.
    pub(super) fn keep_all(&mut self, entries: &[Entry]) {
        self.reindex(entries);
        self.seal();
    }

    /// The index says what the folder says. To be called after the last change.
    pub(super) fn seal(&self) {
        if let Some(index) = &self.index {
            // If it fails the folder is read again next time.
            let _ = index.seal(&self.folder);
        }
    }

    /// Whether the folder had to be read, so that the index is to be sealed even if nothing else changed.
    pub(super) fn was_read(&self) -> bool {
        self.entries.is_some()
    }

    /// The file of an address.
    pub(super) fn file(&self, ip: IpAddr) -> PathBuf {
        self.path.join(ip.to_string())
    }
}

impl Last {
    /// Writes down the next one. Not by truncating: some filesystems flush a file that was.
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

/// Whether there is no such file, or none can be: an impossible name was never made.
fn is_absent(error: &io::Error) -> bool {
    use ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename | InvalidInput)
}

/// Whether this is an address file that a crash left without content.
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

/// An error (code 5) that names the file, and says what helps.
pub(super) fn failed<'p>(
    doing: &'p str,
    path: &'p Path,
) -> impl Fn(io::Error) -> podwire_cni_plugin::Error + 'p {
    move |error| {
        let hint = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space on that filesystem",
            ErrorKind::ReadOnlyFilesystem => "remount it writable, or choose another ipam.dataDir",
            ErrorKind::PermissionDenied => "root is needed, or another ipam.dataDir",
            ErrorKind::NotADirectory => "choose another ipam.dataDir",
            _ => "",
        };
        let text = format!("{doing} {}: {error}", path.display());
        podwire_cni_spec::Error::new(code::IO, text).with_details(hint).into()
    }
}
