//! The pod in its cluster: what is known of it before it is connected, and what others are to know afterwards.
//!
//! Whoever owns the node's blocks has a client of the cluster, and is asked and told. A network whose config names no datastore of a cluster, and
//! whose addresses are from none, has nobody to ask.

use std::path::Path;

use podwire_agent_ipc::addresses::{self, Response};
use podwire_agent_ipc::client::Connection;
use podwire_agent_ipc::pods::{self, Endpoint, PodMetadata};
use podwire_cni_plugin::{delegate, Request, Result};
use podwire_cni_spec::{code, json, Attachment};
use serde_json::Value;

use super::wishes::Wishes;
use crate::calico_ipam::asking::{ask, begin_on, Asked};
use crate::calico_ipam::{config, owner, unexpected};

/// Whether the network is part of a cluster.
pub(super) fn is_concerned(req: &Request<'_>) -> bool {
    let is_named = |key: &str| text(&req.config, key).is_some();
    delegate::ipam(req) == Some("calico-ipam") || is_named("datastore_type") || is_named("etcd_endpoints")
}

fn text<'v>(section: &'v Value, key: &str) -> Option<&'v str> {
    json::get(section, key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn has_kubernetes_policies(req: &Request<'_>) -> bool {
    json::get(&req.config, "policy").and_then(|policy| text(policy, "type")) == Some("k8s")
}

/// What Kubernetes knows of the pod, if the config says that it is to be asked.
pub(super) fn known(req: &Request<'_>) -> Result<Option<PodMetadata>> {
    let is_kubernetes = has_kubernetes_policies(req)
        || json::get(&req.config, "kubernetes")
            .and_then(Value::as_object)
            .is_some_and(|keys| !keys.is_empty());
    let Some((namespace, name)) = config::pod(req).filter(|_| is_kubernetes && is_concerned(req)) else {
        return Ok(None);
    };
    let uid = req.args.get("K8S_POD_UID").unwrap_or_default().to_owned();
    match ask(req, addresses::Request::Pod { namespace, name, uid })? {
        Response::Pod { metadata: known } => Ok(known.map(|pod| *pod)),
        other => Err(unexpected(&other)),
    }
}

/// Which profiles of Calico hold for the pod: those of its namespace and its service account, or the network's own.
fn profiles(req: &Request<'_>, namespace: &str, account: &str) -> Vec<String> {
    match (has_kubernetes_policies(req), account) {
        (false, _) => vec![req.network.to_string()],
        (true, "") => vec![format!("kns.{namespace}")],
        (true, account) => vec![format!("kns.{namespace}"), format!("ksa.{namespace}.{account}")],
    }
}

/// Lets others know of the pod, while it is still being connected: somebody else writes it down meanwhile. [`published`] waits for that.
pub(super) fn publish(
    req: &Request<'_>,
    line: Option<Connection>,
    made: &Attachment,
    (known, wishes): (Option<PodMetadata>, &Wishes),
) -> Result<Option<Asked>> {
    if !is_concerned(req) {
        return Ok(None);
    }
    let known = known.unwrap_or_default();
    let addresses: Vec<_> = made.ips.iter().map(|ip| ip.address.addr()).collect();
    let name = |place: usize| made.interfaces.get(place).cloned().unwrap_or_default();
    let this = whose(req);
    let endpoint = Endpoint {
        profiles: profiles(req, &this.namespace, &known.service_account),
        // What it has asked for is in the other fields.
        metadata: PodMetadata {
            annotations: Default::default(),
            namespace_annotations: Default::default(),
            ..known
        },
        ip_nats: wishes.floating(&addresses)?,
        addresses,
        interface: name(0).name,
        mac: name(1).mac,
        allowed_source_prefixes: wishes.prefixes.clone(),
        limits: wishes.limits.clone(),
        host_netns: pods::current_netns_inode(),
        ..this
    };
    begin_on(req, line, addresses::Request::Publish { endpoint: Box::new(endpoint) }).map(Some)
}

/// Waits until it is noted on this node; the cluster is told afterwards. Where nobody does that, it is told now. If the pod could not be connected after
/// all, nobody is to know of it.
pub(super) fn published(req: &Request<'_>, asked: Option<Asked>, connected: Result<()>) -> Result<()> {
    match (asked, connected) {
        (Some(asked), Err(error)) => {
            if asked.settle() {
                let _ = withdraw(req);
            }
            Err(error)
        }
        (Some(asked), Ok(())) => asked.answer(req).map(drop),
        (_, connected) => connected,
    }
}

/// Asks to join the endpoint that the container has by another network.
pub(super) fn join(req: &Request<'_>) -> Result<Option<Endpoint>> {
    match ask(req, addresses::Request::Join { endpoint: Box::new(whose(req)) })? {
        Response::Joined { endpoint } => Ok(endpoint.map(|endpoint| *endpoint)),
        other => Err(unexpected(&other)),
    }
}

/// Lets others know that the pod is gone. It succeeds whoever listens: what cannot be told now is noted.
pub(super) fn withdraw(req: &Request<'_>) -> Result<()> {
    if !is_concerned(req) {
        return Ok(());
    }
    let gone = whose(req);
    match ask(req, addresses::Request::Withdraw { endpoint: Box::new(gone.clone()) }) {
        Ok(_) => Ok(()),
        Err(_) => pods::withdraw(Path::new(addresses::STATE_DIR), &gone).map_err(|error| {
            let text = format!("note in {} that the pod is gone: {error}", addresses::STATE_DIR);
            podwire_cni_spec::Error::new(code::IO, text).into()
        }),
    }
}

/// Pods that are not valid any more are gone. calico-ipam says that when it takes back their addresses.
pub(super) fn collect(req: &Request<'_>) -> Result<()> {
    match delegate::ipam(req) {
        Some("calico-ipam") => Ok(()),
        _ if is_concerned(req) => crate::calico_ipam::collect(req),
        _ => Ok(()),
    }
}

fn whose(req: &Request<'_>) -> Endpoint {
    let (namespace, pod) = config::pod(req).unwrap_or_default();
    Endpoint { owner: owner(req), namespace, pod, ..Endpoint::default() }
}
