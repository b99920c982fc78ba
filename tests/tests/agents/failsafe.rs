//! Policies never affect the node itself: it reaches its pods and the outside, and the outside reaches it.

use podwire_tests::{Node, Process};

use crate::cutting::STREAM;
use crate::policies::{add_all, is_kept_from, stage_without_agents, start_with, FOLDER};
use crate::policy_reports::metric;
use crate::stage::Stage;

/// A NetworkPolicy and a ClusterNetworkPolicy that deny everything to all pods, in both directions.
const NOTHING: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nothing, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: nothing}
spec:
  tier: Admin
  priority: 0
  subject: {namespaces: {}}
  ingress: [{action: Deny, from: [{namespaces: {}}]}]
  egress: [{action: Deny, to: [{namespaces: {}}, {nodes: {}}, {networks: [0.0.0.0/0, "::/0"]}]}]
"#;
const NODE: &str = "192.168.10.11";
const OUTSIDE: &str = "192.168.10.1";

/// Accepts connections at a port until this value is dropped.
fn serve(node: &Node, pod: Option<&str>, port: u16) -> Process {
    let script = format!("import socket; s = socket.create_server(('', {port}))\nwhile True: s.accept()");
    let inside = pod.map(|pod| format!("ip netns exec {pod} ")).unwrap_or_default();
    let mut command = node.command("sh");
    command.args(["-c", &format!("exec {inside}python3 -c \"{script}\"")]);
    Process::start(command)
}

/// Whether a connection is accepted; on a busy machine this may take long.
fn connects(node: &Node, inside: &str, address: &str, port: u16) -> bool {
    connects_within(20, node, inside, address, port)
}

fn connects_within(seconds: u32, node: &Node, inside: &str, address: &str, port: u16) -> bool {
    let script = format!("import socket; socket.create_connection(('{address}', {port}), {seconds})");
    node.can(&format!("{inside} python3 -c \"{script}\" 2>/dev/null"))
}

/// What must always work: probes, access to the node, and the node's connection to its API server.
#[track_caller]
fn assert_node_is_free(stage: &Stage) {
    let db = stage.address(1, "db");
    assert!(connects(stage.node(1), "", &db, 8080), "the node reaches its pod");
    assert!(stage.node(1).can(&format!("ping -c 1 -W 20 {db} > /dev/null")), "the node pings its pod");
    assert!(connects(&stage.router, "", NODE, 9001), "the outside reaches the node");
    assert!(connects(stage.node(1), "", OUTSIDE, 9002), "the node reaches the outside");
}

#[test]
fn with_everything_denied_the_node_reaches_pods_and_the_outside() {
    for chain in ["bridge", "ptp"] {
        let mut stage = stage_without_agents();
        start_with(&mut stage, chain, &["--policy-cut"]);
        add_all(&stage);
        let _servers = [
            serve(stage.node(1), Some("db"), 8080),
            serve(stage.node(1), None, 9001),
            serve(&stage.router, None, 9002),
        ];
        stage.wait_until("all servers listen", |stage| {
            connects(stage.node(1), "", &stage.address(1, "db"), 8080)
                && connects(&stage.router, "", NODE, 9001)
                && connects(stage.node(1), "", OUTSIDE, 9002)
        });
        // Probes on an established connection, in addition to new ones.
        let db = stage.address(1, "db");
        stage.node(1).write("/run/test/stream.py", STREAM);
        let end = |inside: &str, role: &str| {
            let mut command = stage.node(1).command("sh");
            let words = format!("{inside} python3 /run/test/stream.py tcp {role} {db} 7001 /run/test/probe");
            command.args(["-c", &format!("exec {words}")]);
            Process::start(command)
        };
        let _listener = end("ip netns exec db", "listen count");
        stage.wait_until("the pod listens", |stage| stage.node(1).can("test -e /run/test/probe.listens"));
        let _probe = end("", "connect send");
        let count = |stage: &Stage| -> u64 {
            let said = stage.node(1).try_sh("cat /run/test/probe");
            String::from_utf8_lossy(&said.stdout).trim().parse().unwrap_or(0)
        };
        stage.wait_until("probes arrive", |stage| count(stage) > 5);

        stage.node(1).write(&format!("{FOLDER}/nothing.yaml"), NOTHING);
        stage.wait_until("pods reach no pod", |stage| is_kept_from(stage, "web", "db"));
        for (address, port) in [(NODE, 9001), (OUTSIDE, 9002), (db.as_str(), 8080)] {
            let inside = "ip netns exec web";
            let reached = connects_within(2, stage.node(1), inside, address, port);
            assert!(!reached, "{chain}: {address} is closed for pods");
        }
        assert_node_is_free(&stage);
        let before = count(&stage);
        stage.wait_until("the standing probe goes on", |stage| count(stage) > before + 20);
        assert_eq!(metric(&stage, "failures_total", &[]), Some(0), "{chain}");

        // The same while no agent runs.
        stage.kill_agent(1);
        assert_node_is_free(&stage);
    }
}
