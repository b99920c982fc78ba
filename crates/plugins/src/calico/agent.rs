//! Calls to the node's agent about the pod: fetch the pod's metadata before it is connected, publish its endpoint
//! afterwards, withdraw the endpoint at DEL.
//!
//! The agent has the client of the cluster. A network whose config names no datastore, and whose IPAM plugin is not
//! calico-ipam, makes no calls.

use std::path::Path;

use podwire_agent_ipc::addresses::{self, Response};
use podwire_agent_ipc::client::Connection;
use podwire_agent_ipc::pods::{self, Endpoint, PodMetadata};
use podwire_cni_plugin::{delegate, Request, Result};
use podwire_cni_spec::{code, json, Attachment};
use serde_json::Value;

use super::annotations::Annotations;
use crate::calico_ipam::config;
use crate::calico_ipam::request::{begin_on, call, owner, unexpected, Pending};

/// Whether the network is part of a cluster.
pub(super) fn is_in_cluster(req: &Request<'_>) -> bool {
    let is_set = |key: &str| text(&req.config, key).is_some();
    delegate::ipam(req) == Some("calico-ipam") || is_set("datastore_type") || is_set("etcd_endpoints")
}

fn text<'v>(section: &'v Value, key: &str) -> Option<&'v str> {
    json::get(section, key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn has_kubernetes_policies(req: &Request<'_>) -> bool {
    json::get(&req.config, "policy").and_then(|policy| text(policy, "type")) == Some("k8s")
}

/// The pod's metadata from Kubernetes, if the config names Kubernetes.
pub(super) fn find_pod(req: &Request<'_>) -> Result<Option<PodMetadata>> {
    let is_kubernetes = has_kubernetes_policies(req)
        || json::get(&req.config, "kubernetes")
            .and_then(Value::as_object)
            .is_some_and(|keys| !keys.is_empty());
    let Some((namespace, name)) = config::pod(req).filter(|_| is_kubernetes && is_in_cluster(req)) else {
        return Ok(None);
    };
    let uid = req.args.get("K8S_POD_UID").unwrap_or_default().to_owned();
    match call(req, addresses::Request::Pod { namespace, name, uid })? {
        Response::Pod { metadata } => Ok(metadata.map(|pod| *pod)),
        other => Err(unexpected(&other)),
    }
}

/// The pod's Calico profiles: those of its namespace and its service account, or the network's own.
fn profiles(req: &Request<'_>, namespace: &str, account: &str) -> Vec<String> {
    if !has_kubernetes_policies(req) {
        return vec![req.network.to_string()];
    }
    let of_namespace = format!("kns.{namespace}");
    match account {
        "" => vec![of_namespace],
        account => vec![of_namespace, format!("ksa.{namespace}.{account}")],
    }
}

/// Sends the pod's endpoint to the agent, which stores it while the pod is still being configured. [`finish_publish`]
/// waits for the response.
pub(super) fn begin_publish(
    req: &Request<'_>,
    connection: Option<Connection>,
    made: &Attachment,
    info: Option<PodMetadata>,
    requested: &Annotations,
) -> Result<Option<Pending>> {
    if !is_in_cluster(req) {
        return Ok(None);
    }
    let info = info.unwrap_or_default();
    let addresses: Vec<_> = made.ips.iter().map(|ip| ip.address.addr()).collect();
    let interface = |index: usize| made.interfaces.get(index).cloned().unwrap_or_default();
    let key = endpoint_key(req);
    let endpoint = Endpoint {
        profiles: profiles(req, &key.namespace, &info.service_account),
        // The other fields hold the settings of the annotations.
        metadata: PodMetadata {
            annotations: Default::default(),
            namespace_annotations: Default::default(),
            ..info
        },
        ip_nats: requested.floating_ips(&addresses)?,
        addresses,
        interface: interface(0).name,
        mac: interface(1).mac,
        allowed_source_prefixes: requested.source_prefixes.clone(),
        limits: requested.limits.clone(),
        host_netns: pods::current_netns_inode(),
        ..key
    };
    begin_on(req, connection, addresses::Request::Publish { endpoint: Box::new(endpoint) }).map(Some)
}

/// Waits until the agent has stored the endpoint on this node; the agent writes it to the cluster afterwards. Without
/// an agent it is written to the cluster now. If the pod was not configured, the endpoint is withdrawn.
pub(super) fn finish_publish(
    req: &Request<'_>,
    publication: Option<Pending>,
    configured: Result<()>,
) -> Result<()> {
    match (publication, configured) {
        (Some(publication), Err(error)) => {
            if publication.discard() {
                let _ = withdraw(req);
            }
            Err(error)
        }
        (Some(publication), Ok(())) => publication.wait(req).map(drop),
        (None, configured) => configured,
    }
}

/// Adds this network to the endpoint that another network created for the container.
pub(super) fn join(req: &Request<'_>) -> Result<Option<Endpoint>> {
    match call(req, addresses::Request::Join { endpoint: Box::new(endpoint_key(req)) })? {
        Response::Joined { endpoint } => Ok(endpoint.map(|endpoint| *endpoint)),
        other => Err(unexpected(&other)),
    }
}

/// Withdraws the pod's endpoint. If the agent cannot be reached, a pending withdrawal is written to disk, and DEL
/// succeeds.
pub(super) fn withdraw(req: &Request<'_>) -> Result<()> {
    if !is_in_cluster(req) {
        return Ok(());
    }
    let key = endpoint_key(req);
    match call(req, addresses::Request::Withdraw { endpoint: Box::new(key.clone()) }) {
        Ok(_) => Ok(()),
        Err(_) => pods::withdraw(Path::new(addresses::STATE_DIR), &key).map_err(|error| {
            let text = format!(
                "write the pending withdrawal of the endpoint into {}: {error}",
                addresses::STATE_DIR
            );
            podwire_cni_spec::Error::new(code::IO, text).into()
        }),
    }
}

/// Removes the endpoints of attachments that are no longer valid. GC of calico-ipam does that when it releases their
/// addresses.
pub(super) fn collect(req: &Request<'_>) -> Result<()> {
    if is_in_cluster(req) && delegate::ipam(req) != Some("calico-ipam") {
        return crate::calico_ipam::collect(req);
    }
    Ok(())
}

/// An endpoint that holds only what identifies it.
fn endpoint_key(req: &Request<'_>) -> Endpoint {
    let (namespace, pod) = config::pod(req).unwrap_or_default();
    Endpoint { owner: owner(req), namespace, pod, ..Endpoint::default() }
}
