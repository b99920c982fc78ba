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
use tracing::error;

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
}

/// Starts the thread. It changes nothing before its source is complete.
pub(crate) fn start(
    settings: ServicesSettings,
    node: &str,
    pod_networks: Vec<IpNet>,
    status: &StatusHandle,
) -> Result<ServicesAgent> {
    let ServicesSettings { source, node_port_networks, healthz } = settings;
    let options = ServicesOptions { node_name: node.to_owned(), node_port_networks, healthz };
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
