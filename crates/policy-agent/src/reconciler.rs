//! The policy reconciler: it holds the cluster state and brings the kernel to the program compiled from it.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;
use podwire_agent_ipc::message;
use podwire_agent_ipc::policy::Response;
use podwire_netlink::{nft, Socket};
use podwire_policy::{Compiler, Program, Warning};
use podwire_reconcile::Reconciler;
use serde_json::Value;
use tracing::{debug, error, info, warn};

use crate::cluster_state::{ClusterState, LocalNode};
use crate::connection_cleanup::ConnectionCleanup;
use crate::dataplane::{Change, Nftables, NodeInput, PodPort, POLICY_TABLE};
use crate::device_indexes::DeviceIndexes;
use crate::drop_log::DropLog;
use crate::earlier_pods::EarlierPods;
use crate::message::{Message, Waiting};
use crate::released_addresses::ReleasedAddresses;
use crate::status::{PolicyStatus, StatusHandle};
use crate::{recorded, Error, Result};

/// Options of a [`PolicyAgent`](crate::PolicyAgent).
#[derive(Clone, Debug, Default)]
pub struct PolicyAgentOptions {
    /// The node's name in the cluster.
    pub node_name: String,
    /// Whether the source lists every pod of this node. If it does, an attach request waits until the source knows the
    /// pod.
    pub lists_pods: bool,
    /// Whether the agent closes connections that a new policy denies.
    pub close_denied: bool,
    /// Called after connections were closed.
    pub closed: OnClosed,
}

/// Something that must know when connections were closed.
#[derive(Clone)]
pub struct OnClosed(Arc<dyn Fn() + Send + Sync>);

impl OnClosed {
    /// Calls `notify` then, in the policy thread.
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> OnClosed {
        OnClosed(Arc::new(notify))
    }
}

impl Default for OnClosed {
    fn default() -> OnClosed {
        OnClosed::new(|| {})
    }
}

impl fmt::Debug for OnClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnClosed")
    }
}

/// The state of the policy thread.
pub(crate) struct PolicyReconciler {
    status: StatusHandle,
    /// Notifications about all changes of nftables rules.
    rule_events: Socket,
    tables: Nftables,
    indexes: DeviceIndexes,
    cluster: ClusterState,
    /// The compiler of the last program; `None` if everything must be compiled again.
    compiler: Option<Compiler>,
    node: LocalNode,
    lists_pods: bool,
    pod_networks: Vec<IpNet>,
    guarded_ports: BTreeSet<u16>,
    /// Plugins that wait for a response.
    waiting: Vec<Waiting>,
    /// The time of the first change that is not in the kernel yet.
    changed_at: Option<Instant>,
    /// The source's updates include all changes up to this time.
    as_of: Option<SystemTime>,
    /// The warnings that were logged and still hold.
    logged: BTreeSet<Warning>,
    /// `None` if the kernel cannot send samples of dropped packets.
    drop_log: Option<DropLog>,
    /// `None` unless the agent closes connections.
    cleanup: Option<ConnectionCleanup>,
    closed: OnClosed,
    released: ReleasedAddresses,
    /// Pods that were attached before their network had policies, and are not guarded yet.
    earlier: EarlierPods,
    /// The pods that are not guarded.
    unguarded: BTreeSet<String>,
}

/// The outcome of a reconcile.
pub(crate) struct Applied {
    change: Change,
    /// The time from the event to the kernel; `None` if there was no event.
    latency: Option<Duration>,
    /// Whether the change repaired what another program had changed.
    repaired: bool,
    closed_connections: usize,
}

fn warn_not_logged(error: &Error) {
    warn!(%error, "dropped packets are counted but not logged");
}

impl PolicyReconciler {
    /// For the network namespace of the calling thread.
    pub fn new(options: PolicyAgentOptions, status: StatusHandle) -> Result<PolicyReconciler> {
        let mut rule_events = Socket::netfilter()?;
        rule_events.subscribe(nft::GROUP)?;
        let mut cluster = ClusterState::default();
        let recorded = recorded::interfaces();
        recorded.enforced.into_iter().for_each(|interface| drop(cluster.attach(interface)));
        let mut tables = Nftables::open()?;
        let released = ReleasedAddresses::open(|ip| cluster.has_address(ip))?;
        Ok(PolicyReconciler {
            status,
            rule_events,
            guarded_ports: tables.guarded_ports()?,
            tables,
            indexes: DeviceIndexes::open()?,
            cluster,
            compiler: None,
            node: LocalNode { name: options.node_name, addresses: Vec::new() },
            lists_pods: options.lists_pods,
            pod_networks: Vec::new(),
            waiting: Vec::new(),
            changed_at: Some(Instant::now()),
            as_of: None,
            logged: BTreeSet::new(),
            drop_log: DropLog::open().inspect_err(warn_not_logged).ok(),
            cleanup: options.close_denied.then(ConnectionCleanup::open).transpose()?,
            closed: options.closed,
            released,
            earlier: EarlierPods::new(recorded.without_policy),
            unguarded: BTreeSet::new(),
        })
    }

