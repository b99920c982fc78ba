//! The state of the allocator: leases, the warm pool, and changes that the store does not have yet. The server's
//! threads, which answer plugins, share it with the store sync, the thread of the allocator that uses the datastore.
//!
//! [`State`] and [`Endpoints`] have a lock each. A thread that needs both takes the lock of `State` first. The agent
//! handles a plugin's request under the lock of `State`, so that lease file and memory change together. Others may move
//! a lease file without this lock (see [`State::lease_dir`]). No thread waits for the datastore under a lock.
//!
//! A *handle* names a network and a container: the addresses of a container's interfaces share it.

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
use podwire_block_ipam::{Error as IpamError, Rules};

use super::endpoints::Endpoints;
use super::error::Error;
use super::handles::handle_of;
use super::lease_dir::{LeaseDir, PendingRelease};
use super::pending::{LeakChecks, Pending};
use super::problems::Problems;
use super::requests::{Requests, Waiter, WaitingRequest, Wanted};
use super::warm_pool::WarmPool;

/// The result of [`State::take`].
pub(super) enum TakeResult {
    /// The warm pool had all requested addresses. They are leased now.
    Lease(Lease),
    /// The first address that the warm pool does not have: the store sync has to assign it. Nothing is leased.
    Missing(Wanted),
}

pub(super) struct State {
    /// The node's name in the store.
    pub(super) node: String,
    /// The leases on disk, for the next start of the agent. A plugin whose DEL cannot reach the agent, or gets no
    /// response in time, moves the file to `released`, the directory of pending releases, itself. The lease in memory
    /// is outdated then. [`Endpoints`] does the same for pods whose veth pairs are gone.
    pub(super) lease_dir: LeaseDir,
    /// The endpoints of attached pods.
    pub(super) endpoints: Endpoints,
    inner: Mutex<Inner>,
    /// Notified when the store sync has something to do.
    work: Condvar,
    /// Notified when this process begins or ceases to own the node's blocks.
    pub(super) node_claim_changed: Condvar,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) warm_pool: WarmPool,
    /// Whether the store sync has filled the warm pool once, or has found that a pod can borrow an address or why it
    /// gets none. Before that the agent is not ready: the blocks may all belong to other nodes.
    pub(super) was_filled: bool,
    /// Pools and the node's labels, as they were read last; none before the store has answered once.
    pub(super) rules: Option<(Rules, Labels)>,
    /// The leases of [`State::lease_dir`], by attachment.
    pub(super) leases: BTreeMap<Owner, Lease>,
    pub(super) requests: Requests,
    pub(super) pending: Pending,
    pub(super) problems: Problems,
    /// Whether this process owns the node's blocks, as far as the store has said.
    pub(super) holds_node_claim: bool,
}

/// The input of one round of the store sync.
pub(super) struct Work {
    /// The store sync answers each request or puts it back.
    pub(super) requests: Vec<WaitingRequest>,
    /// The leases to write to the store.
    pub(super) leases: Vec<Lease>,
    /// The handles `namespace.pod` of deleted pods, in the format of Calico 2. They may still have addresses.
    pub(super) legacy_handles: Vec<String>,
    pub(super) leak_checks: LeakChecks,
}

/// A guard: while it lives, the store sync does not evict these addresses from the warm pool.
pub(super) struct PinnedAddresses<'s> {
    state: &'s State,
    ips: &'s [IpAddr],
}

impl Drop for PinnedAddresses<'_> {
    fn drop(&mut self) {
        self.state.lock().requests.unpin(self.ips);
    }
}

