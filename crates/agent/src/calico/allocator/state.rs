//! The state that plugins' requests and the store sync share: leases, the warm pool, and what the store does not have
//! yet.
//!
//! Lock order: [`State::lock`] before the lock of the endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use podwire_agent_ipc::addresses::{AddressRequest, Lease};
use podwire_agent_ipc::pods::Endpoint;
use podwire_agent_ipc::status::AddressStatus;
use podwire_agent_ipc::{Owner, ValidAttachment};
use podwire_block_ipam::selector::Labels;
use podwire_block_ipam::Rules;

use super::endpoints::Endpoints;
use super::error::Error;
use super::handles::handle_of;
use super::lease_dir::{LeaseDir, PendingRelease};
use super::pending::{Pending, Sweeps};
use super::problems::Problems;
use super::requests::{Requests, Waiter, WaitingRequest, Wanted};
use super::warm_pool::WarmPool;

/// What the warm pool has for a request.
pub(super) enum Taken {
    /// All addresses; they are leased now.
    Lease(Lease),
    /// Not this one: the store has to assign it.
    Missing(Wanted),
}

pub(super) struct State {
    pub(super) node: String,
    pub(super) lease_dir: LeaseDir,
    pub(super) endpoints: Endpoints,
    inner: Mutex<Inner>,
    /// Notified when the store sync has something to do.
    work: Condvar,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) warm_pool: WarmPool,
    /// Pools and the node's labels, as they were read last; none before the store has answered once.
    pub(super) rules: Option<(Rules, Labels)>,
    pub(super) leases: BTreeMap<Owner, Lease>,
    pub(super) requests: Requests,
    pub(super) pending: Pending,
    pub(super) problems: Problems,
}

/// What the store sync takes.
pub(super) struct Work {
    pub(super) requests: Vec<WaitingRequest>,
    pub(super) leases: Vec<Lease>,
    pub(super) legacy_handles: Vec<String>,
    pub(super) sweeps: Sweeps,
}

/// Addresses that a pod waits for, until it is dropped.
pub(super) struct Expected<'s> {
    state: &'s State,
    ips: &'s [IpAddr],
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.state.lock().requests.no_longer_expect(self.ips);
    }
}

