//! What was rendered for each attachment: one file each, in the folder and the format of the Go plugin, so that
//! pods which one of them attached can be detached by the other.
//!
//! Go names the file after the container, and so one that has a second interface of flannel's forgets the first.
//! Ours writes the first interface where Go does, and further ones to `<container>@<interface>`; no container has
//! an `@` in its name. The file of the first one says which interface it is for; one that Go wrote does not.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwire_cni_plugin::{Error, Request, Result, Valid};
use podwire_cni_spec::json;
use serde_json::Value;

use super::render::IFNAME;

/// Where the Go plugin keeps its files, unless a config says otherwise.
pub const DATA_DIR: &str = "/var/lib/cni/flannel";
/// A file that is being written; it gets its name when it is whole. No container's name begins with a dot.
const UNFINISHED: &str = ".new";
/// How often a file is written anew because a GC took the unfinished one away.
const ATTEMPTS: usize = 10;

/// The files of one attachment.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
    network: String,
    container: String,
    ifname: String,
}

/// A file that is there.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    bytes: Vec<u8>,
    /// The delegate's config; none if the file makes no sense, as one that Go wrote while the power failed.
    pub(super) config: Option<Value>,
}

/// A file that was written, and what it took the place of.
#[derive(Debug)]
pub(super) struct Saved {
    scratch: Scratch,
    path: PathBuf,
    before: Option<Vec<u8>>,
}

impl Scratch {
    /// Those of the request's attachment.
    pub(super) fn of(req: &Request<'_>) -> Scratch {
        Scratch {
            folder: folder(req),
            network: req.network.to_string(),
            container: req.container.clone(),
            ifname: req.ifname.clone(),
        }
    }

