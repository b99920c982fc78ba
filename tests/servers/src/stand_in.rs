//! A stand-in for the API server: Node objects, events, single pods and collections that a test creates, over HTTP, in
//! this process.
//!
//! It is NOT the real server. It implements lists, watches, bookmarks, 410 Gone, metadata-only responses and strategic
//! merge patches as the API's documentation describes them, as far as the tests need them. Tests with
//! [`KubeApiServer`](crate::KubeApiServer) check the real one.

mod selector;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{json, Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use selector::{decode, Selector};

const NODES: &str = "/api/v1/nodes";

/// What the stand-in stores and has received.
#[derive(Default)]
pub struct State {
    revision: u64,
    /// Watches from an older revision get 410 Gone.
    oldest: u64,
    nodes: BTreeMap<String, Value>,
    /// Objects of other kinds by name, by the path of their collection.
    others: BTreeMap<String, BTreeMap<String, Value>>,
    history: Vec<Change>,
    /// The requests: method, path, `meta` or `whole`, content type and authorization.
    pub requests: Vec<String>,
    /// The bodies of patches.
    pub patches: Vec<Value>,
    /// The events that were created.
    pub events: Vec<Value>,
    /// Pods by name, whatever their namespace.
    pub pods: BTreeMap<String, Value>,
    /// If set, every request fails with this status.
    pub refuse: Option<u16>,
}

/// An event of a watch.
#[derive(Clone)]
struct Change {
    revision: u64,
    /// The path of the collection.
    collection: String,
    kind: &'static str,
    object: Value,
    /// The object before the change, if it is known and there was one.
    before: Option<Value>,
}

/// A running stand-in.
pub struct StandInApiServer {
    /// Its URL.
    pub url: String,
    state: Arc<Mutex<State>>,
    /// Counts changes, and wakes watches; `None` while connections are cut.
    changes: watch::Sender<Option<u64>>,
    task: tokio::task::JoinHandle<()>,
}

impl StandInApiServer {
    /// Starts it on a free loopback port.
    pub async fn start() -> StandInApiServer {
        StandInApiServer::start_at("127.0.0.1:0").await
    }