/// Plugins' requests.
impl State {
    /// The state after a start, with the leases of the directory.
    pub(super) fn new(node: String, lease_dir: LeaseDir, endpoints: Endpoints) -> Result<State, Error> {
        let leases: BTreeMap<Owner, Lease> =
            lease_dir.leases()?.into_iter().map(|lease| (lease.owner.clone(), lease)).collect();
        let pending = Pending::after_start(leases.keys().cloned().collect());
        let inner = Mutex::new(Inner { leases, pending, ..Inner::default() });
        Ok(State { node, lease_dir, endpoints, inner, work: Condvar::new() })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the store sync. The lock makes sure that it is waiting, or has not looked for work yet.
    pub(super) fn wake_sync(&self) {
        let _inner = self.lock();
        self.work.notify_one();
    }

    /// Leases addresses of the warm pool. An attachment that has a lease gets it again.
    pub(super) fn take(
        &self,
        owner: &Owner,
        request: &AddressRequest,
        namespace: &Labels,
    ) -> Result<Taken, Error> {
        let mut inner = self.lock();
        match inner.leases.get(owner) {
            Some(lease) if self.lease_dir.has(owner) => return Ok(Taken::Lease(lease.clone())),
            // A plugin that found no agent has released it.
            Some(_) => {
                inner.forget(owner);
                inner.pending.has_releases = true;
            }
            None => {}
        }
        let mut addresses = Vec::new();
        for wanted in Wanted::of(request, namespace) {
            match inner.take_warm(&self.node, &wanted) {
                Ok(Some(address)) => addresses.push(address),
                other => {
                    inner.warm_pool.add(addresses);
                    return other.map(|_| Taken::Missing(wanted));
                }
            }
        }
        let lease = Lease {
            owner: owner.clone(),
            addresses,
            namespace: request.namespace.clone(),
            pod: request.pod.clone(),
            boot_id: self.lease_dir.boot_id().to_owned(),
        };
        if let Err(error) = self.lease_dir.write(&lease) {
            inner.warm_pool.add(lease.addresses);
            return Err(error);
        }
        inner.leases.insert(owner.clone(), lease.clone());
        inner.pending.unsynced.insert(owner.clone());
        self.work.notify_one();
        Ok(Taken::Lease(lease))
    }

    /// Keeps these addresses in the warm pool, once they are there, until the returned value is dropped.
    pub(super) fn expect<'s>(&'s self, ips: &'s [IpAddr]) -> Expected<'s> {
        self.lock().requests.expect(ips);
        Expected { state: self, ips }
    }

    /// Asks the store sync for an address.
    pub(super) fn submit(&self, wanted: Wanted, waiter: Waiter) {
        self.lock().requests.push(WaitingRequest { wanted, waiter });
        self.work.notify_one();
    }

    /// Turns an attachment's lease into a pending release. Without a lease, its handle is released.
    pub(super) fn release(&self, owner: &Owner, legacy_handle: Option<&str>) -> Result<(), Error> {
        let mut inner = self.lock();
        self.lease_dir.release(owner)?;
        inner.forget(owner);
        inner.pending.legacy_handles.extend(legacy_handle.map(str::to_owned));
        inner.pending.has_releases = true;
        self.work.notify_one();
        Ok(())
    }

    /// Releases an address that a pod requests again in a new sandbox: the previous sandbox is gone, or will be.
    pub(super) fn release_previous_sandbox(
        &self,
        owner: &Owner,
        request: &AddressRequest,
    ) -> Result<(), Error> {
        let is_previous = |lease: &&Lease| {
            !request.pod.is_empty()
                && (&lease.namespace, &lease.pod) == (&request.namespace, &request.pod)
                && lease.owner != *owner
                && lease.addresses.iter().any(|address| request.ips.contains(&address.addr()))
        };
        let previous: Vec<Owner> =
            self.lock().leases.values().filter(is_previous).map(|lease| lease.owner.clone()).collect();
        previous.iter().try_for_each(|owner| self.release(owner, None))
    }

    /// Requests a search of a network's blocks for addresses without a lease.
    pub(super) fn request_sweep(&self, network: &str, valid: &[ValidAttachment]) {
        self.lock().pending.sweeps.insert(network.to_owned(), valid.to_vec());
        self.wake_sync();
    }

    /// Whether namespace labels matter for the choice of pools. They may, before the pools were read.
    pub(super) fn uses_namespace_labels(&self) -> bool {
        self.lock().rules.as_ref().is_none_or(|(rules, _)| rules.use_namespace_labels())
    }

    pub(super) fn status(&self) -> AddressStatus {
        let inner = self.lock();
        AddressStatus {
            leases: inner.leases.len(),
            warm_pool: inner.warm_pool.len(),
            unsynced: inner.pending.leases() + self.endpoints.unsynced(),
            conflicting: inner.problems.conflicting.iter().cloned().collect(),
            unreadable: inner.problems.unreadable.iter().cloned().collect(),
            problem: inner.problems.store.clone(),
        }
    }
}

/// The store sync's side.
impl State {
    /// Waits for work. After a timeout everything that was postponed is due again; returns whether that is the case.
    pub(super) fn wait_for_work(&self, timeout: Duration) -> bool {
        let is_idle = |inner: &mut Inner| {
            inner.requests.is_empty() && inner.pending.is_empty() && !self.endpoints.has_changes()
        };
        let waited = self.work.wait_timeout_while(self.lock(), timeout, is_idle);
        let (mut inner, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            inner.pending.retry();
            inner.problems.unreadable.clear();
            self.endpoints.retry();
        }
        waited.timed_out()
    }

    /// Waits until one more request arrives, at most `timeout`.
    pub(super) fn wait_for_request(&self, timeout: Duration) {
        self.lock().requests.drop_expired();
        let waited = self.work.wait_timeout_while(self.lock(), timeout, |inner| !inner.requests.has_new());
        waited.unwrap_or_else(PoisonError::into_inner).0.requests.clear_new();
    }

    /// Waits for more changes, at most `timeout`, unless a pod waits for an address.
    pub(super) fn gather(&self, timeout: Duration) {
        drop(self.work.wait_timeout_while(self.lock(), timeout, |inner| inner.requests.is_empty()));
    }

