//! Leak collection: finds addresses in the block store that no pod or node uses, and releases them after a grace
//! period.
//!
//! Runs are half a grace period apart. A run reads the store first and the inventory second, because a pod object
//! exists before the pod has an address. `podwire_block_ipam::Collector` makes the decisions and does no I/O.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use podwire_block_ipam::store::{Store, StoreError};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{Allocator, CollectReport, Collector, Leak, Node, Rules};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::inventory;
use crate::lease_deadline::LeaseDeadline;
use crate::metrics::Metrics;
use crate::status::StatusHandle;

const MAX_INTERVAL: Duration = Duration::from_secs(300);
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Opens the store, once for each run.
pub type StoreOpener = Arc<dyn Fn() -> Result<Box<dyn Store>, StoreError> + Send + Sync>;

/// The settings of the leak collection.
#[derive(Clone)]
pub struct LeakCollection {
    /// Opens the block store.
    pub open: StoreOpener,
    /// How long an address must be unused before it is released.
    pub grace: Duration,
}

impl fmt::Debug for LeakCollection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeakCollection").field("grace", &self.grace).finish_non_exhaustive()
    }
}

/// The leader's task that releases leaked addresses.
pub(crate) struct LeakCollector {
    pub settings: LeakCollection,
    pub client: Client,
    pub status: StatusHandle,
    pub metrics: Arc<Metrics>,
}

/// One run, on a thread that may block on the store.
struct Run {
    open: StoreOpener,
    client: Client,
    runtime: Handle,
    deadline: LeaseDeadline,
    stop: watch::Receiver<bool>,
    /// The monotonic time.
    now: Duration,
}

/// What a run found and did.
struct Outcome {
    /// Addresses of pods that are gone, the released ones included.
    suspects: usize,
    collected: CollectReport,
}

impl LeakCollector {
    /// Runs again and again until `stop` is true. Only findings of this leadership count.
    pub async fn run(&self, deadline: &LeaseDeadline, mut stop: watch::Receiver<bool>) {
        let mut collector = Collector::new(self.settings.grace);
        let start = Instant::now();
        let interval = (self.settings.grace / 2).clamp(MIN_INTERVAL, MAX_INTERVAL);
        let mut ticks = tokio::time::interval(interval);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            let run = Run {
                open: self.settings.open.clone(),
                client: self.client.clone(),
                runtime: Handle::current(),
                deadline: deadline.clone(),
                stop: stop.clone(),
                now: start.elapsed(),
            };
            // The store blocks: not on this thread.
            let task = tokio::task::spawn_blocking(move || {
                let outcome = run.collect(&mut collector);
                (collector, outcome)
            });
            let Ok((returned, outcome)) = task.await else { return };
            collector = returned;
            self.report(outcome);
        }
    }

    fn report(&self, outcome: Result<Outcome, String>) {
        let mut status = self.status.write();
        let addresses = status.addresses.get_or_insert_default();
        let Outcome { suspects, collected } = match outcome {
            Ok(outcome) => outcome,
            Err(why) => {
                self.metrics.collection_failures.inc();
                if addresses.error.as_ref() != Some(&why) {
                    warn!(why, "leak collection failed, retrying");
                }
                addresses.error = Some(why);
                return;
            }
        };
        let released = collected.leaks.len();
        for leak in &collected.leaks {
            info!(ip = %leak.ip, handle = leak.handle, holder = ?leak.holder, "released a leaked address");
        }
        for node in &collected.nodes {
            info!(node, "released the blocks of a deleted node");
        }
        for node in &collected.orphans {
            info!(node, "deleted the store's object of a deleted node");
        }
        for problem in &collected.repaired {
            info!(%problem, "repaired a record");
        }
        for error in &collected.errors {
            debug!(%error, "skipped a record");
        }
        addresses.error = None;
        addresses.suspects = suspects.saturating_sub(released);
        addresses.released += released as u64;
        self.metrics.suspects.set(i64::try_from(addresses.suspects).unwrap_or(i64::MAX));
        self.metrics.released.inc_by(released as u64);
        self.metrics.repaired.inc_by(collected.repaired.len() as u64);
        self.metrics.freed_nodes.inc_by(collected.nodes.len() as u64);
    }
}

impl Run {
    fn collect(&self, collector: &mut Collector) -> Result<Outcome, String> {
        let text = |error: podwire_block_ipam::Error| error.to_string();
        let store = (self.open)().map_err(|error| error.to_string())?;
        let allocator = Allocator::new(&*store, Timestamp::now);
        let rules = Rules::load(&*store).map_err(text)?;
        let snapshot = allocator.snapshot().map_err(text)?;
        let node_objects = Node::list(&*store).map_err(text)?;
        let inventory = self.runtime.block_on(inventory::read(&self.client));
        let mut inventory = inventory.map_err(|error| error.to_string())?;
        inventory.add_node_objects(node_objects);
        inventory.pods.values_mut().for_each(|pod| pod.retain_pool_addresses(&rules));
        let garbage = collector.find_garbage(self.now, &snapshot, &rules, &inventory);
        // If the API server does not answer, the holder counts as alive.
        let is_gone = |leak: &Leak| {
            let node = inventory.kubernetes_name(leak.holder.node());
            let released = inventory::has_released(&self.client, &rules, leak, node);
            self.runtime.block_on(released).unwrap_or(false)
        };
        let may_continue = || self.deadline.is_held() && !*self.stop.borrow();
        let mut collected = allocator.collect(&rules, &garbage, is_gone, may_continue).map_err(text)?;
        for (name, node) in &garbage.orphans {
            let is_gone =
                || self.runtime.block_on(inventory::is_node_gone(&self.client, node)).unwrap_or(false);
            if !may_continue() || !is_gone() {
                continue;
            }
            match allocator.delete_node_object(name, node) {
                Ok(true) => collected.orphans.push(name.clone()),
                Ok(false) => {}
                Err(error) => collected.errors.push(error),
            }
        }
        if may_continue() {
            allocator.free_cooled_down(&rules).map_err(text)?;
        }
        Ok(Outcome { suspects: garbage.suspects, collected })
    }
}
