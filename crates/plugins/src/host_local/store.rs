//! The directory of a network, `<dataDir>/<network>`. A [`Store`] gives access to it and holds its lock.
//!
//! Go's host-local may use the same directory, so these files have the names and the format of its files:
//! - `lock`: every call locks it with flock(2);
//! - `<address>`: one file for each assigned address, with its container and interface ([`super::entry`]);
//! - `last_reserved_ip.<n>`: the last assigned address of a range set; `n` is the index of the set in the config.
//!
//! This plugin adds two files:
//! - `podwire.boot`: the boot in which the directory was last used ([`super::boot`]);
//! - `podwire.history`: the last pod and the release time of addresses ([`super::history`]). It exists only with
//!   `cooldown` (a released address is not assigned again for some time) or `sticky` (a pod gets its previous address).
//!
//! Address files are found by address, but ADD and DEL look for the addresses of an attachment. So there is an index
//! from attachments to addresses, outside this directory ([`super::index`]). It is used only if no other program has
//! changed the directory since this plugin wrote the index, which the directory's modification time tells. Otherwise [`Store::open_or_create`] and
//! [`Store::open_existing`] scan the directory and rebuild the index. After its last change, a call writes the index
//! ([`Store::update_index`], [`Store::replace_index`]) or confirms it ([`Store::mark_index_valid`]). If the call fails
//! before that, the next call scans.

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

/// A file of this size or more has unknown content, and its address stays reserved: a container id and an interface
/// name are shorter.
pub(super) const CONTENT_LIMIT: usize = 4096;

#[cfg(test)]
thread_local! {
    /// How often this thread scanned a directory.
    pub(super) static SCANS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The directory, locked until this is dropped.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    directory: File,
    _lock: File,
    /// The index; `None` if it cannot be used or written. Then the next call scans.
    index: Option<Index>,
    /// The result of the scan, if this call made one. `claim` and `release` do not update it.
    entries: Option<Vec<Entry>>,
}

/// The file `last_reserved_ip.<n>` of a range set.
#[derive(Debug)]
pub(super) struct LastReserved {
    path: PathBuf,
    file: Option<File>,
    /// The number of bytes read, at most 64.
    length: u64,
    /// The address, if the file contains one.
    pub(super) ip: Option<IpAddr>,
}

