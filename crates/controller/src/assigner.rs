//! The leader's main task: watch the nodes and assign pod CIDRs to those without.

mod node_watch;

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::FuturesUnordered;
use futures::StreamExt;
use kube::Client;
use podwire_kubernetes::Backoff;
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use self::node_watch::NodeChange;
use crate::events::{EventSender, NodeEvent, Reason};
use crate::lease_deadline::LeaseDeadline;
use crate::metrics::Metrics;
use crate::node_object;
use crate::node_table::{Assignment, NextStep, NodeTable};
use crate::patch::{patch_node, PatchOutcome};
use crate::status::{Network, Phase, StatusHandle};
use crate::{ClusterCidrs, Result};

/// The number of Node objects that are patched at the same time.
const PARALLEL_PATCHES: usize = 16;
/// The number of changes that are processed before anything is assigned. Of a burst, freed CIDRs are processed first.
const BATCH: usize = 1000;

/// Assigns pod CIDRs to nodes.
pub(crate) struct Assigner {
    pub client: Client,
    pub cluster_cidrs: ClusterCidrs,
    pub request_timeout: Duration,
    pub status: StatusHandle,
    pub metrics: Arc<Metrics>,
    pub events: EventSender,
}

/// The state of one run.
struct Run<'a> {
    assigner: &'a Assigner,
    table: NodeTable,
    /// Whether all nodes are known. Nothing is assigned before.
    is_complete: bool,
    /// The nodes with an assignment that is not finished, by uid.
    unfinished: HashMap<String, Unfinished>,
    /// The version of the table that was last reported.
    reported: Option<u64>,
}

struct Unfinished {
    since: Instant,
    /// Set after the first failure.
    backoff: Option<Backoff>,
}

impl Unfinished {
    fn now() -> Unfinished {
        Unfinished { since: Instant::now(), backoff: None }
    }
}

impl Assigner {
    /// Runs until `stop` is true, and then until every patch in flight has ended. Dropping the future stops it at once.
    pub async fn run(&self, deadline: &LeaseDeadline, mut stop: watch::Receiver<bool>) -> Result<()> {
        let nodes = node_object::nodes(self.client.clone());
        let (sender, mut changes) = mpsc::channel(BATCH);
        let mut watch = pin!(node_watch::watch(nodes.clone(), sender));
        let (mut patches, mut pauses) = (FuturesUnordered::new(), FuturesUnordered::new());
        let table = NodeTable::new(self.cluster_cidrs.node_cidrs()?);
        let unfinished = HashMap::new();
        let mut run = Run { assigner: self, table, is_complete: false, unfinished, reported: None };
        let mut is_stopping = false;
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                () = &mut watch => {}
                _ = changes.recv_many(&mut batch, BATCH) => {
                    batch.into_iter().for_each(|change| run.handle_change(change));
                }
                Some((assignment, outcome)) = patches.next() => {
                    if let Some(pause) = run.handle_outcome(assignment, outcome) {
                        pauses.push(pause);
                    }
                }
                Some(assignment) = pauses.next() => run.retry(&assignment),
                _ = stop.wait_for(|stop| *stop), if !is_stopping => is_stopping = true,
            }
            run.table.review().into_iter().for_each(|event| self.events.send(event));
            while run.is_complete && !is_stopping && deadline.is_held() && patches.len() < PARALLEL_PATCHES {
                let Some(assignment) = run.next_assignment() else { break };
                patches.push(patch_node(nodes.clone(), assignment, deadline.clone(), self.request_timeout));
            }
            run.report();
            if is_stopping && patches.is_empty() {
                return Ok(());
            }
        }
    }
}

