//! calico mode: the agent in place of calico-node.
//!
//! ```text
//!  plugins ──▶ allocator ──▶ store            addresses, workload endpoints
//!
//!  store ──▶ store watcher ──block index──▶ routes ──▶ kernel        routes, tunnels, masquerading
//!    ▲                                        │  │
//!    └────────── registration ◀───────────────┘  └──▶ podwire_bgp ──▶ BIRD
//! ```
//!
//! - The [`allocator`] owns the node's blocks and answers the plugins `calico` and `calico-ipam`.
//! - The store watcher follows pools, blocks, nodes and BGP objects. While the store is down, the last state stays.
//! - The routes thread keeps the kernel equal to the block index.
//! - The registration thread writes the node's address to the store and assigns its tunnel addresses.
//! - BIRD runs if BGP is enabled.

pub mod allocator;
mod desired;
mod registration;
mod routes;
mod store_watcher;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podwire_agent_ipc::pods::Cluster;
use podwire_agent_ipc::status::{Mode, Phase};
use podwire_bgp::Bird;
use podwire_block_ipam::store::{Store, StoreError};
use podwire_block_ipam::Ownership;
use podwire_fast_path::FastPath;
use podwire_http_server::Listen;
use podwire_overlay::UplinkPreference;
use podwire_policy_agent::PolicyAgent;
use podwire_services::ServicesAgent;
use tracing::info;

use crate::fast_path::FastPathMode;
use crate::metrics::Metrics;
use crate::policies::{self, PolicyOptions};
use crate::services::ServicesSettings;
use crate::shutdown::Shutdown;
use crate::status::StatusHandle;
use crate::{fast_path, http, services, Result};
use allocator::BlockAllocator;
use registration::{Registration, Registrations};
use routes::RouteOptions;
use store_watcher::StoreWatcher;

/// The settings of calico mode.
pub struct Settings {
    /// The node's name in the store.
    pub node: String,
    /// How the interface to the other nodes is chosen.
    pub preference: UplinkPreference,
    /// The MTU of the network between the nodes, if it is not that of the interface.
    pub mtu: Option<u32>,
    /// The file with the MTU of pods, for the plugin.
    pub mtu_file: Option<PathBuf>,
    /// BIRD, if BGP is enabled.
    pub bird: Option<Bird>,
    /// The interval between reconciles without a cause.
    pub resync: Duration,
    /// The number of addresses of each family in the warm pool.
    pub warm_addresses: usize,
    /// The directory of leases.
    pub state_dir: PathBuf,
    /// The socket on which plugins request addresses.
    pub socket: PathBuf,
    /// The cluster's pods and nodes, if there is a Kubernetes API.
    pub cluster: Option<Arc<dyn Cluster>>,
    /// Where health and metrics are served, if they are.
    pub health: Option<Listen>,
    /// The source of policies, if the agent enforces them.
    pub policy: Option<podwire_policy_agent::Source>,
    /// Whether connections that policies no longer allow are closed.
    pub policy_cut: bool,
    /// The Services, if the agent serves them.
    pub services: Option<ServicesSettings>,
    /// Whether connections may take the fast path.
    pub fast_path: FastPathMode,
}

/// Runs until SIGTERM or SIGINT. Routes, rules and leases stay, so pods keep their connections. `opener` opens the
/// store; each thread is its own client.
pub async fn run<O>(settings: Settings, opener: O) -> Result<()>
where
    O: Fn() -> Result<Box<dyn Store>, StoreError> + Clone + Send + Sync + 'static,
{
    services::check(settings.services.as_ref())?;
    let mut shutdown = Shutdown::listen()?;
    let status = StatusHandle::new(&settings.node, Mode::Calico);
    let fast_path = fast_path::start(settings.fast_path, &status);
    let policy_agent = match settings.policy.clone() {
        Some(source) => {
            let (node, closes_connections) = (settings.node.as_str(), settings.policy_cut);
            let (guarded, fast_path) = (Vec::new(), fast_path.clone());
            let options = PolicyOptions { node, source, closes_connections, guarded, fast_path };
            Some(policies::start(options, &status)?)
        }
        None => None,
    };
    let services = match settings.services.clone() {
        Some(services) => Some(services::start(services, &settings.node, Vec::new(), &status)?),
        None => {
            services::remove();
            None
        }
    };
    policies::name_services(policy_agent.as_ref(), services.as_ref())?;
    let metrics = Metrics::new(Mode::Calico, policy_agent.clone(), fast_path.clone());
    let metrics = Arc::new(metrics.with_services(services.clone()));
    let allocator = start_allocator(&settings, &status, opener.clone())?;
    let followers = Followers { status: &status, metrics: &metrics, services, fast_path, policy_agent };
    let _watcher = start_routes(&settings, allocator, followers, opener)?;
    if let Some(listen) = settings.health {
        http::serve(listen, status, metrics).await?;
    }
    shutdown.wait().await;
    let _ = std::fs::remove_file(&settings.socket);
    Ok(())
}

