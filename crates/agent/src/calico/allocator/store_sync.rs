//! The thread that talks to the store: it serves waiting requests, writes leases and releases, publishes endpoints, and
//! keeps the warm pool filled.

mod refill;
mod release;
mod transfer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use podwire_block_ipam::selector::Labels;
use podwire_block_ipam::store::{Cached, Memo, Store};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{Allocator, Error as IpamError, Handle, Ownership, Rules};
use podwire_reconcile::Backoff;
use tracing::{error, info, warn};

use super::error::Error;
use super::requests::{PoolChoice, WaitingRequest, Wanted};
use super::state::{State, Work};
use super::{Opener, Settings};

/// How long pools, settings and labels that were read are used to assign addresses.
const RULES_AGE: Duration = Duration::from_secs(5);
/// The interval at which leases and warm pool are compared with the store.
const AUDIT_INTERVAL: Duration = Duration::from_secs(60);
/// How long the thread waits for more changes for one write, unless a pod waits for an address. Meanwhile the plugin's
/// process has the CPU.
const BATCH_WAIT: Duration = Duration::from_millis(10);
/// The first wait after the start is shorter: until the agent listens, plugins cannot reach it, so they record releases
/// in files.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// Starts the thread. It runs until the program ends.
pub(super) fn start(
    state: Arc<State>,
    settings: Settings,
    ownership: Ownership,
    opener: Opener,
) -> Result<(), Error> {
    // The thread creates the sync, because a store is not `Send`.
    let run = move || {
        let mut sync = StoreSync {
            warm_handle: Handle::for_warm_pool(&settings.node),
            state,
            settings,
            ownership,
            opener,
            store: None,
            memo: Memo::default(),
            rules: None,
            audited: None,
            has_settled: false,
            exhausted: BTreeMap::new(),
            requested: BTreeMap::new(),
        };
        sync.run();
    };
    let thread = std::thread::Builder::new().name("store-sync".into());
    thread.spawn(run).map(drop).map_err(Error::file("start", "thread store-sync"))
}

struct StoreSync {
    state: Arc<State>,
    settings: Settings,
    /// The claim to the node's blocks.
    ownership: Ownership,
    /// The handle of the warm pool.
    warm_handle: String,
    opener: Opener,
    store: Option<Box<dyn Store>>,
    /// What is remembered of the store.
    memo: Memo,
    rules: Option<CachedRules>,
    /// The time of the last comparison with the store.
    audited: Option<Instant>,
    /// Whether one wait without work has passed since the start. After it the thread looks for recorded releases once
    /// more.
    has_settled: bool,
    /// Networks without free addresses. Waiting requests ignore it.
    exhausted: BTreeMap<Vec<IpNet>, Exhausted>,
    /// Pools that pods requested beside the default ones, by their networks. The warm pool has addresses of them too.
    requested: BTreeMap<Vec<IpNet>, PoolChoice>,
}

/// Networks from which the warm pool cannot be refilled.
struct Exhausted {
    /// Until when it is not tried again.
    until: Instant,
    /// Why a pod gets no address either; `None` if a pod can borrow one.
    shortage: Option<IpamError>,
}

/// Pools, settings and the node's labels.
struct CachedRules {
    rules: Rules,
    labels: Labels,
    /// `None`: the pools have changed since.
    read: Option<Instant>,
}

/// The store, and what was read from it.
struct Session<'a> {
    allocator: Allocator<'a>,
    rules: Rules,
    labels: Labels,
}

