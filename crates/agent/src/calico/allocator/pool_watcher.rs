//! Follows the pools in the store, for an allocator that runs without the rest of the agent. (In `podwire agent calico`
//! the store watcher follows all records.)

use std::convert::Infallible;
use std::time::Duration;

use podwire_block_ipam::key;
use podwire_block_ipam::store::StoreError;
use podwire_reconcile::Backoff;
use tracing::{info, warn};

use super::error::Error;
use super::{BlockAllocator, Opener};

/// The timeout of one wait for changes. A timeout has no effect.
const WAIT: Duration = Duration::from_secs(600);

/// Starts a thread that makes the allocator read the pools at once when they change. It runs until the program ends.
pub fn watch_pools(allocator: BlockAllocator, opener: Opener) -> Result<(), Error> {
    let mut watcher = PoolWatcher { allocator, opener, backoff: Backoff::new(), problem: None };
    let thread = std::thread::Builder::new().name("pool-watch".into());
    thread.spawn(move || watcher.run()).map(drop).map_err(Error::file("start", "thread pool-watch"))
}

struct PoolWatcher {
    allocator: BlockAllocator,
    opener: Opener,
    backoff: Backoff,
    /// Why the pools cannot be followed, as it was reported last.
    problem: Option<StoreError>,
}

impl PoolWatcher {
    fn run(&mut self) {
        loop {
            let Err(error) = self.follow();
            if self.problem.as_ref() != Some(&error) {
                warn!(%error, hint = error.hint(), "pools cannot be followed; retrying");
                self.problem = Some(error);
            }
            std::thread::sleep(self.backoff.next_pause());
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
