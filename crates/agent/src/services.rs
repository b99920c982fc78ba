//! The Services of the node: starts their thread and follows their source.

mod fields;
mod files;
mod kubernetes;
mod objects;

use std::net::SocketAddr;

use ipnet::IpNet;
use podwire_agent_ipc::status::{ObjectProblems, ServicesStatus};
use podwire_kubernetes::Backoff;
use podwire_policy_agent::Source;
use podwire_services::{ServicesAgent, ServicesOptions};
use tracing::{error, info, warn};

use crate::status::StatusHandle;
use crate::Result;
pub use objects::service_objects;

/// The number of mistakes in objects that the status lists.
const MAX_PROBLEMS: usize = 20;

/// The settings for Services.
#[derive(Clone, Debug)]
pub struct ServicesSettings {
    /// Where Services come from.
    pub source: Source,
    /// The networks whose addresses of this node serve NodePorts; `None` is the first address of each family in the status
    /// of the Node.
    pub node_port_networks: Option<Vec<IpNet>>,
    /// Where `/healthz` and `/livez` are served as by kube-proxy, if they are; the unspecified address is all addresses of
    /// both families.
    pub healthz: Option<SocketAddr>,
    /// Whether to remove what kube-proxy left, when the Services are in the kernel for the first time.
    pub cleanup_kube_proxy: bool,
}

/// Refuses to serve Services beside a running kube-proxy. Called before anything is changed.
pub(crate) fn check(settings: Option<&ServicesSettings>) -> Result<()> {
    if settings.is_some() {
        podwire_services::kube_proxy::refuse_running()?;
    }
    Ok(())
}

/// Removes the Services of an earlier agent: they would no longer follow their source.
pub(crate) fn remove() {
    match podwire_services::dataplane::remove() {
        Ok(true) => {
            info!(table = %podwire_services::dataplane::TABLE, "Services of an earlier agent removed")
        }
        Ok(false) => {}
        Err(error) => warn!(%error, "the Services of an earlier agent cannot be removed"),
    }
}

/// Starts the thread. It changes nothing before its source is complete.
pub(crate) fn start(
    settings: ServicesSettings,
    node: &str,
    pod_networks: Vec<IpNet>,
    status: &StatusHandle,
) -> Result<ServicesAgent> {
    let ServicesSettings { source, node_port_networks, healthz, cleanup_kube_proxy } = settings;
    let node_name = node.to_owned();
    let options = ServicesOptions { node_name, node_port_networks, healthz, cleanup_kube_proxy };
    let agent = ServicesAgent::start(options)?;
    agent.set_pod_networks(pod_networks)?;
    let (follower, shown, node) = (agent.clone(), agent.clone(), node.to_owned());
    tokio::spawn(async move {
        let mut backoff = Backoff::new();
        loop {
            let watched = match &source {
                Source::Files(directory) => files::watch(directory, &follower).await,
                Source::Kubernetes(options) => kubernetes::watch(options, &node, &follower).await,
            };
            if let Err(error) = watched {
                error!(%error, "Services cannot be read; those in the kernel stay");
            }
            backoff.wait().await;
        }
    });
    status.add_source(move |status| {
        let services = shown.status();
        let errors = services.error.iter().chain(&services.healthz_error);
        status.problems.extend(errors.map(|error| format!("Services: {error}")));
        status.problems.extend(shown.kube_proxy_problem());
        status.services = Some(of(services));
    });
    Ok(agent)
}

fn of(status: podwire_services::ServicesStatus) -> ServicesStatus {
    let podwire_services::ServicesStatus { synced, frontends, last_change, problems, .. } = status;
    ServicesStatus {
        synced,
        frontends,
        last_change_ms: last_change.as_secs_f64() * 1000.0,
        object_problems: ObjectProblems {
            count: problems.len(),
            first: problems.into_iter().take(MAX_PROBLEMS).collect(),
        },
    }
}
