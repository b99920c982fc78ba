//! A node in a network namespace, with an agent whose cluster has only this node.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use podwire_agent::flannel::{self, Settings};
use podwire_agent::{FastPathMode, ServicesSettings};
use podwire_http_server::Listen;
use podwire_netlink::sys;
use podwire_subnets::{Source, StaticList};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

const PORT: u16 = 9911;

const NODES: &str = r#"{"network": {"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}},
    "nodes": [{"name": "n", "ranges": ["10.244.7.0/24"], "underlay": ["192.0.2.1"]}]}"#;

/// Runs a command line.
pub fn run(line: &str) -> String {
    let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a test on a new node with a directory, in which `services` is for the files of Services.
pub fn on_node(name: &str, test: impl FnOnce(&Path) + Send + 'static) {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes a network namespace");
    let dir = std::env::temp_dir().join(format!("podwire-services-{name}-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("services")).unwrap();
    std::fs::write(dir.join("nodes.json"), NODES).unwrap();
    let inside = {
        let dir = dir.clone();
        move || {
            sys::new_network_namespace().unwrap();
            run("ip link set lo up; ip link add uplink type veth peer name other; ip link set other up; \
                 ip link set uplink up; ip addr add 192.0.2.1/24 dev uplink; ip route add default via 192.0.2.2");
            test(&dir);
        }
    };
    let outcome = std::thread::spawn(inside).join();
    let _ = std::fs::remove_dir_all(&dir);
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// The settings of the node's agent.
pub fn settings(dir: &Path, services: Option<ServicesSettings>) -> Settings {
    Settings {
        subnet_file: dir.join("subnet.env"),
        readiness_file: dir.join("readiness"),
        plugin_calls_socket: dir.join("calls.sock"),
        host_local_dir: dir.join("networks"),
        health: Some(Listen { ip: None, port: PORT }),
        fast_path: FastPathMode::Off,
        services,
        ..Settings::new("n")
    }
}

/// The nodes of the cluster.
pub fn nodes(dir: &Path) -> Source {
    Source::Static(StaticList::new(dir.join("nodes.json")))
}

pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs an agent until `check` is done.
pub fn with_agent(dir: &Path, services: Option<ServicesSettings>, check: impl FnOnce() + Send + 'static) {
    let (settings, nodes, runtime) = (settings(dir, services), nodes(dir), runtime());
    let checked = std::thread::spawn(check);
    runtime.block_on(async {
        let done = tokio::task::spawn_blocking(move || checked.join());
        tokio::select! {
            ended = flannel::run(settings, nodes) => panic!("the agent ended: {ended:?}"),
            outcome = done => outcome.unwrap().unwrap(),
        }
    });
}

/// The response to a request of the agent's HTTP server; empty if it does not answer yet.
pub fn get(path: &str) -> String {
    get_from("127.0.0.1", PORT, path)
}

/// The same from another address or port.
pub fn get_from(ip: &str, port: u16, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect((ip, port)) else { return String::new() };
    let mut text = String::new();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let _ = stream.read_to_string(&mut text);
    text
}

/// The agent's status; null if it does not answer yet.
fn status() -> Value {
    let response = get("/status");
    let body = response.split_once("\r\n\r\n").map(|(_, body)| body);
    body.and_then(|body| serde_json::from_str(body).ok()).unwrap_or_default()
}

/// Waits for a status of the agent.
#[track_caller]
pub fn wait(wanted: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let status = status();
        if wanted(&status) {
            return status;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
