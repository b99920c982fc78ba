//! Policies from files: a folder of YAML and JSON, as `kubectl apply` takes it. For one machine, a lab, a sandbox.
//!
//! Namespaces and pods may be described there too, with their labels; a pod that is not has none. A file with a
//! mistake changes nothing: the mistake is told, and what was read last stays.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use podwire_policy::Snapshot;
use serde_json::Value;
use tracing::{error, info};

use crate::{Error, Kind, PolicyAgent, Result, Update};

/// A folder.
#[derive(Clone, Debug)]
pub struct PolicyFiles {
    folder: PathBuf,
}

impl PolicyFiles {
    /// Names the folder.
    pub fn new(folder: impl Into<PathBuf>) -> PolicyFiles {
        PolicyFiles { folder: folder.into() }
    }

    /// Tells the agent what is there, and again after every change.
    pub async fn watch(&self, agent: &PolicyAgent) -> Result<()> {
        // Listening begins before reading: nothing is missed in between.
        let listen = || {
            let inotify = Inotify::init()?;
            let what = WatchMask::CLOSE_WRITE
                | WatchMask::MOVED_TO
                | WatchMask::MOVED_FROM
                | WatchMask::DELETE
                | WatchMask::ONLYDIR;
            inotify.watches().add(&self.folder, what)?;
            inotify.into_event_stream([0; 4096])
        };
        let mut events = listen().map_err(Error::file("watch", &self.folder))?;
        loop {
            // Asked for first: what changes while it is read is read again.
            let as_of = self.last_modified();
            match self.read() {
                Ok(snapshot) => {
                    info!(folder = %self.folder.display(), policies = snapshot.network_policies.len() + snapshot.cluster_network_policies.len(), "policies were read");
                    tell(agent, &snapshot)?;
                    as_of.map_or(Ok(()), |time| agent.updated_as_of(time))?;
                }
                Err(error) => error!("policies stay as they were: {error}"),
            }
            if events.next().await.is_none() {
                return Err(Error::Ended);
            }
        }
    }

    /// What is there now.
    pub fn read(&self) -> Result<Snapshot> {
        let mut snapshot = Snapshot::new();
        self.paths()?.iter().try_for_each(|path| read_into(path, &mut snapshot))?;
        Ok(snapshot)
    }

    /// When something in the folder was changed last: a file, or which files there are.
    pub fn last_modified(&self) -> Option<SystemTime> {
        let modified = |path: &PathBuf| std::fs::metadata(path).and_then(|about| about.modified()).ok();
        self.paths().ok()?.iter().chain([&self.folder]).filter_map(modified).max()
    }

    /// All documents, in the order of the files' names.
    pub fn documents(&self) -> Result<Vec<Value>> {
        Ok(self.paths()?.iter().map(|path| documents_of(path)).collect::<Result<Vec<_>>>()?.concat())
    }

    fn paths(&self) -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(&self.folder).map_err(Error::file("read", &self.folder))?;
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| {
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            !hidden && ["yaml", "yml", "json"].contains(&ending)
        });
        paths.sort();
        Ok(paths)
    }
}

fn read_into(path: &Path, snapshot: &mut Snapshot) -> Result<()> {
    for document in documents_of(path)? {
        let added = snapshot.add(document);
        added.map_err(|error| Error::Unreadable { path: path.into(), why: error.to_string() })?;
    }
    Ok(())
}

fn documents_of(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    yaml_documents(&text).map_err(|why| Error::Unreadable { path: path.into(), why })
}

/// A moment in seconds since 1970, always of the same length: the later one is also the greater text.
pub fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:010}.{:09}", since.as_secs(), since.subsec_nanos())
}

/// The documents of a YAML text; JSON is YAML too. Empty ones are left out.
pub fn yaml_documents(text: &str) -> Result<Vec<Value>, String> {
    // Without this, `on` and `yes` would be truth values, which no label can have.
    let options = serde_saphyr::options! { strict_booleans: true };
    let documents = serde_saphyr::from_multiple_with_options::<Value>(text, options);
    let documents = documents.map_err(|error| error.to_string())?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

fn tell(agent: &PolicyAgent, all: &Snapshot) -> Result<()> {
    for kind in Kind::ALL {
        let mut some = Snapshot::new();
        match kind {
            Kind::Pod => some.pods.clone_from(&all.pods),
            Kind::Namespace => some.namespaces.clone_from(&all.namespaces),
            Kind::Node => some.nodes.clone_from(&all.nodes),
            Kind::NetworkPolicy => some.network_policies.clone_from(&all.network_policies),
            Kind::ClusterNetworkPolicy => {
                some.cluster_network_policies.clone_from(&all.cluster_network_policies);
            }
        }
        agent.update(Update::Listed(kind, some))?;
    }
    Ok(())
}
