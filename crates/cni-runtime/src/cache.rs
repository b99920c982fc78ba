//! The record of every attachment: `<folder>/results/<network>-<container>-<ifname>`, in libcni's format.
//!
//! A record is written before the first plugin runs, without a result, and again with it when all have run. So a
//! record without a result belongs to an ADD that did not finish: its objects may exist, all or some of them.
//! libcni reads such a record as an empty result, in every version that knows the format, so its DEL and GC
//! can clean up after Podwire.
//!
//! Files are created by renaming, so no reader sees a part of one. They are not flushed to disk: the interfaces and
//! rules that they describe do not survive a boot either, and a file that a power loss emptied causes no error.
//!
//! The temporary file is in `.new` instead of beside the record (as `podwire_fs::replace` puts it), because libcni reads every
//! file of `results`.

mod record;

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub(crate) use record::in_version;
pub use record::Record;

use crate::{Error, Identity, Problem, Result};

/// The records of all attachments.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// The content of a cache.
#[derive(Debug, Default)]
pub struct Listing {
    /// The records, sorted by file name.
    pub records: Vec<Record>,
    /// The files that are not records, and why.
    pub problems: Vec<Problem>,
}

/// The longest file name of Linux file systems.
const NAME_MAX: usize = 255;
/// The directory of temporary files. Readers read the files of `results` only.
const NEW: &str = ".new";
/// How often a record is written again because its temporary file was removed.
const ATTEMPTS: usize = 10;

impl Default for Cache {
    /// `/var/lib/cni`, where libcni has it.
    fn default() -> Self {
        Cache::new("/var/lib/cni")
    }
}

impl Cache {
    /// The cache in `folder`, which need not exist.
    pub fn new(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: folder.into() }
    }

    /// The directory of the records.
    pub fn results(&self) -> PathBuf {
        self.folder.join("results")
    }

    /// The file of an attachment (code 4 if its name would be too long for a file).
    pub fn path(&self, network: &str, container: &str, ifname: &str) -> Result<PathBuf> {
        let name = format!("{network}-{container}-{ifname}");
        if name.len() <= NAME_MAX {
            return Ok(self.results().join(name));
        }
        let text = format!(
            "the names of network {network:?}, container {container:?} and interface {ifname:?} are too long"
        );
        let hint = format!(
            "together they may have {} bytes: the record of the attachment is named after them",
            NAME_MAX - 2
        );
        Err(podwire_cni_spec::Error::env(text).with_details(hint).into())
    }

    /// The record of an attachment, if there is one. An error if it cannot be read or is another attachment's.
    pub fn find(&self, network: &str, identity: &Identity) -> Result<Option<Record>> {
        let path = self.path(network, &identity.container, &identity.ifname)?;
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(Error::file("read", &path))?,
        };
        let record = match Record::parse(&path, &bytes)? {
            Some(record) => record,
            None => Record::legacy(&path, &bytes, network, identity)?,
        };
        let (container, ifname) = (identity.container.as_str(), identity.ifname.as_str());
        if (&*record.network, &*record.container, &*record.ifname) == (network, container, ifname) {
            return Ok(Some(record));
        }
        let owner = format!("{}/{}/{}", record.network, record.container, record.ifname);
        Err(Error::Foreign { path, owner })
    }

    /// Every record, of this runtime and of all others that use the directory.
    pub fn list(&self) -> Listing {
        let mut listing = Listing::default();
        let results = self.results();
        let entries = match fs::read_dir(&results) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return listing,
            Err(error) => {
                let error = Error::file("read directory", &results)(error);
                listing.problems.push(Problem { path: results, error });
                return listing;
            }
        };
        let mut paths: Vec<_> =
            entries.flatten().map(|entry| entry.path()).filter(|path| !path.is_dir()).collect();
        paths.sort();
        for path in paths {
            match read(&path) {
                Ok(Some(record)) => listing.records.push(record),
                Ok(None) => {}
                Err(error) => listing.problems.push(Problem { path, error }),
            }
        }
        listing
    }

    /// Writes a record, replacing an earlier one.
    pub(crate) fn write(&self, record: &Record) -> Result<()> {
        let (new, text) = (self.draft(&record.path), record.to_text());
        let write = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&new, &record.path)
        };
        let mut written = write();
        for _ in 1..ATTEMPTS {
            match &written {
                // The directory does not exist yet, or a GC removed the temporary file as that of a dead process.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let made = DirBuilder::new().recursive(true).mode(0o700).create(self.results().join(NEW));
                    written = made.and_then(|()| write());
                }
                _ => break,
            }
        }
        written.map_err(Error::file("write record", &record.path))
    }

    /// Adds the result to the record of an ADD. The existing record is the same without the result, and shorter. It is
    /// overwritten in place by one write(2), because some file systems wait for the disk when a rename replaces a file.
    pub(crate) fn complete(&self, record: &Record) -> Result<()> {
        let text = record.to_text();
        let over = || -> io::Result<()> {
            let file = OpenOptions::new().write(true).open(&record.path)?;
            if file.metadata()?.len() > text.len() as u64 {
                return Err(io::ErrorKind::NotFound.into());
            }
            file.write_all_at(text.as_bytes(), 0)
        };
        match over() {
            // It was removed or replaced: write a new one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.write(record),
            other => other.map_err(Error::file("write record", &record.path)),
        }
    }

    /// Removes temporary files of killed processes. A process that is still writing writes again.
    pub(crate) fn remove_drafts(&self) -> Result<()> {
        let folder = self.results().join(NEW);
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(Error::file("read directory", &folder))?,
        };
        let remove = |path: PathBuf| match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", &path)(error)),
            _ => Ok(()),
        };
        Error::all(entries.flatten().filter_map(|entry| remove(entry.path()).err()).collect())
    }

    /// Removes a record, if it exists.
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        for path in [self.draft(path).as_path(), path] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::file("remove record", path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The temporary file of a record.
    fn draft(&self, path: &Path) -> PathBuf {
        self.results().join(NEW).join(path.file_name().unwrap_or_default())
    }
}

/// Reads a file; `None` if it was removed meanwhile.
fn read(path: &Path) -> Result<Option<Record>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(Error::file("read", path))?,
    };
    let unknown = || {
        podwire_cni_spec::Error::decode(
            "a bare result, as runtimes wrote before 2020: it does not name its attachment",
        )
        .with_details("DEL of its container removes it")
    };
    Ok(Some(Record::parse(path, &bytes)?.ok_or_else(unknown)?))
}