/// Plugins' requests.
impl State {
    /// The state after a start, with the leases of the directory. All of them are unsynced.
    pub(super) fn new(node: String, lease_dir: LeaseDir, endpoints: Endpoints) -> Result<State, Error> {
        let leases: BTreeMap<Owner, Lease> =
            lease_dir.leases()?.into_iter().map(|lease| (lease.owner.clone(), lease)).collect();
        let pending = Pending::after_start(leases.keys().cloned().collect());
        let inner = Mutex::new(Inner { leases, pending, ..Inner::default() });
        let (work, node_claim_changed) = (Condvar::new(), Condvar::new());
        Ok(State { node, lease_dir, endpoints, inner, work, node_claim_changed })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the store sync after a change of the endpoints, which have another lock. Without the lock of the state,
    /// the notification could fall between the store sync's check for work and its wait, and be lost.
    pub(super) fn wake_sync(&self) {
        let _inner = self.lock();
        self.work.notify_one();
    }

    /// Leases addresses of the warm pool. An attachment that already has a lease gets that one.
    pub(super) fn take(
        &self,
        owner: &Owner,
        request: &AddressRequest,
        namespace: &Labels,
    ) -> Result<TakeResult, Error> {
        let mut inner = self.lock();
        match inner.leases.get(owner) {
            Some(lease) if self.lease_dir.has(owner) => return Ok(TakeResult::Lease(lease.clone())),
            // The lease file was moved to the pending releases: see `lease_dir`.
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
                Ok(None) => {
                    inner.warm_pool.add(addresses);
                    return Ok(TakeResult::Missing(wanted));
                }
                Err(error) => {
                    inner.warm_pool.add(addresses);
                    return Err(error);
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
        inner.pending.add(owner);
        self.work.notify_one();
        Ok(TakeResult::Lease(lease))
    }

    /// Pins the particular addresses that a pod requests. The store sync assigns one after the other to the warm pool,
    /// and does not evict those that it has added while the pod waits for the rest.
    pub(super) fn pin<'s>(&'s self, ips: &'s [IpAddr]) -> PinnedAddresses<'s> {
        self.lock().requests.pin(ips);
        PinnedAddresses { state: self, ips }
    }

    /// Requests an address from the store sync.
    pub(super) fn submit(&self, wanted: Wanted, waiter: Waiter) {
        self.lock().requests.push(WaitingRequest { wanted, waiter });
        self.work.notify_one();
    }

    /// Turns an attachment's lease into a pending release. Without a lease, the pending release has no addresses, and
    /// the store sync releases all addresses that the attachment's handle has in the store and that no lease has:
    /// Calico's plugin, or a plugin without an agent, assigned them.
    pub(super) fn release(&self, owner: &Owner, legacy_handle: Option<&str>) -> Result<(), Error> {
        let mut inner = self.lock();
        let had_lease = inner.leases.contains_key(owner);
        // Runtimes repeat DEL. The first one has recorded everything.
        if !had_lease && inner.pending.is_released(owner) {
            return Ok(());
        }
        self.lease_dir.release(owner)?;
        inner.forget(owner);
        if had_lease {
            inner.pending.mark_released(owner);
        } else {
            // Without a lease, the addresses may be from Calico 2, which named handles differently.
            inner.pending.legacy_handles.extend(legacy_handle.map(str::to_owned));
        }
        inner.pending.has_releases = true;
        self.work.notify_one();
        Ok(())
    }

    /// Releases the leases of a pod's previous sandboxes, if they have an address that the pod requests in a new
    /// sandbox. A pod has one running sandbox, so no process uses the address through a previous one. The DEL of a
    /// previous sandbox may still follow; it releases only addresses of that sandbox's own handle.
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

    /// Requests a leak check: the store sync searches the node's blocks for addresses of a network that have no lease,
    /// and releases those whose containers are not in `valid`, the attachments that the runtime still has. The request
    /// replaces an earlier one for the network.
    pub(super) fn request_leak_check(&self, network: &str, valid: &[ValidAttachment]) {
        self.lock().pending.leak_checks.insert(network.to_owned(), valid.to_vec());
        self.work.notify_one();
    }

    /// Whether a pool selects namespaces by their labels. True until the pools are known.
    pub(super) fn uses_namespace_labels(&self) -> bool {
        self.lock().rules.as_ref().is_none_or(|(rules, _)| rules.use_namespace_labels())
    }

    /// Requests that the store sync reads the pools again.
    pub(super) fn pools_changed(&self) {
        self.lock().pending.has_new_pools = true;
        self.work.notify_one();
    }

    /// Fails if no pod can get an address.
    pub(super) fn check_ready(&self) -> Result<(), Error> {
        let inner = self.lock();
        match (&inner.problems.store, &inner.problems.shortage) {
            (Some(error @ IpamError::NodeOwned { .. }), _) => Err(error.clone().into()),
            (Some(error), _) if inner.warm_pool.len() == 0 => {
                Err(Error::NoWarmAddress { why: error.to_string() })
            }
            (_, Some(shortage)) => Err(shortage.clone().into()),
            _ if !inner.was_filled && inner.warm_pool.len() == 0 => Err(Error::NotFilled),
            _ => Ok(()),
        }
    }

    pub(super) fn status(&self) -> AddressStatus {
        let inner = self.lock();
        AddressStatus {
            leases: inner.leases.len(),
            warm_pool: inner.warm_pool.len(),
            unsynced: inner.pending.unsynced_leases() + self.endpoints.unsynced(),
            conflicting: inner.problems.conflicting.iter().cloned().collect(),
            unreadable: inner.problems.unreadable.iter().cloned().collect(),
            problem: inner.problems.store.as_ref().map(ToString::to_string),
        }
    }
}

/// The store sync's calls.
impl State {
    /// Waits for work, at most `timeout`. Returns true if none arrived.
    pub(super) fn wait_for_work(&self, timeout: Duration) -> bool {
        let is_idle = |inner: &mut Inner| {
            inner.requests.is_empty() && inner.pending.is_empty() && !self.endpoints.has_changes()
        };
        let waited = self.work.wait_timeout_while(self.lock(), timeout, is_idle);
        waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// The next round retries leases and releases that were postponed because a record in the store could not be read,
    /// and looks for files that plugins moved.
    pub(super) fn retry_postponed(&self) {
        let mut inner = self.lock();
        inner.pending.retry();
        inner.problems.unreadable.clear();
        self.endpoints.retry();
    }

    /// Whether pods wait for addresses, or half of the warm pool is used.
    pub(super) fn may_need_addresses(&self, warm_addresses: usize) -> bool {
        let inner = self.lock();
        !inner.requests.is_empty() || inner.warm_pool.len() * 2 <= warm_addresses
    }

    /// Waits after a failure of the store, at most `timeout`, or until a new request arrives. The requests that failed
    /// are in the queue again, and do not end the wait.
    pub(super) fn wait_for_request(&self, timeout: Duration) {
        self.lock().requests.drop_expired();
        let waited = self.work.wait_timeout_while(self.lock(), timeout, |inner| !inner.requests.has_new());
        waited.unwrap_or_else(PoisonError::into_inner).0.requests.clear_new();
    }

    /// Waits for `timeout`, so that one write to the store has many changes, or until a pod waits for an address.
    pub(super) fn wait_for_batch(&self, timeout: Duration) {
        drop(self.work.wait_timeout_while(self.lock(), timeout, |inner| inner.requests.is_empty()));
    }

    /// The work of a round: waiting requests, unsynced leases or all leases, legacy handles and leak checks. Only the
    /// requests leave the state; the rest stays pending until the store has it. With `all_leases` it first forgets leases
    /// whose files were moved. Call this before [`pending_releases`](Self::pending_releases).
    pub(super) fn take_work(&self, all_leases: bool) -> Work {
        let mut inner = self.lock();
        // Before the round reads the pending releases: one that is recorded from now on causes another round.
        inner.pending.has_releases = false;
        if all_leases {
            // The files of these leases were moved to the pending releases: see `lease_dir`.
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
            leak_checks: inner.pending.leak_checks.clone(),
            requests: inner.requests.take_all(),
        }
    }

    /// All pending releases. Forgets each lease whose file was moved to them.
    pub(super) fn pending_releases(&self) -> Vec<PendingRelease> {
        let mut inner = self.lock();
        let releases = self.lease_dir.pending_releases();
        let owners = releases.iter().map(|release| &release.lease.owner);
        for owner in owners.filter(|owner| !self.lease_dir.has(owner)) {
            inner.forget(owner);
        }
        releases
    }

    /// Records a container that a leak check found to be gone: its endpoint is to be withdrawn, and its addresses are
    /// to be released. `handle` is the one of `gone.owner`: it names network and container, but no interface. Returns
    /// false and records nothing if a lease has the handle: the container was attached after the leak check was
    /// requested.
    pub(super) fn release_stale(&self, handle: &str, gone: &Endpoint) -> Result<bool, Error> {
        let mut inner = self.lock();
        if inner.leases.values().any(|lease| handle_of(lease) == handle) {
            return Ok(false);
        }
        self.endpoints.withdraw(gone)?;
        // There is no lease file, so this pending release has no addresses: all of the handle's are released.
        self.lease_dir.release(&gone.owner)?;
        inner.pending.has_releases = true;
        Ok(true)
    }

    /// Adds addresses to the warm pool that the store has just assigned to it.
    pub(super) fn add_warm(&self, addresses: Vec<IpNet>) {
        self.add_unleased(&mut self.lock(), addresses);
    }

    /// Makes the warm pool equal to the addresses that the store assigns to it, except leases and pending releases.
    pub(super) fn reconcile_warm_pool(&self, addresses: Vec<IpNet>) {
        let mut inner = self.lock();
        inner.warm_pool.retain(&addresses);
        self.add_unleased(&mut inner, addresses);
    }

    /// Adds addresses to the warm pool, except those of leases and of pending releases. The store read may be older
    /// than the newest of them, so they are filtered here, under the lock.
    fn add_unleased(&self, inner: &mut Inner, addresses: Vec<IpNet>) {
        let releases = self.lease_dir.pending_releases();
        let leases = inner.leases.values().chain(releases.iter().map(|release| &release.lease));
        let used: BTreeSet<IpNet> = leases.flat_map(|lease| lease.addresses.clone()).collect();
        inner.warm_pool.add(addresses.into_iter().filter(|address| !used.contains(address)));
    }

    /// Removes addresses from the warm pool that may not stay there, except pinned ones. The caller releases them in
    /// the store.
    pub(super) fn evict_disallowed(&self, is_allowed: impl Fn(IpAddr) -> bool) -> Vec<IpNet> {
        let mut inner = self.lock();
        let Inner { warm_pool, requests, .. } = &mut *inner;
        warm_pool.evict_disallowed(|ip| requests.is_pinned(ip) || is_allowed(ip))
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
            (Wanted::Address(ip), _) => Ok(self.warm_pool.take_address(*ip)),
            (Wanted::Any(choice), Some((rules, labels))) => {
                self.warm_pool.take(rules, &choice.request(node, labels))
            }
            // The warm pool is empty until the store sync has read the pools.
            (Wanted::Any(_), None) => Ok(None),
        }
    }
}
