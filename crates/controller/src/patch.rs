//! Writes pod CIDRs into a Node object: two fields of its spec and nothing else, if it is still the same node.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::Api;
use serde_json::json;
use tokio::time::timeout;

use crate::lease_deadline::LeaseDeadline;
use crate::node_object::{NodeObject, NodeState};
use crate::node_table::Assignment;
use crate::{Error, Result};

/// HTTP status codes: the node is deleted; it changed meanwhile; the change is not allowed. A pod CIDR that is set
/// cannot be set again, and neither can a uid.
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
const INVALID: u16 = 422;

/// The field manager of the patch (`kubectl get node NAME --show-managed-fields -o yaml`).
const FIELD_MANAGER: &str = "podwire-controller";

/// The outcome of a patch.
pub(crate) enum PatchOutcome {
    /// The node after the request. If it has no pod CIDR, the API server refused this one for the given reason.
    Observed(NodeState, Option<Error>),
    /// The node does not exist any more.
    Deleted,
    /// The patch may or may not have been applied.
    Unknown(Error),
}

/// Writes an assignment, unless the lease has ended.
pub(crate) async fn patch_node(
    nodes: Api<NodeObject>,
    assignment: Assignment,
    deadline: LeaseDeadline,
    request_timeout: Duration,
) -> (Assignment, PatchOutcome) {
    let failed = |why: String| {
        let doing = format!("set podCIDRs of node {}", assignment.name);
        PatchOutcome::Unknown(Error::Kubernetes { doing, why })
    };
    if !deadline.is_held() {
        let outcome = failed("the lease ended before the request was sent".into());
        return (assignment, outcome);
    }
    let outcome = match timeout(request_timeout, patch(&nodes, &assignment)).await {
        Ok(outcome) => outcome.unwrap_or_else(PatchOutcome::Unknown),
        Err(_) => failed(format!("no response within {request_timeout:?}")),
    };
    (assignment, outcome)
}

async fn patch(nodes: &Api<NodeObject>, assignment: &Assignment) -> Result<PatchOutcome> {
    let cidrs: Vec<String> = assignment.pod_cidrs.iter().map(ToString::to_string).collect();
    // With the uid, the patch fails if another node has the same name by now. A merge patch replaces a list; a
    // strategic merge patch would add to it.
    let patch = json!({
        "metadata": { "uid": assignment.uid },
        "spec": { "podCIDR": cidrs.first(), "podCIDRs": cidrs },
    });
    let params = PatchParams::apply(FIELD_MANAGER);
    let patched = nodes.patch(&assignment.name, &params, &Patch::Merge(patch)).await;
    let doing = format!("set podCIDRs of node {} to {}", assignment.name, cidrs.join(", "));
    match patched {
        Ok(node) => Ok(PatchOutcome::Observed(node.into(), None)),
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(PatchOutcome::Deleted),
        // Another controller set the pod CIDR, or another node has the name: the current object decides.
        Err(kube::Error::Api(status)) if [CONFLICT, INVALID].contains(&status.code) => {
            let refusal = Error::kubernetes(doing)(kube::Error::Api(status));
            let found = nodes.get_opt(&assignment.name).await;
            let found = found.map_err(Error::kubernetes(format!("get node {}", assignment.name)))?;
            Ok(found.map_or(PatchOutcome::Deleted, |node| PatchOutcome::Observed(node.into(), Some(refusal))))
        }
        Err(error) => Err(Error::kubernetes(doing)(error)),
    }
}
