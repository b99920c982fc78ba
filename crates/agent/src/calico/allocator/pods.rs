//! What the Kubernetes API knows of pods and nodes, for plugins: they have no Kubernetes client.

use podwire_agent_ipc::addresses::{AddressRequest, Request, Response};
use podwire_agent_ipc::pods::Cluster;
use podwire_block_ipam::selector::Labels;

use super::error::Error;

/// Answers a request about a pod or a node. Without a cluster nothing is known of a pod, which is not a failure:
/// runtimes without Kubernetes have no pods.
pub fn respond(cluster: Option<&dyn Cluster>, node: &str, request: &Request) -> Response {
    let failed = |what: String, why: String| Error::Cluster { what, why }.response();
    match (request, cluster) {
        (Request::Pod { namespace, name, uid }, Some(cluster)) => match cluster.pod(namespace, name, uid) {
            Ok(pod) => Response::Pod { metadata: Some(Box::new(pod)) },
            Err(why) => failed(format!("pod {namespace}/{name}"), why),
        },
        (Request::PodCidrs { node: other }, Some(cluster)) => {
            let node = other.as_deref().unwrap_or(node);
            match cluster.pod_cidrs(node) {
                Ok(cidrs) => Response::PodCidrs { cidrs },
                Err(why) => failed(format!("the pod CIDRs of node {node}"), why),
            }
        }
        (Request::PodCidrs { .. }, None) => {
            let why = "no Kubernetes API is configured: set a kubeconfig".into();
            failed("the pod CIDRs of nodes".into(), why)
        }
        _ => Response::Pod { metadata: None },
    }
}

/// The labels of the namespace of a request. They do not matter without a cluster, or if the request names addresses.
pub(super) fn namespace_labels(
    cluster: Option<&dyn Cluster>,
    request: &AddressRequest,
) -> Result<Labels, Error> {
    let is_independent = !request.ips.is_empty() || request.namespace.is_empty();
    let Some(cluster) = cluster.filter(|_| !is_independent) else { return Ok(Labels::new()) };
    let failed = |why| Error::Cluster { what: format!("namespace {}", request.namespace), why };
    Ok(cluster.namespace_labels(&request.namespace).map_err(failed)?.into_iter().collect())
}
