//! The daemon of flannel mode: reads the network config, acquires a pod CIDR, sends the desired routes to the route
//! reconciler and announces the network. When the pod CIDR is lost or a step fails, it starts over, with a backoff
//! after a failure. A failure never ends the program.

mod report;
mod setup;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwire_agent_ipc::status::{Mode, StoreStatus};
use podwire_fast_path::FastPath;
use podwire_kernel::Host;
use podwire_kubernetes::Backoff;
use podwire_overlay::{Uplink, UplinkPreference, Watch};
use podwire_policy_agent::PolicyAgent;
use podwire_services::ServicesAgent;
use podwire_subnets::{Health, NetConf, Node, Registration, Snapshot as NodeList, Source, SubnetEnv};
use tracing::{info, warn};

use crate::flannel::backend::Backend;
use crate::flannel::desired::{self, DesiredRoutes};
use crate::flannel::registration::Facts;
use crate::flannel::routes::{Event, Routes};
use crate::flannel::settings::Settings;
use crate::metrics::Metrics;
use crate::policies::{self, PolicyOptions};
use crate::shutdown::Shutdown;
use crate::status::StatusHandle;
use crate::{fast_path, http, plugin_calls, services, Error, Result};

/// Runs until SIGTERM or SIGINT. Routes, rules and files stay, so pods keep their connections.
pub async fn run(settings: Settings, source: Source) -> Result<()> {
    services::check(settings.services.as_ref())?;
    let status = StatusHandle::new(&settings.node_name, Mode::Flannel);
    // A file that cannot be read is reported when the pod CIDR is acquired.
    let previous = SubnetEnv::read(&settings.subnet_file).ok().flatten().unwrap_or_default().pod_cidrs();
    let fast_path = fast_path::start(settings.fast_path, &status);
    let policy_agent = match settings.policy.clone() {
        Some(source) => {
            let (node, closes_connections) = (settings.node_name.as_str(), settings.policy_cut);
            let guarded = previous.iter().collect();
            let fast_path = fast_path.clone();
            let options = PolicyOptions { node, source, closes_connections, guarded, fast_path };
            Some(policies::start(options, &status)?)
        }
        None => None,
    };
    let services = match settings.services.clone() {
        Some(services) => {
            let pod_networks = previous.iter().collect();
            Some(services::start(services, &settings.node_name, pod_networks, &status)?)
        }
        None => {
            services::remove();
            None
        }
    };
    policies::name_services(policy_agent.as_ref(), services.as_ref())?;
    let metrics = Metrics::new(Mode::Flannel, policy_agent.clone(), fast_path.clone());
    let metrics = Arc::new(metrics.with_services(services.clone()));
    if let Some(metrics) = metrics.flannel() {
        metrics.set_host_local_dir(settings.host_local_dir.clone());
    }
    if let Some(listen) = settings.health {
        http::serve(listen, status.clone(), metrics.clone()).await?;
    }
    if let Err(error) = plugin_calls::listen(&settings.plugin_calls_socket, metrics.clone()) {
        // Only metrics are missing then.
        warn!(%error, "plugin calls are not counted");
    }
    let routes = Routes::start(&settings)?;
    let mut shutdown = Shutdown::listen()?;
    let mut daemon = Daemon {
        settings,
        source,
        routes,
        policy_agent,
        services,
        fast_path,
        status,
        metrics,
        own: None,
        conflict_free: None,
        reported: BTreeSet::new(),
        mismatched: BTreeSet::new(),
        link_watch: None,
    };
    tokio::select! {
        () = daemon.run() => {}
        () = shutdown.wait() => {}
    }
    Ok(())
}

/// Hands this node's routes over to flanneld, whose rules must be in place already, and its Services to kube-proxy.
pub fn retire() -> Result<()> {
    fast_path::remove();
    services::remove();
    for change in podwire_overlay::hand_over(&mut Host::here()?)? {
        info!(change, "kernel changed");
    }
    Ok(())
}

