//! Small objects, and the frontends that follow from them as text.

use std::sync::Arc;

use podwire_services::{Backend, Compiler, Desired, Frontend, NodeInput, Reach};
use serde_json::{json, Value};

/// A Service of the namespace `x`.
pub fn service(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "x", "name": name }, "spec": spec })
}

/// A Service with the cluster IP 10.96.0.1, the port 80 and further fields.
pub fn web(more: Value) -> Value {
    let mut spec = json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] });
    more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
    service("web", spec)
}

/// A slice of the Service `web` with one port. An endpoint is `address[@node]`, and `-` before it: not ready.
pub fn slice_of(service: &str, name: &str, port: Value, endpoints: &[&str]) -> Value {
    let endpoint = |text: &&str| {
        let ready = !text.starts_with('-');
        let (address, node) = text.trim_start_matches('-').split_once('@').unwrap_or((text, ""));
        let address = address.trim_start_matches('-');
        json!({ "addresses": [address], "nodeName": node, "conditions": { "ready": ready, "serving": ready } })
    };
    let family = if endpoints.iter().any(|text| text.contains(':')) { "IPv6" } else { "IPv4" };
    json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
        "metadata": { "namespace": "x", "name": name, "labels": { "kubernetes.io/service-name": service } },
        "ports": [port], "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>() })
}

/// A slice of `web` whose endpoints serve port 8080.
pub fn slice(endpoints: &[&str]) -> Value {
    slice_of("web", "web-1", json!({ "port": 8080 }), endpoints)
}

pub fn node() -> Value {
    json!({ "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n", "labels": { "topology.kubernetes.io/zone": "z" } },
        "status": { "addresses": [
            { "type": "Hostname", "address": "n" }, { "type": "ExternalIP", "address": "203.0.113.9" },
            { "type": "InternalIP", "address": "192.0.2.1" }, { "type": "InternalIP", "address": "192.0.2.2" },
            { "type": "InternalIP", "address": "fd00:9::1" }] } })
}

pub fn decide(objects: &[Value]) -> Desired {
    let mut all = Compiler::new(NodeInput { name: "n".into(), ..NodeInput::default() });
    objects.iter().cloned().chain([node()]).for_each(|object| all.put(object));
    all.desired().clone()
}

/// A backend in one line: reach, endpoints, endpoints for other clients, refusal, affinity, clients.
pub fn describe(backend: &Backend) -> String {
    let addrs = |addrs: &[std::net::SocketAddr]| {
        addrs.iter().map(|addr| addr.to_string()).collect::<Vec<_>>().join(",")
    };
    let mut text = format!("{:?} [{}]", backend.reach, addrs(&backend.endpoints));
    if backend.reach == Reach::Local {
        text += &format!(" others [{}]", addrs(&backend.local_endpoints));
    }
    backend.refusal().iter().for_each(|refusal| text += &format!(" {refusal:?}"));
    backend.affinity.iter().for_each(|time| text += &format!(" sticky {}", time.as_secs()));
    if let Some(ranges) = &backend.source_ranges {
        let ranges: Vec<String> = ranges.iter().map(|range| range.to_string()).collect();
        text += &format!(" from [{}]", ranges.join(","));
    }
    text
}

pub fn lines(desired: &Desired) -> Vec<String> {
    let line = |(frontend, backend): (&Frontend, &Arc<Backend>)| {
        format!("{frontend} {} {}", backend.service, describe(backend))
    };
    desired.frontends.iter().map(line).collect()
}

/// Compares the frontends of each case with those expected, and expects no problems.
pub fn check(cases: &[(&str, Vec<Value>, &[&str])]) {
    let mut failures = Vec::new();
    for (name, objects, expected) in cases {
        let found = decide(objects);
        if lines(&found) != *expected || !found.problems.is_empty() {
            failures.push(format!("{name}: {:#?} {:?}", lines(&found), found.problems));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

pub const TWO: &[&str] = &["10.0.0.1@n", "10.0.0.2@m"];
pub const REMOTE: &[&str] = &["10.0.0.2@m"];
