//! The thread that keeps the kernel's routes and tunnels equal to the last desired state.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use podwire_kernel::{sysctl, Host};
use podwire_overlay::{ObjectCounts, TunnelDevice, Uplink, UplinkPreference};
use podwire_reconcile::{Handle, Reconciler};
use podwire_subnets::NetConf;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tracing::info;

use crate::flannel::backend::Backend;
use crate::flannel::conflist_watch;
use crate::flannel::desired::{self, DesiredRoutes};
use crate::flannel::settings::Settings;
use crate::kernel_watch::KernelWatch;
use crate::{pod_mtu, Error, Result};

/// What the thread reports.
#[derive(Debug)]
pub(crate) enum Event {
    /// The kernel has the desired routes, as far as possible.
    Applied(Box<Applied>),
    /// The reconcile failed. The kernel keeps what it had.
    Failed(String),
    /// The uplinks are other interfaces or have other addresses than before.
    UplinksChanged(Vec<Uplink>),
}

/// The outcome of a reconcile.
#[derive(Debug)]
pub(crate) struct Applied {
    pub uplinks: Vec<Uplink>,
    /// The MTU of new pods.
    pub mtu: u32,
    /// The pods with a larger MTU.
    pub oversized_pods: BTreeMap<String, u32>,
    pub peers: usize,
    pub changes: usize,
    /// What the kernel rejected.
    pub failed: Vec<String>,
    /// Nodes without a route, and why.
    pub unreachable: Vec<(String, String)>,
    pub devices: Vec<TunnelDevice>,
    /// The links by which packets leave with the addresses of pods.
    pub pod_links: BTreeSet<String>,
    pub vxlan_ports: BTreeSet<u16>,
    pub objects: ObjectCounts,
    pub took: Duration,
}

/// A handle of the thread. The thread ends when it is dropped.
pub(crate) struct Routes {
    desired: Handle<DesiredRoutes>,
    events: UnboundedReceiver<Event>,
}

impl Routes {
    pub(crate) fn start(settings: &Settings) -> Result<Routes> {
        let (sender, events) = mpsc::unbounded_channel();
        let reconciler = RouteReconciler {
            settings: settings.clone(),
            events: sender,
            host: Host::here()?,
            desired: None,
            watch: KernelWatch::default(),
            flanneld_removed: false,
        };
        let desired = podwire_reconcile::spawn("routes", settings.resync, reconciler);
        let desired = desired.map_err(Error::thread("routes"))?;
        if let Some(conflist) = &settings.conflist {
            conflist_watch::start(&conflist.path, desired.waker());
        }
        Ok(Routes { desired, events })
    }

    /// Sets the desired routes.
    pub(crate) fn apply(&self, desired: DesiredRoutes) -> Result<()> {
        self.desired.send(desired).map_err(|_| Error::RoutesEnded)
    }

    /// The next event. Cancel safe.
    pub(crate) async fn event(&mut self) -> Result<Event> {
        self.events.recv().await.ok_or(Error::RoutesEnded)
    }
}

/// The uplink of each family that pods have.
pub(crate) fn uplinks(host: &mut Host, preference: &UplinkPreference, conf: &NetConf) -> Result<Vec<Uplink>> {
    let families = desired::families(conf);
    families.into_iter().map(|family| Ok(preference.choose(host, family)?)).collect()
}

struct RouteReconciler {
    settings: Settings,
    events: UnboundedSender<Event>,
    host: Host,
    desired: Option<DesiredRoutes>,
    watch: KernelWatch,
    /// Whether flanneld's rules were removed, on a node that had flanneld before.
    flanneld_removed: bool,
}

impl RouteReconciler {
    fn apply(&mut self, desired: &DesiredRoutes) -> Result<Applied> {
        let uplinks = uplinks(&mut self.host, &desired.preference, &desired.conf)?;
        let devices = desired.backend.devices();
        let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
        if self.watch.follow(&mut self.host, &devices, &uplinks)? {
            let _ = self.events.send(Event::UplinksChanged(uplinks.clone()));
        }
        sysctl::enable_forwarding(&desired::families(&desired.conf))?;
        let (cluster, ignored) = desired.cluster(&uplinks);
        let overlay = desired.backend.overlay();
        let report = podwire_overlay::apply(&mut self.host, overlay, &cluster, &self.settings.firewall)?;
        self.remove_flanneld_rules()?;
        for change in &report.changed {
            info!(change, "kernel changed");
        }
        let mut failed: Vec<String> = report.failed.iter().map(ToString::to_string).collect();
        let mut changes = report.changed.len();
        if let (Backend::Extension(extension), true) = (&desired.backend, desired.nodes.is_some()) {
            let (done, not_done) = extension.apply(&desired.extension_nodes())?;
            changes += done.len();
            failed.extend(not_done);
        }
        let ignored = ignored.into_iter().map(|one| (one.name, one.reason));
        let mtu = overlay.mtu(&cluster.local);
        Ok(Applied {
            mtu,
            oversized_pods: pod_mtu::find_oversized(&mut self.host, &cluster.local, mtu)?,
            uplinks,
            peers: cluster.peers.len(),
            changes,
            failed,
            unreachable: ignored
                .chain(report.unreachable.into_iter().map(|one| (one.peer, one.reason)))
                .collect(),
            devices: report.tunnels,
            pod_links: report.pod_links,
            vxlan_ports: report.vxlan_ports,
            objects: report.objects,
            took: Duration::ZERO,
        })
    }

    /// After our rules are in the kernel: flanneld's would masquerade what ours leave alone.
    fn remove_flanneld_rules(&mut self) -> Result<()> {
        if !self.flanneld_removed {
            let rules = podwire_kernel::firewall::cluster::flannel::retire(self.host.nft()?)?;
            if rules > 0 {
                info!(rules, "removed flanneld's rules");
            }
            self.flanneld_removed = true;
        }
        Ok(())
    }
}

impl Reconciler for RouteReconciler {
    type Message = DesiredRoutes;
    type Report = Option<Applied>;
    type Error = Error;

    fn receive(&mut self, desired: DesiredRoutes) {
        self.desired = Some(desired);
    }

    fn reconcile(&mut self) -> Result<Option<Applied>> {
        let Some(desired) = self.desired.take() else { return Ok(None) };
        let applied = self.apply(&desired);
        self.desired = Some(desired);
        applied.map(Some)
    }

    fn report(&mut self, outcome: Result<Option<Applied>>, took: Duration) {
        let event = match outcome {
            Ok(None) => return,
            Ok(Some(applied)) => Event::Applied(Box::new(Applied { took, ..applied })),
            Err(error) => Event::Failed(error.to_string()),
        };
        let _ = self.events.send(event);
    }

    fn event_sources(&self) -> Vec<BorrowedFd<'_>> {
        self.watch.event_sources()
    }

    fn handle_events(&mut self, _: &[bool]) -> Result<bool> {
        self.watch.read_events()
    }
}
