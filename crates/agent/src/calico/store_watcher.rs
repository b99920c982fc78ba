//! Follows pools, blocks, nodes and BGP objects in the store. Sends the block index to the routes thread, and tells the
//! block allocator when pools change.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use podwire_agent_ipc::status::StoreStatus;
use podwire_block_ipam::store::{Store, StoreError};
use podwire_block_ipam::{BlockIndex, Pool};
use podwire_reconcile::{Backoff, Ended, Handle};

use crate::status::StatusHandle;
use crate::{Error, Result};

/// The timeout of one wait for changes. A timeout has no effect.
const WAIT: Duration = Duration::from_secs(600);

/// Called when pools were added, changed or removed.
pub(crate) type PoolsChanged = Box<dyn Fn() + Send>;

/// A handle of the thread. After it is dropped, the thread ends at the next failure of the store.
pub(crate) struct StoreWatcher {
    _stop: Sender<Infallible>,
}

impl StoreWatcher {
    pub(crate) fn start<O>(
        opener: O,
        has_bgp: bool,
        routes: Handle<BlockIndex>,
        pools_changed: PoolsChanged,
        status: StatusHandle,
    ) -> Result<StoreWatcher>
    where
        O: Fn() -> Result<Box<dyn Store>, StoreError> + Send + 'static,
    {
        let (stop, stopped) = mpsc::channel();
        let index = BlockIndex::default();
        let pools = index.pools.clone();
        let mut watcher =
            Watcher { opener, has_bgp, routes, pools_changed, status, index, pools, is_sent: false };
        let thread = std::thread::Builder::new().name("store-watch".into());
        thread.spawn(move || watcher.run(&stopped)).map_err(Error::thread("store-watch"))?;
        Ok(StoreWatcher { _stop: stop })
    }
}

struct Watcher<O> {
    opener: O,
    has_bgp: bool,
    routes: Handle<BlockIndex>,
    pools_changed: PoolsChanged,
    status: StatusHandle,
    index: BlockIndex,
    /// The pools that the block allocator knows of.
    pools: BTreeMap<String, Pool>,
    is_sent: bool,
}

impl<O> Watcher<O>
where
    O: Fn() -> Result<Box<dyn Store>, StoreError>,
{
    fn run(&mut self, stopped: &Receiver<Infallible>) {
        let mut backoff = Backoff::new();
        loop {
            let Err(error) = self.follow(&mut backoff) else { return };
            self.status.lock().store = StoreStatus { synced: false, detail: error.to_string() };
            self.status.set_problem("store", Some(format!("{error}; the last state stays, retrying")));
            if stopped.recv_timeout(backoff.next_pause()) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Follows the store until it fails; returns `Ok` when the routes thread has ended.
    fn follow(&mut self, backoff: &mut Backoff) -> Result<(), StoreError> {
        let store = (self.opener)()?;
        let mut follow = store.follow(&BlockIndex::prefixes(self.has_bgp))?;
        // The first list replaces the index: records that were deleted meanwhile must not stay.
        let mut first = Some(BlockIndex::default());
        loop {
            let Some(changes) = follow.wait(WAIT)? else { continue };
            backoff.reset();
            self.status.lock().store = StoreStatus { synced: true, detail: "current".into() };
            self.status.set_problem("store", None);
            let has_changed = match first.take() {
                Some(mut index) => {
                    index.apply(changes);
                    index.keep_last_valid_from(&self.index);
                    std::mem::replace(&mut self.index, index) != self.index
                }
                None => self.index.apply(changes),
            };
            if self.pools != self.index.pools {
                self.pools.clone_from(&self.index.pools);
                (self.pools_changed)();
            }
            if (has_changed || !self.is_sent) && self.send().is_err() {
                return Ok(());
            }
        }
    }

    fn send(&mut self) -> Result<(), Ended> {
        self.is_sent = true;
        let malformed: Vec<String> =
            self.index.malformed.iter().map(|(key, why)| format!("{key} cannot be read: {why}")).collect();
        self.status.set_problem("records", (!malformed.is_empty()).then(|| malformed.join("; ")));
        let no_pool = "there is no pool, so pods get no addresses; create one with `podwire ipam pool`";
        self.status.set_problem("pools", self.index.pools.is_empty().then(|| no_pool.into()));
        self.routes.send(self.index.clone())
    }
}
