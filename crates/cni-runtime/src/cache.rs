//! What is remembered of every attachment: `<folder>/results/<network>-<container>-<ifname>`, in libcni's format.
//!
//! A record is written before the first plugin runs, without a result, and again with it when all have run. So a
//! record without a result tells of an ADD that did not finish: what it made may be there, all of it or a part.
//! libcni reads such a record as an empty result, in every version that knows the format, and so its DEL and GC
//! can clean up after us. (A null or made-up result would say nothing more.)
//!
//! Files appear by renaming, so nobody reads half of one. They are not flushed to the disk: the interfaces and
//! rules that they tell of do not outlive the boot either, and a file that a power loss emptied stops nobody.

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

/// Everything in a cache.
#[derive(Debug, Default)]
pub struct Listing {
    /// The attachments, in the order of their files' names.
    pub records: Vec<Record>,
    /// The files that tell of no attachment, and why.
    pub problems: Vec<Problem>,
}

/// What Linux file systems take for a name.
const NAME_MAX: usize = 255;
/// New records are written in here. Readers look at the files of `results` only.
const NEW: &str = ".new";
/// How often a record is written anew because its draft was taken away.
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

    /// Where the records are.
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

    /// Every record, of this runtime and of every other that uses the folder.
    pub fn list(&self) -> Listing {
        let mut listing = Listing::default();
        let results = self.results();
        let entries = match fs::read_dir(&results) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return listing,
            Err(error) => {
                let error = Error::file("read folder", &results)(error);
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

    /// Writes a record, in place of an earlier one.
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
                // Nobody has written here yet; or a GC took the draft for one that a dead process had left.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let made = DirBuilder::new().recursive(true).mode(0o700).create(self.results().join(NEW));
                    written = made.and_then(|()| write());
                }
                _ => break,
            }
        }
        written.map_err(Error::file("write record", &record.path))
    }

    /// Writes a result into the record of its ADD. The record that is there says all that this one says but the
    /// result, and is shorter: it is written over, by one call, since a file system may wait for the disk when a
    /// file takes another one's place.
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
            // Somebody removed it, or it is another one: a new one then.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.write(record),
            other => other.map_err(Error::file("write record", &record.path)),
        }
    }

    /// Removes what was being written when somebody died. Who still writes will do so again.
    pub(crate) fn remove_drafts(&self) -> Result<()> {
        let folder = self.results().join(NEW);
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(Error::file("read folder", &folder))?,
        };
        let remove = |path: PathBuf| match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::file("remove draft", &path)(error))
            }
            _ => Ok(()),
        };
        Error::all(entries.flatten().filter_map(|entry| remove(entry.path()).err()).collect())
    }

    /// Forgets an attachment. It need not be there.
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

    /// Where a record is written before it gets its name.
    fn draft(&self, path: &Path) -> PathBuf {
        self.results().join(NEW).join(path.file_name().unwrap_or_default())
    }
}

/// Reads a file of the folder. One that vanished in the meantime is none.
fn read(path: &Path) -> Result<Option<Record>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(Error::file("read", path))?,
    };
    let unknown = || {
        podwire_cni_spec::Error::decode(
            "a bare result as runtimes wrote it before 2020: whose it is cannot be told from it",
        )
        .with_details("DEL of its container removes it")
    };
    Ok(Some(Record::parse(path, &bytes)?.ok_or_else(unknown)?))
}