impl Store {
    /// Opens and locks the directory; creates it if it does not exist.
    pub(super) fn open_or_create(path: &Path, env: &Environment) -> Result<Store> {
        let directory = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
                made.and_then(|()| File::open(path)).map_err(io_error("create", path))?
            }
            opened => opened.map_err(io_error("open", path))?,
        };
        Store::lock(path, directory, env)
    }

    /// Opens and locks the directory if it exists.
    pub(super) fn open_existing(path: &Path, env: &Environment) -> Result<Option<Store>> {
        match File::open(path) {
            Err(error) if is_absent(&error) => Ok(None),
            Ok(file) if file.metadata().is_ok_and(|metadata| !metadata.is_dir()) => Ok(None),
            opened => Store::lock(path, opened.map_err(io_error("open", path))?, env).map(Some),
        }
    }

    fn lock(path: &Path, directory: File, env: &Environment) -> Result<Store> {
        let name = path.join("lock");
        let lock = match File::open(&name) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&name)
            }
            opened => opened,
        };
        let lock = lock.map_err(io_error("open", &name))?;
        while let Err(error) = lock.lock() {
            if error.kind() != ErrorKind::Interrupted {
                return Err(io_error("lock", &name)(error));
            }
        }
        let metadata = directory.metadata().map_err(io_error("stat", path))?;
        let index = Index::open(&env.index_root, &metadata);
        let is_up_to_date = index.as_ref().is_some_and(|index| index.is_up_to_date(&metadata));
        let mut store = Store { path: path.to_owned(), directory, _lock: lock, index, entries: None };
        // With a valid index, an earlier call of this boot has released the addresses of earlier boots: the index is
        // in /run, which is empty after a boot, and an index is not kept if that release fails.
        if !is_up_to_date {
            let boot = Boot::current(&env.proc);
            if boot.is_some_and(|boot| boot.release_entries_of_earlier_boots(path).is_err()) {
                // Without an index the next call tries again. Until it succeeds, some addresses stay assigned.
                store.discard_index();
            }
            store.scan()?;
        }
        Ok(store)
    }

    /// Reads all address files, removes empty ones that crashes left, and rebuilds the index. A file with unknown
    /// content, or one that cannot be read, becomes an entry with [`Holder::Unknown`]: its address stays reserved, and
    /// neither DEL nor GC releases it.
    pub(super) fn scan(&mut self) -> Result<&[Entry]> {
        #[cfg(test)]
        SCANS.set(SCANS.get() + 1);
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.path).map_err(io_error("read", &self.path))? {
            let file = file.map_err(io_error("read", &self.path))?;
            // A pipe or symlink with such a name is not an address file, and opening a pipe may block.
            let (Some(ip), Ok(true)) =
                (address(&file.file_name()), file.file_type().map(|kind| kind.is_file()))
            else {
                continue;
            };
            match self.holder_of(ip) {
                Ok(Some(Holder::Empty)) => drop(fs::remove_file(file.path())),
                Ok(Some(holder)) => entries.push(Entry { ip, holder }),
                Ok(None) => {}
                Err(_) => entries.push(Entry { ip, holder: Holder::Unknown }),
            }
        }
        self.rebuild_index(&entries);
        Ok(self.entries.insert(entries))
    }

    fn rebuild_index(&mut self, entries: &[Entry]) {
        if self.index.as_ref().is_some_and(|index| index.rebuild(entries).is_err()) {
            self.discard_index();
        }
    }

    /// Makes the index invalid: neither this call nor a later one uses it before it is rebuilt.
    fn discard_index(&mut self) {
        if let Some(index) = self.index.take() {
            let _ = index.invalidate();
        }
    }

    /// The content of the file of an address; `None` if there is no such file.
    pub(super) fn holder_of(&self, ip: IpAddr) -> Result<Option<Holder>> {
        let path = self.address_path(ip);
        let mut buffer = [0; CONTENT_LIMIT];
        match File::open(&path).and_then(|mut file| file.read(&mut buffer)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("read", &path)(error)),
            Ok(CONTENT_LIMIT) => Ok(Some(Holder::Unknown)),
            Ok(read) => Ok(Some(Holder::parse(&buffer[..read]))),
        }
    }

    /// The addresses of an attachment. An address file that names a container without an interface (from before 2019)
    /// counts for each attachment of that container.
    pub(super) fn addresses_of(&mut self, owner: &AttachmentId) -> Result<Vec<Entry>> {
        if self.entries.is_none() {
            match self.index.as_ref().map(|index| index.find(owner)) {
                Some(Ok(hints)) => return self.verify(&hints, owner),
                _ => drop(self.scan()?),
            }
        }
        let entries = self.entries.iter().flatten();
        Ok(entries.filter(|entry| entry.holder.is(owner)).cloned().collect())
    }

    /// The hints of the index that are true: the address file decides.
    fn verify(&self, hints: &[IpAddr], owner: &AttachmentId) -> Result<Vec<Entry>> {
        let mut verified = Vec::with_capacity(hints.len());
        for ip in hints {
            if let Some(holder) = self.holder_of(*ip)?.filter(|holder| holder.is(owner)) {
                verified.push(Entry { ip: *ip, holder });
            }
        }
        Ok(verified)
    }

    /// Assigns an address by creating its file. Returns false if a file with this name exists and is not empty.
    pub(super) fn claim(&self, ip: IpAddr, owner: &AttachmentId) -> Result<bool> {
        let path = self.address_path(ip);
        let create = || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let mut created = create();
        if created.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
            if !is_empty(&path) {
                return Ok(false);
            }
            // Do not write into the existing file: that would not change the directory's modification time. If this
            // process then died before it wrote the index, the next call would consider the index valid.
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
            created = create();
        }
        let mut file = created.map_err(io_error("create", &path))?;
        match file.write_all(owner.content().as_bytes()) {
            Ok(()) => Ok(true),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(io_error("write", &path)(error))
            }
        }
    }

    /// Releases an address.
    pub(super) fn release(&self, ip: IpAddr) -> Result<()> {
        let path = self.address_path(ip);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// All addresses that have a file; see [`addresses_with_file`].
    pub(super) fn addresses_with_file(&self) -> Result<HashSet<IpAddr>> {
        addresses_with_file(&self.path).map_err(io_error("read", &self.path))
    }

    /// The last assigned address of a range set. `set` is its index in `Config::sets`: the range sets of the runtime
    /// come first, then `ipam.subnet`, then `ipam.ranges`. A file with invalid content counts as missing.
    pub(super) fn last_reserved(&self, set: usize) -> LastReserved {
        let path = self.path.join(format!("last_reserved_ip.{set}"));
        let mut buffer = [0; 64];
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let read = opened.and_then(|file| Ok((file.read_at(&mut buffer, 0)?, file)));
        let Ok((length, file)) = read else { return LastReserved { path, file: None, length: 0, ip: None } };
        let ip = std::str::from_utf8(&buffer[..length]).ok().and_then(|text| text.trim().parse().ok());
        LastReserved { path, file: Some(file), length: length as u64, ip }
    }

    /// Updates the index after the last change of this call: the attachment has the addresses `ips` now.
    pub(super) fn update_index(&mut self, owner: &AttachmentId, ips: &[IpAddr]) {
        let Some(index) = &self.index else { return };
        let written = match ips {
            [] => {
                index.remove(owner);
                Ok(())
            }
            _ => index.record(owner, ips),
        };
        match written {
            Ok(()) => self.mark_index_valid(),
            Err(_) => self.discard_index(),
        }
    }

    /// Writes the whole index after the last change of this call: the directory contains `entries` now.
    pub(super) fn replace_index(&mut self, entries: &[Entry]) {
        self.rebuild_index(entries);
        self.mark_index_valid();
    }

    /// Marks the index as valid for the directory's current content. Call this after the last change.
    pub(super) fn mark_index_valid(&self) {
        if let Some(index) = &self.index {
            // If it fails, the next call scans.
            let _ = index.mark_valid(&self.directory);
        }
    }

    /// Whether this call scanned the directory. Then it must mark the rebuilt index as valid even without a change.
    pub(super) fn was_scanned(&self) -> bool {
        self.entries.is_some()
    }

    /// The path of the file of an address.
    pub(super) fn address_path(&self, ip: IpAddr) -> PathBuf {
        self.path.join(ip.to_string())
    }
}

