//! The ledger: a record of every ADD, written before the plugin changes anything.
//!
//! Each attachment and plugin has one file, `/run/podwire/ledger/NETWORK/CONTAINER:IFNAME:PLUGIN`. ADD appends the request
//! before the plugin is called and the result afterwards; a successful DEL removes the file. So every object has an owner and
//! a config with which it can be checked, repaired and deleted, even if the plugin was killed, or the runtime lost its records
//! or never had any.
//!
//! The ledger is in `/run`: it describes kernel objects, which a reboot removes too, so nothing is flushed to disk. An ADD
//! in progress holds a lock on its file, and GC does not touch a locked file.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwire_cni_spec::{code, Attachment};
use podwire_kernel::{Netns, Owner};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::request::Source;
use crate::{Command, Error, Registry, Request, Result};

/// The directory of the ledger.
pub const DIR: &str = "/run/podwire/ledger";

/// One ADD: its request, and its result.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Entry<C = Value> {
    /// The plugin's type.
    pub plugin: String,
    /// The network's name.
    pub network: String,
    /// The container's id.
    pub container: String,
    /// The interface's name in the pod.
    pub ifname: String,
    /// The path of the pod's namespace.
    pub netns: String,
    /// The cookie of that namespace: the path may name another one later.
    #[serde(default)]
    pub cookie: Option<u64>,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`.
    pub path: String,
    /// The plugin's standard input.
    pub config: C,
    /// Its result; `None` if the ADD did not finish.
    #[serde(skip)]
    pub result: Option<Value>,
}

impl<'r> Entry<&'r Value> {
    /// The entry of a request.
    fn of(plugin: &str, req: &'r Request<'_>) -> Entry<&'r Value> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        Entry {
            plugin: plugin.into(),
            network: req.network.to_string(),
            container: req.container.clone(),
            ifname: req.ifname.clone(),
            netns: req.netns.as_deref().map(text).unwrap_or_default(),
            cookie: cookie(req),
            args: req.args.to_string(),
            path: std::env::join_paths(&req.path).unwrap_or_default().to_string_lossy().into_owned(),
            config: &req.config,
            result: None,
        }
    }
}

/// The cookie of a namespace whose path contains a PID, which can be reused. Named namespaces are skipped: reading the cookie
/// costs a tenth of an ADD.
fn cookie(req: &Request<'_>) -> Option<u64> {
    req.netns.as_ref().filter(|path| path.starts_with("/proc"))?;
    // The plugin reports a namespace that cannot be opened.
    req.netns().and_then(|netns| Ok(netns.cookie()?)).ok().flatten()
}

impl Entry {
    /// The attachment.
    pub fn owner(&self) -> Owner {
        Owner::new(&*self.network, &*self.container, &*self.ifname)
    }

    /// The pod's namespace, if it still exists.
    pub fn find_netns(&self) -> podwire_kernel::Result<Option<Netns>> {
        Netns::find_again(&self.netns, self.cookie)
    }

    /// The recorded request with the verb `command`. Except for ADD, the recorded result is its `prevResult`.
    pub fn request<'p>(&self, command: Command, registry: Registry<'p>) -> Result<Request<'p>> {
        let source = Source {
            container: self.container.clone(),
            ifname: self.ifname.clone(),
            // A namespace that has the same path by now belongs to another pod.
            netns: match self.find_netns() {
                Ok(None) => String::new(),
                Ok(Some(_)) | Err(_) => self.netns.clone(),
            },
            args: self.args.clone(),
            path: self.path.clone(),
            ..Source::default()
        };
        let mut req = Request::new(command, &source, self.config.clone(), registry)?;
        if command != Command::Add {
            req.prev = self.attachment(&req).or(req.prev);
        }
        Ok(req)
    }

    fn attachment(&self, req: &Request<'_>) -> Option<Attachment> {
        self.result.as_ref().and_then(|result| Attachment::from_json(result, req.version).ok())
    }
}

/// A ledger file as it was read: the entries of one attachment and one plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerFile {
    /// The path of the file.
    pub path: PathBuf,
    /// Oldest first: a chain can contain a plugin twice. Empty if the file is incomplete.
    pub entries: Vec<Entry>,
    /// Whether another process held the lock: an ADD in progress, or a GC or audit that was deleting the attachment. A plain
    /// DEL takes no lock.
    pub is_locked: bool,
}

impl LedgerFile {
    fn read(path: PathBuf) -> io::Result<LedgerFile> {
        let mut open = File::open(&path)?;
        // Before reading: an ADD that ends in between has written its result.
        let is_locked = open.try_lock_shared().is_err();
        let mut text = Vec::new();
        open.read_to_end(&mut text)?;
        Ok(LedgerFile { entries: parse(&text), path, is_locked })
    }

    /// Locks the file, so that no ADD begins while the caller deletes the attachment. `None` if the file changed since it was
    /// read, is gone, or is locked by another process, which may only read it.
    pub fn lock_unchanged(&self) -> Result<Option<LockedLedgerFile<'_>>> {
        let lock = || -> io::Result<Option<File>> {
            let mut file = File::open(&self.path)?;
            if file.try_lock().is_err() {
                return Ok(None);
            }
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            let is_same = file.metadata()?.nlink() > 0 && parse(&text) == self.entries;
            Ok(is_same.then_some(file))
        };
        match lock() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&self.path, &error)),
            Ok(lock) => Ok(lock.map(|lock| LockedLedgerFile { file: self, _lock: lock })),
        }
    }
}

/// A ledger file that this process has locked: no ADD can begin on it.
#[derive(Debug)]
pub struct LockedLedgerFile<'a> {
    file: &'a LedgerFile,
    _lock: File,
}

impl LockedLedgerFile<'_> {
    /// The entries, oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.file.entries
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Whether the file still exists.
    pub fn exists(&self) -> bool {
        self.file.path.exists()
    }

    /// Removes the file, and the network's directory with the last one.
    pub fn remove(self) -> Result<()> {
        remove_file(&self.file.path)
    }
}

/// A line is an entry, or the result of the entry before it. Lines that a crash left incomplete are skipped.
fn parse(text: &[u8]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        let Ok(mut line) = serde_json::from_slice::<Value>(line) else { continue };
        match (line.get_mut("result").map(Value::take), entries.last_mut()) {
            (Some(result), Some(entry)) => entry.result = Some(result),
            (Some(_), None) => {}
            (None, _) => entries.extend(serde_json::from_value(line).ok()),
        }
    }
    entries
}

/// The entry of an ADD in progress: the request is written, the result is not.
#[derive(Debug)]
pub(crate) struct OpenEntry {
    path: PathBuf,
    file: File,
    /// The length of the file before this ADD.
    before: u64,
}

impl OpenEntry {
    /// Writes the request before `plugin` serves it.
    pub(crate) fn begin(plugin: &str, req: &Request<'_>) -> Result<OpenEntry> {
        let path = path(Path::new(DIR), &req.owner(), plugin);
        OpenEntry::begin_at(path.clone(), &Entry::of(plugin, req)).map_err(|error| failed(&path, &error))
    }

    fn begin_at(path: PathBuf, entry: &impl Serialize) -> io::Result<OpenEntry> {
        let (file, before) = loop {
            let file = create(&path)?;
            file.lock()?;
            let found = file.metadata()?;
            // A GC removes an empty unlocked file, which a killed process left, and may have done so before the lock.
            if found.nlink() > 0 {
                break (file, found.len());
            }
        };
        let mut open = OpenEntry { path, file, before };
        // The previous writer may have been killed in the middle of a line.
        let begun = if before > 0 { open.file.write_all(b"\n") } else { Ok(()) };
        match begun.and_then(|()| open.write(entry)) {
            Ok(()) => Ok(open),
            Err(error) => {
                open.abandon();
                Err(error)
            }
        }
    }

    fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.file.write_all(&text)
    }

    /// Writes the result.
    pub(crate) fn complete(mut self, result: &Value) {
        #[derive(Serialize)]
        struct Line<'v> {
            result: &'v Value,
        }
        // The ADD has succeeded and can be deleted without this line.
        let _ = self.write(&Line { result });
    }

    /// Removes the request of an ADD that failed and left nothing behind.
    pub(crate) fn abandon(self) {
        // If this fails, the next DEL or GC does it.
        match self.before {
            0 => drop(remove_file(&self.path)),
            before => drop(self.file.set_len(before)),
        }
    }
}

/// Opens the file for appending. Its directory may be missing, or another process may remove it with the last file.
fn create(path: &Path) -> io::Result<File> {
    let mut tries = 0;
    loop {
        let opened = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path);
        match (opened, path.parent()) {
            (Err(error), Some(dir)) if error.kind() == ErrorKind::NotFound && tries < 100 => {
                match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
                    // Another process created it; it may be gone again.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                    made => made?,
                }
                tries += 1;
            }
            (opened, _) => return opened,
        }
    }
}

fn path(dir: &Path, owner: &Owner, plugin: &str) -> PathBuf {
    let (network, container) = owner.short_names();
    dir.join(&*network).join(format!("{container}:{}:{plugin}", owner.ifname))
}

fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(path, &error)),
        _ => {}
    }
    // Fails if the network has other files.
    let _ = path.parent().map(std::fs::remove_dir);
    Ok(())
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let text = format!("access the ledger file {}: {error}", path.display());
    podwire_cni_spec::Error::new(code::IO, text)
        .with_details("plugins need a writable /run with free space")
        .into()
}

/// The file of `owner` and `plugin`.
pub fn find(owner: &Owner, plugin: &str) -> Option<LedgerFile> {
    LedgerFile::read(path(Path::new(DIR), owner, plugin)).ok()
}

/// The requests with which an attachment was added, oldest first, as DEL requests.
pub fn requests<'p>(owner: &Owner, plugin: &str, registry: Registry<'p>) -> Vec<Request<'p>> {
    let entries = find(owner, plugin).into_iter().flat_map(|file| file.entries);
    entries.filter_map(|entry| entry.request(Command::Del, registry).ok()).collect()
}

/// The namespace at the path of a runtime's record, if it is still the one in which these entries of the same attachment were
/// made. The record has only the path, which may lead to another pod's namespace by now; entries also have the cookie.
pub fn find_recorded_netns<'e>(
    path: &Path,
    entries: impl Iterator<Item = &'e Entry>,
) -> podwire_kernel::Result<Option<Netns>> {
    // A Go plugin that detached the pod did not remove the file, so there may be older entries.
    let mut matching = entries.filter(|entry| Path::new(&entry.netns) == path).peekable();
    if matching.peek().is_none() {
        return Netns::find_again(path, None);
    }
    matching.map(Entry::find_netns).find(|found| !matches!(found, Ok(None))).unwrap_or(Ok(None))
}

/// Removes the file of `owner` and `plugin`, if there is one.
pub(crate) fn remove(owner: &Owner, plugin: &str) -> Result<()> {
    remove_file(&path(Path::new(DIR), owner, plugin))
}

/// Every file of `plugin` in `network`.
pub fn read_plugin(network: &str, plugin: &str) -> Vec<LedgerFile> {
    let end = format!(":{plugin}");
    let mine = |path: &PathBuf| path.to_string_lossy().ends_with(&end);
    paths_of(network).into_iter().filter(mine).filter_map(|path| LedgerFile::read(path).ok()).collect()
}

/// Every file of `network`.
pub fn read_network(network: &str) -> Vec<LedgerFile> {
    paths_of(network).into_iter().filter_map(|path| LedgerFile::read(path).ok()).collect()
}

fn paths_of(network: &str) -> Vec<PathBuf> {
    list(&Path::new(DIR).join(&*Owner::new(network, "", "").short_names().0))
}

/// Every file, sorted by path.
pub fn all() -> Vec<LedgerFile> {
    let paths = list(Path::new(DIR)).into_iter().flat_map(|network| list(&network));
    let mut all: Vec<LedgerFile> = paths.filter_map(|path| LedgerFile::read(path).ok()).collect();
    all.sort_by(|one, other| one.path.cmp(&other.path));
    all
}

fn list(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(container: &str) -> Entry {
        Entry {
            plugin: "bridge".into(),
            network: "pods".into(),
            container: container.into(),
            ifname: "eth0".into(),
            netns: "/run/netns/a".into(),
            cookie: Some(7),
            args: String::new(),
            path: "/opt/cni/bin".into(),
            config: json!({"type": "bridge", "name": "pods", "cniVersion": "1.0.0"}),
            result: None,
        }
    }

    fn dir() -> PathBuf {
        let name = format!("podwire-ledger-{}-{:?}", std::process::id(), std::thread::current().id());
        std::env::temp_dir().join(name)
    }

    #[test]
    fn a_file_has_the_request_then_the_result_and_is_removed() {
        let dir = dir();
        let file = path(&dir, &entry("a").owner(), "bridge");
        let open = OpenEntry::begin_at(file.clone(), &entry("a")).unwrap();
        let read = LedgerFile::read(file.clone()).unwrap();
        assert_eq!((read.entries, read.is_locked), (vec![entry("a")], true), "during the ADD");
        open.complete(&json!({"cniVersion": "1.0.0"}));
        let read = LedgerFile::read(file.clone()).unwrap();
        assert!(!read.is_locked && read.entries[0].result.is_some());
        read.lock_unchanged().unwrap().expect("the file is unlocked").remove().unwrap();
        assert!(!dir.join("pods").exists(), "the network's directory is removed with the last file");
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// GC treats an unlocked file without a result as left by a killed ADD.
    #[test]
    fn a_file_read_during_an_add_is_locked_or_complete() {
        let dir = dir();
        let file = path(&dir, &entry("a").owner(), "bridge");
        std::thread::scope(|scope| {
            let adds = scope.spawn(|| {
                for _ in 0..500 {
                    OpenEntry::begin_at(file.clone(), &entry("a")).unwrap().complete(&json!({}));
                    std::fs::remove_file(&file).unwrap();
                }
            });
            while !adds.is_finished() {
                let Ok(read) = LedgerFile::read(file.clone()) else { continue };
                let is_unfinished = |entry: &Entry| entry.result.is_none();
                assert!(read.is_locked || !read.entries.iter().any(is_unfinished), "{read:?}");
            }
        });
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_failed_add_keeps_earlier_entries() {
        let dir = dir();
        let file = path(&dir, &entry("a").owner(), "bridge");
        OpenEntry::begin_at(file.clone(), &entry("a")).unwrap().abandon();
        assert!(!file.exists());
        OpenEntry::begin_at(file.clone(), &entry("a")).unwrap().complete(&json!({}));
        OpenEntry::begin_at(file.clone(), &entry("a")).unwrap().abandon();
        assert_eq!(LedgerFile::read(file).unwrap().entries.len(), 1);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_is_locked_only_if_it_is_unchanged() {
        let dir = dir();
        let file = path(&dir, &entry("a").owner(), "bridge");
        OpenEntry::begin_at(file.clone(), &entry("a")).unwrap().complete(&json!({}));
        let read = LedgerFile::read(file.clone()).unwrap();
        assert!(read.lock_unchanged().unwrap().is_some());
        // The container is restarted under its id.
        let open = OpenEntry::begin_at(file.clone(), &entry("a")).unwrap();
        assert!(read.lock_unchanged().unwrap().is_none(), "an ADD is in progress");
        open.complete(&json!({}));
        assert!(read.lock_unchanged().unwrap().is_none(), "it has another entry");
        let read = LedgerFile::read(file.clone()).unwrap();
        read.lock_unchanged().unwrap().expect("it is unchanged").remove().unwrap();
        assert!(read.lock_unchanged().unwrap().is_none(), "it is gone");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn an_incomplete_line_does_not_hide_the_next_entry() {
        let dir = dir();
        let file = path(&dir, &entry("a").owner(), "bridge");
        drop(OpenEntry::begin_at(file.clone(), &entry("a")).unwrap());
        let length = file.metadata().unwrap().len();
        OpenOptions::new().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
        OpenEntry::begin_at(file.clone(), &entry("a")).unwrap().complete(&json!({}));
        let read = LedgerFile::read(file).unwrap();
        assert!(read.entries.len() == 1 && read.entries[0].result.is_some(), "{read:?}");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn incomplete_lines_are_skipped() {
        let mut text = serde_json::to_vec(&entry("a")).unwrap();
        text.push(b'\n');
        assert_eq!(parse(&text).len(), 1);
        let whole = text.clone();
        text.extend(b"{\"result\":{\"ips\"");
        assert_eq!(parse(&text), [entry("a")]);
        assert_eq!(parse(&whole[..whole.len() / 2]), []);
        assert_eq!(parse(b"{\"result\":{}}\n[]\nnull\n\n"), []);
    }
}
