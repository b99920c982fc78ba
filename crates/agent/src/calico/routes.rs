//! The thread that keeps the kernel's routes, tunnels and rules equal to the block index, and passes on what follows
//! from it: the node's registration, and BIRD's input.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwire_agent_ipc::status::{Phase, UnreachableNode};
use podwire_block_ipam::BlockIndex;
use podwire_fast_path::FastPath;
use podwire_fs::FileError;
use podwire_kernel::{sysctl, Host};
use podwire_netlink::rt::address;
use podwire_overlay::{BlockBackend, FirewallOptions, ObjectCounts, Uplink, UplinkPreference};
use podwire_policy_agent::PolicyAgent;
use podwire_reconcile::{Handle, Reconciler};
use podwire_services::ServicesAgent;
use tracing::{debug, info, warn};

use crate::calico::desired::{families, DesiredState, NodeContext, UplinkAddress};
use crate::calico::registration::{DesiredRegistration, Registrations};
use crate::kernel_watch::KernelWatch;
use crate::metrics::Metrics;
use crate::status::StatusHandle;
use crate::{pod_mtu, Error, Result};

/// The interval after which a registration that the store does not show is requested again: another client may have
/// undone it.
const REGISTER_AGAIN: Duration = Duration::from_secs(30);

/// Whether Kubernetes has a node of this name.
type IsMember = Box<dyn Fn() -> bool + Send>;

/// What the thread needs.
pub(crate) struct RouteOptions {
    pub(crate) node: String,
    pub(crate) preference: UplinkPreference,
    pub(crate) mtu: Option<u32>,
    pub(crate) mtu_file: Option<PathBuf>,
    pub(crate) resync: Duration,
    pub(crate) is_member: IsMember,
    pub(crate) registrations: Registrations,
    pub(crate) bgp: Option<Sender<podwire_bgp::Desired>>,
    /// The Services, which must know the networks of this node's pods.
    pub(crate) services: Option<ServicesAgent>,
    pub(crate) fast_path: Option<FastPath>,
    pub(crate) policy_agent: Option<PolicyAgent>,
    pub(crate) status: StatusHandle,
    pub(crate) metrics: Arc<Metrics>,
}

/// Starts the thread.
pub(crate) fn start(options: RouteOptions) -> Result<Handle<BlockIndex>> {
    let resync = options.resync;
    let reconciler = RouteReconciler {
        options,
        was_member: false,
        host: Host::here()?,
        index: None,
        watch: KernelWatch::default(),
        registered: Registered::Unknown,
    };
    podwire_reconcile::spawn("routes", resync, reconciler).map_err(Error::thread("routes"))
}

struct RouteReconciler {
    options: RouteOptions,
    /// Whether Kubernetes has had this node since the start.
    was_member: bool,
    host: Host,
    index: Option<BlockIndex>,
    watch: KernelWatch,
    registered: Registered,
}

/// The state of the node's registration.
enum Registered {
    /// Not requested yet.
    Unknown,
    Requested(DesiredRegistration, Instant),
    /// The store shows it.
    Done,
}

/// The size of a reconcile.
struct Changes {
    count: usize,
    objects: ObjectCounts,
}

impl RouteReconciler {
    fn apply(&mut self, index: &BlockIndex) -> Result<Changes> {
        let uplinks = self.uplinks(index)?;
        let links: Vec<Uplink> = uplinks.iter().map(|one| one.uplink.clone()).collect();
        self.watch.follow(&mut self.host, &BlockBackend::devices(), &links)?;
        let families = families(index);
        sysctl::enable_forwarding(&families.into_iter().collect::<Vec<_>>())?;
        let is_member = (self.options.is_member)();
        // Kubernetes has deleted this node. A registration would recreate what garbage collection is deleting.
        let is_deleted = self.was_member && !is_member;
        self.was_member |= is_member;
        let RouteOptions { node, mtu, bgp, .. } = &self.options;
        let context = NodeContext { node, is_member, mtu: *mtu, has_bgp: bgp.is_some(), uplinks: &uplinks };
        let desired = context.desired(index);
        let firewall = FirewallOptions { blackhole: true, ..FirewallOptions::default() };
        let report = podwire_overlay::apply(&mut self.host, &desired.blocks, &desired.cluster, &firewall)?;
        for change in &report.changed {
            info!(change, "kernel changed");
        }
        self.write_mtu(desired.mtu)?;
        self.report_oversized_pods(&desired)?;
        let refused = report.unreachable.iter();
        let refused =
            refused.map(|one| UnreachableNode { node: one.peer.clone(), reason: one.reason.clone() });
        self.show(&desired, desired.unreachable.iter().cloned().chain(refused).collect());
        if !is_deleted {
            self.register(&desired);
        }
        if let Some(services) = &self.options.services {
            let own = desired.cluster.local.subnets.iter().map(|subnet| subnet.pod_cidr);
            services.set_pod_networks(own.collect())?;
        }
        if let Some(fast_path) = &self.options.fast_path {
            // BGP can lead any route over the uplinks.
            let uplinks = links.iter().filter(|_| self.options.bgp.is_some()).map(|link| link.name.clone());
            fast_path.set_links(uplinks.chain(report.pod_links.iter().cloned()).collect());
        }
        if let Some(policy_agent) = &self.options.policy_agent {
            policy_agent.set_guarded_ports(report.vxlan_ports)?;
        }
        if let Some(bgp) = &self.options.bgp {
            let addresses = links.iter().map(|uplink| uplink.address).collect();
            let _ = bgp.send(podwire_bgp::Desired { index: index.clone(), addresses });
        }
        match report.failed.into_iter().next() {
            Some(first) => Err(first.into()),
            None => Ok(Changes { count: report.changed.len(), objects: report.objects }),
        }
    }

