//! Starts the policy agent of the node: its thread, its source of policies and its server for plugins.

use std::path::Path;

use ipnet::IpNet;
use podwire_agent_ipc::status::{PolicyStatus, UnguardedPods, UnmatchedSelectors};
use podwire_fast_path::FastPath;
use podwire_kubernetes::Backoff;
use podwire_policy_agent::{OnClosed, PolicyAgent, PolicyAgentOptions, ServiceNames, Source};
use podwire_services::ServicesAgent;
use tracing::error;

use crate::status::StatusHandle;
use crate::Result;

/// The number of unmatched selectors, and of unguarded pods, that the status lists.
const MAX_UNMATCHED: usize = 20;

/// What the policy agent is started with.
pub(crate) struct PolicyOptions<'a> {
    pub(crate) node: &'a str,
    pub(crate) source: Source,
    /// Whether connections that policies no longer allow are closed.
    pub(crate) closes_connections: bool,
    /// The pod CIDRs of the previous agent. They are guarded at once, because this agent does not know its own yet.
    pub(crate) guarded: Vec<IpNet>,
    /// The fast path, which must forget connections that are closed.
    pub(crate) fast_path: Option<FastPath>,
}

/// Starts the policy agent. It accepts requests of plugins at once and answers them when its source is complete.
pub(crate) fn start(options: PolicyOptions<'_>, status: &StatusHandle) -> Result<PolicyAgent> {
    let PolicyOptions { node, source, closes_connections, guarded, fast_path } = options;
    let agent = PolicyAgent::start(PolicyAgentOptions {
        node_name: node.to_owned(),
        lists_pods: source.lists_pods(),
        close_denied: closes_connections,
        closed: OnClosed::new(move || fast_path.iter().for_each(FastPath::forget_flows)),
    })?;
    agent.set_networks(guarded, Vec::new())?;
    podwire_policy_agent::serve_plugins(Path::new(podwire_policy_agent::SOCKET), agent.clone())?;
    let (follower, shown) = (agent.clone(), agent.clone());
    tokio::spawn(async move {
        let mut backoff = Backoff::new();
        loop {
            if let Err(error) = source.clone().watch(follower.clone()).await {
                error!(%error, "policies cannot be read; those in force stay");
            }
            backoff.wait().await;
        }
    });
    status.add_source(move |status| status.policies = Some(policy_status(shown.status())));
    Ok(agent)
}

/// Lets the log of dropped packets name Services, if this node serves them.
pub(crate) fn name_services(policies: Option<&PolicyAgent>, services: Option<&ServicesAgent>) -> Result<()> {
    let (Some(policies), Some(services)) = (policies, services) else { return Ok(()) };
    let endpoints = services.endpoint_services();
    Ok(policies
        .set_service_names(ServiceNames::new(move |protocol, endpoint| endpoints.of(protocol, endpoint)))?)
}

fn policy_status(status: podwire_policy_agent::PolicyStatus) -> PolicyStatus {
    let podwire_policy_agent::PolicyStatus { enforced, policies, interfaces, as_of, problem, .. } = status;
    let unmatched = status.unmatched_selectors;
    let count = unmatched.len();
    PolicyStatus {
        enforced,
        policies,
        interfaces,
        last_change_ms: status.last_change.as_secs_f64() * 1000.0,
        as_of: as_of.map(podwire_policy_agent::timestamp),
        unmatched_selectors: UnmatchedSelectors {
            count,
            first: unmatched.into_iter().take(MAX_UNMATCHED).collect(),
        },
        unguarded_pods: UnguardedPods {
            count: status.unguarded.len(),
            first: status.unguarded.into_iter().take(MAX_UNMATCHED).collect(),
        },
        problem,
    }
}