struct Daemon {
    settings: Settings,
    source: Source,
    routes: Routes,
    policy_agent: Option<PolicyAgent>,
    services: Option<ServicesAgent>,
    fast_path: Option<FastPath>,
    status: StatusHandle,
    metrics: Arc<Metrics>,
    /// This node, as it was last registered.
    own: Option<Node>,
    /// The last node list in which no two pod CIDRs overlapped.
    conflict_free: Option<Arc<Vec<Node>>>,
    /// The problems that were reported, so that each is reported once.
    reported: BTreeSet<String>,
    /// Nodes with another backend.
    mismatched: BTreeSet<String>,
    /// On a node without an uplink: notifications of links that could become one.
    link_watch: Option<Watch>,
}

/// The timeout after which the thread that waits for a link ends, if the daemon no longer needs it.
const LINK_WAIT: Duration = Duration::from_secs(5);

/// This node's network, from one start to the next.
struct NodeNetwork {
    conf: NetConf,
    backend: Backend,
    preference: UplinkPreference,
    uplinks: Vec<Uplink>,
    registration: Registration,
    own: Node,
    /// The time of the oldest change of the source that is not in the kernel yet.
    changed_at: Option<Instant>,
}

impl Daemon {
    async fn run(&mut self) {
        let mut backoff = Backoff::new();
        loop {
            match self.run_once().await {
                Ok(reason) => {
                    info!(reason, "starting over");
                    backoff.reset();
                }
                Err(error) => {
                    self.report_failure(error.reason(), error.to_string()).await;
                    self.wait_to_retry(&error, &mut backoff).await;
                }
            }
        }
    }

    /// Returns when what was missing may exist now, or after the backoff.
    async fn wait_to_retry(&mut self, error: &Error, backoff: &mut Backoff) {
        match (error, &self.source, self.link_watch.take()) {
            (
                Error::Subnets(podwire_subnets::Error::PodCidrNotAssigned { .. }),
                Source::Kubernetes(kubernetes),
                _,
            ) => {
                if kubernetes.wait_for_pod_cidr().await.is_err() {
                    backoff.wait().await;
                }
            }
            (Error::Overlay(_), _, Some(mut watch)) => {
                let link = tokio::task::spawn_blocking(move || drop(watch.wait(LINK_WAIT, None)));
                tokio::select! {
                    _ = link => {}
                    () = backoff.wait() => {}
                }
            }
            _ => backoff.wait().await,
        }
    }

    /// Sets up the network and keeps it, until the pod CIDR changes or is lost, which it returns as text, or a step
    /// fails.
    async fn run_once(&mut self) -> Result<String> {
        let mut network = self.set_up().await?;
        let mut watch = self.source.watch();
        let first = watch.latest();
        if let Some(reason) = self.handle_nodes(&mut network, first).await? {
            return Ok(reason);
        }
        let (source, own) = (self.source.clone(), network.own.clone());
        let keep_lease = async move { source.keep(&own).await };
        tokio::pin!(keep_lease);
        loop {
            tokio::select! {
                nodes = watch.changed() => {
                    if let Some(reason) = self.handle_nodes(&mut network, nodes).await? {
                        return Ok(reason);
                    }
                }
                event = self.routes.event() => self.handle_event(&mut network, event?).await?,
                lost = &mut keep_lease => return Ok(lost.to_string()),
            }
        }
    }