    /// Starts it on an address.
    pub async fn start_at(address: &str) -> StandInApiServer {
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State { revision: 100, ..State::default() }));
        let (changes, _) = watch::channel(Some(0));
        let (shared, subscriber) = (state.clone(), changes.clone());
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (state, mut cut) = (shared.clone(), subscriber.subscribe());
                let changes = subscriber.subscribe();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = serve(stream, state, changes) => {}
                        _ = cut.wait_for(Option::is_none) => {}
                    }
                });
            }
        });
        StandInApiServer { url, state, changes, task }
    }

    /// Its state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Creates or changes a node. Annotations are merged; `null` removes one.
    pub fn put(&self, name: &str, annotations: Value, pod_cidrs: &[&str]) {
        self.state().put(name, annotations, pod_cidrs);
        self.notify();
    }

    /// Sets a node's InternalIP.
    pub fn set_internal_ip(&self, name: &str, ip: &str) {
        let addresses = json!([{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": ip}]);
        if let Some(node) = self.state().nodes.get_mut(name) {
            node["status"]["addresses"] = addresses;
        }
        self.heartbeat(name);
    }

    /// Creates or replaces an object of the collection with this path, such as `/api/v1/pods`. The collection exists
    /// from the first object on.
    pub fn put_object(&self, collection: &str, object: Value) {
        self.state().put_object(collection, object);
        self.notify();
    }

    /// Deletes an object of the collection with this path, if it exists.
    pub fn delete_object(&self, collection: &str, name: &str) {
        self.state().delete_object(collection, name);
        self.notify();
    }

    /// Deletes a node.
    pub fn delete(&self, name: &str) {
        self.state().delete(name);
        self.notify();
    }

    /// Updates a node without a change, as kubelet does every few seconds.
    pub fn heartbeat(&self, name: &str) {
        self.put(name, json!({}), &[]);
    }

    /// Sends a bookmark to all watches.
    pub fn bookmark(&self) {
        self.state().bookmark();
        self.notify();
    }

    /// Closes all connections, and every new one until [`restore`](StandInApiServer::restore).
    pub fn cut(&self) {
        self.changes.send_replace(None);
    }

    /// Accepts connections again.
    pub fn restore(&self) {
        self.changes.send_replace(Some(0));
    }

    /// Discards the history, so that watches from an older revision get 410 Gone.
    pub fn compact(&self) {
        let mut state = self.state();
        state.oldest = state.revision;
        state.history.clear();
    }

    fn notify(&self) {
        self.changes.send_modify(|count| *count = count.map(|count| count + 1));
    }

    /// The number of requests that contain all of these words.
    pub fn count(&self, words: &[&str]) -> usize {
        self.state().requests.iter().filter(|request| words.iter().all(|word| request.contains(word))).count()
    }

    /// An annotation of a node.
    pub fn annotation(&self, node: &str, name: &str) -> Option<String> {
        self.state().nodes[node]["metadata"]["annotations"][name].as_str().map(String::from)
    }
}

impl Drop for StandInApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    fn put(&mut self, name: &str, annotations: Value, pod_cidrs: &[&str]) {
        self.revision += 1;
        let revision = self.revision;
        let fresh = || {
            let images: Vec<Value> =
                (0..50).map(|i| json!({"names": [format!("registry/{i}")], "sizeBytes": i})).collect();
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "uid": format!("uid-{revision}"), "annotations": {"other/key": "x"}},
                "spec": {}, "status": {"images": images, "conditions": []},
            })
        };
        let known = self.nodes.contains_key(name);
        let node = self.nodes.entry(name.into()).or_insert_with(fresh);
        merge(&mut node["metadata"]["annotations"], &annotations);
        if let Some(first) = pod_cidrs.first() {
            node["spec"] = json!({"podCIDR": first, "podCIDRs": pod_cidrs});
        }
        node["metadata"]["resourceVersion"] = revision.to_string().into();
        let kind = if known { "MODIFIED" } else { "ADDED" };
        let object = node.clone();
        self.history.push(Change { revision, collection: NODES.into(), kind, object, before: None });
    }

    fn put_object(&mut self, collection: &str, mut object: Value) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let objects = match collection {
            NODES => &mut self.nodes,
            other => self.others.entry(other.into()).or_default(),
        };
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let before = objects.insert(name, object.clone());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        let collection = collection.to_owned();
        self.history.push(Change { revision: self.revision, collection, kind, object, before });
    }

    fn delete_object(&mut self, collection: &str, name: &str) {
        let Some(mut object) = self.others.get_mut(collection).and_then(|objects| objects.remove(name))
        else {
            return;
        };
        self.revision += 1;
        let before = Some(object.clone());
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let (collection, kind) = (collection.to_owned(), "DELETED");
        self.history.push(Change { revision: self.revision, collection, kind, object, before });
    }

    fn delete(&mut self, name: &str) {
        self.revision += 1;
        if let Some(mut node) = self.nodes.remove(name) {
            node["metadata"]["resourceVersion"] = self.revision.to_string().into();
            let (collection, kind) = (NODES.into(), "DELETED");
            let before = None;
            self.history.push(Change { revision: self.revision, collection, kind, object: node, before });
        }
    }

    fn bookmark(&mut self) {
        // Revisions belong to the whole cluster: changes of other objects increase them too.
        self.revision += 10;
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"resourceVersion": self.revision.to_string()}});
        let (collection, kind) = (NODES.into(), "BOOKMARK");
        self.history.push(Change { revision: self.revision, collection, kind, object, before: None });
    }

    fn patch(&mut self, name: &str, patch: &Value) -> Option<Value> {
        self.patches.push(patch.clone());
        if let Some(conditions) = patch["status"]["conditions"].as_array() {
            // The merge key of conditions is their type.
            let there = self.nodes.get_mut(name)?["status"]["conditions"].as_array_mut()?;
            there.retain(|old| !conditions.iter().any(|new| new["type"] == old["type"]));
            there.extend(conditions.iter().cloned());
        }
        self.nodes.get(name)?;
        self.put(name, patch["metadata"]["annotations"].clone(), &[]);
        self.nodes.get(name).cloned()
    }
}

fn merge(into: &mut Value, change: &Value) {
    for (key, value) in change.as_object().unwrap_or(&Map::new()) {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(key);
        } else {
            into[key] = value.clone();
        }
    }
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    accept: String,
    content_type: String,
    authorization: String,
    body: Value,
}

async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let end = loop {
        let mut buffer = [0; 4096];
        let got = stream.read(&mut buffer).await.ok().filter(|got| *got > 0)?;
        bytes.extend_from_slice(&buffer[..got]);
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let header = |name: &str| {
        let line = head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}: ")));
        line.map_or(String::new(), |line| line[name.len() + 2..].to_string())
    };
    let length: usize = header("content-length").parse().unwrap_or(0);
    while bytes.len() < end + length {
        let mut buffer = [0; 4096];
        let got = stream.read(&mut buffer).await.ok().filter(|got| *got > 0)?;
        bytes.extend_from_slice(&buffer[..got]);
    }
    let mut words = head.split(' ');
    let (method, target) = (words.next()?.to_string(), words.next()?.to_string());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = query.map(|(key, value)| (key.to_string(), decode(value))).collect();
    let (accept, content_type, authorization) =
        (header("accept"), header("content-type"), header("authorization"));
    let body = serde_json::from_slice(&bytes[end..]).unwrap_or_default();
    Some(Request { method, path: path.into(), query, accept, content_type, authorization, body })
}

async fn respond_with(stream: &mut TcpStream, status: u16, body: Value) {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all((head + &body).as_bytes()).await;
}

fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code})
}

