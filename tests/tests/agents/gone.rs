//! A node that is removed from Kubernetes: with a store other than Kubernetes, the controller deletes its records in
//! the store.

use std::time::Duration;

use podwire_tests::{podwire, Process};
use serde_json::json;

use crate::api_server::Kubernetes;
use crate::blocks;
use crate::stage::{Stage, Store};

/// The Calico nodes in the store, each with its Kubernetes node name.
fn known(stage: &Stage) -> String {
    let script = "import sqlite3, sys, json
for key, value in sqlite3.connect(sys.argv[1]).execute('SELECT key, value FROM entries ORDER BY key'):
    if '/nodes/' in key:
        spec = json.loads(value)['spec']
        print(key.split('/')[-1], *[one['nodeName'] for one in spec.get('orchRefs', [])])";
    let said = stage.router.output(&["python3", "-c", script, &blocks::store(stage)], &[]);
    assert_eq!(said.status, 0, "{}", said.stderr);
    said.stdout.lines().collect::<Vec<_>>().join(", ")
}

fn peers(stage: &Stage, number: u8) -> u64 {
    stage.status(number)["peers"].as_u64().unwrap_or(0)
}

#[test]
fn the_blocks_and_the_object_of_a_node_that_left_kubernetes_are_deleted() {
    let pools = [("v4", "10.244.0.0/16", "--vxlan always")];
    let mut stage = blocks::stage(Store::Embedded, [10; 3], &pools);
    let Some(kubernetes) = Kubernetes::start(&stage) else { return };
    let flags = ["--kubeconfig", &kubernetes.kubeconfig, "--resync", "1s"];
    (1..=3).for_each(|number| blocks::start(&mut stage, number, &flags));
    stage.wait_until("nodes are registered", |stage| known(stage) == "n1 n1, n2 n2, n3 n3");
    stage.wait_until("routes to both other nodes", |stage| (1..=3).all(|number| peers(stage, number) == 2));
    let mut controller = stage.node(1).command(&podwire());
    controller.args(["controller", "--leak-grace-period", "3s", "--leader-elect=false"]);
    controller.args(["--ipam-store", &blocks::store(&stage), "--kubeconfig", &kubernetes.kubeconfig]);
    let mut controller = Process::start(controller);
    let leave = |stage: &Stage| kubernetes.ask(stage, "DELETE", "/api/v1/nodes/n3", &json!({}));
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n3"}});
    let join = |stage: &Stage| kubernetes.ask(stage, "POST", "/api/v1/nodes", &node);
    let are_all_there = |stage: &Stage| {
        known(stage) == "n1 n1, n2 n2, n3 n3" && (1..=3).all(|number| peers(stage, number) == 2)
    };
    // Its agent still runs. It does not write the deleted records again until Kubernetes has the node again.
    leave(&stage);
    controller.expect(&["deleted the store's object of a deleted node", "n3"]);
    for _ in 0..30 {
        assert_eq!(known(&stage), "n1 n1, n2 n2", "records of other nodes stay");
        std::thread::sleep(Duration::from_millis(100));
    }
    join(&stage);
    stage.wait_until("the node is registered again", are_all_there);
    // The machine is removed too.
    leave(&stage);
    stage.kill_agent(3);
    controller.expect(&["deleted the store's object of a deleted node", "n3"]);
    assert_eq!(known(&stage), "n1 n1, n2 n2");
    let blocks_left = blocks::ipam(&stage, "show --blocks");
    assert!(!blocks_left.contains("n3") && blocks_left.contains("n2"), "{blocks_left}");
    stage.wait_until("no route leads there", |stage| (1..=2).all(|number| peers(stage, number) == 1));
    assert!(!stage.node(1).sh("bridge fdb show dev vxlan.calico").contains("192.168.10.13"));
    join(&stage);
    blocks::start(&mut stage, 3, &flags);
    stage.wait_until("another machine with its name is registered", are_all_there);
    controller.stop();
}