    /// Applies the program. If the kernel cannot log dropped packets, the rules do without.
    fn apply(&mut self, program: &Program, ports: Vec<PodPort>) -> Result<Change> {
        let sample_drops = self.drop_log.is_some();
        let input = NodeInput {
            pod_networks: self.pod_networks.clone(),
            guarded_ports: self.guarded_ports.clone(),
            ports,
            sample_drops,
            block_closed_connections: self.cleanup.is_some(),
        };
        match self.tables.apply(program, &input) {
            Err(error) if sample_drops && error.is_unsupported() => {
                let change = self.tables.apply(program, &NodeInput { sample_drops: false, ..input })?;
                warn_not_logged(&error);
                self.drop_log = None;
                Ok(change)
            }
            other => other,
        }
    }

    /// Closes the connections that the program no longer allows, if the agent does that. Returns their number.
    fn close_denied(&mut self, repaired: bool) -> Result<usize> {
        let (Some(cleanup), Some(compiler)) = (&mut self.cleanup, &mut self.compiler) else { return Ok(0) };
        if repaired {
            cleanup.forget_checked();
        }
        let closed = cleanup.close_denied(compiler.program(), &mut self.tables)?;
        if closed > 0 {
            (self.closed.0)();
        }
        Ok(closed)
    }

    /// Adds the pods that were attached before their network had policies, and reports those that are not guarded.
    fn adopt_earlier_pods(&mut self) {
        self.earlier.adopt(&mut self.cluster, &self.pod_networks);
        let unguarded = self.cluster.unguarded(&self.node, &self.pod_networks);
        for pod in unguarded.difference(&self.unguarded) {
            warn!(
                pod,
                "the policies of a pod apply only in part: its interface is not known, recreate the pod \
                 on a network with the key `policy`"
            );
        }
        self.unguarded = unguarded;
    }

    /// Responds to the plugins whose pods are enforced. With a source that lists pods, a pod must be listed first. A pod
    /// may not inherit the connections of its address.
    fn respond(&mut self) -> Result<()> {
        for waiting in &self.waiting {
            if self.released.before_reuse(&waiting.interface.addresses)? {
                (self.closed.0)();
            }
        }
        let (cluster, lists_pods, now) = (&self.cluster, self.lists_pods, Instant::now());
        self.waiting.retain(|Waiting { interface, until, sender }| {
            if lists_pods && !cluster.knows(&interface.pod_name()) {
                return *until > now;
            }
            // A plugin whose deadline has passed no longer receives.
            let _ = sender.send(Response { enforced: true, ..Response::default() });
            false
        });
        if self.waiting.is_empty() {
            self.released.sweep()?;
        }
        Ok(())
    }

    /// Some of the objects that decide, as many as fit into a response, and at least one.
    fn objects(&self, after: usize) -> Response {
        const MAX_BYTES: usize = message::MAX_LENGTH as usize / 4;
        if !self.cluster.is_complete() {
            let reason = "the policy source has not listed all objects yet".into();
            return Response { reason, ..Response::default() };
        }
        let snapshot = self.cluster.snapshot(&self.node, !self.lists_pods);
        let mut bytes = 0;
        let fits = |object: &Value| {
            let is_first = bytes == 0;
            bytes += object.to_string().len();
            is_first || bytes <= MAX_BYTES
        };
        let objects = snapshot.objects().skip(after).take_while(fits).collect();
        Response { enforced: true, objects, ..Response::default() }
    }

    /// Logs each warning once for as long as it holds.
    fn log_warnings(&mut self, current: BTreeSet<Warning>) {
        for warning in current.difference(&self.logged) {
            warn!("{warning}");
        }
        self.logged = current;
    }

