//! A stand-in for the API server. It is NOT the real one: what it knows of lists, watches, bookmarks, 410 Gone,
//! metadata-only answers and strategic merge patches is what the API's documents say, as far as the tests need it. That the
//! real server agrees is left to a lane that has one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{json, Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Default)]
pub struct State {
    revision: u64,
    /// Watches from before this are told 410.
    oldest: u64,
    nodes: BTreeMap<String, Value>,
    history: Vec<(u64, &'static str, Value)>,
    /// What was asked: method, path with query, and for reads whether it was `meta` or `whole`.
    pub asked: Vec<String>,
    pub patches: Vec<Value>,
    pub events: Vec<Value>,
    pub pods: BTreeMap<String, Value>,
    /// Answers everything with this status.
    pub refuse: Option<u16>,
}

pub struct ApiServer {
    pub url: String,
    state: Arc<Mutex<State>>,
    /// Counts changes; `None` while connections are cut.
    bell: watch::Sender<Option<u64>>,
    task: tokio::task::JoinHandle<()>,
}

impl ApiServer {
    pub async fn start() -> ApiServer {
        ApiServer::start_at("127.0.0.1:0").await
    }

    pub async fn start_at(address: &str) -> ApiServer {
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State { revision: 100, ..State::default() }));
        let (bell, _) = watch::channel(Some(0));
        let (shared, ear) = (state.clone(), bell.clone());
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (state, mut cut) = (shared.clone(), ear.subscribe());
                let bell = ear.subscribe();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = serve(stream, state, bell) => {}
                        _ = cut.wait_for(Option::is_none) => {}
                    }
                });
            }
        });
        ApiServer { url, state, bell, task }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Makes a node or changes it: annotations are merged, `null` removes.
    pub fn put(&self, name: &str, annotations: Value, pod_cidrs: &[&str]) {
        self.state().put(name, annotations, pod_cidrs);
        self.ring();
    }

    /// By which address the cluster knows a node.
    pub fn set_internal_ip(&self, name: &str, ip: &str) {
        let addresses = json!([{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": ip}]);
        if let Some(node) = self.state().nodes.get_mut(name) {
            node["status"]["addresses"] = addresses;
        }
        self.heartbeat(name);
    }

    pub fn delete(&self, name: &str) {
        self.state().delete(name);
        self.ring();
    }

    /// What kubelet does every few seconds.
    pub fn heartbeat(&self, name: &str) {
        self.put(name, json!({}), &[]);
    }

    /// Tells watchers how far they are.
    pub fn bookmark(&self) {
        self.state().bookmark();
        self.ring();
    }

    /// Ends all connections, and all that come.
    pub fn cut(&self) {
        self.bell.send_replace(None);
    }

    pub fn mend(&self) {
        self.bell.send_replace(Some(0));
    }

    /// Forgets what happened before now.
    pub fn compact(&self) {
        let mut state = self.state();
        state.oldest = state.revision;
        state.history.clear();
    }

    fn ring(&self) {
        self.bell.send_modify(|count| *count = count.map(|count| count + 1));
    }

    /// How often something was asked that contains all of these words.
    pub fn count(&self, words: &[&str]) -> usize {
        self.state().asked.iter().filter(|asked| words.iter().all(|word| asked.contains(word))).count()
    }

    pub fn annotation(&self, node: &str, name: &str) -> Option<String> {
        self.state().nodes[node]["metadata"]["annotations"][name].as_str().map(String::from)
    }
}

impl Drop for ApiServer {
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
        self.history.push((revision, kind, node.clone()));
    }

    fn delete(&mut self, name: &str) {
        self.revision += 1;
        if let Some(mut node) = self.nodes.remove(name) {
            node["metadata"]["resourceVersion"] = self.revision.to_string().into();
            self.history.push((self.revision, "DELETED", node));
        }
    }

    fn bookmark(&mut self) {
        // Revisions are of the whole cluster: others' changes count them up, too.
        self.revision += 10;
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"resourceVersion": self.revision.to_string()}});
        self.history.push((self.revision, "BOOKMARK", object));
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
        match value.is_null() {
            true => drop(into.as_object_mut().unwrap().remove(key)),
            false => into[key] = value.clone(),
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
    let query = query.map(|(key, value)| (key.to_string(), value.replace("%3D", "="))).collect();
    let (accept, content_type, authorization) =
        (header("accept"), header("content-type"), header("authorization"));
    let body = serde_json::from_slice(&bytes[end..]).unwrap_or_default();
    Some(Request { method, path: path.into(), query, accept, content_type, authorization, body })
}

