//! An agent on a node where kube-proxy runs or ran, and one that no longer serves Services. Needs root, `ip` and `nft`.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use podwire_agent::flannel::{self, Settings};
use podwire_agent::{FastPathMode, ServicesSettings};
use podwire_http_server::Listen;
use podwire_netlink::sys;
use podwire_policy_agent::Source;
use podwire_subnets::StaticList;
use serde_json::Value;

const PORT: u16 = 9912;

const NODES: &str = r#"{"network": {"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}},
    "nodes": [{"name": "n", "ranges": ["10.244.7.0/24"], "underlay": ["192.0.2.1"]}]}"#;

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
";

/// Runs a command line.
fn run(line: &str) -> String {
    let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a test on a new node with its directory.
fn on_node(name: &str, test: impl FnOnce(&Path) + Send + 'static) {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes a network namespace");
    let dir = std::env::temp_dir().join(format!("podwire-kube-proxy-{name}-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("services")).unwrap();
    std::fs::write(dir.join("nodes.json"), NODES).unwrap();
    std::fs::write(dir.join("services/web.yaml"), SERVICE).unwrap();
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

fn services(dir: &Path, cleanup_kube_proxy: bool) -> Option<ServicesSettings> {
    let source = Source::Files(dir.join("services"));
    Some(ServicesSettings { source, node_port_networks: None, healthz: None, cleanup_kube_proxy })
}

fn settings(dir: &Path, services: Option<ServicesSettings>) -> Settings {
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

/// The nodes of the test's cluster.
fn nodes(dir: &Path) -> podwire_subnets::Source {
    podwire_subnets::Source::Static(StaticList::new(dir.join("nodes.json")))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs an agent until `check` is done.
fn with_agent(dir: &Path, services: Option<ServicesSettings>, check: impl FnOnce() + Send + 'static) {
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

/// The agent's status; null if it does not answer yet.
fn status() -> Value {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", PORT)) else { return Value::Null };
    let mut text = String::new();
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let _ = stream.read_to_string(&mut text);
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body);
    body.and_then(|body| serde_json::from_str(body).ok()).unwrap_or_default()
}

#[track_caller]
fn wait(wanted: impl Fn(&Value) -> bool) -> Value {
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

fn tables() -> String {
    run("nft list tables")
}

#[test]
fn the_agent_does_not_start_beside_kube_proxy() {
    on_node("running", |dir| {
        let listener = TcpListener::bind("127.0.0.1:10249").unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.read(&mut [0; 1000]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nipvs");
            }
        });
        run("nft add table ip kube-proxy");
        let agent = async { flannel::run(settings(dir, services(dir, true)), nodes(dir)).await };
        let error = runtime().block_on(agent).unwrap_err().to_string();
        for part in
            ["kube-proxy runs on this node", "127.0.0.1:10249", "\"ipvs\"", "migration-from-kube-proxy"]
        {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(tables(), "table ip kube-proxy\n");
        // An agent without Services does not mind.
        with_agent(dir, None, || drop(wait(|status| status["phase"] == "ready")));
    });
}

#[test]
fn leftovers_are_in_the_status_until_an_agent_removes_them() {
    on_node("leftovers", |dir| {
        run("nft add table ip kube-proxy; nft add table ip6 kube-proxy");
        let text = |status: &Value| status["problems"].to_string();
        with_agent(dir, services(dir, false), move || {
            let status = wait(|status| text(status).contains("kube-proxy"));
            for part in ["left table ip kube-proxy; table ip6 kube-proxy", "--cleanup-kube-proxy"] {
                assert!(text(&status).contains(part), "{status}");
            }
            // It is no reason to be unready.
            wait(|status| status["phase"] == "ready");
        });
        assert!(tables().contains("table ip kube-proxy"));
        with_agent(dir, services(dir, true), move || {
            wait(|status| {
                status["services"]["synced"] == true
                    && !tables().contains("kube-proxy")
                    && !text(status).contains("kube-proxy")
            });
        });
    });
}

#[test]
fn an_agent_without_services_removes_those_of_an_earlier_one() {
    on_node("removed", |dir| {
        let serve = || {
            with_agent(dir, services(dir, false), || {
                drop(wait(|status| status["services"]["synced"] == true))
            });
            // They stay when the agent ends.
            assert!(tables().contains("table inet podwire_services"));
        };
        serve();
        with_agent(dir, None, || drop(wait(|status| status["phase"] == "ready")));
        assert!(!tables().contains("podwire_services"), "{}", tables());
        serve();
        flannel::retire().unwrap();
        assert_eq!(tables(), "");
    });
}
