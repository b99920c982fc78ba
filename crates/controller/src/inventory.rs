//! Reads which nodes and pods exist, as far as their addresses matter.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, Pod as PodKind};
use kube::api::ListParams;
use kube::core::{ApiResource, Object};
use kube::{Api, Client, ResourceExt};
use podwire_block_ipam::{Holder, Inventory, Leak, Pod, Rules};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The number of objects in one page of a list.
const PAGE: u32 = 500;

/// A Pod object, reduced to the used fields.
type PodObject = Object<Spec, Status>;

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<Address>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Address {
    ip: String,
}

/// Lists all nodes and pods. Each of the two lists is consistent in itself.
pub(crate) async fn read(client: &Client) -> Result<Inventory> {
    let (nodes, pods) = (Api::<Node>::all(client.clone()), pods(client, None));
    let mut inventory = Inventory::default();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = nodes.list_metadata(&params).await.map_err(Error::kubernetes("list nodes"))?;
        inventory.nodes.extend(page.items.iter().map(ResourceExt::name_any));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            break;
        }
    }
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = pods.list(&params).await.map_err(Error::kubernetes("list pods"))?;
        inventory.pods.extend(page.items.into_iter().map(named_pod));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(inventory);
        }
    }
}

/// Asks the API server whether the holder of an address does not use it any more. `node` is the holder's node by its
/// Kubernetes name.
pub(crate) async fn has_released(client: &Client, rules: &Rules, leak: &Leak, node: &str) -> Result<bool> {
    match &leak.holder {
        Holder::Node(_) => is_node_gone(client, node).await,
        Holder::Pod { namespace, name, .. } => {
            let found = pods(client, Some(namespace)).get_opt(name).await;
            let found = found.map_err(Error::kubernetes(format!("get pod {namespace}/{name}")))?;
            let mut found = found.map(|pod| named_pod(pod).1);
            found.iter_mut().for_each(|pod| pod.retain_pool_addresses(rules));
            Ok(leak.holder.has_released(node, leak.ip, found.as_ref()))
        }
        // Kubernetes does not know containers that are not pods.
        Holder::Container { .. } => Ok(false),
    }
}

/// Asks the API server whether a node does not exist.
pub(crate) async fn is_node_gone(client: &Client, node: &str) -> Result<bool> {
    let nodes: Api<Node> = Api::all(client.clone());
    let found = nodes.get_metadata_opt(node).await;
    Ok(found.map_err(Error::kubernetes(format!("get node {node}")))?.is_none())
}

fn pods(client: &Client, namespace: Option<&str>) -> Api<PodObject> {
    let kind = ApiResource::erase::<PodKind>(&());
    match namespace {
        None => Api::all_with(client.clone(), &kind),
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
    }
}

fn named_pod(pod: PodObject) -> ((String, String), Pod) {
    let name = (pod.namespace().unwrap_or_default(), pod.name_any());
    let status = pod.status.unwrap_or_default();
    let ips = status.pod_ips.into_iter().map(|address| address.ip).chain(status.pod_ip);
    let pod = Pod {
        node: pod.spec.node_name.unwrap_or_default(),
        ips: ips.filter_map(|ip| ip.parse::<IpAddr>().ok()).collect(),
        is_finished: matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")),
    };
    (name, pod)
}
