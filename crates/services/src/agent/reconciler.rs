//! The reconciler: it holds the objects and brings the kernel to the state that follows from them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant, SystemTime};

use podwire_ip::IpFamily;
use podwire_reconcile::{Handle, Reconciler};
use tracing::{debug, error, info, warn};

use super::measurements::Measurements;
use super::node_addresses::NodeAddresses;
use super::status::{Events, ServicesStatus, StatusHandle};
use super::trigger_times::TriggerTimes;
use super::{Message, ServicesOptions, Update};
use crate::dataplane::{Change, Nftables, StaleFlows};
use crate::health::{HealthHandle, HealthServers, Now, ALL_ADDRESSES};
use crate::kube_proxy::Applied as ServicesApplied;
use crate::{
    Changes, Compiler, EndpointServices, Error, Kind, NodeInput, Problem, Result, ServicesWithoutLocal,
};

/// What the thread shares with its handles.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    pub status: StatusHandle,
    pub health: HealthHandle,
    pub measurements: Measurements,
}

/// The state of the thread.
pub(super) struct ServicesReconciler {
    shared: Shared,
    compiler: Compiler,
    node: NodeInput,
    /// `None` if the Node's status says where NodePorts are served.
    addresses: Option<NodeAddresses>,
    nftables: Nftables,
    stale_flows: StaleFlows,
    /// What has changed since the last reconcile that succeeded.
    changes: Changes,
    health_servers: HealthServers,
    /// The health checks that cannot be served.
    health_problems: Vec<Problem>,
    trigger_times: TriggerTimes,
    /// The kinds that the source has listed.
    listed: BTreeSet<Kind>,
    /// The time of the first change that is not in the kernel yet.
    changed_at: Option<Instant>,
    /// The mistakes that were logged and still hold.
    logged: BTreeSet<Problem>,
    /// The thread that waits for the Services to be in the kernel; `None` once it knows.
    kube_proxy: Option<Handle<ServicesApplied>>,
}

/// The outcome of a reconcile.
pub(super) struct Applied {
    change: Change,
    ended_flows: usize,
    frontends: usize,
    without_local: ServicesWithoutLocal,
    /// The time from the event to the kernel; `None` if there was no event.
    latency: Option<Duration>,
}

impl ServicesReconciler {
    /// For the network namespace of the calling thread.
    pub fn new(
        options: ServicesOptions,
        shared: Shared,
        kube_proxy: Handle<ServicesApplied>,
    ) -> Result<ServicesReconciler> {
        let node = NodeInput { name: options.node_name, ..NodeInput::default() };
        let health_servers = HealthServers::start(options.healthz, shared.health.clone());
        Ok(ServicesReconciler {
            shared,
            compiler: Compiler::new(node.clone()),
            node,
            addresses: options.node_port_networks.map(NodeAddresses::open).transpose()?,
            nftables: Nftables::open()?,
            stale_flows: StaleFlows::open()?,
            changes: Changes::All,
            health_servers: health_servers.map_err(Error::HealthServers)?,
            health_problems: Vec::new(),
            trigger_times: TriggerTimes::new(SystemTime::now()),
            listed: BTreeSet::new(),
            changed_at: Some(Instant::now()),
            logged: BTreeSet::new(),
            kube_proxy: Some(kube_proxy),
        })
    }

    /// The Services of each endpoint.
    pub fn endpoint_services(&self) -> EndpointServices {
        self.compiler.endpoint_services()
    }

    fn update(&mut self, update: Update) {
        self.measure(&update);
        let objects = self.compiler.objects();
        match update {
            Update::Listed(kind, all) => {
                objects.clear(kind);
                all.into_iter().for_each(|object| objects.put(object));
                self.listed.insert(kind);
                if self.is_complete() {
                    self.shared.health.lock().times.complete();
                }
            }
            Update::Changed(object) => objects.put(object),
            Update::Deleted(kind, name) => objects.remove(kind, &name),
        }
    }

    /// Counts events, and takes the times of changes from slices.
    fn measure(&mut self, update: &Update) {
        let (kind, count) = match update {
            Update::Listed(kind, all) => (Some(*kind), all.len()),
            Update::Changed(object) => (Kind::of(object), 1),
            Update::Deleted(kind, _) => (Some(*kind), 1),
        };
        let mut status = self.shared.status.lock();
        match kind {
            Some(Kind::Service) => status.service_events.add(count),
            Some(Kind::EndpointSlice) => status.slice_events.add(count),
            Some(Kind::Node | Kind::ServiceCidr) | None => return,
        }
        if kind == Some(Kind::EndpointSlice) {
            match update {
                Update::Listed(_, slices) => self.trigger_times.listed(slices),
                Update::Changed(slice) => self.trigger_times.changed(slice),
                Update::Deleted(_, name) => self.trigger_times.deleted(name),
            }
        }
    }

    /// Whether the source has listed all kinds.
    fn is_complete(&self) -> bool {
        Kind::ALL.iter().all(|kind| self.listed.contains(kind))
    }

