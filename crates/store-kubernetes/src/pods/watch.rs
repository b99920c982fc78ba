//! Watches pods, namespaces and this node. The known objects stay while the server is unreachable.

use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::{pin_mut, StreamExt};
use ipnet::IpNet;
use kube::api::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use kube::runtime::WatchStreamExt;
use kube::{Api, Client};
use podwire_kubernetes::{Backoff, PartialObject, Selection};
use serde_json::Value;
use tracing::{info, warn};

use super::cache::{lock, parse_pod, parse_pod_cidrs, Namespace, PodCache};
use super::fields::{NamespaceFields, NodeFields, PodFields};
use crate::server::Server;

/// A watch is renewed after this time, so that a connection that died silently is noticed.
const WATCH_SECONDS: u32 = 120;

/// A change of the objects of a kind.
enum ObjectChange {
    Listed(Vec<Value>),
    Updated(Value),
    Deleted(Value),
}

/// Starts the thread.
pub(super) fn start(
    kubeconfig: Option<&Path>,
    node: &str,
    cache: Arc<Mutex<PodCache>>,
) -> Result<(), String> {
    let (server, node) = (Server::new(kubeconfig)?, node.to_owned());
    let run = move || {
        let client = server.client();
        server.block_on(async {
            let own_pods = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
            let own_node = watcher::Config::default().fields(&format!("metadata.name={node}"));
            tokio::join!(
                watch::<PodFields>(client.clone(), "Pod", own_pods, |change| update_pods(&cache, change)),
                watch::<NamespaceFields>(client.clone(), "Namespace", watcher::Config::default(), |change| {
                    update_namespaces(&cache, change)
                }),
                watch::<NodeFields>(client.clone(), "Node", own_node, |change| update_node(&cache, change)),
            );
        });
    };
    let started = std::thread::Builder::new().name("pods".into()).spawn(run);
    started.map(drop).map_err(|error| format!("start the pod watch thread: {error}"))
}

async fn watch<S: Selection>(
    client: Client,
    kind: &str,
    config: watcher::Config,
    handle: impl Fn(ObjectChange),
) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
    let api: Api<PartialObject<S>> = Api::all_with(client, &resource);
    let events = watcher::watcher(api, config.timeout(WATCH_SECONDS)).backoff(Backoff::new());
    pin_mut!(events);
    let (mut all, mut last_error) = (Vec::new(), String::new());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => all.clear(),
            Ok(Event::InitApply(object)) => all.push(object.into_value()),
            Ok(Event::InitDone) => {
                handle(ObjectChange::Listed(std::mem::take(&mut all)));
                if !std::mem::take(&mut last_error).is_empty() {
                    info!(kind, "watch works again");
                }
            }
            Ok(Event::Apply(object)) => handle(ObjectChange::Updated(object.into_value())),
            Ok(Event::Delete(object)) => handle(ObjectChange::Deleted(object.into_value())),
            Err(error) => {
                let text = error.to_string();
                if text != last_error {
                    warn!(kind, error = text, "watch failed: unknown objects are read when a pod starts");
                    last_error = text;
                }
            }
        }
    }
}

fn text(object: &Value, field: &str) -> String {
    object["metadata"][field].as_str().unwrap_or_default().to_owned()
}

fn update_pods(cache: &Mutex<PodCache>, change: ObjectChange) {
    let key = |object: &Value| (text(object, "namespace"), text(object, "name"));
    let mut cache = lock(cache);
    match change {
        ObjectChange::Listed(pods) => {
            cache.pods = pods.iter().map(|pod| (key(pod), parse_pod(pod))).collect()
        }
        ObjectChange::Updated(pod) => drop(cache.pods.insert(key(&pod), parse_pod(&pod))),
        ObjectChange::Deleted(pod) => drop(cache.pods.remove(&key(&pod))),
    }
}

fn update_namespaces(cache: &Mutex<PodCache>, change: ObjectChange) {
    let name = |object: &Value| text(object, "name");
    let mut cache = lock(cache);
    match change {
        ObjectChange::Listed(all) => {
            cache.namespaces = all.iter().map(|one| (name(one), Namespace::parse(one))).collect()
        }
        ObjectChange::Updated(one) => drop(cache.namespaces.insert(name(&one), Namespace::parse(&one))),
        ObjectChange::Deleted(one) => drop(cache.namespaces.remove(&name(&one))),
    }
}

fn update_node(cache: &Mutex<PodCache>, change: ObjectChange) {
    let name = |object: &Value| text(object, "name");
    let entry = |object: &Value| -> (String, Vec<IpNet>) { (name(object), parse_pod_cidrs(object)) };
    let mut cache = lock(cache);
    match change {
        ObjectChange::Listed(all) => cache.pod_cidrs = all.iter().map(entry).collect(),
        ObjectChange::Updated(one) => cache.pod_cidrs.extend([entry(&one)]),
        ObjectChange::Deleted(one) => drop(cache.pod_cidrs.remove(&name(&one))),
    }
}
