//! The previous values: one file for each attachment, in the folder and format of the Go plugin, so that each plugin
//! can restore what the other changed. Additional keys hold what the Go plugin does not save: the previous sysctls, and
//! the owner.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwire_cni_plugin::{ledger, Command, Context, Error, Plugin, Request, Result};
use podwire_cni_spec::{json, Attachment};
use podwire_kernel::{rt::link, sysctl, Host, Owner};
use serde::{Deserialize, Serialize};

use super::settings::{data_dir, LinkSettings, Settings};
use super::Tuning;

const SUFFIX: &str = ".json";
/// The suffix of a file that is being written; it is renamed when complete.
const UNFINISHED: &str = ".json.new";
/// How often to write a file if a concurrent GC removes the unfinished one.
const ATTEMPTS: usize = 10;

/// The values before the first change; an absent value was not changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Backup {
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    promisc: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allmulti: Option<bool>,
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    tx_queue: Option<u32>,
    /// Previous values by the sysctl's path under `/proc/sys`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctl: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    network: String,
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    container: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    ifname: String,
}

impl Backup {
    /// The current values that `settings` will change. Values of an existing file (of an interrupted ADD, or another
    /// tuning plugin in the chain) are older and take precedence.
    pub fn of(req: &Request<'_>, pod: &mut Host, settings: &Settings) -> Result<Backup> {
        let mut current = Backup {
            network: req.network.to_string(),
            container: req.container.clone(),
            ifname: req.ifname.clone(),
            ..Backup::default()
        };
        if !settings.link.is_empty() {
            let found = pod.get_link(&req.ifname).doing(|| "interface in the pod".into())?;
            let wanted = &settings.link;
            let flag = |mask: u32| found.flags & mask != 0;
            current.mac = wanted.mac.map(|_| found.mac_text()).unwrap_or_default();
            current.mtu = wanted.mtu.map(|_| found.mtu);
            current.promisc = wanted.promisc.map(|_| flag(link::PROMISC));
            current.allmulti = wanted.allmulti.map(|_| flag(link::ALLMULTI));
            current.tx_queue = wanted.tx_queue.map(|_| found.tx_queue);
        }
        for key in settings.sysctl.keys() {
            // Some sysctls are write-only and cannot be saved.
            if let Ok(value) = pod.run(|| sysctl::read(key))? {
                current.sysctl.insert(key.clone(), value);
            }
        }
        Ok(match Backup::find(req)? {
            Some(older) => current.overridden_by(older),
            None => current,
        })
    }

    fn overridden_by(mut self, older: Backup) -> Backup {
        self.sysctl.extend(older.sysctl);
        Backup {
            mac: if older.mac.is_empty() { self.mac } else { older.mac },
            mtu: older.mtu.or(self.mtu),
            promisc: older.promisc.or(self.promisc),
            allmulti: older.allmulti.or(self.allmulti),
            tx_queue: older.tx_queue.or(self.tx_queue),
            ..self
        }
    }

    /// The previous settings of the interface.
    pub fn link(&self) -> LinkSettings {
        LinkSettings {
            mac: self.mac.parse().ok(),
            mtu: self.mtu.filter(|mtu| *mtu > 0),
            promisc: self.promisc,
            allmulti: self.allmulti,
            tx_queue: self.tx_queue,
        }
    }

    /// Writes the file of the request's attachment.
    pub fn save(&self, req: &Request<'_>) -> Result<()> {
        let folder = data_dir(req);
        let write = || -> io::Result<()> {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
            let unfinished = file(req, UNFINISHED);
            let mut options = fs::OpenOptions::new();
            let mut to = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            to.write_all(&serde_json::to_vec_pretty(self)?)?;
            fs::rename(unfinished, file(req, SUFFIX))
        };
        // GC of another network may remove the unfinished file, because a killed process could have left it.
        let mut written = write();
        for _ in 1..ATTEMPTS {
            match &written {
                Err(error) if error.kind() == io::ErrorKind::NotFound => written = write(),
                _ => break,
            }
        }
        written.map_err(|source| failed("write backup", &file(req, SUFFIX), source))
    }

    /// The backup of the request's attachment. An invalid file counts as empty. One of another network is ignored, unless
    /// - a DEL has the result of an ADD for this interface: then the network was renamed since. (A DEL after a failed ADD,
    ///   which must not touch the interface of another network, has no result.)
    /// - the ledger has no such attachment of that network, so that no other DEL will ever find the backup.
    pub fn find(req: &Request<'_>) -> Result<Option<Backup>> {
        let found = read(&file(req, SUFFIX))?;
        let may_be_ours = |backup: &Backup| match backup.network.as_str() {
            "" => !req.signed_only,
            network => {
                network == req.network.as_str() || was_renamed(req) || !is_of_another_attachment(network, req)
            }
        };
        Ok(found.filter(may_be_ours))
    }

