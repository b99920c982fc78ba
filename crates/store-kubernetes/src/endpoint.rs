//! Workload endpoints. In the Kubernetes API, Calico stores no objects for them: annotations of a pod have its
//! addresses and its sandbox.
//!
//! Reading the key of an endpoint converts its pod to Calico's WorkloadEndpoint. A write changes only the annotations,
//! by a patch of the pod's status, which Calico's role allows. A deletion removes the addresses from the annotations.

use podwire_block_ipam::store::{Entry, Revision, StoreError};
use serde_json::{json, Value};

use crate::name;
use crate::record::version;
use crate::server::{Refusal, Server};

const FIRST_IP: &str = "cni.projectcalico.org/podIP";
const ALL_IPS: &str = "cni.projectcalico.org/podIPs";
const CONTAINER_ID: &str = "cni.projectcalico.org/containerID";

/// An endpoint and its pod.
pub(crate) struct PodEndpoint<'a> {
    server: &'a Server,
    key: &'a str,
    path: String,
    pod: String,
    namespace: &'a str,
    name: &'a str,
}

/// The state of a pod that a patch requires.
struct Precondition<'a> {
    revision: Revision,
    uid: Option<&'a str>,
}

impl<'a> PodEndpoint<'a> {
    /// `None` if the endpoint is not a pod's, or if no object can have its name.
    pub(crate) fn new(
        server: &'a Server,
        key: &'a str,
        namespace: &'a str,
        endpoint: &'a str,
    ) -> Option<PodEndpoint<'a>> {
        let pod = pod_of(endpoint).filter(|pod| name::is_valid(pod) && name::is_valid(namespace))?;
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        Some(PodEndpoint { server, key, path, pod, namespace, name: endpoint })
    }

    /// Reads the pod as an endpoint.
    pub(crate) fn get(&self) -> Result<Option<Entry>, StoreError> {
        let Some(pod) = self.find_pod()? else { return Ok(None) };
        let revision = version(&pod).map_err(|why| self.server.unavailable("get", self.key, why))?;
        let value = self.value(&pod).to_string().into_bytes();
        Ok(Some(Entry { key: self.key.into(), value, revision }))
    }

    /// Writes the endpoint's addresses and container to its pod. Fails with [`StoreError::Missing`] if another pod has
    /// the name by now.
    pub(crate) fn update(&self, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        let endpoint = self.parse(value)?;
        let uid = endpoint["metadata"]["uid"].as_str();
        self.annotate("update", &annotations(&endpoint), &Precondition { revision, uid })
    }

    fn parse(&self, value: &[u8]) -> Result<Value, StoreError> {
        serde_json::from_slice(value)
            .map_err(|error| self.server.unavailable("update", self.key, error.to_string()))
    }

    /// Writes the endpoint to its pod without reading the pod. `false` if the pod is not known by its uid, or if the
    /// server refuses it.
    pub(crate) fn publish_without_read(&self, value: &[u8]) -> Result<bool, StoreError> {
        let endpoint = self.parse(value)?;
        let Some(uid) = endpoint["metadata"]["uid"].as_str() else { return Ok(false) };
        let patch = json!({ "metadata": { "annotations": annotations(&endpoint), "uid": uid } });
        Ok(is_done(&self.server.patch_status(&self.path, &self.pod, &patch)))
    }

    /// Removes the addresses without reading the pod, if they are this container's. `false` if they are not, or if the
    /// server refuses it.
    pub(crate) fn withdraw_without_read(&self, container: &str) -> bool {
        let at = |annotation: &str| format!("/metadata/annotations/{}", annotation.replace('/', "~1"));
        let patch = json!([
            { "op": "test", "path": at(CONTAINER_ID), "value": container },
            { "op": "replace", "path": at(FIRST_IP), "value": "" },
            { "op": "replace", "path": at(ALL_IPS), "value": "" },
        ]);
        is_done(&self.server.patch_status_if(&self.path, &self.pod, &patch))
    }

    /// Removes the addresses. The container's id stays: a repeated DEL uses it to check whose endpoint it was.
    pub(crate) fn delete(&self, revision: Revision) -> Result<(), StoreError> {
        let annotations = json!({ FIRST_IP: "", ALL_IPS: "" });
        self.annotate("delete", &annotations, &Precondition { revision, uid: None }).map(drop)
    }

    fn annotate(
        &self,
        verb: &'static str,
        annotations: &Value,
        precondition: &Precondition<'_>,
    ) -> Result<Revision, StoreError> {
        let version_text = precondition.revision.0.to_string();
        let mut metadata = json!({ "annotations": annotations, "resourceVersion": version_text });
        if let Some(uid) = precondition.uid {
            metadata["uid"] = uid.into();
        }
        let patch = json!({ "metadata": metadata });
        match self.server.patch_status(&self.path, &self.pod, &patch) {
            Ok(pod) => version(&pod).map_err(|why| self.server.unavailable(verb, self.key, why)),
            Err(Refusal::Missing(_)) => Err(self.missing()),
            // For another uid the server answers that a uid cannot be changed (422); for another version, a conflict.
            Err(refusal) => match self.find_pod()? {
                Some(pod) if precondition.uid.is_none_or(|uid| pod["metadata"]["uid"] == uid) => {
                    match refusal {
                        Refusal::Conflict(_) => Err(StoreError::Changed { key: self.key.into() }),
                        refusal => Err(self.failed("patch", refusal)),
                    }
                }
                _ => Err(self.missing()),
            },
        }
    }

    fn find_pod(&self) -> Result<Option<Value>, StoreError> {
        match self.server.get(&self.path, &self.pod) {
            Ok(pod) => Ok(Some(pod)),
            Err(Refusal::Missing(_)) => Ok(None),
            Err(refusal) => Err(self.failed("get", refusal)),
        }
    }

    fn failed(&self, verb: &'static str, refusal: Refusal) -> StoreError {
        let why = format!("{verb} pods/{} of {}: {}", self.pod, self.namespace, refusal.message());
        self.server.unavailable(verb, self.key, why)
    }

    fn missing(&self) -> StoreError {
        StoreError::Missing { key: self.key.into() }
    }

    fn value(&self, pod: &Value) -> Value {
        let annotation = |key: &str| pod["metadata"]["annotations"][key].as_str().unwrap_or_default();
        let networks: Vec<&str> = annotation(ALL_IPS).split(',').filter(|net| !net.is_empty()).collect();
        json!({
            "kind": "WorkloadEndpoint",
            "apiVersion": "projectcalico.org/v3",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "uid": pod["metadata"]["uid"],
                "creationTimestamp": pod["metadata"]["creationTimestamp"],
            },
            "spec": {
                "orchestrator": "k8s",
                "node": pod["spec"]["nodeName"],
                "containerID": annotation(CONTAINER_ID),
                "pod": self.pod,
                "ipNetworks": networks,
            },
        })
    }
}