impl StoreSync {
    fn run(&mut self) {
        let mut backoff = Backoff::new();
        loop {
            match self.sync() {
                Ok(()) => {
                    backoff.reset();
                    if self.state.lock().problems.store.take().is_some() {
                        info!("store answers");
                    }
                    let timeout = if self.has_settled { AUDIT_INTERVAL } else { FIRST_WAIT };
                    self.has_settled |= self.wait_for_work(timeout);
                    self.state.wait_for_batch(BATCH_WAIT);
                }
                Err(error) => {
                    // A write without an answer may have changed the warm pool in the store.
                    self.audited = None;
                    let before = self.state.lock().problems.store.replace(error.clone());
                    let is_new = before.as_ref() != Some(&error);
                    let pause = if let IpamError::NodeOwned { .. } = error {
                        self.state.set_owner(Err(&error));
                        self.ownership.interval()
                    } else {
                        backoff.next_pause()
                    };
                    if is_new {
                        warn!(%error, hint = error.hint(), "store cannot be used; retrying");
                    }
                    self.state.wait_for_request(pause);
                }
            }
        }
    }

    /// Waits for work, at most `timeout`, and renews the claim to the node meanwhile. Returns whether no work arrived.
    fn wait_for_work(&mut self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !self.state.wait_for_work(left.min(self.ownership.until_renewal())) {
                return false;
            }
            if until <= Instant::now() {
                self.state.retry_postponed();
                return true;
            }
            // The next round reports a failure.
            if self.store.as_ref().is_none_or(|store| self.ownership.hold(&**store).is_err()) {
                return false;
            }
        }
    }

    /// Does all pending work once. After an error the store has to be asked again.
    fn sync(&mut self) -> Result<(), IpamError> {
        let store = match self.store.take() {
            Some(store) => store,
            None => (self.opener)()?,
        };
        let cached = Cached::new(&*store, std::mem::take(&mut self.memo));
        let outcome = self.sync_with(&cached);
        // After a failure the store is opened again: it may need a new token or certificate.
        if outcome.is_ok() {
            // A record that cannot be read may be repaired at any time.
            let is_readable = self.state.lock().problems.unreadable.is_empty();
            self.memo = if is_readable { cached.into_memo() } else { Memo::default() };
            self.store = Some(store);
        }
        outcome
    }

    fn sync_with(&mut self, store: &Cached<'_>) -> Result<(), IpamError> {
        self.ownership.hold(store)?;
        self.state.set_owner(Ok(()));
        let (rules, labels) = self.read_rules(store)?;
        let session = Session { allocator: Allocator::new(store, Timestamp::now), rules, labels };
        // An administrator may have released addresses of this node, and a store from a backup lacks the newest ones.
        let is_audit = self.audited.is_none_or(|when| when.elapsed() >= AUDIT_INTERVAL);
        if is_audit {
            store.clear();
            if let Err(error) = self.state.endpoints.withdraw_without_veth() {
                warn!(%error, "endpoints of deleted pods cannot be recorded");
            }
            self.reconcile_warm_pool(&session.allocator)?;
        }
        // 1. Before addresses are assigned: one that a waiting pod has just got must not leave the warm pool again.
        self.release_disallowed(&session)?;
        let Work { requests, leases, legacy_handles, leak_checks } = self.state.take_work(is_audit);
        // 2. A request for a particular address may need the one that the previous sandbox released.
        let requests = self.release_before_particular_addresses(&session, requests)?;
        self.serve(&session, requests)?;
        self.write_leases(&session, &leases, is_audit)?;
        if is_audit {
            self.audited = Some(Instant::now());
        }
        // 3. Endpoints are withdrawn before their addresses are released, so that no endpoint has another pod's
        //    address. The address is released even if the store rejects the withdrawal.
        let endpoints = &self.state.endpoints;
        let withdrawn = endpoints.sync_withdrawn(store, &self.settings.node);
        let withdrawn = withdrawn.inspect_err(|_| endpoints.retry());
        let released = self.release_pending(&session, &legacy_handles);
        let released = released.inspect_err(|_| self.state.lock().pending.has_releases = true)?;
        if released && self.state.lock().problems.shortage.is_some() {
            self.exhausted.clear();
        }
        self.refill(&session)?;
        // 4. Endpoints are published although others could not be withdrawn. Waiting pods come first; the next round
        //    does the rest.
        let has_requests = || !self.state.lock().requests.is_empty();
        let published = self.state.endpoints.sync_published(store, &self.settings.node, has_requests);
        // 5. Last, because a leak check reads all blocks. The next round releases what it finds.
        let mut leak_checks = leak_checks.iter();
        let checked = leak_checks.try_for_each(|(network, valid)| self.check_leaks(&session, network, valid));
        published.and(withdrawn).and(checked)
    }

    /// Releases what is pending if a request needs a particular address. If the store fails, the requests wait on.
    fn release_before_particular_addresses(
        &self,
        session: &Session<'_>,
        requests: Vec<WaitingRequest>,
    ) -> Result<Vec<WaitingRequest>, IpamError> {
        if !requests.iter().any(|request| matches!(request.wanted, Wanted::Address(_))) {
            return Ok(requests);
        }
        if let Err(error) = self.release_pending(session, &[]) {
            let mut inner = self.state.lock();
            inner.requests.put_back(requests);
            inner.pending.has_releases = true;
            return Err(error);
        }
        Ok(requests)
    }

    /// Makes the warm pool in memory match the store. They differ after a restart, or if the answer of a write was lost.
    fn reconcile_warm_pool(&self, allocator: &Allocator<'_>) -> Result<(), IpamError> {
        match allocator.warm_addresses(&self.warm_handle) {
            Err(error @ IpamError::Store(_)) => return Err(error),
            Err(error) => self.report([&error]),
            Ok(addresses) => self.state.reconcile_warm_pool(addresses),
        }
        Ok(())
    }

    /// Pools, settings and labels: at most [`RULES_AGE`] old if a pod waits or half of the warm pool is used, otherwise a
    /// minute. A change of the pools is noticed at once.
    fn read_rules(&mut self, store: &dyn Store) -> Result<(Rules, Labels), IpamError> {
        if std::mem::take(&mut self.state.lock().pending.has_new_pools) {
            self.exhausted.clear();
            self.rules.iter_mut().for_each(|cached| cached.read = None);
        }
        let may_assign = self.state.may_need_addresses(self.settings.warm_addresses);
        let age = if may_assign { RULES_AGE } else { AUDIT_INTERVAL };
        let is_current = |cached: &&CachedRules| cached.read.is_some_and(|read| read.elapsed() < age);
        if let Some(cached) = self.rules.as_ref().filter(is_current) {
            return Ok((cached.rules.clone(), cached.labels.clone()));
        }
        let read = Rules::load_readable(store).and_then(|(rules, unreadable)| {
            Ok((rules, unreadable, Rules::node_labels(store, &self.settings.node)?))
        });
        let last = self.rules.as_ref().map(|cached| (cached.rules.clone(), cached.labels.clone()));
        let (rules, labels) = match (read, last) {
            (Err(error @ IpamError::Store(_)), _) => return Err(error),
            // The last readable state stays in use, as for routes.
            (Err(error), Some(last)) => {
                self.report([&error]);
                last
            }
            (read, last) => {
                let (rules, unreadable, labels) = read?;
                self.report(&unreadable);
                last.filter(|_| !unreadable.is_empty()).unwrap_or((rules, labels))
            }
        };
        self.state.lock().rules = Some((rules.clone(), labels.clone()));
        self.rules =
            Some(CachedRules { rules: rules.clone(), labels: labels.clone(), read: Some(Instant::now()) });
        Ok((rules, labels))
    }

    /// Logs blocks and handles that cannot be read, each once until the next idle minute.
    fn report<'a>(&self, unreadable: impl IntoIterator<Item = &'a IpamError>) {
        for error in unreadable {
            if self.state.lock().problems.add_unreadable(error.to_string()) {
                error!(%error, hint = error.hint(), "record is ignored");
            }
        }
    }

    /// Whether the operation succeeded. An error about one record is reported; only a store that fails ends the round.
    fn is_done<T>(&self, outcome: Result<T, IpamError>) -> Result<bool, IpamError> {
        match outcome {
            Ok(_) => Ok(true),
            Err(error @ IpamError::Store(_)) => Err(error),
            Err(error) => {
                self.report([&error]);
                Ok(false)
            }
        }
    }
}