impl Run<'_> {
    fn handle_change(&mut self, change: NodeChange) {
        match change {
            NodeChange::Listed(all) => {
                info!(nodes = all.len(), "listed all nodes");
                self.table.replace(all);
                self.is_complete = true;
                let mut status = self.assigner.status.write();
                (status.phase, status.watch_error) = (Phase::Leading, None);
            }
            NodeChange::Updated(node) => self.table.update(node),
            NodeChange::Deleted { name, uid } => {
                self.unfinished.remove(&uid);
                self.table.delete(&name, &uid);
            }
            NodeChange::Failed(why) => {
                self.assigner.metrics.watch_failures.inc();
                // Changes may be missed until the next list.
                self.is_complete = false;
                let mut status = self.assigner.status.write();
                if status.watch_error.as_ref() != Some(&why) {
                    warn!(why, "node watch failed");
                }
                (status.phase, status.watch_error) = (Phase::Listing, Some(why));
            }
        }
    }

    /// The next assignment. Reports nodes for which no CIDR is left.
    fn next_assignment(&mut self) -> Option<Assignment> {
        loop {
            match self.table.next_step()? {
                NextStep::Report(event) => self.assigner.events.send(event),
                NextStep::Patch(assignment) => {
                    let known = self.unfinished.len();
                    self.unfinished.entry(assignment.uid.clone()).or_insert_with(Unfinished::now);
                    // A retry uses the CIDR of the first search.
                    if self.unfinished.len() > known {
                        let metrics = &self.assigner.metrics;
                        self.table.tries().for_each(|(network, tries)| metrics.observe_tries(network, tries));
                    }
                    return Some(assignment);
                }
            }
        }
    }

    /// Handles the outcome of a patch. Returns the pause before a retry, if one is needed.
    fn handle_outcome(
        &mut self,
        assignment: Assignment,
        outcome: PatchOutcome,
    ) -> Option<impl Future<Output = Assignment>> {
        let why = match outcome {
            PatchOutcome::Deleted => {
                self.unfinished.remove(&assignment.uid);
                self.table.delete(&assignment.name, &assignment.uid);
                return None;
            }
            PatchOutcome::Observed(node, refusal) => {
                if !self.table.patched(&assignment, node) {
                    self.finish(&assignment);
                    return None;
                }
                refusal.map_or_else(
                    || "the API server accepted the patch but the node has no podCIDRs".into(),
                    |error| error.to_string(),
                )
            }
            PatchOutcome::Unknown(error) => {
                if !self.table.suspend(&assignment) {
                    self.finish(&assignment);
                    return None;
                }
                error.to_string()
            }
        };
        self.assigner.metrics.failures.inc();
        debug!(node = assignment.name, why, "patch failed");
        let unfinished = self.unfinished.entry(assignment.uid.clone()).or_insert_with(Unfinished::now);
        // Only the first failure is reported.
        if unfinished.backoff.is_none() {
            let note =
                format!("Node {} status is now: CIDRAssignmentFailed: {why}; retrying", assignment.name);
            let (name, uid) = (assignment.name.clone(), assignment.uid.clone());
            self.assigner.events.send(NodeEvent { name, uid, reason: Reason::CidrAssignmentFailed, note });
        }
        let pause = unfinished.backoff.get_or_insert_default().pause();
        Some(async move {
            tokio::time::sleep(pause).await;
            assignment
        })
    }

    /// Retries after the pause, unless the watch has shown that the node has its pod CIDR.
    fn retry(&mut self, assignment: &Assignment) {
        if !self.table.retry(assignment) {
            self.finish(assignment);
        }
    }

    /// Ends an assignment: it is done, or another controller was faster.
    fn finish(&mut self, assignment: &Assignment) {
        let unfinished = self.unfinished.remove(&assignment.uid);
        let Some(unfinished) = unfinished.filter(|_| self.table.is_done(assignment)) else { return };
        let pod_cidrs: Vec<String> = assignment.pod_cidrs.iter().map(ToString::to_string).collect();
        info!(node = assignment.name, pod_cidrs = pod_cidrs.join(" "), "assigned pod CIDRs");
        self.assigner.metrics.observe_assignment(unfinished.since.elapsed());
    }

    fn report(&mut self) {
        if self.reported.replace(self.table.version()) == Some(self.table.version()) {
            return;
        }
        let (metrics, table, usage) = (&self.assigner.metrics, &self.table, self.table.usage());
        let mut status = self.assigner.status.write();
        status.nodes = table.len();
        status.waiting = table.waiting().into_iter().map(String::from).collect();
        status.quarantined = table.quarantine().map(|(name, why)| (name.into(), why.into())).collect();
        let network = |usage: &podwire_ipam::Usage| Network {
            network: usage.network.to_string(),
            node_cidrs: usage.capacity,
            taken: usage.taken,
        };
        status.networks = usage.iter().map(network).collect();
        let count = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
        metrics.nodes.set(count(status.nodes));
        metrics.waiting.set(count(status.waiting.len()));
        metrics.quarantined.set(count(status.quarantined.len()));
        metrics.set_usage(&usage);
    }
}
