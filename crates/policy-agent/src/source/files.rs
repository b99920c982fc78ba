//! Policies from a directory of YAML and JSON files, as `kubectl apply` takes them. For a single machine, a lab, a
//! sandbox.
//!
//! The files may also describe namespaces and pods with their labels; a pod that no file describes has no labels. If a
//! file is invalid, the agent logs the error and keeps the last valid content.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use podwire_fs::FileError;
use podwire_policy::Snapshot;
use serde_json::Value;
use tracing::{error, info};

use crate::{Error, Kind, PolicyAgent, Result, Update};

/// A directory of policy files.
#[derive(Clone, Debug)]
pub struct PolicyFiles {
    directory: PathBuf,
}

impl PolicyFiles {
    /// The files in `directory`.
    pub fn new(directory: impl Into<PathBuf>) -> PolicyFiles {
        PolicyFiles { directory: directory.into() }
    }

    /// Sends all objects to the agent, and again after every change.
    pub async fn watch(&self, agent: &PolicyAgent) -> Result<()> {
        self.follow(|| {
            // Before the read: a change during the read causes another read.
            let as_of = self.last_modified();
            match self.read() {
                Ok(snapshot) => {
                    let policies = snapshot.network_policies.len() + snapshot.cluster_network_policies.len();
                    info!(directory = %self.directory.display(), policies, "policy files read");
                    send(agent, &snapshot)?;
                    as_of.map_or(Ok(()), |time| agent.updated_as_of(time))
                }
                Err(error) => {
                    error!(%error, "invalid policy files; the last valid policies stay in force");
                    Ok(())
                }
            }
        })
        .await
    }

    /// Calls `changed` now, and again after every change of a file. Returns only on an error.
    pub async fn follow<E: From<Error>>(
        &self,
        mut changed: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        // The watch starts before the first read, so no change is missed.
        let start = || {
            let inotify = Inotify::init()?;
            let mask = WatchMask::CLOSE_WRITE
                | WatchMask::MOVED_TO
                | WatchMask::MOVED_FROM
                | WatchMask::DELETE
                | WatchMask::ONLYDIR;
            inotify.watches().add(&self.directory, mask)?;
            inotify.into_event_stream([0; 4096])
        };
        let mut events = start()
            .map_err(FileError::at("watch", &self.directory))
            .map_err(|error| E::from(error.into()))?;
        loop {
            changed()?;
            if events.next().await.is_none() {
                return Err(Error::Ended.into());
            }
        }
    }

    /// Reads all objects.
    pub fn read(&self) -> Result<Snapshot> {
        let mut snapshot = Snapshot::new();
        self.paths()?.iter().try_for_each(|path| read_into(path, &mut snapshot))?;
        Ok(snapshot)
    }

    /// The time of the last change of a file or of the directory.
    pub fn last_modified(&self) -> Option<SystemTime> {
        let modified = |path: &PathBuf| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        self.paths().ok()?.iter().chain([&self.directory]).filter_map(modified).max()
    }

    /// All documents, in the order of the file names.
    pub fn documents(&self) -> Result<Vec<Value>> {
        Ok(self.paths()?.iter().map(|path| documents_of(path)).collect::<Result<Vec<_>>>()?.concat())
    }

    fn paths(&self) -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(&self.directory).map_err(FileError::at("read", &self.directory))?;
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| {
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            !hidden && ["yaml", "yml", "json"].contains(&extension)
        });
        paths.sort();
        Ok(paths)
    }
}

fn read_into(path: &Path, snapshot: &mut Snapshot) -> Result<()> {
    for document in documents_of(path)? {
        let added = snapshot.add(document);
        added.map_err(|error| Error::Invalid { path: path.into(), reason: error.to_string() })?;
    }
    Ok(())
}

fn documents_of(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).map_err(FileError::at("read", path))?;
    yaml_documents(&text).map_err(|reason| Error::Invalid { path: path.into(), reason })
}

/// Seconds since 1970 as a text of fixed length, so that texts sort like times.
pub fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:010}.{:09}", since.as_secs(), since.subsec_nanos())
}

/// The documents of a YAML text, without empty ones. JSON is YAML too.
pub fn yaml_documents(text: &str) -> Result<Vec<Value>, String> {
    // Otherwise `on` and `yes` would be booleans, and a label value is a string.
    let options = serde_saphyr::options! { strict_booleans: true };
    let documents = serde_saphyr::from_multiple_with_options::<Value>(text, options);
    let documents = documents.map_err(|error| error.to_string())?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

fn send(agent: &PolicyAgent, all: &Snapshot) -> Result<()> {
    for kind in Kind::ALL {
        let mut objects = Snapshot::new();
        match kind {
            Kind::Pod => objects.pods.clone_from(&all.pods),
            Kind::Namespace => objects.namespaces.clone_from(&all.namespaces),
            Kind::Node => objects.nodes.clone_from(&all.nodes),
            Kind::NetworkPolicy => objects.network_policies.clone_from(&all.network_policies),
            Kind::ClusterNetworkPolicy => {
                objects.cluster_network_policies.clone_from(&all.cluster_network_policies);
            }
        }
        agent.update(Update::Listed(kind, objects))?;
    }
    Ok(())
}