    /// Serves `/healthz` and `/livez`, which need no Services.
    fn serve_proxy_health(&mut self) {
        if let Some(node) = self.compiler.own_node() {
            // A Node that is gone leaves its last state, as in kube-proxy.
            self.shared.health.lock().node_eligible = node.is_eligible();
        }
        let error = self.health_servers.serve_proxy();
        let mut status = self.shared.status.lock();
        if let Some(error) = error.as_ref().filter(|error| status.healthz_error.as_ref() != Some(*error)) {
            warn!("{error}");
        }
        status.healthz_error = error;
    }

    /// Serves the health checks of the desired state, which the kernel must have.
    fn serve_health_checks(&mut self) {
        let restricted = |family: IpFamily| {
            self.addresses.as_ref().is_none_or(|addresses| !addresses.includes_all(family))
        };
        let chosen = self.compiler.node_port_addresses().iter().copied();
        let all = ALL_ADDRESSES.into_iter().filter(|ip| !restricted(IpFamily::of(*ip)));
        let ips: Vec<IpAddr> = chosen.filter(|ip| restricted(IpFamily::of(*ip))).chain(all).collect();
        let checks = &self.compiler.desired().health_checks;
        self.health_problems = self.health_servers.serve_checks(checks, &ips);
    }

    /// The kernel has the new state.
    fn measure_applied(&mut self) {
        let now = Now::read();
        self.shared.health.lock().times.applied(now);
        for took in self.trigger_times.applied(now.wall) {
            self.shared.measurements.programming.observe(took.as_secs_f64());
        }
    }

    /// Ends UDP flows to endpoints that are gone, and of clients that are no longer admitted. Returns their number.
    fn end_stale_flows(&mut self) -> Result<usize> {
        let desired = self.compiler.desired();
        if !self.stale_flows.may_exist(desired, &self.changes) {
            return Ok(0);
        }
        let start = Instant::now();
        let ended = self.stale_flows.delete(desired, &self.changes);
        self.shared.measurements.conntrack.observe(start.elapsed().as_secs_f64());
        ended
    }

    /// There is a change that is not in the kernel yet.
    fn changed(&mut self) {
        let now = Now::read();
        self.changed_at.get_or_insert(now.monotonic);
        self.shared.health.lock().times.queued(now);
    }

    /// Logs each mistake once for as long as it holds.
    fn log_problems(&mut self) {
        let problems = self.compiler.desired().problems.iter().chain(&self.health_problems);
        let current: BTreeSet<Problem> = problems.cloned().collect();
        for problem in current.difference(&self.logged) {
            warn!(object = problem.object, "{}", problem.text);
        }
        self.shared.status.lock().problems = current.iter().map(Problem::to_string).collect();
        self.logged = current;
    }

    fn report_applied(&mut self, applied: &Applied) {
        let Applied { change, ended_flows, frontends, without_local, latency } = applied;
        let Change { elements, chains, affinities } = change;
        if !change.is_empty() || *ended_flows > 0 {
            debug!(elements, chains, affinities, ended_flows, ?latency, "Services changed");
        }
        let mut status = self.shared.status.lock();
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
            service_events: Events { pending: 0, ..status.service_events },
            slice_events: Events { pending: 0, ..status.slice_events },
            without_local: *without_local,
            problems: std::mem::take(&mut status.problems),
            error: None,
            healthz_error: status.healthz_error.take(),
        };
    }

    fn report_failure(&mut self, error: &Error) {
        let text = error.to_string();
        let mut status = self.shared.status.lock();
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
        self.changed();
    }

    fn reconcile(&mut self) -> Result<Option<Applied>> {
        self.serve_proxy_health();
        if !self.is_complete() {
            return Ok(None);
        }
        if let Some(addresses) = &mut self.addresses {
            self.node.node_port_addresses = addresses.list()?;
        }
        self.compiler.set_node(self.node.clone());
        self.changes.add(self.compiler.take_changes());
        let change = self.nftables.apply(self.compiler.desired(), &self.changes);
        if change.is_ok() {
            self.measure_applied();
            self.serve_health_checks();
        }
        self.log_problems();
        let change = change?;
        // The kernel has the new state: the next packet of an ended flow goes to another endpoint.
        let ended_flows = self.end_stale_flows()?;
        self.changes = Changes::none();
        if let Some(kube_proxy) = self.kube_proxy.take() {
            kube_proxy.send(ServicesApplied)?;
        }
        let latency = self.changed_at.take().map(|since| since.elapsed());
        let frontends = self.compiler.desired().frontends.len();
        let without_local = self.compiler.without_local();
        Ok(Some(Applied { change, ended_flows, frontends, without_local, latency }))
    }

    fn report(&mut self, outcome: Result<Option<Applied>>, took: Duration) {
        if !matches!(outcome, Ok(None)) {
            self.shared.measurements.sync.observe(took.as_secs_f64());
        }
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
            self.changed();
            is_changed = true;
        }
        Ok(is_changed)
    }
}
