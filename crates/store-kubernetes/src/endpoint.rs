//! Connected pods. Calico has no object of its own for them here: a pod says by annotations which addresses it has and which sandbox got them.
//!
//! Under the key of an endpoint the pod is found, told in Calico's words; a write changes the annotations and nothing else, by a patch of the
//! pod's status, which is what Calico's role allows. To delete the endpoint is to say that the pod has no address.

use podwire_block_ipam::store::{Entry, Revision, StoreError};
use serde_json::{json, Value};

use crate::server::Refusal;
use crate::{name, version, KubernetesStore};

const FIRST: &str = "cni.projectcalico.org/podIP";
const ALL: &str = "cni.projectcalico.org/podIPs";
const CONTAINER: &str = "cni.projectcalico.org/containerID";

/// An endpoint, by its key, and the pod behind it.
pub(crate) struct Place<'a> {
    key: &'a str,
    path: String,
    pod: String,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> Place<'a> {
    /// None, if the endpoint is no pod's, or no object can have the name.
    pub(crate) fn of(key: &'a str, namespace: &'a str, endpoint: &'a str) -> Option<Place<'a>> {
        let pod = pod_of(endpoint).filter(|pod| name::is_possible(pod) && name::is_possible(namespace))?;
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        Some(Place { key, path, pod, namespace, name: endpoint })
    }

    fn missing(&self) -> StoreError {
        StoreError::Missing { key: self.key.into() }
    }
}

impl KubernetesStore {
    fn failed_at(&self, place: &Place<'_>, verb: &'static str, refusal: Refusal) -> StoreError {
        let why = format!("{verb} pods/{} of {}: {}", place.pod, place.namespace, refusal.words());
        self.unavailable(verb, place.key, why)
    }

    fn pod(&self, place: &Place<'_>) -> Result<Option<Value>, StoreError> {
        match self.server.get(&place.path, &place.pod) {
            Ok(pod) => Ok(Some(pod)),
            Err(Refusal::Missing(_)) => Ok(None),
            Err(refusal) => Err(self.failed_at(place, "get", refusal)),
        }
    }

    /// What the pod says of itself, as an endpoint.
    pub(crate) fn endpoint(&self, place: &Place<'_>) -> Result<Option<Entry>, StoreError> {
        let Some(pod) = self.pod(place)? else { return Ok(None) };
        let revision = version(&pod).map_err(|why| self.unavailable("get", place.key, why))?;
        Ok(Some(Entry {
            key: place.key.into(),
            value: value(place, &pod).to_string().into_bytes(),
            revision,
        }))
    }

    /// Writes an endpoint's addresses and container to its pod. If another pod has that name by now, this one is gone.
    pub(crate) fn write_endpoint(
        &self,
        place: &Place<'_>,
        value: &[u8],
        at: Revision,
    ) -> Result<Revision, StoreError> {
        let told: Value = serde_json::from_slice(value)
            .map_err(|error| self.unavailable("update", place.key, error.to_string()))?;
        let networks = told["spec"]["ipNetworks"].as_array().into_iter().flatten();
        let networks: Vec<&str> = networks.filter_map(Value::as_str).collect();
        let annotations = json!({
            FIRST: networks.first().copied().unwrap_or_default(),
            ALL: networks.join(","),
            CONTAINER: told["spec"]["containerID"],
        });
        self.annotate(place, "update", &annotations, (at, told["metadata"]["uid"].as_str()))
    }

    /// The container's id stays: a deletion that comes again finds out by it whose the endpoint was.
    pub(crate) fn delete_endpoint(&self, place: &Place<'_>, at: Revision) -> Result<(), StoreError> {
        self.annotate(place, "delete", &json!({ FIRST: "", ALL: "" }), (at, None)).map(drop)
    }

    fn annotate(
        &self,
        place: &Place<'_>,
        verb: &'static str,
        annotations: &Value,
        (at, uid): (Revision, Option<&str>),
    ) -> Result<Revision, StoreError> {
        let mut metadata = json!({ "annotations": annotations, "resourceVersion": at.0.to_string() });
        if let Some(uid) = uid {
            metadata["uid"] = uid.into();
        }
        let patch = json!({ "metadata": metadata });
        match self.server.patch_status(&place.path, &place.pod, &patch) {
            Ok(pod) => version(&pod).map_err(|why| self.unavailable(verb, place.key, why)),
            Err(Refusal::Missing(_)) => Err(place.missing()),
            // To another pod's uid the server says that a uid cannot be changed (422), to another version that there is a conflict.
            Err(refusal) => match self.pod(place)? {
                Some(pod) if uid.is_none_or(|uid| pod["metadata"]["uid"] == uid) => match refusal {
                    Refusal::Conflict(_) => Err(StoreError::Changed { key: place.key.into() }),
                    refusal => Err(self.failed_at(place, "patch", refusal)),
                },
                _ => Err(place.missing()),
            },
        }
    }
}

/// The pod in the name of an endpoint, `NODE-k8s-POD-INTERFACE`, in which a dash of a part is written twice.
fn pod_of(endpoint: &str) -> Option<String> {
    let single = endpoint.replace("--", "\0");
    let parts: Vec<&str> = single.split('-').collect();
    match &parts[..] {
        [_, "k8s", pod, _] => Some(pod.replace('\0', "-")),
        _ => None,
    }
}

fn value(place: &Place<'_>, pod: &Value) -> Value {
    let annotation = |key: &str| pod["metadata"]["annotations"][key].as_str().unwrap_or_default();
    let networks: Vec<&str> = annotation(ALL).split(',').filter(|net| !net.is_empty()).collect();
    json!({
        "kind": "WorkloadEndpoint",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": place.name,
            "namespace": place.namespace,
            "uid": pod["metadata"]["uid"],
            "creationTimestamp": pod["metadata"]["creationTimestamp"],
        },
        "spec": {
            "orchestrator": "k8s",
            "node": pod["spec"]["nodeName"],
            "containerID": annotation(CONTAINER),
            "pod": place.pod,
            "ipNetworks": networks,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoints_name_tells_its_pod() {
        assert_eq!(pod_of("node--1-k8s-web--7f--x-eth0").unwrap(), "web-7f-x");
        assert_eq!(pod_of("node1-k8s-web-eth0").unwrap(), "web");
        assert_eq!(pod_of("node1-cni-4711-eth0"), None);
        assert_eq!(pod_of("node1-k8s-web"), None);
    }
}
