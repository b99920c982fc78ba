//! Writing ranges into a node's object: two fields of its spec and nothing else, if it is still the same node.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::Api;
use serde_json::json;
use tokio::time::timeout;

use crate::object::{NodeObject, Sighting};
use crate::register::Order;
use crate::tenure::Tenure;
use crate::{Error, Result};

/// HTTP's words for a node that is gone, one that changed meanwhile, and a change that is not allowed: a range that is set cannot
/// be set again, and neither can a uid.
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
const INVALID: u16 = 422;

/// The name that the API server notes beside what we wrote (`kubectl get node NAME --show-managed-fields -o yaml`).
const WRITER: &str = "podwire-controller";

/// What became of an order.
pub(crate) enum Fate {
    /// The node as it is now. If it has no range, the API server did not want this one: why.
    Seen(Sighting, Option<Error>),
    /// There is no such node any more.
    Gone,
    /// Perhaps it was written, perhaps not.
    Unknown(Error),
}

/// Carries an order out, unless this controller's time is over.
pub(crate) async fn write(
    nodes: Api<NodeObject>,
    order: Order,
    tenure: Tenure,
    patience: Duration,
) -> (Order, Fate) {
    if !tenure.holds() {
        let why = "the lease has ended meanwhile".into();
        let doing = format!("set podCIDRs of node {}", order.name);
        return (order, Fate::Unknown(Error::Kubernetes { doing, why }));
    }
    let fate = match timeout(patience, patch(&nodes, &order)).await {
        Ok(fate) => fate.unwrap_or_else(Fate::Unknown),
        Err(_) => {
            let why = format!("no answer in {patience:?}");
            Fate::Unknown(Error::Kubernetes { doing: format!("set podCIDRs of node {}", order.name), why })
        }
    };
    (order, fate)
}

async fn patch(nodes: &Api<NodeObject>, order: &Order) -> Result<Fate> {
    let cidrs: Vec<String> = order.ranges.iter().map(ToString::to_string).collect();
    // With its uid, the patch fails if the node is another of the same name by now. A merge patch replaces a list, where a strategic
    // one would add to it.
    let patch = json!({
        "metadata": { "uid": order.uid },
        "spec": { "podCIDR": cidrs.first(), "podCIDRs": cidrs },
    });
    let patched = nodes.patch(&order.name, &PatchParams::apply(WRITER), &Patch::Merge(patch)).await;
    let doing = format!("set podCIDRs of node {} to {}", order.name, cidrs.join(", "));
    match patched {
        Ok(node) => Ok(Fate::Seen(node.into(), None)),
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(Fate::Gone),
        // Somebody else gave it a range, or it is another node: what is there now decides.
        Err(kube::Error::Api(status)) if [CONFLICT, INVALID].contains(&status.code) => {
            let refusal = Error::kubernetes(doing)(kube::Error::Api(status));
            let there = nodes
                .get_opt(&order.name)
                .await
                .map_err(Error::kubernetes(format!("get node {}", order.name)))?;
            Ok(there.map_or(Fate::Gone, |node| Fate::Seen(node.into(), Some(refusal))))
        }
        Err(error) => Err(Error::kubernetes(doing)(error)),
    }
}
