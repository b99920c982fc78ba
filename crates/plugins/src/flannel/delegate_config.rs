//! The saved configs of delegates: one file for each attachment, in the folder and format of the Go plugin, so that
//! each plugin can detach pods of the other.
//!
//! The Go plugin names the file after the container, so a second flannel interface of a container overwrites the first.
//! This plugin saves the first interface under Go's name and further ones as `<container>@<interface>`; container ids
//! have no `@`. The config holds the interface's name; one that the Go plugin wrote does not.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwire_cni_plugin::{Error, Request, Result, Valid};
use podwire_cni_spec::json;
use serde_json::Value;

use super::render::IFNAME;

/// The default folder of the Go plugin.
pub const DATA_DIR: &str = "/var/lib/cni/flannel";
/// The suffix of a file that is being written; it is renamed when complete. Its name starts with a dot, no container id
/// does.
const UNFINISHED: &str = ".new";
/// How often to write a file if a concurrent GC removes the unfinished one.
const ATTEMPTS: usize = 10;

/// The files of one attachment.
#[derive(Debug)]
pub(super) struct DelegateConfig {
    folder: PathBuf,
    network: String,
    container: String,
    ifname: String,
}

/// An existing file.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    bytes: Vec<u8>,
    /// The delegate's config; `None` if the file is invalid, for example after a power failure.
    pub(super) config: Option<Value>,
}

/// A written file, and the previous contents.
#[derive(Debug)]
pub(super) struct Saved {
    files: DelegateConfig,
    path: PathBuf,
    previous: Option<Vec<u8>>,
}

impl DelegateConfig {
    /// The files of the request's attachment.
    pub(super) fn of(req: &Request<'_>) -> DelegateConfig {
        DelegateConfig {
            folder: folder(req),
            network: req.network.to_string(),
            container: req.container.clone(),
            ifname: req.ifname.clone(),
        }
    }

    /// Finds the file of this attachment: `<container>@<interface>`, else `<container>`.
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

    /// Saves the delegate's config. The caller runs the delegate afterwards.
    pub(super) fn save(self, config: &Value) -> Result<Saved> {
        let previous = self.find()?;
        let bytes = config.to_string().into_bytes();
        let write = || self.write(&bytes, previous.as_ref().map(|found| &*found.path));
        let mut written = write();
        for _ in 1..ATTEMPTS {
            match &written {
                // GC of another network removed the unfinished file, because a killed process could have left it.
                Err(error) if error.kind() == ErrorKind::NotFound => written = write(),
                _ => break,
            }
        }
        let path = written.map_err(|source| failed("write", &self.first(), source))?;
        let previous = previous.map(|found| found.bytes);
        Ok(Saved { files: self, path, previous })
    }

    /// Writes a complete file at once: over `onto`, else under the first free name. Not `podwire_fs::replace`, because
    /// the first name must be claimed with link(2).
    fn write(&self, bytes: &[u8], onto: Option<&Path>) -> io::Result<PathBuf> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let unfinished = self.unfinished();
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        let written = file.write_all(bytes).and_then(|()| self.publish(&unfinished, onto));
        written.inspect_err(|_| drop(fs::remove_file(&unfinished)))
    }

    /// Gives the complete file its name.
    fn publish(&self, unfinished: &Path, onto: Option<&Path>) -> io::Result<PathBuf> {
        if let Some(path) = onto {
            return fs::rename(unfinished, path).map(|()| path.to_owned());
        }
        // Another interface of the container may be attached concurrently: link(2) lets only one be the first.
        let first = self.first();
        match fs::hard_link(unfinished, &first) {
            Ok(()) => {
                // If this fails, DEL removes the unfinished file.
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

    /// Removes the unfinished file of a killed ADD.
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
    /// Restores the previous contents after the delegate failed.
    pub(super) fn restore(self) {
        let _ = match self.previous {
            Some(bytes) => self.files.write(&bytes, Some(&self.path)).map(drop),
            None => fs::remove_file(&self.path),
        };
    }
}

/// The file of an attachment that is no longer valid.
#[derive(Debug)]
pub(super) struct Stale {
    pub(super) path: PathBuf,
    pub(super) container: String,
    /// The interface, if the file names it.
    pub(super) ifname: Option<String>,
    pub(super) config: Value,
}

/// The network's files of attachments that are no longer valid. All flannel networks share the folder.
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
            // It has no owner. A process that is still writing it writes it again.
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

/// The files in a folder, each with its container.
pub fn all(folder: &Path) -> Vec<(PathBuf, String)> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = files.filter_map(|file| Some((file.path(), file.file_name().to_str()?.to_owned())));
    named
        .filter(|(path, name)| path.is_file() && !name.starts_with('.'))
        .map(|(path, name)| (path, name.split('@').next().unwrap_or_default().to_owned()))
        .collect()
}

/// The folder of the config, even if the rest of the config is invalid: DEL must find what an earlier config left.
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

/// Removes a file, if it exists.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if is_absent(&error) => Ok(()),
        other => other.map_err(|source| failed("remove", path, source)),
    }
}

/// Whether the file does not exist, or cannot exist because its name is impossible.
fn is_absent(error: &io::Error) -> bool {
    use ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename | InvalidInput)
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> Error {
    podwire_kernel::Error::from(podwire_fs::FileError { doing, path: path.to_owned(), source }).into()
}
