//! Keeping pods apart: the policy_agent of this node, its source and its door.

use std::path::Path;

use ipnet::IpNet;
use podwire_kubernetes::Backoff;
use podwire_policy_agent::{PolicyAgent, PolicyAgentOptions, Source};
use tracing::error;

use crate::Result;

/// Starts it; `cuts` connections that policies no longer allow. It is asked at its door at once, and answers when its source has told everything.
/// `guarded`: the networks of pods that an agent before this one guarded. They are guarded from the first moment on: what this one will have is not known yet.
pub(crate) fn enforce(
    node_name: &str,
    source: Source,
    cuts: bool,
    guarded: Vec<IpNet>,
) -> Result<PolicyAgent> {
    let policy_agent = PolicyAgent::start(PolicyAgentOptions {
        node_name: node_name.into(),
        lists_pods: source.lists_pods(),
        close_denied: cuts,
    })?;
    policy_agent.set_networks(guarded, Vec::new())?;
    podwire_policy_agent::serve_plugins(Path::new(podwire_policy_agent::SOCKET), policy_agent.clone())?;
    let follower = policy_agent.clone();
    tokio::spawn(async move {
        let mut backoff = Backoff::new();
        loop {
            if let Err(error) = source.clone().watch(follower.clone()).await {
                error!("policies stay as they are: {error}");
            }
            backoff.wait().await;
        }
    });
    Ok(policy_agent)
}
