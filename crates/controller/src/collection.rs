//! LeakCollection that nobody will give back: found in the store of blocks, and released when they have been nobody's for a while.
//!
//! Looks are a part of the grace period apart. The store is read first, and then who there is: a pod is there before it has an address. What
//! is decided, and when, is `podwire_block_ipam::Collector`'s, which does no I/O.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use podwire_block_ipam::store::{Store, StoreError};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{Allocator, CollectReport, Collector, Node, Rules};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::inventory;
use crate::metrics::Metrics;
use crate::status::Board;
use crate::tenure::Tenure;

/// The longest time between two looks.
const LONGEST: Duration = Duration::from_secs(300);
/// The shortest.
const SHORTEST: Duration = Duration::from_millis(100);

/// A store that is opened for each look.
pub type Opener = Arc<dyn Fn() -> Result<Box<dyn Store>, StoreError> + Send + Sync>;

/// Where addresses are, and how long one must have been nobody's.
#[derive(Clone)]
pub struct LeakCollection {
    /// The store of blocks.
    pub open: Opener,
    /// How long it waits before it releases anything.
    pub grace: Duration,
}

impl fmt::Debug for LeakCollection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeakCollection").field("grace", &self.grace).finish_non_exhaustive()
    }
}

/// The part of the work that is about addresses.
pub(crate) struct Collection {
    pub addresses: LeakCollection,
    pub client: Client,
    pub board: Board,
    pub metrics: Arc<Metrics>,
}

/// One look, in a thread that may wait for the store.
struct Look {
    open: Opener,
    client: Client,
    runtime: Handle,
    tenure: Tenure,
    stop: watch::Receiver<bool>,
    /// By a clock that never goes back.
    now: Duration,
}

impl Collection {
    /// Looks again and again, until it is told to stop. What a look in this tenure has found counts, and no other.
    pub async fn run(&self, tenure: &Tenure, mut stop: watch::Receiver<bool>) {
        let mut collector = Collector::new(self.addresses.grace);
        let begin = Instant::now();
        let mut turns = tokio::time::interval((self.addresses.grace / 2).clamp(SHORTEST, LONGEST));
        loop {
            tokio::select! {
                _ = turns.tick() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            let look = Look {
                open: self.addresses.open.clone(),
                client: self.client.clone(),
                runtime: Handle::current(),
                tenure: tenure.clone(),
                stop: stop.clone(),
                now: begin.elapsed(),
            };
            // A store waits for its answers: not on this thread.
            let looked = tokio::task::spawn_blocking(move || {
                let found = look.round(&mut collector);
                (collector, found)
            });
            let Ok((again, found)) = looked.await else { return };
            collector = again;
            self.report(found);
        }
    }

    fn report(&self, found: Result<(usize, CollectReport), String>) {
        let mut status = self.board.write();
        let known = status.addresses.get_or_insert_default();
        let (suspects, collected) = match found {
            Ok(found) => found,
            Err(why) => {
                self.metrics.collection_failures.inc();
                if known.trouble.as_ref() != Some(&why) {
                    warn!(why, "leaked addresses are not looked for; it is tried again");
                }
                known.trouble = Some(why);
                return;
            }
        };
        let released = collected.leaks.len();
        for leak in &collected.leaks {
            info!(ip = %leak.ip, handle = leak.handle, holder = ?leak.holder, "a leaked address is released");
        }
        for node in &collected.nodes {
            info!(node, "the blocks of a node that is gone are free");
        }
        for node in &collected.orphans {
            info!(node, "the object of a node that is gone is deleted");
        }
        for problem in &collected.repaired {
            info!(%problem, "mended");
        }
        for error in &collected.errors {
            debug!(%error, "left alone");
        }
        known.trouble = None;
        known.suspects = suspects.saturating_sub(released);
        known.released += released as u64;
        self.metrics.suspects.set(i64::try_from(known.suspects).unwrap_or(i64::MAX));
        self.metrics.released.inc_by(released as u64);
        self.metrics.mended.inc_by(collected.repaired.len() as u64);
        self.metrics.freed_nodes.inc_by(collected.nodes.len() as u64);
    }
}

impl Look {
    /// How many addresses are suspected, and what was done.
    fn round(&self, collector: &mut Collector) -> Result<(usize, CollectReport), String> {
        let told = |error: podwire_block_ipam::Error| error.to_string();
        let store = (self.open)().map_err(|error| error.to_string())?;
        let allocator = Allocator::new(&*store, Timestamp::now);
        let rules = Rules::load(&*store).map_err(told)?;
        let snapshot = allocator.snapshot().map_err(told)?;
        let objects = Node::list(&*store).map_err(told)?;
        let mut inventory =
            self.runtime.block_on(inventory::read(&self.client)).map_err(|error| error.to_string())?;
        inventory.add_node_objects(objects);
        inventory.pods.values_mut().for_each(|pod| pod.retain_pool_addresses(&rules));
        let garbage = collector.find_garbage(self.now, &snapshot, &rules, &inventory);
        let is_gone = |leak: &podwire_block_ipam::Leak| {
            let node = inventory.kubernetes_name(leak.holder.node());
            // Who cannot be asked about is not gone.
            self.runtime.block_on(inventory::has_released(&self.client, &rules, leak, node)).unwrap_or(false)
        };
        let may_go_on = || self.tenure.holds() && !*self.stop.borrow();
        let mut collected = allocator.collect(&rules, &garbage, is_gone, may_go_on).map_err(told)?;
        for (name, node) in &garbage.orphans {
            let is_gone =
                || self.runtime.block_on(inventory::is_no_node(&self.client, node)).unwrap_or(false);
            if !may_go_on() || !is_gone() {
                continue;
            }
            match allocator.delete_node_object(name, node) {
                Ok(true) => collected.orphans.push(name.clone()),
                Ok(false) => {}
                Err(error) => collected.errors.push(error),
            }
        }
        if may_go_on() {
            allocator.free_cooled_down(&rules).map_err(told)?;
        }
        Ok((garbage.suspects, collected))
    }
}
