//! The real kube-proxy in each mode that this kernel has: it is noticed while it runs, and what it leaves is removed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use podwire_services::kube_proxy::refuse_running;
use podwire_test_servers::{kubernetes_programs, spawn_logged, ChildGuard, KubeApiServer};
use serde_json::{json, Value};

use crate::connection::{objects, serve, Connection};
use crate::proxy::{create_others, ruleset, texts};
use crate::takeover::{list, start, wait};
use crate::testbed::Testbed;

#[test]
fn what_nftables_mode_leaves_is_removed() {
    take_over("nftables", "nft");
}

#[test]
fn what_iptables_mode_leaves_is_removed() {
    take_over("iptables", "nft");
}

/// kube-proxy with iptables-legacy: its chains are named in the problem, and stay.
#[test]
fn what_iptables_mode_leaves_in_legacy_tables_is_reported() {
    let Some(programs) = programs() else { return };
    let testbed = Testbed::new(2);
    serve(&testbed);
    let proxy = Proxy::start(&programs, &testbed, "iptables", "legacy");
    drop(proxy);
    let agent = start(&testbed, true);
    list(&agent);
    wait("the report", || agent.kube_proxy_problem().is_some());
    let problem = agent.kube_proxy_problem().unwrap();
    assert!(
        problem.contains("of iptables-legacy in table nat") && !problem.contains("--cleanup"),
        "{problem}"
    );
    Connection::open(&testbed.pods[1]).unwrap();
}

fn take_over(mode: &str, iptables: &str) {
    let Some(programs) = programs() else { return };
    let testbed = Testbed::new(2);
    serve(&testbed);
    let before = testbed.node.inside(|| {
        create_others();
        ruleset()
    });
    let proxy = Proxy::start(&programs, &testbed, mode, iptables);
    let mut connection = Connection::open(&testbed.pods[1]).unwrap();
    let error = testbed.node.inside(refuse_running).unwrap_err().to_string();
    assert!(error.contains("kube-proxy runs on this node"), "{error}");
    drop(proxy);
    let found = testbed.node.inside(texts);
    assert!(found.len() >= 2, "{found:?}");
    connection.echo().unwrap();
    let agent = start(&testbed, true);
    list(&agent);
    wait("the removal", || agent.status().synced && testbed.node.inside(texts).is_empty());
    connection.echo().unwrap();
    Connection::open(&testbed.pods[1]).unwrap();
    drop(agent);
    testbed.node.run("nft delete table inet podwire_services");
    let after = testbed.node.inside(ruleset);
    let only_in = |one: &str, other: &str| -> Vec<String> {
        let is_missing = |line: &&str| !other.lines().any(|another| another == *line);
        one.lines().filter(is_missing).map(str::to_owned).collect()
    };
    // What kube-proxy adds to the kubelet's chain stays with that: a guard of loopback addresses.
    let mut added = only_in(&after, &before);
    added.retain(|line| !line.contains("127.0.0.0/8"));
    assert_eq!((added, only_in(&before, &after)), (Vec::new(), Vec::new()), "{after}");
}

/// The built programs. `None`, with a message, where they are not wanted.
fn programs() -> Option<PathBuf> {
    kubernetes_programs(&["kube-proxy"]).map_err(|why| eprintln!("left out: {why}")).ok()
}

/// A running kube-proxy and its API server.
struct Proxy {
    _process: ChildGuard,
    _server: KubeApiServer,
    _dir: Dir,
}

impl Proxy {
    /// Returns when it serves the Service.
    fn start(programs: &Path, testbed: &Testbed, mode: &str, iptables: &str) -> Proxy {
        let proxy = testbed.node.inside(|| {
            let server = api_server(programs);
            let kubeconfig = server.kubeconfig("admin");
            let dir = Dir::new(mode, iptables);
            for name in ["iptables", "ip6tables"] {
                for program in [name.to_owned(), format!("{name}-save"), format!("{name}-restore")] {
                    let multi = format!("/usr/sbin/xtables-{iptables}-multi");
                    std::os::unix::fs::symlink(multi, dir.0.join(program)).unwrap();
                }
            }
            let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", dir.0.display());
            let mut command = Command::new(programs.join("kube-proxy"));
            command
                .env("PATH", path)
                .arg(format!("--config={}", config(&dir.0, &kubeconfig, mode).display()));
            Proxy { _process: spawn_logged(&mut command, &dir.0.join("log")), _server: server, _dir: dir }
        });
        let opens = || Connection::open_within(&testbed.pods[1], Duration::from_millis(500)).is_ok();
        wait("kube-proxy serves", opens);
        proxy
    }
}

/// An API server in the calling thread's namespace, with the objects.
fn api_server(programs: &Path) -> KubeApiServer {
    let server = KubeApiServer::start(programs);
    let create = |path: &str, object: Value| server.request("POST", path, Some(&object)).unwrap();
    create("/api/v1/namespaces", json!({ "metadata": { "name": "x" } }));
    for object in objects() {
        match object["kind"].as_str().unwrap() {
            "Service" => create("/api/v1/namespaces/x/services", object),
            "EndpointSlice" => create("/apis/discovery.k8s.io/v1/namespaces/x/endpointslices", object),
            "Node" => create("/api/v1/nodes", object),
            // The server has its own.
            _ => continue,
        };
    }
    server
}

/// Writes the configuration, and returns its file.
fn config(dir: &Path, kubeconfig: &Path, mode: &str) -> PathBuf {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "clusterCIDR": "10.1.0.0/24,fd00:1::/64",
        "hostnameOverride": "n",
        "clientConnection": { "kubeconfig": kubeconfig },
        // Limits that belong to the whole machine, not to the namespace.
        "conntrack": { "maxPerCore": 0, "min": 0 },
    });
    let file = dir.join("config");
    std::fs::write(&file, config.to_string()).unwrap();
    file
}

/// A directory that ends with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(mode: &str, iptables: &str) -> Dir {
        let name = format!("podwire-leftovers-{mode}-{iptables}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    /// Keeps the directory of a failed test: it holds kube-proxy's log.
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