    /// What the store needs now: the leases that it does not have, or all. They stay pending until they are synced.
    pub(super) fn take_work(&self, all_leases: bool) -> Work {
        let mut inner = self.lock();
        inner.pending.has_releases = false;
        if all_leases {
            // Plugins that found no agent have released these.
            let is_gone = |owner: &&Owner| !self.lease_dir.has(owner);
            let gone: Vec<Owner> = inner.leases.keys().filter(is_gone).cloned().collect();
            gone.iter().for_each(|owner| inner.forget(owner));
        }
        let leases = if all_leases {
            inner.leases.values().cloned().collect()
        } else {
            inner.pending.unsynced.iter().filter_map(|owner| inner.leases.get(owner)).cloned().collect()
        };
        Work {
            leases,
            legacy_handles: inner.pending.legacy_handles.iter().cloned().collect(),
            sweeps: inner.pending.sweeps.clone(),
            requests: inner.requests.take_all(),
        }
    }

    /// All pending releases. A lease that a plugin has moved there is forgotten.
    pub(super) fn pending_releases(&self) -> Vec<PendingRelease> {
        let mut inner = self.lock();
        let releases = self.lease_dir.pending_releases();
        let owners = releases.iter().map(|release| &release.lease.owner);
        for owner in owners.filter(|owner| !self.lease_dir.has(owner)) {
            inner.forget(owner);
        }
        releases
    }

    /// Records the endpoint and the addresses of a container as gone, unless a lease has its handle. Returns whether it
    /// did.
    pub(super) fn release_stale(&self, handle: &str, gone: &Endpoint) -> Result<bool, Error> {
        let mut inner = self.lock();
        let is_stale = inner.leased(handle).is_empty();
        if is_stale {
            self.endpoints.withdraw(gone)?;
            self.lease_dir.release(&gone.owner)?;
            inner.pending.has_releases = true;
        }
        Ok(is_stale)
    }

    /// Adds addresses that the store has assigned to the warm pool.
    pub(super) fn add_warm(&self, addresses: Vec<IpNet>) {
        self.add_unleased(&mut self.lock(), addresses);
    }

    /// Makes the warm pool equal to what the store assigns to it. Leases are compared after the store was read, under
    /// the lock.
    pub(super) fn recount_warm(&self, addresses: Vec<IpNet>) {
        let mut inner = self.lock();
        inner.warm_pool.retain(&addresses);
        self.add_unleased(&mut inner, addresses);
    }

    /// Addresses of leases and of pending releases are not warm, whatever the store says.
    fn add_unleased(&self, inner: &mut Inner, addresses: Vec<IpNet>) {
        let releases = self.lease_dir.pending_releases();
        let leases = inner.leases.values().chain(releases.iter().map(|release| &release.lease));
        let used: BTreeSet<IpNet> = leases.flat_map(|lease| lease.addresses.clone()).collect();
        inner.warm_pool.add(addresses.into_iter().filter(|address| !used.contains(address)));
    }

    /// Takes warm addresses that may not stay in the pool. Those that a pod waits for stay.
    pub(super) fn take_disallowed(&self, is_allowed: impl Fn(IpAddr) -> bool) -> Vec<IpNet> {
        let mut inner = self.lock();
        let Inner { warm_pool, requests, .. } = &mut *inner;
        warm_pool.take_disallowed(|ip| requests.is_expected(ip) || is_allowed(ip))
    }
}

impl Inner {
    /// The leased addresses of a handle.
    pub(super) fn leased(&self, handle: &str) -> BTreeSet<IpAddr> {
        let leases = self.leases.values().filter(|lease| handle_of(lease) == handle);
        leases.flat_map(|lease| lease.addresses.iter().map(IpNet::addr)).collect()
    }

    fn forget(&mut self, owner: &Owner) {
        self.leases.remove(owner);
        self.pending.forget(owner);
    }

    fn take_warm(&mut self, node: &str, wanted: &Wanted) -> Result<Option<IpNet>, Error> {
        match (wanted, &self.rules) {
            (_, None) => Ok(None),
            (Wanted::Address(ip), _) => Ok(self.warm_pool.take_address(*ip)),
            (Wanted::Any(choice), Some((rules, labels))) => {
                self.warm_pool.take(rules, &choice.request(node, labels))
            }
        }
    }
}