impl LastReserved {
    /// Writes the address. The file is not truncated to 0 bytes first: ext4 (with its default `auto_da_alloc`) and XFS
    /// start to write such a file to disk when it is closed, which would slow down every ADD.
    pub(super) fn set(self, ip: IpAddr) -> Result<()> {
        let LastReserved { path, file, length, .. } = self;
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
        written.map_err(io_error("write", &path))
    }
}

/// Whether no file with this path exists, or none can exist because the path is not valid.
fn is_absent(error: &io::Error) -> bool {
    use ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename | InvalidInput)
}

/// Whether this is an empty address file, which a crash left.
pub(super) fn is_empty(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}

/// The addresses after which files are named, without opening the files. Names of pipes, directories and files with
/// unknown content count, because [`Store::claim`] refuses them too. Empty files also count, although `claim` would
/// replace them: a scan has removed those that a crash left.
pub(super) fn addresses_with_file(path: &Path) -> io::Result<HashSet<IpAddr>> {
    let mut addresses = HashSet::new();
    for file in fs::read_dir(path)? {
        addresses.extend(address(&file?.file_name()));
    }
    Ok(addresses)
}

/// An I/O error (code 5) that names the operation and the file, with a hint.
pub(super) fn io_error<'p>(
    operation: &'p str,
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
        let text = format!("{operation} {}: {error}", path.display());
        podwire_cni_spec::Error::new(code::IO, text).with_details(hint).into()
    }
}
