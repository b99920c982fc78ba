//! The reconciler: it holds the objects and brings the kernel to the state that follows from them.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use podwire_reconcile::Reconciler;
use tracing::{debug, error, info, warn};

use super::node_addresses::NodeAddresses;
use super::status::{ServicesStatus, StatusHandle};
use super::{Message, ServicesOptions, Update};
use crate::dataplane::{Change, Nftables, StaleFlows};
use crate::{Compiler, Error, Kind, NodeInput, Problem, Result};

/// The state of the thread.
pub(super) struct ServicesReconciler {
    status: StatusHandle,
    compiler: Compiler,
    node: NodeInput,
    /// `None` if the Node's status says where NodePorts are served.
    addresses: Option<NodeAddresses>,
    nftables: Nftables,
    stale_flows: StaleFlows,
    /// The kinds that the source has listed.
    listed: BTreeSet<Kind>,
    /// The time of the first change that is not in the kernel yet.
    changed_at: Option<Instant>,
    /// The mistakes that were logged and still hold.
    logged: BTreeSet<Problem>,
}

/// The outcome of a reconcile.
pub(super) struct Applied {
    change: Change,
    ended_flows: usize,
    frontends: usize,
    /// The time from the event to the kernel; `None` if there was no event.
    latency: Option<Duration>,
}

impl ServicesReconciler {
    /// For the network namespace of the calling thread.
    pub fn new(options: ServicesOptions, status: StatusHandle) -> Result<ServicesReconciler> {
        let node = NodeInput { name: options.node_name, ..NodeInput::default() };
        Ok(ServicesReconciler {
            status,
            compiler: Compiler::default(),
            node,
            addresses: options.node_port_networks.map(NodeAddresses::open).transpose()?,
            nftables: Nftables::open()?,
            stale_flows: StaleFlows::open()?,
            listed: BTreeSet::new(),
            changed_at: Some(Instant::now()),
            logged: BTreeSet::new(),
        })
    }

    fn update(&mut self, update: Update) {
        let objects = self.compiler.objects();
        match update {
            Update::Listed(kind, all) => {
                objects.clear(kind);
                all.into_iter().for_each(|object| objects.put(object));
                self.listed.insert(kind);
            }
            Update::Changed(object) => objects.put(object),
            Update::Deleted(kind, name) => objects.remove(kind, &name),
        }
    }

    /// Logs each mistake once for as long as it holds.
    fn log_problems(&mut self, problems: &[Problem]) {
        let current: BTreeSet<Problem> = problems.iter().cloned().collect();
        for problem in current.difference(&self.logged) {
            warn!(object = problem.object, "{}", problem.text);
        }
        self.status.lock().problems = current.iter().map(Problem::to_string).collect();
        self.logged = current;
    }

    fn report_applied(&mut self, applied: &Applied) {
        let Applied { change, ended_flows, frontends, latency } = applied;
        let Change { elements, chains, affinities } = change;
        if !change.is_empty() || *ended_flows > 0 {
            debug!(elements, chains, affinities, ended_flows, ?latency, "Services changed");
        }
        let mut status = self.status.lock();
        if status.error.is_some() || !status.synced {
            info!(frontends, "Services are in the kernel");
        }
        let is_changed = !change.is_empty();
        *status = ServicesStatus {
            synced: true,
            frontends: *frontends,
            reconciles: status.reconciles + 1,
            changes: status.changes + u64::from(is_changed),
            // There was no event, so another program had changed the table.
            repairs: status.repairs + u64::from(is_changed && latency.is_none()),
            failures: status.failures,
            changed_elements: status.changed_elements + *elements as u64,
            ended_flows: status.ended_flows + *ended_flows as u64,
            last_change: latency.unwrap_or(status.last_change),
            problems: std::mem::take(&mut status.problems),
            error: None,
        };
    }

    fn report_failure(&mut self, error: &Error) {
        let text = error.to_string();
        let mut status = self.status.lock();
        if status.error.as_ref() != Some(&text) {
            error!(%error, "Services are not up to date");
        }
        status.error = Some(text);
        status.failures += 1;
    }
}

impl Reconciler for ServicesReconciler {
    type Message = Message;
    /// `None` until the source has listed all objects.
    type Report = Option<Applied>;
    type Error = Error;

    fn receive(&mut self, message: Message) {
        match message {
            Message::Update(update) => self.update(update),
            Message::PodNetworks(networks) => self.node.pod_networks = networks,
        }
        self.changed_at.get_or_insert_with(Instant::now);
    }

    fn reconcile(&mut self) -> Result<Option<Applied>> {
        if !Kind::ALL.iter().all(|kind| self.listed.contains(kind)) {
            return Ok(None);
        }
        if let Some(addresses) = &mut self.addresses {
            self.node.node_port_addresses = addresses.list()?;
        }
        self.compiler.set_node(self.node.clone());
        let desired = self.compiler.desired();
        self.log_problems(&desired.problems);
        let change = self.nftables.apply(desired.clone())?;
        // The kernel has the new state: the next packet of an ended flow goes to another endpoint.
        let ended_flows = self.stale_flows.delete(&desired)?;
        let latency = self.changed_at.take().map(|since| since.elapsed());
        Ok(Some(Applied { change, ended_flows, frontends: desired.frontends.len(), latency }))
    }

    fn report(&mut self, outcome: Result<Option<Applied>>, _: Duration) {
        match outcome {
            Ok(Some(applied)) => self.report_applied(&applied),
            Ok(None) => {}
            Err(error) => self.report_failure(&error),
        }
    }

    fn event_sources(&self) -> Vec<BorrowedFd<'_>> {
        let addresses = self.addresses.as_ref().map(NodeAddresses::event_source);
        [self.nftables.event_source()].into_iter().chain(addresses).collect()
    }

    /// Reconciles if another program changed the table, or if an address of the node changed.
    fn handle_events(&mut self, ready: &[bool]) -> Result<bool> {
        let mut is_changed = self.nftables.read_events()?;
        if let (Some(true), Some(addresses)) = (ready.get(1), &mut self.addresses) {
            addresses.read_events()?;
            self.changed_at.get_or_insert_with(Instant::now);
            is_changed = true;
        }
        Ok(is_changed)
    }
}