async fn answer(stream: &mut TcpStream, status: u16, body: Value) {
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

/// What a metadata-only answer has of an object.
fn shown(object: &Value, meta_only: bool) -> Value {
    match meta_only {
        true => {
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
        }
        false => object.clone(),
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>, bell: watch::Receiver<Option<u64>>) {
    let Some(request) = read(&mut stream).await else { return };
    let meta_only = request.accept.contains("as=PartialObjectMetadata");
    let watching = request.query.get("watch").is_some_and(|watch| watch == "true");
    let how = if meta_only { "meta" } else { "whole" };
    let verb = if watching { "WATCH" } else { &request.method };
    let refuse = {
        let mut state = state.lock().unwrap();
        state.asked.push(format!(
            "{verb} {} {how} {} {}",
            request.path, request.content_type, request.authorization
        ));
        state.refuse
    };
    if let Some(code) = refuse {
        let words = r#"nodes is forbidden: User "system:serviceaccount:x" cannot list resource "nodes""#;
        return answer(&mut stream, code, failure(code, "Forbidden", words)).await;
    }
    if watching {
        return stream_changes(stream, state, bell, request).await;
    }
    let (status, body) = respond(&mut state.lock().unwrap(), &request, meta_only);
    answer(&mut stream, status, body).await;
}

fn respond(state: &mut State, request: &Request, meta_only: bool) -> (u16, Value) {
    let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
    let not_found = (404, failure(404, "NotFound", "not found"));
    match (request.method.as_str(), &parts[..]) {
        ("GET", ["api", "v1", "nodes"]) => {
            let limit = request.query.get("limit").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
            let behind = request.query.get("continue").cloned().unwrap_or_default();
            let rest = || state.nodes.iter().filter(|(name, _)| **name > behind);
            let items: Vec<Value> = rest().take(limit).map(|(_, node)| shown(node, meta_only)).collect();
            let mut metadata = json!({"resourceVersion": state.revision.to_string()});
            if rest().nth(limit).is_some() {
                // A real token says nothing to people; this one is the last name of the page.
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
        _ => not_found,
    }
}

async fn stream_changes(
    mut stream: TcpStream,
    state: Arc<Mutex<State>>,
    mut bell: watch::Receiver<Option<u64>>,
    request: Request,
) {
    let mut from: u64 = request.query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
    let meta_only = request.accept.contains("as=PartialObjectMetadata");
    let selected = request.query.get("fieldSelector").map(|selector| selector.replace("metadata.name=", ""));
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    if stream.write_all(head.as_bytes()).await.is_err() {
        return;
    }
    loop {
        bell.borrow_and_update();
        let (events, gone) = {
            let state = state.lock().unwrap();
            let gone =
                (from < state.oldest).then(|| format!("too old resource version: {from} ({})", state.oldest));
            let since = state.history.iter().filter(|(revision, ..)| *revision > from);
            let events: Vec<(u64, &str, Value)> = since.cloned().collect();
            (events, gone)
        };
        if let Some(message) = gone {
            let _ = chunk(&mut stream, json!({"type": "ERROR", "object": failure(410, "Expired", &message)}))
                .await;
            let _ = stream.write_all(b"0\r\n\r\n").await;
            return;
        }
        for (revision, kind, object) in events {
            from = revision;
            let named = object["metadata"]["name"].as_str();
            let skip = selected.as_deref().is_some_and(|name| kind != "BOOKMARK" && named != Some(name));
            if !skip
                && chunk(&mut stream, json!({"type": kind, "object": shown(&object, meta_only)}))
                    .await
                    .is_err()
            {
                return;
            }
        }
        if bell.changed().await.is_err() {
            return;
        }
    }
}

async fn chunk(stream: &mut TcpStream, event: Value) -> std::io::Result<()> {
    let line = format!("{event}\n");
    stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).await
}