    /// The uplink of each family that pools have. A family without one gets no routes, which the status shows.
    fn uplinks(&mut self, index: &BlockIndex) -> Result<Vec<UplinkAddress>> {
        let mut uplinks = Vec::new();
        let mut missing = Vec::new();
        for family in families(index) {
            match self.options.preference.choose(&mut self.host, family) {
                Ok(uplink) => {
                    let all = address::list(&mut self.host.route, 0).map_err(podwire_overlay::Error::from)?;
                    let own = all.iter().find(|one| one.ip == uplink.address);
                    let prefix_len = own.map_or(family.bits(), |one| one.prefix);
                    uplinks.push(UplinkAddress { uplink, prefix_len });
                }
                Err(error) => missing.push(error.to_string()),
            }
        }
        self.options.status.set_problem("interface", (!missing.is_empty()).then(|| missing.join("; ")));
        Ok(uplinks)
    }

    /// Writes the MTU file, which the plugin reads if its config has no MTU.
    fn write_mtu(&self, mtu: u32) -> Result<()> {
        let Some(path) = self.options.mtu_file.as_ref().filter(|_| mtu > 0) else { return Ok(()) };
        let text = mtu.to_string();
        if std::fs::read_to_string(path).is_ok_and(|current| current == text) {
            return Ok(());
        }
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(FileError::at("create", dir))?;
        }
        Ok(podwire_fs::replace(path, text.as_bytes(), 0o644).map_err(FileError::at("write", path))?)
    }

    /// Shows the pods that kept a larger MTU than new pods get.
    fn report_oversized_pods(&mut self, desired: &DesiredState) -> Result<()> {
        let pods = pod_mtu::find_oversized(&mut self.host, &desired.cluster.local, desired.mtu)?;
        self.options.status.set_problem("MTU", pod_mtu::problem(&pods, desired.mtu));
        self.options.status.lock().oversized_pods = pods;
        Ok(())
    }

    fn show(&self, desired: &DesiredState, unreachable: Vec<UnreachableNode>) {
        let mut status = self.options.status.lock();
        for one in unreachable.iter().filter(|one| !status.unreachable.contains(one)) {
            warn!(node = one.node, reason = one.reason, "node is unreachable");
        }
        let mut peers: Vec<&str> = desired.blocks.routes.iter().map(|route| route.node.as_str()).collect();
        peers.sort_unstable();
        peers.dedup();
        if status.phase != Phase::Ready {
            info!(peers = peers.len(), "routes are set up");
        }
        status.phase = Phase::Ready;
        status.uplinks =
            desired.blocks.uplinks.iter().map(|one| format!("{} {}", one.name, one.address)).collect();
        status.pod_cidrs =
            desired.cluster.local.subnets.iter().map(|subnet| subnet.pod_cidr.to_string()).collect();
        status.peers = peers.len();
        status.routes = Some(desired.blocks.routes.len());
        status.mtu = desired.mtu;
        status.unreachable = unreachable;
    }

    /// Requests a registration that the store does not show yet. The first request after the start is always made:
    /// tunnel addresses may have been released while the agent was down.
    fn register(&mut self, desired: &DesiredState) {
        let wanted = &desired.registration;
        match &self.registered {
            Registered::Requested(..) | Registered::Done if desired.is_registered => {
                self.registered = Registered::Done;
            }
            Registered::Requested(last, when) if last == wanted && when.elapsed() < REGISTER_AGAIN => {}
            _ => {
                self.registered = Registered::Requested(wanted.clone(), Instant::now());
                self.options.registrations.request(wanted.clone());
            }
        }
    }
}

impl Reconciler for RouteReconciler {
    type Message = BlockIndex;
    type Report = Option<Changes>;
    type Error = Error;

    fn receive(&mut self, index: BlockIndex) {
        self.index = Some(index);
    }

    fn reconcile(&mut self) -> Result<Option<Changes>> {
        // Nothing is known before the store's first answer.
        let Some(index) = self.index.take() else { return Ok(None) };
        let changes = self.apply(&index);
        self.index = Some(index);
        changes.map(Some)
    }

    fn report(&mut self, outcome: Result<Option<Changes>>, took: Duration) {
        let problem = match outcome {
            Ok(None) => return,
            Ok(Some(Changes { count, objects })) => {
                debug!(?took, changes = count, "reconciled");
                self.options.metrics.reconciled(took, count, &objects);
                None
            }
            Err(error) => {
                self.options.metrics.reconcile_failed();
                Some(error.to_string())
            }
        };
        self.options.status.set_problem("routes", problem);
    }

    fn event_sources(&self) -> Vec<BorrowedFd<'_>> {
        self.watch.event_sources()
    }

    fn handle_events(&mut self, _: &[bool]) -> Result<bool> {
        self.watch.read_events()
    }
}
