//! What the cluster knows of pods and nodes, for plugins, which have no client of Kubernetes.

use podwire_agent_ipc::addresses::{AddressRequest, Request, Response};
use podwire_agent_ipc::pods::Cluster;
use podwire_block_ipam::selector::Labels;

use crate::Error;

/// Answers what is asked about pods and nodes. Without a cluster nothing is known of pods, and that is no failure: other orchestrators have
/// none of what could be known.
pub fn answer(cluster: Option<&dyn Cluster>, node: &str, question: &Request) -> Response {
    let unknown = |what: String, why: String| crate::door::failed(&Error::Unknown { what, why });
    match (question, cluster) {
        (Request::Pod { namespace, name, uid }, Some(cluster)) => match cluster.pod(namespace, name, uid) {
            Ok(pod) => Response::Pod { metadata: Some(Box::new(pod)) },
            Err(why) => unknown(format!("pod {namespace}/{name}"), why),
        },
        (Request::PodCidrs { node: other }, Some(cluster)) => {
            let node = other.as_deref().unwrap_or(node);
            match cluster.pod_cidrs(node) {
                Ok(ranges) => Response::PodCidrs { cidrs: ranges },
                Err(why) => unknown(format!("the ranges of node {node}"), why),
            }
        }
        (Request::PodCidrs { .. }, None) => {
            let why = "no Kubernetes API is configured: name a kubeconfig".into();
            unknown("the ranges of nodes".into(), why)
        }
        _ => Response::Pod { metadata: None },
    }
}

/// The labels of the namespace of which a wish tells. Where there is no cluster, or the wish names its pools or addresses itself, none matter.
pub(crate) fn namespace_labels(
    cluster: Option<&dyn Cluster>,
    wish: &AddressRequest,
) -> Result<Labels, Error> {
    let chooses_itself = !wish.ips.is_empty() || wish.namespace.is_empty();
    let Some(cluster) = cluster.filter(|_| !chooses_itself) else { return Ok(Labels::new()) };
    let unknown = |why| Error::Unknown { what: format!("namespace {}", wish.namespace), why };
    Ok(cluster.namespace_labels(&wish.namespace).map_err(unknown)?.into_iter().collect())
}