    /// Removes the file of the request's attachment.
    pub fn remove(req: &Request<'_>) -> Result<()> {
        Backup::remove_unfinished(req)?;
        remove(&file(req, SUFFIX))
    }

    /// Removes the unfinished file of a killed ADD.
    pub fn remove_unfinished(req: &Request<'_>) -> Result<()> {
        remove(&file(req, UNFINISHED))
    }
}

/// Whether a DEL has the result of its ADD, so that a backup under another network's name can only be its own.
fn was_renamed(req: &Request<'_>) -> bool {
    let is_listed = |prev: &Attachment| prev.interfaces.iter().any(|one| one.name == req.ifname);
    req.command == Command::Del && !req.signed_only && req.prev.as_ref().is_some_and(is_listed)
}

/// Whether the ledger has an ADD of tuning in `network` for the request's container and interface. GC and audit, which
/// delete what is in the ledger, are sure of their network: for them everything else is another's.
fn is_of_another_attachment(network: &str, req: &Request<'_>) -> bool {
    let other = Owner::new(network, &*req.container, &*req.ifname);
    req.signed_only || ledger::find(&other, Tuning.name()).is_some()
}

fn file(req: &Request<'_>, suffix: &str) -> PathBuf {
    data_dir(req).join(format!("{}_{}{suffix}", req.container, req.ifname))
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> Error {
    podwire_kernel::Error::from(podwire_fs::FileError { doing, path: path.to_owned(), source }).into()
}

/// Reads a file. An invalid file counts as empty: there is nothing to restore.
fn read(path: &Path) -> Result<Option<Backup>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(json::parse(&bytes).and_then(|value| json::decode(&value)).unwrap_or_default())),
        Err(error) if is_absent(&error) => Ok(None),
        Err(source) => Err(failed("read backup", path, source)),
    }
}

/// Whether the file does not exist, or cannot exist because its name is impossible.
fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename | InvalidInput)
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if is_absent(&error) => Ok(()),
        other => other.map_err(|source| failed("remove backup", path, source)),
    }
}

/// The backups in a folder: (file, container, interface). Files of the Go plugin do not name their owner. Then the
/// file's name does, if it has one underscore only.
pub fn all(folder: &Path) -> Vec<(PathBuf, String, String)> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    files
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.to_owned();
            let backup = read(&path).ok()??;
            if !backup.container.is_empty() {
                return Some((path, backup.container, backup.ifname));
            }
            let (container, ifname) = name.split_once('_').filter(|(_, ifname)| !ifname.contains('_'))?;
            Some((path, container.to_owned(), ifname.to_owned()))
        })
        .collect()
}

/// Removes the network's files of attachments that are no longer valid. Their interfaces were deleted with their pods.
pub fn collect(req: &Request<'_>) -> Result<()> {
    let valid = req.valid()?;
    let folder = data_dir(req);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(()),
        Err(source) => return Err(failed("read", &folder, source)),
    };
    let is_stale = |path: &Path| -> Result<bool> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(UNFINISHED) {
            // It has no owner. A process that is still writing it writes it again.
            return Ok(true);
        }
        let backup = if name.ends_with(SUFFIX) { read(path)? } else { None };
        // The name alone does not identify the owner: both parts may contain underscores.
        Ok(backup.is_some_and(|one| {
            one.network == req.network.as_str() && !valid.contains(&one.container, &one.ifname)
        }))
    };
    let mut errors = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        match is_stale(&path) {
            Ok(true) => errors.extend(remove(&path).err()),
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }
    Error::all(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_equals_gos() {
        let written =
            br#"{"mac": "02:00:00:00:00:01", "promisc": false, "mtu": 1500, "allmulti": true, "txQLen": 0}"#;
        let backup: Backup = serde_json::from_slice(written).unwrap();
        assert_eq!(
            serde_json::from_slice::<serde_json::Value>(written).unwrap(),
            serde_json::to_value(&backup).unwrap()
        );
        let link = backup.link();
        assert_eq!(
            (link.mtu, link.promisc, link.allmulti, link.tx_queue),
            (Some(1500), Some(false), Some(true), Some(0))
        );
        assert_eq!(link.mac.unwrap().to_string(), "02:00:00:00:00:01");
        assert_eq!(serde_json::to_string(&Backup::default()).unwrap(), "{}");
    }

    #[test]
    fn the_oldest_values_take_precedence() {
        let older =
            Backup { mtu: Some(1500), sysctl: [("a".into(), "0".into())].into(), ..Backup::default() };
        let newer = Backup {
            mtu: Some(1400),
            promisc: Some(true),
            sysctl: [("a".into(), "1".into()), ("b".into(), "2".into())].into(),
            ..Backup::default()
        };
        let both = newer.overridden_by(older);
        assert_eq!((both.mtu, both.promisc), (Some(1500), Some(true)));
        assert_eq!(both.sysctl, [("a".into(), "0".into()), ("b".into(), "2".into())].into());
    }
}
