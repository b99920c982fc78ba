//! The ledger: who was given what, written down before anything is done.
//!
//! For each attachment and plugin there is a file, `/run/podwire/ledger/NETWORK/CONTAINER:IFNAME:PLUGIN`. ADD writes
//! the request into it before the plugin is called, and the result when it is done; the DEL that succeeds takes it
//! away. So whatever was ever made has an owner, and a config by which it can be checked, repaired and deleted, also
//! when the plugin was killed half-way, the runtime lost its records, or never kept any.
//!
//! It lies in `/run` because it tells of things in the kernel, which end with the boot as it does; so nothing has to be
//! flushed to a disk. While an ADD is at work, it holds a lock on its file: what is not finished is nobody's to sweep.

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

/// Where the ledger is.
pub const FOLDER: &str = "/run/podwire/ledger";

/// What a plugin was asked to add, and what came of it.
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
    /// What that namespace alone has: a path may lead to another one later.
    #[serde(default)]
    pub cookie: Option<u64>,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`.
    pub path: String,
    /// The plugin's standard input.
    pub config: C,
    /// What it answered. `None` if it never did.
    #[serde(skip)]
    pub result: Option<Value>,
}

impl<'r> Entry<&'r Value> {
    /// For writing it down.
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

/// Of a namespace whose path has a process number in it, which is another's some day. Those with a name of their own are spared the look: it
/// would cost a tenth of an ADD.
fn cookie(req: &Request<'_>) -> Option<u64> {
    req.netns.as_ref().filter(|path| path.starts_with("/proc"))?;
    // One that cannot be opened is the plugin's to tell.
    req.netns().and_then(|netns| Ok(netns.cookie()?)).ok().flatten()
}

impl Entry {
    /// Whose it is.
    pub fn owner(&self) -> Owner {
        Owner::new(&*self.network, &*self.container, &*self.ifname)
    }

    /// The pod's namespace, if it is there.
    pub fn find_netns(&self) -> podwire_kernel::Result<Option<Netns>> {
        Netns::find_again(&self.netns, self.cookie)
    }

    /// The request once more, with another verb; for all verbs but ADD with the plugin's own result as the recorded one.
    pub fn request<'p>(&self, command: Command, registry: Registry<'p>) -> Result<Request<'p>> {
        let source = Source {
            container: self.container.clone(),
            ifname: self.ifname.clone(),
            // Whoever is to be found there by now is not to be touched.
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

/// What the ledger has of one attachment and one plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// The file.
    pub file: PathBuf,
    /// Oldest first: a plugin may stand twice in a chain. Empty if the file is torn.
    pub entries: Vec<Entry>,
    /// An ADD is at work.
    pub busy: bool,
}

impl Account {
    fn read(file: PathBuf) -> io::Result<Account> {
        let mut open = File::open(&file)?;
        // Before it is read: who ended in between has left a result.
        let busy = open.try_lock_shared().is_err();
        let mut text = Vec::new();
        open.read_to_end(&mut text)?;
        Ok(Account { entries: parse(&text), file, busy })
    }

    /// Holds it, for whoever has judged that it is nobody's any more: no ADD begins on it meanwhile. `None` if it is not what it was when it was
    /// read: somebody is at work on it, or was, or it is gone.
    pub fn hold(&self) -> Result<Option<Held<'_>>> {
        let held = || -> io::Result<Option<File>> {
            let mut file = File::open(&self.file)?;
            if file.try_lock().is_err() {
                return Ok(None);
            }
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            let is_same = file.metadata()?.nlink() > 0 && parse(&text) == self.entries;
            Ok(is_same.then_some(file))
        };
        match held() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&self.file, &error)),
            Ok(lock) => Ok(lock.map(|lock| Held { account: self, _lock: lock })),
        }
    }
}

/// An account that nobody else can begin to work on.
#[derive(Debug)]
pub struct Held<'a> {
    account: &'a Account,
    _lock: File,
}

impl Held<'_> {
    /// What is in it, oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.account.entries
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.account.file
    }

    /// Whether nobody has closed it since.
    pub fn is_there(&self) -> bool {
        self.account.file.exists()
    }

    /// Takes the account away, and its network's folder with the last one.
    pub fn close(self) -> Result<()> {
        remove(&self.account.file)
    }
}

/// A line is an entry, or the result of the entry before it. What is torn by a crash is skipped.
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

/// An ADD at work: the request is written down, the result will be.
#[derive(Debug)]
pub(crate) struct Open {
    path: PathBuf,
    file: File,
    /// What was there before.
    before: u64,
}

impl Open {
    /// Writes down that `plugin` is about to serve `req`.
    pub(crate) fn begin(plugin: &str, req: &Request<'_>) -> Result<Open> {
        let path = path(Path::new(FOLDER), &req.owner(), plugin);
        Open::begin_at(path.clone(), &Entry::of(plugin, req)).map_err(|error| failed(&path, &error))
    }

    fn begin_at(path: PathBuf, entry: &impl Serialize) -> io::Result<Open> {
        let (file, before) = loop {
            let file = create(&path)?;
            file.lock()?;
            let found = file.metadata()?;
            // An empty file that nobody holds is a dead one's, and a GC may have taken it away before we held it.
            if found.nlink() > 0 {
                break (file, found.len());
            }
        };
        let mut open = Open { path, file, before };
        // Whoever wrote before may have been cut short in a line.
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

    /// Writes down what the plugin answered.
    pub(crate) fn complete(mut self, result: &Value) {
        #[derive(Serialize)]
        struct Line<'v> {
            result: &'v Value,
        }
        // The attachment stands, and can be deleted without this.
        let _ = self.write(&Line { result });
    }

    /// The ADD failed and has taken everything back.
    pub(crate) fn abandon(self) {
        // If this fails, the next DEL or GC does it.
        match self.before {
            0 => drop(remove(&self.path)),
            before => drop(self.file.set_len(before)),
        }
    }
}

/// Opens the file for appending. Its folder may be missing, or go away in between with another's last account.
fn create(path: &Path) -> io::Result<File> {
    let mut tries = 0;
    loop {
        let opened = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path);
        match (opened, path.parent()) {
            (Err(error), Some(folder)) if error.kind() == ErrorKind::NotFound && tries < 100 => {
                match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
                    // It was there, and is gone again.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                    made => made?,
                }
                tries += 1;
            }
            (opened, _) => return opened,
        }
    }
}

fn path(folder: &Path, owner: &Owner, plugin: &str) -> PathBuf {
    let (network, container) = owner.short_names();
    folder.join(&*network).join(format!("{container}:{}:{plugin}", owner.ifname))
}

fn remove(file: &Path) -> Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(file, &error)),
        _ => {}
    }
    // Not empty means that others are still attached.
    let _ = file.parent().map(std::fs::remove_dir);
    Ok(())
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let text = format!("write down what is to be done, in {}: {error}", path.display());
    podwire_cni_spec::Error::new(code::IO, text)
        .with_details("plugins need a writable /run with some space left")
        .into()
}

/// What is written of `owner` and `plugin`.
pub fn find(owner: &Owner, plugin: &str) -> Option<Account> {
    Account::read(path(Path::new(FOLDER), owner, plugin)).ok()
}

/// The requests that an attachment was added with, oldest first, as those of a DEL.
pub fn requests<'p>(owner: &Owner, plugin: &str, registry: Registry<'p>) -> Vec<Request<'p>> {
    let entries = find(owner, plugin).into_iter().flat_map(|account| account.entries);
    entries.filter_map(|entry| entry.request(Command::Del, registry).ok()).collect()
}

/// The namespace behind the path in a runtime's record, if it is still the one that these entries of the same attachment were made in: a
/// record itself cannot tell.
pub fn find_recorded_netns<'e>(
    path: &Path,
    entries: impl Iterator<Item = &'e Entry>,
) -> podwire_kernel::Result<Option<Netns>> {
    // A Go plugin that detached the pod has not closed its account: there may be older ones.
    let mut told = entries.filter(|entry| Path::new(&entry.netns) == path).peekable();
    if told.peek().is_none() {
        return Netns::find_again(path, None);
    }
    told.map(Entry::find_netns).find(|found| !matches!(found, Ok(None))).unwrap_or(Ok(None))
}

/// Takes away what is written of `owner` and `plugin`, if anything is.
pub(crate) fn close(owner: &Owner, plugin: &str) -> Result<()> {
    remove(&path(Path::new(FOLDER), owner, plugin))
}

/// Every account of the plugin `plugin` in `network`.
pub fn of_network(network: &str, plugin: &str) -> Vec<Account> {
    let end = format!(":{plugin}");
    let mine = |file: &PathBuf| file.to_string_lossy().ends_with(&end);
    files_of(network).into_iter().filter(mine).filter_map(|file| Account::read(file).ok()).collect()
}

/// Every account of a network.
pub fn of_whole_network(network: &str) -> Vec<Account> {
    files_of(network).into_iter().filter_map(|file| Account::read(file).ok()).collect()
}

fn files_of(network: &str) -> Vec<PathBuf> {
    list(&Path::new(FOLDER).join(&*Owner::new(network, "", "").short_names().0))
}

/// The whole ledger, in the order of names.
pub fn all() -> Vec<Account> {
    let files = list(Path::new(FOLDER)).into_iter().flat_map(|network| list(&network));
    let mut all: Vec<Account> = files.filter_map(|file| Account::read(file).ok()).collect();
    all.sort_by(|one, other| one.file.cmp(&other.file));
    all
}

fn list(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
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

    fn folder() -> PathBuf {
        let name = format!("podwire-ledger-{}-{:?}", std::process::id(), std::thread::current().id());
        std::env::temp_dir().join(name)
    }

    #[test]
    fn an_attachment_is_written_down_before_and_after_and_taken_away() {
        let folder = folder();
        let file = path(&folder, &entry("a").owner(), "bridge");
        let open = Open::begin_at(file.clone(), &entry("a")).unwrap();
        let account = Account::read(file.clone()).unwrap();
        assert_eq!((account.entries, account.busy), (vec![entry("a")], true), "while at work");
        open.complete(&json!({"cniVersion": "1.0.0"}));
        let account = Account::read(file.clone()).unwrap();
        assert!(!account.busy && account.entries[0].result.is_some());
        account.hold().unwrap().expect("nobody is at work on it").close().unwrap();
        assert!(!folder.join("pods").exists(), "the network's folder goes with the last one");
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// Whoever sweeps takes an account without a result, and with nobody at work on it, for a dead one's.
    #[test]
    fn an_add_that_ends_while_it_is_read_was_at_work_or_is_done() {
        let folder = folder();
        let file = path(&folder, &entry("a").owner(), "bridge");
        std::thread::scope(|scope| {
            let adds = scope.spawn(|| {
                for _ in 0..500 {
                    Open::begin_at(file.clone(), &entry("a")).unwrap().complete(&json!({}));
                    std::fs::remove_file(&file).unwrap();
                }
            });
            while !adds.is_finished() {
                let Ok(account) = Account::read(file.clone()) else { continue };
                let is_dead = |entry: &Entry| entry.result.is_none();
                assert!(account.busy || !account.entries.iter().any(is_dead), "{account:?}");
            }
        });
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_failed_add_leaves_what_was_written_before() {
        let folder = folder();
        let file = path(&folder, &entry("a").owner(), "bridge");
        Open::begin_at(file.clone(), &entry("a")).unwrap().abandon();
        assert!(!file.exists());
        Open::begin_at(file.clone(), &entry("a")).unwrap().complete(&json!({}));
        Open::begin_at(file.clone(), &entry("a")).unwrap().abandon();
        assert_eq!(Account::read(file).unwrap().entries.len(), 1);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_was_judged_is_held_only_while_it_is_as_it_was() {
        let folder = folder();
        let file = path(&folder, &entry("a").owner(), "bridge");
        Open::begin_at(file.clone(), &entry("a")).unwrap().complete(&json!({}));
        let judged = Account::read(file.clone()).unwrap();
        assert!(judged.hold().unwrap().is_some());
        // The container is started again under its id.
        let open = Open::begin_at(file.clone(), &entry("a")).unwrap();
        assert!(judged.hold().unwrap().is_none(), "somebody is at work on it");
        open.complete(&json!({}));
        assert!(judged.hold().unwrap().is_none(), "it tells of another by now");
        let judged = Account::read(file.clone()).unwrap();
        judged.hold().unwrap().expect("as it was").close().unwrap();
        assert!(judged.hold().unwrap().is_none(), "it is gone");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_was_cut_short_in_a_line_hides_nothing_that_follows() {
        let folder = folder();
        let file = path(&folder, &entry("a").owner(), "bridge");
        drop(Open::begin_at(file.clone(), &entry("a")).unwrap());
        let length = file.metadata().unwrap().len();
        OpenOptions::new().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
        Open::begin_at(file.clone(), &entry("a")).unwrap().complete(&json!({}));
        let account = Account::read(file).unwrap();
        assert!(account.entries.len() == 1 && account.entries[0].result.is_some(), "{account:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn torn_lines_are_skipped() {
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