    fn report_applied(&mut self, applied: &Applied) {
        let Applied { change, latency, repaired, closed_connections } = applied;
        if !change.is_empty() {
            let Change { chains, sets, elements } = change;
            debug!(chains, sets, elements, ?latency, "policy rules changed");
        }
        if *closed_connections > 0 {
            info!(connections = closed_connections, "closed connections that policies no longer allow");
        }
        let (policies, interfaces) = self.cluster.sizes();
        let unmatched = self.compiler.iter_mut().flat_map(|compiler| compiler.unmatched());
        let unmatched_selectors = unmatched.map(|warning| warning.to_string()).collect();
        let mut status = self.status.lock();
        if status.problem.is_some() || !status.enforced {
            info!(policies, interfaces, "policies are enforced");
        }
        *status = PolicyStatus {
            enforced: true,
            policies,
            interfaces,
            size: self.tables.size(),
            reconciles: status.reconciles + 1,
            changes: status.changes + u64::from(!change.is_empty()),
            repairs: status.repairs + u64::from(*repaired),
            failures: status.failures,
            closed_connections: status.closed_connections + *closed_connections as u64,
            last_change: latency.unwrap_or(status.last_change),
            unmatched_selectors,
            unguarded: self.unguarded.iter().cloned().collect(),
            as_of: self.as_of,
            problem: None,
        };
    }

    fn report_failure(&mut self, error: &Error) {
        let problem = error.to_string();
        let mut status = self.status.lock();
        if status.problem.as_ref() != Some(&problem) {
            error!(%error, "policies are not up to date");
        }
        status.problem = Some(problem);
        status.failures += 1;
    }
}

impl Reconciler for PolicyReconciler {
    type Message = Message;
    /// `None` until the source has listed all objects.
    type Report = Option<Applied>;
    type Error = Error;

    fn receive(&mut self, message: Message) {
        match message {
            Message::Update(update) => self.cluster.update(update),
            Message::AsOf(time) => self.as_of = Some(time),
            Message::Networks { pods, node } => {
                if self.node.addresses != node {
                    self.compiler = None;
                }
                (self.pod_networks, self.node.addresses) = (pods, node);
            }
            Message::GuardedPorts(ports) => self.guarded_ports = ports,
            Message::Attach(waiting) => {
                waiting.interface.host_interface.iter().for_each(|port| self.indexes.forget(&port.name));
                self.released.release(self.cluster.attach(waiting.interface.clone()));
                self.waiting.retain(|other| other.interface.owner != waiting.interface.owner);
                self.waiting.push(waiting);
            }
            Message::Detach(owner) => {
                self.waiting.retain(|other| other.interface.owner != owner);
                self.released.release(self.cluster.detach(&owner));
                self.earlier.detach(&owner);
            }
            Message::ServiceNames(names) => {
                if let Some(drop_log) = &mut self.drop_log {
                    drop_log.service_names = names;
                }
                return;
            }
            Message::Objects(after, sender) => {
                // A client that no longer waits does not receive.
                let _ = sender.send(self.objects(after));
                return;
            }
        }
        self.changed_at.get_or_insert_with(Instant::now);
    }

    fn reconcile(&mut self) -> Result<Option<Applied>> {
        if !self.cluster.is_complete() {
            return Ok(None);
        }
        self.adopt_earlier_pods();
        let mut compiler = self.cluster.compiler(self.compiler.take(), &self.node, !self.lists_pods);
        let (mut ports, claim_warnings) = self.cluster.ports();
        self.indexes.complete(&mut ports);
        let warnings = compiler.warnings().cloned().chain(claim_warnings).collect();
        let change = self.apply(compiler.program(), ports);
        self.compiler = Some(compiler);
        let change = change?;
        let latency = self.changed_at.take().map(|since| since.elapsed());
        // There was no event, so another program had changed the rules.
        let repaired = latency.is_none() && !change.is_empty();
        let closed = self.close_denied(repaired);
        let responded = self.respond();
        self.log_warnings(warnings);
        responded?;
        Ok(Some(Applied { change, latency, repaired, closed_connections: closed? }))
    }

    fn report(&mut self, outcome: Result<Option<Applied>>, _: Duration) {
        match outcome {
            Ok(Some(applied)) => self.report_applied(&applied),
            Ok(None) => {}
            Err(error) => self.report_failure(&error),
        }
    }

    fn event_sources(&self) -> Vec<BorrowedFd<'_>> {
        let samples = self.drop_log.as_ref().map(AsFd::as_fd);
        [self.rule_events.as_fd()].into_iter().chain(samples).collect()
    }

    /// Reconciles if another program changed the policy tables, or if notifications were lost. Logs samples of dropped
    /// packets.
    fn handle_events(&mut self, ready: &[bool]) -> Result<bool> {
        if let (Some(true), Some(drop_log)) = (ready.get(1), &mut self.drop_log) {
            // A failure to log must not stop enforcement.
            if let Err(error) = drop_log.log_samples(&self.cluster, &self.tables) {
                warn_not_logged(&error);
                self.drop_log = None;
            }
        }
        let mut changed = false;
        let complete = self.rule_events.drain(|frame| {
            changed |= nft::subject(frame).is_some_and(|(table, _)| table.name == POLICY_TABLE.name);
        })?;
        Ok(changed || !complete)
    }
}
