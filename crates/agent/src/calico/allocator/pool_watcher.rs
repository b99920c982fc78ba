//! Follows the pools in the store, for an allocator that runs without the rest of the agent. (In `podwire agent calico`
//! the store watcher follows all records.)

use std::convert::Infallible;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use podwire_block_ipam::key;
use podwire_block_ipam::store::StoreError;
use podwire_reconcile::Backoff;
use tracing::{info, warn};

use super::error::Error;
use super::{BlockAllocator, Opener};

/// The timeout of one wait for changes. A timeout has no effect.
const WAIT: Duration = Duration::from_secs(600);

/// A handle of the thread. After it is dropped, the thread ends at the next failure of the store.
pub struct PoolWatcher {
    _stop: Sender<Infallible>,
}

impl PoolWatcher {
    /// Starts a thread that makes the allocator read the pools at once when they change.
    pub fn start(allocator: BlockAllocator, opener: Opener) -> Result<PoolWatcher, Error> {
        let (stop, stopped) = mpsc::channel();
        let mut watcher = Watcher { allocator, opener, backoff: Backoff::new(), problem: None };
        let thread = std::thread::Builder::new().name("pool-watch".into());
        let started = thread.spawn(move || watcher.run(&stopped));
        started.map_err(Error::file("start", "thread pool-watch"))?;
        Ok(PoolWatcher { _stop: stop })
    }
}

struct Watcher {
    allocator: BlockAllocator,
    opener: Opener,
    backoff: Backoff,
    /// Why the pools cannot be followed, as it was reported last.
    problem: Option<StoreError>,
}

impl Watcher {
    fn run(&mut self, stopped: &Receiver<Infallible>) {
        loop {
            let Err(error) = self.follow();
            if self.problem.as_ref() != Some(&error) {
                warn!(%error, hint = error.hint(), "pools cannot be followed; retrying");
                self.problem = Some(error);
            }
            if stopped.recv_timeout(self.backoff.next_pause()) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Follows the pools until the store fails. The first result has all pools: one that changed while the store failed
    /// is noticed too.
    fn follow(&mut self) -> Result<Infallible, StoreError> {
        let store = (self.opener)()?;
        let mut follow = store.follow(&[key::POOLS])?;
        loop {
            if follow.wait(WAIT)?.is_none() {
                continue;
            }
            self.backoff.reset();
            if self.problem.take().is_some() {
                info!("pools are followed again");
            }
            self.allocator.pools_changed();
        }
    }
}
