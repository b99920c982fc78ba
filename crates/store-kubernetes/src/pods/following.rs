//! Following pods, namespaces and the own node. What was heard stays while the server is away.

use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::{pin_mut, StreamExt};
use ipnet::IpNet;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use kube::runtime::WatchStreamExt;
use kube::{Api, Client};
use podwire_kubernetes::Backoff;
use serde_json::Value;
use tracing::{info, warn};

use super::{lock, of, ranges, Namespace, Seen};
use crate::server::Server;

/// A watch is asked for anew after so many seconds: a connection that died without a word is noticed then.
const WATCH_SECONDS: u32 = 120;

/// What is heard of objects of a kind.
enum News {
    All(Vec<Value>),
    Seen(Value),
    Gone(Value),
}

/// Starts the thread that follows.
pub(super) fn start(kubeconfig: Option<&Path>, node: &str, seen: Arc<Mutex<Seen>>) -> Result<(), String> {
    let (server, node) = (Server::new(kubeconfig)?, node.to_owned());
    let work = move || {
        let client = server.client();
        server.wait(async {
            let own = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
            let itself = watcher::Config::default().fields(&format!("metadata.name={node}"));
            tokio::join!(
                follow(client.clone(), "Pod", own, |news| hear_of_pods(&seen, news)),
                follow(client.clone(), "Namespace", watcher::Config::default(), |news| {
                    hear_of_namespaces(&seen, news);
                }),
                follow(client.clone(), "Node", itself, |news| hear_of_node(&seen, news)),
            );
        });
    };
    let started = std::thread::Builder::new().name("pods".into()).spawn(work);
    started.map(drop).map_err(|error| format!("start a thread: {error}"))
}

async fn follow(client: Client, kind: &str, config: watcher::Config, hear: impl Fn(News)) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
    let api: Api<DynamicObject> = Api::all_with(client, &resource);
    let events = watcher::watcher(api, config.timeout(WATCH_SECONDS)).backoff(Backoff::new());
    pin_mut!(events);
    let value = |object: DynamicObject| serde_json::to_value(object).unwrap_or_default();
    let (mut all, mut trouble) = (Vec::new(), String::new());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => all.clear(),
            Ok(Event::InitApply(object)) => all.push(value(object)),
            Ok(Event::InitDone) => {
                hear(News::All(std::mem::take(&mut all)));
                if !std::mem::take(&mut trouble).is_empty() {
                    info!(kind, "the API server tells again");
                }
            }
            Ok(Event::Apply(object)) => hear(News::Seen(value(object))),
            Ok(Event::Delete(object)) => hear(News::Gone(value(object))),
            Err(error) => {
                let text = error.to_string();
                if text != trouble {
                    warn!(kind, "the API server does not tell more: what is not known is asked for when a pod comes: {text}");
                    trouble = text;
                }
            }
        }
    }
}

fn text(object: &Value, field: &str) -> String {
    object["metadata"][field].as_str().unwrap_or_default().to_owned()
}

fn hear_of_pods(seen: &Mutex<Seen>, news: News) {
    let key = |object: &Value| (text(object, "namespace"), text(object, "name"));
    let mut seen = lock(seen);
    match news {
        News::All(pods) => seen.pods = pods.iter().map(|pod| (key(pod), of(pod))).collect(),
        News::Seen(pod) => drop(seen.pods.insert(key(&pod), of(&pod))),
        News::Gone(pod) => drop(seen.pods.remove(&key(&pod))),
    }
}

fn hear_of_namespaces(seen: &Mutex<Seen>, news: News) {
    let name = |object: &Value| text(object, "name");
    let mut seen = lock(seen);
    match news {
        News::All(all) => seen.namespaces = all.iter().map(|one| (name(one), Namespace::of(one))).collect(),
        News::Seen(one) => drop(seen.namespaces.insert(name(&one), Namespace::of(&one))),
        News::Gone(one) => drop(seen.namespaces.remove(&name(&one))),
    }
}

fn hear_of_node(seen: &Mutex<Seen>, news: News) {
    let name = |object: &Value| text(object, "name");
    let entry = |object: &Value| -> (String, Vec<IpNet>) { (name(object), ranges(object)) };
    let mut seen = lock(seen);
    match news {
        News::All(all) => seen.ranges = all.iter().map(entry).collect(),
        News::Seen(one) => seen.ranges.extend([entry(&one)]),
        News::Gone(one) => drop(seen.ranges.remove(&name(&one))),
    }
}
