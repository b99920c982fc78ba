//! Health checks of load balancers, with real sockets: who answers where and what, while objects and addresses change.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use podwire_services::{Kind, ObjectName, ServicesOptions, Update};
use serde_json::{json, Value};

use crate::agent::Running;
use crate::cluster::{cidr, node, slices, web};
use crate::testbed::{Namespace, Testbed};

const V4: &str = "192.0.2.1:31000";
const V6: &str = "[fd00:9::1]:31000";
const TIMEOUT: Duration = Duration::from_secs(20);

/// A load balancer's Service.
fn balanced(policy: &str) -> Value {
    web(json!({ "type": "LoadBalancer", "externalTrafficPolicy": policy, "healthCheckNodePort": 31000 }))
}

fn options(networks: Option<&str>, healthz: Option<&str>) -> ServicesOptions {
    ServicesOptions {
        node_name: "n".into(),
        node_port_networks: networks.map(|net| vec![net.parse().unwrap()]),
        healthz: healthz.map(|address| address.parse().unwrap()),
        ..ServicesOptions::default()
    }
}

/// The thread with a Service whose policy is `Local`.
fn start(options: ServicesOptions, endpoints: &[&str]) -> Running {
    let running = Running::start(options);
    running.list(Kind::Node, &[node()]);
    running.list(Kind::ServiceCidr, &[cidr()]);
    running.list(Kind::EndpointSlice, &slices(endpoints));
    running.list(Kind::Service, &[balanced("Local")]);
    running
}

/// The response from an address, as a client in the namespace sees it: `reset`, or empty if the port is closed.
fn get(client: &Namespace, address: &str, path: &str) -> String {
    let address: SocketAddr = address.parse().unwrap();
    client.inside(|| {
        let mut stream = match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return String::new(),
            // The port was closed meanwhile.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return "reset".into(),
            Err(error) => panic!("{address}: {error}"),
        };
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut text = String::new();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
        match stream.read_to_string(&mut text) {
            Ok(_) => text,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => "reset".into(),
            Err(error) => panic!("{address}: {error}"),
        }
    })
}

impl Running {
    fn update(&self, object: Value) {
        self.agent.update(Update::Changed(object)).unwrap();
    }