fn start_allocator<O>(settings: &Settings, status: &StatusHandle, opener: O) -> Result<BlockAllocator>
where
    O: Fn() -> Result<Box<dyn Store>, StoreError> + Send + Sync + 'static,
{
    let options = allocator::Settings {
        node: settings.node.clone(),
        warm_addresses: settings.warm_addresses,
        claim: Ownership::DURATION,
    };
    let mut allocator = BlockAllocator::start(options, &settings.state_dir, Box::new(opener))?;
    if let Some(cluster) = settings.cluster.clone() {
        allocator = allocator.with_cluster(cluster);
    }
    allocator::serve(&settings.socket, allocator.clone())?;
    let checked = allocator.clone();
    status.add_source(move |status| {
        // A pod can get neither a warm address nor one of the store.
        if let Err(error) = checked.check_ready() {
            status.problems.push(format!("addresses: {error}"));
            if status.phase == Phase::Ready {
                status.phase = Phase::Broken;
            }
        }
        status.addresses = Some(checked.status());
    });
    Ok(allocator)
}

/// What must know when routes or uplinks change.
struct Followers<'a> {
    status: &'a StatusHandle,
    metrics: &'a Arc<Metrics>,
    services: Option<ServicesAgent>,
    fast_path: Option<FastPath>,
    policy_agent: Option<PolicyAgent>,
}

/// Starts the threads that write routes, the node's record and BIRD's configuration.
fn start_routes<O>(
    settings: &Settings,
    allocator: BlockAllocator,
    followers: Followers<'_>,
    opener: O,
) -> Result<StoreWatcher>
where
    O: Fn() -> Result<Box<dyn Store>, StoreError> + Clone + Send + Sync + 'static,
{
    let Followers { status, metrics, services, fast_path, policy_agent } = followers;
    let registration =
        Registration { node: settings.node.clone(), allocator: allocator.clone(), opener: opener.clone() };
    let registrations = Registrations::start(registration, status.clone())?;
    let bgp = settings.bird.clone().map(|bird| start_bgp(bird, &settings.node, status)).transpose()?;
    let has_bgp = bgp.is_some();
    let (node, cluster) = (settings.node.clone(), settings.cluster.clone());
    let routes = routes::start(RouteOptions {
        node: settings.node.clone(),
        preference: settings.preference.clone(),
        mtu: settings.mtu,
        mtu_file: settings.mtu_file.clone(),
        resync: settings.resync,
        is_member: Box::new(move || cluster.as_ref().is_some_and(|cluster| cluster.has_node(&node))),
        registrations,
        bgp,
        services,
        fast_path,
        policy_agent,
        status: status.clone(),
        metrics: metrics.clone(),
    })?;
    let pools_changed = Box::new(move || allocator.pools_changed());
    StoreWatcher::start(opener, has_bgp, routes, pools_changed, status.clone())
}

fn start_bgp(
    bird: Bird,
    node: &str,
    status: &StatusHandle,
) -> Result<std::sync::mpsc::Sender<podwire_bgp::Desired>> {
    let status = status.clone();
    status.lock().bgp_sessions = Some(Default::default());
    let report = move |outcome: podwire_bgp::Result<podwire_bgp::Report>| match outcome {
        Ok(podwire_bgp::Report { sessions, problems }) => {
            let before = status.lock().bgp_sessions.replace(sessions.clone()).unwrap_or_default();
            for (session, state) in sessions.iter().filter(|(name, state)| before.get(*name) != Some(*state))
            {
                info!(session, state, "BGP session");
            }
            status.set_problem("BGP", (!problems.is_empty()).then(|| problems.join("; ")));
        }
        Err(error) => status.set_problem("BGP", Some(error.to_string())),
    };
    Ok(podwire_bgp::spawn(bird, node.to_owned(), report)?)
}