/// A pod that is gone has no endpoint, so nothing is left to do.
fn is_done(patched: &Result<Value, Refusal>) -> bool {
    matches!(patched, Ok(_) | Err(Refusal::Missing(_)))
}

/// The annotations of an endpoint's pod.
fn annotations(endpoint: &Value) -> Value {
    let networks = endpoint["spec"]["ipNetworks"].as_array().into_iter().flatten();
    let networks: Vec<&str> = networks.filter_map(Value::as_str).collect();
    json!({
        FIRST_IP: networks.first().copied().unwrap_or_default(),
        ALL_IPS: networks.join(","),
        CONTAINER_ID: endpoint["spec"]["containerID"],
    })
}

/// The pod in the name of an endpoint, `NODE-k8s-POD-INTERFACE`. A hyphen in a part is doubled.
fn pod_of(endpoint: &str) -> Option<String> {
    let single = endpoint.replace("--", "\0");
    let parts: Vec<&str> = single.split('-').collect();
    match &parts[..] {
        [_, "k8s", pod, _] => Some(pod.replace('\0', "-")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_endpoint_contains_its_pod() {
        assert_eq!(pod_of("node--1-k8s-web--7f--x-eth0").unwrap(), "web-7f-x");
        assert_eq!(pod_of("node1-k8s-web-eth0").unwrap(), "web");
        assert_eq!(pod_of("node1-cni-4711-eth0"), None);
        assert_eq!(pod_of("node1-k8s-web"), None);
    }
}
