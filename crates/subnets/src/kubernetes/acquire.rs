//! Writes this node's record to its Node object.

use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use podwire_kubernetes::request;
use serde_json::{json, Value};

use super::Kubernetes;
use crate::error::{Error, Result};
use crate::node::{LeaseTerm, Node, Registration};

impl Kubernetes {
    /// Publishes this node's record. [`Error::PodCidrNotAssigned`] if the controller has not assigned pod CIDRs yet:
    /// [`wait_for_pod_cidr`](Kubernetes::wait_for_pod_cidr) waits for that.
    pub async fn acquire(&self, registration: &Registration) -> Result<Node> {
        let (conf, own) = (self.network().await?, self.own().await?);
        if own.pod_cidr_texts().is_empty() {
            return Err(Error::PodCidrNotAssigned { name: self.name.clone() });
        }
        let unreadable = |why: String| Error::Unreadable { object: format!("node {:?}", self.name), why };
        let pod_cidrs = own.pod_cidrs(&conf).map_err(unreadable)?;
        conf.check_pod_cidrs(&self.name, pod_cidrs)?;
        let current = own.annotations();
        let wanted = self.annotations.write(registration, current);
        if wanted.iter().any(|(name, text)| current.get(name) != Some(text)) {
            self.patch_status(json!({"metadata": {"annotations": wanted}})).await?;
        }
        let Registration { underlay, backend, .. } = registration.clone();
        let name = self.name.clone();
        Ok(Node { name, pod_cidrs, underlay, backend, lease_term: LeaseTerm::Permanent })
    }

    /// Clears the node's condition `NetworkUnavailable`, which keeps pods off the node. A condition that is already
    /// clear keeps its time.
    pub async fn set_network_available(&self) -> Result<()> {
        if self.own().await?.is_available() {
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
        self.patch_status(json!({"status": {"conditions": [condition]}})).await
    }

    /// Patches `nodes/status`, as flannel does: its role may patch only that. Annotations may be patched there too.
    async fn patch_status(&self, change: Value) -> Result<()> {
        let (nodes, params, change) = (self.nodes(), PatchParams::default(), Patch::Strategic(change));
        let patched = nodes.patch_status(&self.name, &params, &change);
        request(format!("patch status of node {}", self.name), patched).await?;
        Ok(())
    }
}