    /// Sends the desired routes of a node list to the route reconciler. Returns why the daemon must start over, if it
    /// must.
    async fn handle_nodes(&mut self, network: &mut NodeNetwork, list: NodeList) -> Result<Option<String>> {
        self.show_source(&list.health);
        let Some(nodes) = list.nodes.clone() else { return Ok(None) };
        let check = |node: &Node| self.source.check_node(&network.conf, node);
        let (nodes, skipped) = desired::allowed_nodes(check, &nodes, &list.skipped);
        let own = nodes.iter().find(|node| node.name == network.own.name);
        if let Some(own) = own.filter(|own| own.pod_cidrs != network.own.pod_cidrs) {
            return Ok(Some(format!("this node's pod CIDR is now {}", pod_cidrs(own).join(" "))));
        }
        let conflicts = podwire_subnets::find_overlaps(&nodes);
        for (one, other) in &conflicts {
            warn!(one, other, "pod CIDRs of two nodes overlap");
        }
        let previous_owners = self.conflict_free.clone().filter(|_| !conflicts.is_empty());
        if conflicts.is_empty() {
            self.conflict_free = Some(nodes.clone());
        }
        network.changed_at.get_or_insert_with(Instant::now);
        self.routes.apply(DesiredRoutes {
            backend: network.backend.clone(),
            conf: network.conf.clone(),
            preference: network.preference.clone(),
            own: network.own.clone(),
            nodes: Some(nodes.clone()),
            skipped,
            previous_owners,
        })?;
        // After the routes: the event's receiver may be slow.
        self.report_mismatches(&network.own, &nodes).await;
        Ok(None)
    }

    fn show_source(&self, health: &Health) {
        let synced = *health == Health::Current;
        let store = StoreStatus { synced, detail: health.to_string() };
        let before = std::mem::replace(&mut self.status.lock().store, store.clone());
        if before == store {
            return;
        }
        if synced {
            info!("source of nodes answers");
        } else {
            warn!(source = store.detail, "source of nodes does not answer");
        }
    }

    /// Reports nodes with another backend, which get no routes: usually the config was changed and not all agents were
    /// restarted.
    async fn report_mismatches(&mut self, own: &Node, nodes: &[Node]) {
        let kind = &own.backend.kind;
        let mismatched = nodes.iter().filter(|node| node.backend.kind != *kind);
        let mismatched: BTreeSet<String> = mismatched.map(|node| node.name.clone()).collect();
        if mismatched == self.mismatched {
            return;
        }
        if let Some(first) = mismatched.first() {
            let (count, all) = (mismatched.len(), nodes.len());
            let text = format!(
                "{count} of {all} nodes ({first} is one) do not have this node's backend {kind} and get no routes: \
                 if the network config was changed, restart their agents"
            );
            self.report_once("BackendMismatch", &text).await;
        }
        self.mismatched = mismatched;
    }

    async fn handle_event(&mut self, network: &mut NodeNetwork, event: Event) -> Result<()> {
        match event {
            Event::Applied(applied) => {
                let registration = Facts {
                    settings: &self.settings,
                    backend: &network.backend,
                    uplinks: &applied.uplinks,
                    devices: &applied.devices,
                    previous: network.registration.previous,
                    extension_data: &network.registration.backend,
                }
                .registration();
                if registration != network.registration {
                    // The other nodes need the new address, or the key of a new device.
                    self.register(network, registration).await?;
                }
                network.uplinks.clone_from(&applied.uplinks);
                if let Some(fast_path) = &self.fast_path {
                    fast_path.set_links(applied.pod_links.iter().cloned().collect());
                }
                if let Some(policy_agent) = &self.policy_agent {
                    policy_agent.set_guarded_ports(applied.vxlan_ports.clone())?;
                }
                self.announce(network, &applied).await
            }
            Event::Failed(why) => {
                self.metrics.reconcile_failed();
                self.withdraw(&why).await;
                Ok(())
            }
            Event::UplinksChanged(uplinks) => {
                let text = |uplink: &Uplink| format!("{} mtu {}", uplink_text(uplink), uplink.mtu);
                let text: Vec<String> = uplinks.iter().map(text).collect();
                warn!(uplinks = text.join(" "), "uplinks changed");
                Ok(())
            }
        }
    }
}

fn pod_cidrs(node: &Node) -> Vec<String> {
    node.pod_cidrs.iter().map(|cidr| cidr.to_string()).collect()
}

fn uplink_text(uplink: &Uplink) -> String {
    format!("{} {}", uplink.name, uplink.address)
}
