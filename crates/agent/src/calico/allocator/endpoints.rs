//! The endpoints of the node's attached pods: Calico's workload endpoints.
//!
//! A plugin publishes an endpoint when the veth pair exists, and gets its response when the file is written. The store
//! sync writes it to the store later, and repeats that until it succeeds. When the pod is detached, its file is moved
//! and the endpoint is withdrawn from the store. Endpoints of an earlier boot, and those without a veth pair, are
//! stale: another program deleted those pods, such as Calico's plugin while it managed the node.

mod failures;
mod name;
mod profiles;
mod publish;
mod record;
mod secondary;
mod veths;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use podwire_agent_ipc::pods::{self, endpoints_dir, Endpoint};
use podwire_agent_ipc::{pending, Owner};
use podwire_block_ipam::store::Store;
use podwire_block_ipam::Error as IpamError;
use tracing::{error, warn};

use super::error::Error;
use failures::Failures;
pub(super) use publish::{publish, withdraw};
pub(super) use secondary::{join, set_recorded_profile};
use veths::Veths;

/// The endpoints of a node.
pub(super) struct Endpoints {
    state_dir: PathBuf,
    boot_id: String,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    published: BTreeMap<Owner, Endpoint>,
    /// Owners whose endpoints are not in the store.
    unsynced: BTreeSet<Owner>,
    /// Whether there may be pending withdrawals in the directory.
    has_withdrawals: bool,
}

impl Inner {
    fn forget(&mut self, owner: &Owner) {
        self.published.remove(owner);
        self.unsynced.remove(owner);
    }
}

/// Records that a pod is gone: its endpoint is to be withdrawn and its addresses are to be released.
fn record_gone_pod(state_dir: &Path, gone: &Endpoint) -> Result<(), Error> {
    pods::withdraw(state_dir, gone).map_err(Error::file("write to", endpoints_dir(state_dir)))?;
    pending::release(state_dir, &gone.owner).map_err(Error::file("write to", state_dir))
}