/// An object as a response shows it.
fn shown(object: &Value, meta_only: bool) -> Value {
    if meta_only {
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
    } else {
        object.clone()
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>, changes: watch::Receiver<Option<u64>>) {
    let Some(request) = read(&mut stream).await else { return };
    let meta_only = request.accept.contains("as=PartialObjectMetadata");
    let watching = request.query.get("watch").is_some_and(|watch| watch == "true");
    let how = if meta_only { "meta" } else { "whole" };
    let verb = if watching { "WATCH" } else { &request.method };
    let refuse = {
        let mut state = state.lock().unwrap();
        state.requests.push(format!(
            "{verb} {} {how} {} {}",
            request.path, request.content_type, request.authorization
        ));
        state.refuse
    };
    if let Some(code) = refuse {
        let words = r#"nodes is forbidden: User "system:serviceaccount:x" cannot list resource "nodes""#;
        return respond_with(&mut stream, code, failure(code, "Forbidden", words)).await;
    }
    if watching {
        return stream_changes(stream, state, changes, request).await;
    }
    let (status, body) = respond(&mut state.lock().unwrap(), &request, meta_only);
    respond_with(&mut stream, status, body).await;
}

fn respond(state: &mut State, request: &Request, meta_only: bool) -> (u16, Value) {
    let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
    let not_found = (404, failure(404, "NotFound", "not found"));
    let selector = Selector::of(&request.query);
    match (request.method.as_str(), &parts[..]) {
        ("GET", ["api", "v1", "nodes"]) => {
            let limit = request.query.get("limit").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
            let behind = request.query.get("continue").cloned().unwrap_or_default();
            let rest = || state.nodes.iter().filter(|(name, node)| **name > behind && selector.matches(node));
            let items: Vec<Value> = rest().take(limit).map(|(_, node)| shown(node, meta_only)).collect();
            let mut metadata = json!({"resourceVersion": state.revision.to_string()});
            if rest().nth(limit).is_some() {
                // A real token is opaque; this one is the last name of the page.
                metadata["continue"] =
                    items.last().map_or(Value::Null, |last| last["metadata"]["name"].clone());
            }
            let kind = if meta_only { "PartialObjectMetadataList" } else { "NodeList" };
            (200, json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items}))
        }
        ("GET", ["api", "v1", "nodes", name]) => match state.nodes.get(*name) {
            Some(node) => (200, shown(node, meta_only)),
            None => not_found,
        },
        ("PATCH", ["api", "v1", "nodes", name, "status"]) => match state.patch(name, &request.body) {
            Some(node) => (200, node),
            None => not_found,
        },
        ("GET", ["api", "v1", "namespaces", _, "pods", name]) => match state.pods.get(*name) {
            Some(pod) => (200, pod.clone()),
            None => not_found,
        },
        ("POST", ["apis", "events.k8s.io", "v1", "namespaces", _, "events"]) => {
            state.events.push(request.body.clone());
            (201, request.body.clone())
        }
        ("GET", _) => match state.others.get(&request.path) {
            Some(objects) => {
                let selected = objects.values().filter(|object| selector.matches(object));
                let items: Vec<Value> = selected.map(|object| shown(object, meta_only)).collect();
                let metadata = json!({"resourceVersion": state.revision.to_string()});
                // Go's typed clients ignore a list of another kind.
                let text =
                    |field: &str| items.first().and_then(|item| item[field].as_str()).unwrap_or_default();
                let (kind, version) = (format!("{}List", text("kind")), text("apiVersion"));
                let version = if version.is_empty() { "v1" } else { version };
                (200, json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items}))
            }
            None => not_found,
        },
        _ => not_found,
    }
}

async fn stream_changes(
    mut stream: TcpStream,
    state: Arc<Mutex<State>>,
    mut changes: watch::Receiver<Option<u64>>,
    request: Request,
) {
    let mut from: u64 = request.query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
    let meta_only = request.accept.contains("as=PartialObjectMetadata");
    let selector = Selector::of(&request.query);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    if stream.write_all(head.as_bytes()).await.is_err() {
        return;
    }
    loop {
        changes.borrow_and_update();
        let (events, gone) = {
            let state = state.lock().unwrap();
            let gone =
                (from < state.oldest).then(|| format!("too old resource version: {from} ({})", state.oldest));
            let is_new = |one: &&Change| one.revision > from && one.collection == request.path;
            let events: Vec<Change> = state.history.iter().filter(is_new).cloned().collect();
            (events, gone)
        };
        if let Some(message) = gone {
            let _ = chunk(&mut stream, json!({"type": "ERROR", "object": failure(410, "Expired", &message)}))
                .await;
            let _ = stream.write_all(b"0\r\n\r\n").await;
            return;
        }
        for Change { revision, kind, object, before, .. } in events {
            from = revision;
            let Some((kind, object)) = selector.event(kind, before.as_ref(), &object) else { continue };
            let event = json!({"type": kind, "object": shown(&object, meta_only)});
            if chunk(&mut stream, event).await.is_err() {
                return;
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn chunk(stream: &mut TcpStream, event: Value) -> std::io::Result<()> {
    let line = format!("{event}\n");
    stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).await
}
