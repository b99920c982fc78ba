//! What this node writes on its own Node object.

use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{json, Value};

use podwire_kubernetes::request;

use super::Kubernetes;
use crate::{Error, LeaseTerm, Node, Registration, Result};

pub(super) async fn acquire(kubernetes: &Kubernetes, registration: &Registration) -> Result<Node> {
    let (conf, own) = (kubernetes.network().await?, kubernetes.own().await?);
    if own.pod_cidr_texts().is_empty() {
        return Err(Error::PodCidrNotAssigned { name: kubernetes.name.clone() });
    }
    let unreadable = |why: String| Error::Unreadable { object: format!("node {:?}", kubernetes.name), why };
    let pod_cidrs = own.pod_cidrs(&conf).map_err(unreadable)?;
    conf.check_pod_cidrs(&kubernetes.name, pod_cidrs)?;
    let wanted = kubernetes.annotations.write(registration, own.annotations());
    let there = own.annotations();
    if wanted.iter().any(|(name, text)| there.get(name) != Some(text)) {
        patch(kubernetes, json!({"metadata": {"annotations": wanted}})).await?;
    }
    let Registration { underlay, backend, .. } = registration.clone();
    Ok(Node { name: kubernetes.name.clone(), pod_cidrs, underlay, backend, lease_term: LeaseTerm::Permanent })
}

/// The condition is written when it is not so yet: one that was true all the time keeps its time.
pub(super) async fn set_network_available(kubernetes: &Kubernetes) -> Result<()> {
    if kubernetes.own().await?.is_available() {
        return Ok(());
    }
    let now = format!("{:.0}", Timestamp::now());
    let condition = json!({
        "type": "NetworkUnavailable",
        "status": "False",
        "reason": "PodwireIsUp",
        "message": "podwire is running on this node",
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    });
    patch(kubernetes, json!({"status": {"conditions": [condition]}})).await
}

/// Through `nodes/status`, as flannel: its role may patch that and nothing else. Annotations may be written there, too.
async fn patch(kubernetes: &Kubernetes, change: Value) -> Result<()> {
    let (nodes, params, change) = (kubernetes.nodes(), PatchParams::default(), Patch::Strategic(change));
    let patched = nodes.patch_status(&kubernetes.name, &params, &change);
    request(format!("patch status of node {}", kubernetes.name), patched).await?;
    Ok(())
}