impl Endpoints {
    /// Reads the endpoints of a previous agent. All of them are synced again, because what the store has is unknown.
    pub(super) fn open(state_dir: &Path, boot_id: &str) -> Result<Endpoints, Error> {
        let dir = endpoints_dir(state_dir);
        for part in [pending::leases_dir(&dir), pending::released_dir(&dir)] {
            podwire_fs::create_state_dir(&part).map_err(Error::file("create", part))?;
        }
        let veths = Veths::list();
        let mut inner = Inner { has_withdrawals: true, ..Inner::default() };
        for (path, endpoint) in pending::read_all::<Endpoint>(&pending::leases_dir(&dir)) {
            match endpoint {
                Ok(endpoint) if endpoint.boot_id == boot_id && veths.may_have(&endpoint) => {
                    inner.unsynced.insert(endpoint.owner.clone());
                    inner.published.insert(endpoint.owner.clone(), endpoint);
                }
                Ok(gone) => record_gone_pod(state_dir, &gone)?,
                Err(error) => warn!(file = %path.display(), %error, "endpoint cannot be read"),
            }
        }
        let (state_dir, boot_id) = (state_dir.to_owned(), boot_id.to_owned());
        Ok(Endpoints { state_dir, boot_id, inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file of a published endpoint.
    fn file(&self, owner: &Owner) -> PathBuf {
        pending::leases_dir(&endpoints_dir(&self.state_dir)).join(pending::file_name(owner))
    }

    /// Records the endpoint of an attached pod. It replaces that of the pod's previous sandbox.
    pub(super) fn publish(&self, endpoint: &Endpoint) -> Result<(), Error> {
        self.write(&mut self.lock(), endpoint)
    }

    fn write(&self, inner: &mut Inner, endpoint: &Endpoint) -> Result<(), Error> {
        let endpoint = Endpoint { boot_id: self.boot_id.clone(), ..endpoint.clone() };
        let dir = pending::leases_dir(&endpoints_dir(&self.state_dir));
        let name = pending::file_name(&endpoint.owner);
        let file = self.file(&endpoint.owner);
        pending::write(&dir, &name, &endpoint).map_err(Error::file("write endpoint", file))?;
        let is_previous = |other: &&Endpoint| {
            !endpoint.pod.is_empty()
                && (&other.namespace, &other.pod) == (&endpoint.namespace, &endpoint.pod)
                && other.owner.ifname == endpoint.owner.ifname
                && other.owner != endpoint.owner
        };
        let previous: Vec<Owner> =
            inner.published.values().filter(is_previous).map(|other| other.owner.clone()).collect();
        for owner in previous {
            let _ = fs::remove_file(self.file(&owner));
            inner.forget(&owner);
        }
        inner.unsynced.insert(endpoint.owner.clone());
        inner.published.insert(endpoint.owner.clone(), endpoint);
        Ok(())
    }

    /// Records that a pod is detached.
    pub(super) fn withdraw(&self, gone: &Endpoint) -> Result<(), Error> {
        if self.leave(gone)? {
            return Ok(());
        }
        let mut inner = self.lock();
        let dir = endpoints_dir(&self.state_dir);
        pods::withdraw(&self.state_dir, gone).map_err(Error::file("write to", dir))?;
        inner.forget(&gone.owner);
        inner.has_withdrawals = true;
        Ok(())
    }

    /// Records pods as gone whose veth pairs another program has deleted.
    pub(super) fn withdraw_without_veth(&self) -> Result<(), Error> {
        let mut inner = self.lock();
        // Under the lock: every published endpoint had its veth pair before.
        let veths = Veths::list();
        let gone: Vec<Endpoint> =
            inner.published.values().filter(|one| !veths.may_have(one)).cloned().collect();
        for endpoint in gone {
            record_gone_pod(&self.state_dir, &endpoint)?;
            inner.forget(&endpoint.owner);
            inner.has_withdrawals = true;
        }
        Ok(())
    }

    /// The endpoints of a network.
    pub(super) fn of_network(&self, network: &str) -> Vec<Endpoint> {
        self.lock().published.values().filter(|one| one.owner.network == network).cloned().collect()
    }

    /// The number of endpoints that are not in the store.
    pub(super) fn unsynced(&self) -> usize {
        self.lock().unsynced.len()
    }

    /// Whether the store lacks a change.
    pub(super) fn has_changes(&self) -> bool {
        let inner = self.lock();
        inner.has_withdrawals || !inner.unsynced.is_empty()
    }

    /// Looks again for withdrawals that plugins recorded while no agent ran.
    pub(super) fn retry(&self) {
        self.lock().has_withdrawals = true;
    }

    /// Writes endpoints to the store: at least one, and more until `has_requests` says that pods wait. A record that
    /// cannot be read is reported and skipped.
    pub(super) fn sync_published(
        &self,
        store: &dyn Store,
        node: &str,
        has_requests: impl Fn() -> bool,
    ) -> Result<(), IpamError> {
        let unsynced: Vec<Endpoint> = {
            let inner = self.lock();
            inner.unsynced.iter().filter_map(|owner| inner.published.get(owner)).cloned().collect()
        };
        let mut failures = Failures::default();
        let mut written = 0;
        for endpoint in unsynced {
            if (written > 0 || failures.is_long()) && has_requests() {
                break;
            }
            if let Err(error) = skip_unreadable(&endpoint, publish(store, node, &endpoint)) {
                failures.add(error)?;
                continue;
            }
            written += 1;
            let mut inner = self.lock();
            if inner.published.get(&endpoint.owner) == Some(&endpoint) {
                inner.unsynced.remove(&endpoint.owner);
            }
        }
        failures.into_result()
    }

    /// Withdraws the endpoints of detached pods from the store.
    pub(super) fn sync_withdrawn(&self, store: &dyn Store, node: &str) -> Result<(), IpamError> {
        if !std::mem::take(&mut self.lock().has_withdrawals) {
            return Ok(());
        }
        let dir = pending::released_dir(&endpoints_dir(&self.state_dir));
        let mut failures = Failures::default();
        for (path, gone) in pending::read_all::<Endpoint>(&dir) {
            let Ok(gone) = gone else { continue };
            self.forget_moved(&gone.owner);
            match self.leave_recorded(&gone, &path) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    warn!(%error, owner = %gone.owner, "the end of a secondary network cannot be recorded");
                    continue;
                }
            }
            match skip_unreadable(&gone, withdraw(store, node, &gone)) {
                Ok(()) => drop(fs::remove_file(path)),
                Err(error) => failures.add(error)?,
            }
        }
        failures.into_result()
    }

    /// Forgets an endpoint whose file a plugin has moved because it found no agent.
    fn forget_moved(&self, owner: &Owner) {
        let mut inner = self.lock();
        if !self.file(owner).exists() {
            inner.forget(owner);
        }
    }
}

/// Reports a record that cannot be read. It stays as it is, and the sync goes on.
fn skip_unreadable(endpoint: &Endpoint, outcome: Result<(), IpamError>) -> Result<(), IpamError> {
    match outcome {
        Err(error @ IpamError::Malformed { .. }) => {
            error!(%error, owner = %endpoint.owner, hint = error.hint(), "endpoint is skipped");
            Ok(())
        }
        outcome => outcome,
    }
}
