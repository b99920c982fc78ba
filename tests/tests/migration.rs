//! A node moves from host-local to blocks while its pods run: they keep their addresses, and no address is assigned
//! twice.

use podwire_tests::{ours, podwire, Invocation, Node, Output, Pod};
use serde_json::{json, Value};

const STORE: &str = "/var/lib/podwire/ipam.db";
const FOLDER: &str = "/var/lib/cni/networks/pods";

/// Calls an IPAM plugin for a container, as a plugin of the network would.
fn call(node: &Node, manager: Value, verb: &str, container: &str) -> Output {
    let mut config = json!({
        "cniVersion": "1.0.0", "name": "pods", "datastore_type": "sqlite", "nodename": "node1", "ipam": manager,
    });
    config["type"] = manager["type"].clone();
    let pod = Pod { name: container.into(), netns: "/run/netns/none".into() };
    Invocation::new(node, &ours(), verb, &pod, &config).run()
}

fn host_local() -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/26"}]]})
}

fn blocks() -> Value {
    json!({"type": "calico-ipam"})
}

fn add(node: &Node, manager: Value, container: &str) -> String {
    let result = call(node, manager, "ADD", container).result();
    result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned()
}

fn ipam(node: &Node, verb: &str) -> Value {
    node.json(&format!("{} --json ipam {verb} --store {STORE}", podwire()))
}

fn holder(node: &Node, ip: &str) -> Value {
    ipam(node, &format!("show --ip {ip}"))["handle"].take()
}

#[test]
fn pods_of_host_local_keep_their_addresses_in_blocks_and_release_them() {
    let node = Node::new();
    let pods = ["a", "b", "c"];
    let ips = pods.map(|pod| add(&node, host_local(), pod));
    node.sh(&format!("{} ipam pool pods 10.244.0.0/16 --store {STORE}", podwire()));

    let would = ipam(&node, "migrate pods --node node1 --dry-run");
    assert_eq!((&would["dryRun"], would["addresses"].as_array().unwrap().len()), (&json!(true), 3));
    assert_eq!(holder(&node, &ips[0]), Value::Null, "nothing is done yet");
    let done = ipam(&node, "migrate pods --node node1");
    assert!(done["addresses"].as_array().unwrap().iter().all(|one| one["result"] == "imported"), "{done}");
    let again = ipam(&node, "migrate pods --node node1");
    assert!(
        again["addresses"].as_array().unwrap().iter().all(|one| one["result"] == "alreadyImported"),
        "{again}"
    );
    for (pod, ip) in pods.iter().zip(&ips) {
        assert_eq!(holder(&node, ip), format!("pods.{pod}"));
    }

    // While the network's config says host-local, its files stay.
    let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": {"type": "host-local"}}]});
    node.sh(&format!("mkdir -p /run/net.d && echo '{list}' > /run/net.d/10-pods.conflist"));
    let upgrade = "upgrade pods --node node1 --conf-dir /run/net.d";
    let refused = node.sh(&format!("{} ipam {upgrade} --store {STORE} 2>&1 || true", podwire()));
    assert!(refused.contains("still uses host-local"), "{refused}");
    assert!(node.sh(&format!("ls {FOLDER}")).contains(&ips[0]));
    node.sh("sed -i s/host-local/calico-ipam/ /run/net.d/10-pods.conflist");
    let left = ipam(&node, upgrade);
    assert_eq!(left["success"], true, "{left}");
    assert_eq!(node.sh(&format!("ls -d {FOLDER} 2>/dev/null || echo gone")).trim(), "gone");
    assert_eq!(ipam(&node, upgrade)["addresses"], json!([]), "it may be done again");

    // With the new config, new pods get addresses of blocks, and existing pods release theirs.
    let ip = add(&node, blocks(), "new");
    assert!(!ips.contains(&ip), "{ip} was given twice");
    call(&node, blocks(), "DEL", "a").result();
    assert_eq!(holder(&node, &ips[0]), Value::Null);
    assert_eq!(holder(&node, &ips[1]), "pods.b");
    for pod in ["b", "c", "new"] {
        call(&node, blocks(), "DEL", pod).result();
    }
    let problems = ipam(&node, "check");
    assert_eq!((&problems["problems"], &problems["handles"]), (&json!([]), &json!(0)));
}

#[test]
fn an_address_that_cannot_be_imported_keeps_all_files() {
    let node = Node::new();
    let ips = ["one", "other"].map(|pod| add(&node, host_local(), pod));
    // The pool holds only the first of them.
    node.sh(&format!("{} ipam pool small {}/32 --store {STORE}", podwire(), ips[0]));
    let said =
        node.sh(&format!("{} --json ipam upgrade pods --node node1 --store {STORE} || true", podwire()));
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["success"], false);
    let problem = said["addresses"].as_array().unwrap().iter().find(|one| one["ip"] == ips[1]).unwrap();
    assert!(problem["error"].as_str().unwrap().contains("is not in an enabled IP pool"), "{problem}");
    let files = node.sh(&format!("ls {FOLDER}"));
    assert!(ips.iter().all(|ip| files.contains(ip)), "{files}");
}