    /// Waits until a host outside sees this beginning of a response at an address.
    fn until(&self, address: &str, path: &str, begin: &str) -> String {
        let started = Instant::now();
        loop {
            let response = get(&self.testbed.outside, address, path);
            if response.starts_with(begin) && response.is_empty() == begin.is_empty() {
                return response;
            }
            assert!(started.elapsed() < TIMEOUT, "{address}{path}: {response:?}, not {begin:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn body(response: &str) -> Value {
    serde_json::from_str(response.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_health_check_port_follows_endpoints_and_policy() {
    let running = start(options(None, None), &["r"]);
    running.until(V4, "/", "HTTP/1.1 503 ");
    slices(&["1", "2"]).into_iter().for_each(|slice| running.update(slice));
    for address in [V4, V6] {
        let response = running.until(address, "/any/path?query", "HTTP/1.1 200 OK\r\n");
        for header in [
            "content-type: application/json\r\n",
            "x-content-type-options: nosniff\r\n",
            "x-load-balancing-endpoint-weight: 2\r\n",
        ] {
            assert!(response.contains(header), "{header} is not in {response}");
        }
        let expected = json!({ "service": { "namespace": "x", "name": "web" }, "localEndpoints": 2,
            "serviceProxyHealthy": true });
        assert_eq!(body(&response), expected);
    }
    // Only the addresses of NodePorts answer.
    for address in ["127.0.0.1:31000", "[::1]:31000"] {
        assert_eq!(get(&running.testbed.node, address, "/"), "", "{address}");
    }
    // The pods go, one family after the other.
    running.update(slices(&["r"])[0].clone());
    assert_eq!(body(&running.until(V4, "/", "HTTP/1.1 503 "))["localEndpoints"], 0);
    running.until(V6, "/", "HTTP/1.1 200 OK");
    // Another policy closes the port, and the former opens it at once.
    for _ in 0..10 {
        running.update(balanced("Cluster"));
        running.until(V6, "/", "");
        assert_eq!(get(&running.testbed.outside, V4, "/"), "");
        running.update(balanced("Local"));
        running.until(V6, "/", "HTTP/1.1 200 OK");
    }
    assert_eq!(running.agent.status().problems, [""; 0]);
    let name = ObjectName { namespace: "x".into(), name: "web".into() };
    running.agent.update(Update::Deleted(Kind::Service, name)).unwrap();
    running.until(V6, "/", "");
}

#[test]
fn a_port_of_another_program_is_reported_and_served_when_it_is_free() {
    let running = Running::start(options(None, None));
    let other = running.testbed.node.inside(|| TcpListener::bind(V4).unwrap());
    running.list(Kind::Node, &[node()]);
    running.list(Kind::ServiceCidr, &[]);
    running.list(Kind::EndpointSlice, &slices(&["1"]));
    running.list(Kind::Service, &[balanced("Local")]);
    let status = running.wait(|status| !status.problems.is_empty());
    let [problem] = &status.problems[..] else { panic!("{status:?}") };
    let begin =
        format!("Service x/web: healthCheckNodePort cannot be served at {V4}: Address already in use");
    assert!(problem.starts_with(&begin), "{problem}");
    running.until(V6, "/", "HTTP/1.1 200 OK");
    drop(other);
    // Any event causes the next attempt.
    running.update(node());
    running.wait(|status| status.problems.is_empty());
    running.until(V4, "/", "HTTP/1.1 200 OK");
}

#[test]
fn health_checks_are_served_at_the_addresses_of_node_ports() {
    // No network of IPv6: all of its addresses.
    let running = start(options(Some("192.0.2.0/24"), None), &["1"]);
    running.until(V4, "/", "HTTP/1.1 200 OK");
    running.until(V6, "/", "HTTP/1.1 200 OK");
    let node = &running.testbed.node;
    assert_eq!(get(node, "127.0.0.1:31000", "/"), "");
    assert!(get(node, "[::1]:31000", "/").starts_with("HTTP/1.1 200 OK"));
    let before = running.wait(|status| status.synced).frontends;
    node.run("ip addr add 192.0.2.7/24 dev uplink; ip addr add 198.51.100.7/32 dev lo");
    running.until("192.0.2.7:31000", "/", "HTTP/1.1 200 OK");
    assert_eq!(get(node, "198.51.100.7:31000", "/"), "");
    node.run("ip addr del 192.0.2.7/24 dev uplink");
    running.wait(|status| status.frontends == before);
    running.until(V4, "/", "HTTP/1.1 200 OK");
    // The address is free again.
    node.run("ip addr add 192.0.2.7/32 dev lo");
    running.until("192.0.2.7:31000", "/", "HTTP/1.1 200 OK");
}

#[test]
fn healthz_and_livez_answer_as_those_of_kube_proxy() {
    const HEALTHZ4: &str = "192.0.2.1:10256";
    const HEALTHZ6: &str = "[fd00:9::1]:10256";
    let running = Running::start(options(None, Some("0.0.0.0:10256")));
    let response = running.until(HEALTHZ4, "/healthz", "HTTP/1.1 503 ");
    assert_eq!(
        (&body(&response)["nodeEligible"], &body(&response)["healthy"]),
        (&json!(false), &json!(true))
    );
    running.until(HEALTHZ6, "/livez", "HTTP/1.1 200 OK");
    running.until(HEALTHZ6, "/metrics", "HTTP/1.1 404 ");
    running.list(Kind::Node, &[node()]);
    running.list(Kind::ServiceCidr, &[]);
    running.list(Kind::EndpointSlice, &[]);
    running.list(Kind::Service, &[]);
    running.wait(|status| status.synced);
    for (address, path, has_node) in [(HEALTHZ4, "/healthz", true), (HEALTHZ6, "/livez", false)] {
        let response = running.until(address, path, "HTTP/1.1 200 OK");
        assert!(response.contains("content-type: application/json\r\n"), "{response}");
        let body = body(&response);
        let keys: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = ["lastUpdated", "currentTime", "nodeEligible", "healthy", "status"];
        assert_eq!(
            keys,
            expected.into_iter().filter(|key| has_node || *key != "nodeEligible").collect::<Vec<_>>()
        );
        assert_eq!(body["lastUpdated"], body["currentTime"]);
        assert_eq!(
            (&body["status"]["IPv4"]["healthy"], &body["status"]["IPv6"]["healthy"]),
            (&json!(true), &json!(true))
        );
    }
    // The autoscaler is about to delete the node, and does.
    let mut tainted = node();
    tainted["spec"] =
        json!({ "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }] });
    running.update(tainted);
    running.until(HEALTHZ4, "/healthz", "HTTP/1.1 503 ");
    running.until(HEALTHZ4, "/livez", "HTTP/1.1 200 OK");
    running.update(node());
    running.until(HEALTHZ4, "/healthz", "HTTP/1.1 200 OK");
    let mut deleted = node();
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    running.update(deleted);
    running.until(HEALTHZ4, "/healthz", "HTTP/1.1 503 ");
    running.list(Kind::Node, &[]);
    running.list(Kind::Service, &[]);
    running.until(HEALTHZ4, "/healthz", "HTTP/1.1 503 ");
    // The thread may be applying the last list.
    running.wait(|_| {
        let report = running.agent.health();
        report.last_applied >= report.last_queued
    });
    let report = running.agent.health();
    assert!(report.healthz[&200] >= 2 && report.healthz[&503] >= 4, "{report:?}");
    assert!(report.livez[&200] >= 3 && !report.livez.contains_key(&503), "{report:?}");
}

#[test]
fn a_taken_port_of_healthz_is_reported_and_the_services_are_served() {
    let testbed = Testbed::new(0);
    let other = testbed.node.inside(|| TcpListener::bind("0.0.0.0:10256").unwrap());
    let running = Running::on(testbed, options(None, Some("0.0.0.0:10256")));
    let status = running.wait(|status| status.healthz_error.is_some());
    let begin = "serve /healthz and /livez at 0.0.0.0:10256: Address already in use";
    assert!(status.healthz_error.as_ref().is_some_and(|error| error.starts_with(begin)), "{status:?}");
    Kind::ALL.into_iter().for_each(|kind| running.list(kind, &[]));
    running.wait(|status| status.synced);
    drop(other);
    running.list(Kind::Node, &[node()]);
    running.wait(|status| status.healthz_error.is_none());
    running.until("192.0.2.1:10256", "/healthz", "HTTP/1.1 200 OK");
}