    /// The file of this attachment: by its own name, else the container's first.
    pub(super) fn find(&self) -> Result<Option<Found>> {
        for path in [self.further(), self.first()] {
            let Some(found) = read(&path)? else { continue };
            let text = |key| found.config.as_ref().and_then(|config| json::get(config, key)?.as_str());
            let is_ours = found.config.is_none()
                || (text("name").is_none_or(|name| name == self.network)
                    && text(IFNAME).is_none_or(|ifname| ifname == self.ifname));
            if is_ours {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Writes down what the delegate gets, before it gets it.
    pub(super) fn save(self, config: &Value) -> Result<Saved> {
        let before = self.find()?;
        let mut written = self.put(config.to_string().as_bytes(), before.as_ref().map(|found| &*found.path));
        for _ in 1..ATTEMPTS {
            match &written {
                // A GC of another network took the unfinished file for one that a dead process left.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    written =
                        self.put(config.to_string().as_bytes(), before.as_ref().map(|found| &*found.path));
                }
                _ => break,
            }
        }
        let path = written.map_err(|source| failed("write", &self.first(), source))?;
        Ok(Saved { scratch: self, path, before: before.map(|found| found.bytes) })
    }

    /// The file appears whole, under the name that it had before, else the first that is free.
    fn put(&self, bytes: &[u8], onto: Option<&Path>) -> io::Result<PathBuf> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let unfinished = self.unfinished();
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        let written = file.write_all(bytes).and_then(|()| self.name(&unfinished, onto));
        written.inspect_err(|_| drop(fs::remove_file(&unfinished)))
    }

    fn name(&self, unfinished: &Path, onto: Option<&Path>) -> io::Result<PathBuf> {
        if let Some(path) = onto {
            return fs::rename(unfinished, path).map(|()| path.to_owned());
        }
        // Another interface of the container may be attached at this moment: only one of them is the first.
        let first = self.first();
        match fs::hard_link(unfinished, &first) {
            Ok(()) => {
                // If it stays, DEL removes it.
                let _ = fs::remove_file(unfinished);
                Ok(first)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let further = self.further();
                fs::rename(unfinished, &further).map(|()| further)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes what an ADD that was killed had begun to write.
    pub(super) fn remove_unfinished(&self) -> Result<()> {
        remove(&self.unfinished())
    }

    fn first(&self) -> PathBuf {
        self.folder.join(&self.container)
    }

    fn further(&self) -> PathBuf {
        self.folder.join(format!("{}@{}", self.container, self.ifname))
    }

    fn unfinished(&self) -> PathBuf {
        self.folder.join(format!(".{}@{}{UNFINISHED}", self.container, self.ifname))
    }
}

impl Saved {
    /// The delegate made nothing: what was written before it was asked is as it was.
    pub(super) fn take_back(self) {
        let _ = match self.before {
            Some(bytes) => self.scratch.put(&bytes, Some(&self.path)).map(drop),
            None => fs::remove_file(&self.path),
        };
    }
}

/// The file of an attachment that is not valid any more.
#[derive(Debug)]
pub(super) struct Stale {
    pub(super) path: PathBuf,
    pub(super) container: String,
    /// Which interface, if the file says so.
    pub(super) ifname: Option<String>,
    pub(super) config: Value,
}

/// The network's files of attachments that are not valid. The folder is shared by all networks of flannel's.
pub(super) fn stale(req: &Request<'_>, valid: &Valid) -> Result<Vec<Stale>> {
    let folder = folder(req);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(source) => return Err(failed("read", &folder, source)),
    };
    let mut stale = Vec::new();
    for path in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())) {
        let (name, path) = (path.file_name().to_string_lossy().into_owned(), path.path());
        if name.starts_with('.') {
            // Whose it is cannot be told, but whoever is still writing it will do so again.
            if name.ends_with(UNFINISHED) {
                remove(&path)?;
            }
            continue;
        }
        let Some(config) = read(&path)?.and_then(|found| found.config) else { continue };
        let text = |key| json::get(&config, key).and_then(Value::as_str).map(String::from);
        if text("name").as_deref() != Some(req.network.as_str()) {
            continue;
        }
        let (container, further) =
            name.split_once('@').map_or((&*name, None), |(c, i)| (c, Some(i.to_owned())));
        let ifname = text(IFNAME).or(further);
        let is_valid = match &ifname {
            Some(ifname) => valid.contains(container, ifname),
            None => valid.iter().any(|other| other.container_id == container),
        };
        if !is_valid {
            stale.push(Stale { container: container.to_owned(), path, ifname, config });
        }
    }
    Ok(stale)
}

/// The files in a folder, with the containers that they are for.
pub fn all(folder: &Path) -> Vec<(PathBuf, String)> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = files.filter_map(|file| Some((file.path(), file.file_name().to_str()?.to_owned())));
    named
        .filter(|(path, name)| path.is_file() && !name.starts_with('.'))
        .map(|(path, name)| (path, name.split('@').next().unwrap_or_default().to_owned()))
        .collect()
}

/// Nothing else of the config needs to make sense: DEL must find what a better one left.
fn folder(req: &Request<'_>) -> PathBuf {
    let data_dir = json::get(&req.config, "dataDir").and_then(Value::as_str);
    data_dir.filter(|text| !text.is_empty()).unwrap_or(DATA_DIR).into()
}

fn read(path: &Path) -> Result<Option<Found>> {
    match fs::read(path) {
        Ok(bytes) => {
            let config = json::parse(&bytes).ok().filter(Value::is_object);
            Ok(Some(Found { path: path.to_owned(), bytes, config }))
        }
        Err(error) if is_absent(&error) => Ok(None),
        Err(source) => Err(failed("read", path, source)),
    }
}

/// Removes a file, which may be gone.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if is_absent(&error) => Ok(()),
        other => other.map_err(|source| failed("remove", path, source)),
    }
}

/// Whether there is no such file, or none can be: an impossible name was never made.
fn is_absent(error: &io::Error) -> bool {
    use ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename | InvalidInput)
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> Error {
    podwire_kernel::Error::from(podwire_fs::FileError { doing, path: path.to_owned(), source }).into()
}
