//! The pods of a node in Kubernetes, for plugins, which have no client.
//!
//! A thread watches them, all namespaces and the node's own object, so that requests are answered from memory. An
//! object that is not known, because it is new or must not be watched, is read once.

mod cache;
mod fields;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use ipnet::IpNet;
use podwire_agent_ipc::pods::{Cluster, PodMetadata, StringMap};
use serde_json::Value;

use cache::{lock, parse_pod, parse_pod_cidrs, KnownPod, Namespace, PodCache};

use crate::name;
use crate::server::{Refusal, Server};

/// The pods of a cluster.
pub struct Pods {
    server: Server,
    kubeconfig: Option<PathBuf>,
    cache: Arc<Mutex<PodCache>>,
}

impl Pods {
    /// Uses a kubeconfig, or the service account of the pod. It does not connect yet.
    pub fn connect(kubeconfig: Option<&Path>) -> Result<Pods, String> {
        let server = Server::new(kubeconfig)?;
        Ok(Pods { server, kubeconfig: kubeconfig.map(Path::to_owned), cache: Arc::default() })
    }

    /// Starts watching the pods of a node.
    pub fn follow(&self, node: &str) -> Result<(), String> {
        watch::start(self.kubeconfig.as_deref(), node, self.cache.clone())
    }

    fn cache(&self) -> MutexGuard<'_, PodCache> {
        lock(&self.cache)
    }

    fn get(&self, path: &str, name: &str) -> Result<Value, String> {
        if !name::is_valid(name) {
            return Err(format!("{name:?} is not a valid name of a Kubernetes object"));
        }
        self.server.get(path, name).map_err(Refusal::message)
    }

    fn namespace(&self, namespace: &str) -> Result<Namespace, String> {
        if let Some(known) = self.cache().namespaces.get(namespace) {
            return Ok(known.clone());
        }
        self.get("/api/v1/namespaces", namespace).map(|object| Namespace::parse(&object))
    }
}

impl Cluster for Pods {
    fn pod(&self, namespace: &str, name: &str, uid: &str) -> Result<PodMetadata, String> {
        if !name::is_valid(namespace) {
            return Err(format!("{namespace:?} is not a valid name of a namespace"));
        }
        let is_requested =
            |known: &KnownPod| uid.is_empty() || uid == known.pod.uid || uid == known.mirrored_uid;
        let known = self.cache().pods.get(&(namespace.into(), name.into())).cloned();
        let KnownPod { pod, .. } = match known.filter(is_requested) {
            Some(known) => known,
            None => {
                let found = parse_pod(&self.get(&format!("/api/v1/namespaces/{namespace}/pods"), name)?);
                if !is_requested(&found) {
                    return Err(format!("the pod with that name has the uid {}, not {uid}", found.pod.uid));
                }
                found
            }
        };
        Ok(PodMetadata { namespace_annotations: self.namespace(namespace)?.annotations, ..pod })
    }

    fn namespace_labels(&self, namespace: &str) -> Result<StringMap, String> {
        self.namespace(namespace).map(|known| known.labels)
    }

    fn has_node(&self, node: &str) -> bool {
        self.cache().pod_cidrs.contains_key(node)
    }

    fn pod_cidrs(&self, node: &str) -> Result<Vec<IpNet>, String> {
        if let Some(known) = self.cache().pod_cidrs.get(node).filter(|known| !known.is_empty()) {
            return Ok(known.clone());
        }
        let pod_cidrs = parse_pod_cidrs(&self.get("/api/v1/nodes", node)?);
        if pod_cidrs.is_empty() {
            return Err(format!("no podCidr for node {node}"));
        }
        Ok(pod_cidrs)
    }
}
