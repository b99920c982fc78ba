//! The fast path between nodes: connections take it, and survive agents that end, change and retire.

use podwire_tests::{podwire, Process};
use serde_json::{json, Value};

use crate::stage::{Stage, Store};

/// One end of a connection: the server echoes, the client counts the answers in a file.
const ECHO: &str = r#"
import os, socket, sys, time
role, address, port, file = sys.argv[1:]
s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
s.settimeout(60)
if role == "serve":
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, int(port)))
    s.listen()
    open(file, "w").close()
    s = s.accept()[0]
    while True:
        s.sendall(s.recv(100))
s.connect((address, int(port)))
count = 0
while True:
    s.sendall(b".")
    if not s.recv(100):
        sys.exit("the connection was closed")
    count += 1
    with open(file + ".new", "w") as f:
        f.write(str(count))
    os.rename(file + ".new", file)
    time.sleep(0.002)
"#;

/// A connection from pod1 on n1 to pod2 on n2.
struct Connection {
    file: String,
    _ends: [Process; 2],
}

impl Connection {
    fn start(stage: &Stage, port: u16, address: &str) -> Connection {
        let file = format!("/run/test/echo{port}");
        let end = |number: u8, role: &str| {
            let node = stage.node(number);
            node.write("/run/test/echo.py", ECHO);
            let mut command = node.command("ip");
            let pod = format!("pod{number}");
            command.args(["netns", "exec", &pod, "python3", "/run/test/echo.py", role]);
            command.args([address, &port.to_string(), file.as_str()]);
            Process::start(command)
        };
        let server = end(2, "serve");
        stage.wait_until("the server listens", |stage| stage.node(2).can(&format!("test -e {file}")));
        let ends = [end(1, "connect"), server];
        let connection = Connection { file, _ends: ends };
        connection.assert_flows(stage);
        connection
    }

    fn count(&self, stage: &Stage) -> u64 {
        let said = stage.node(1).try_sh(&format!("cat {}", self.file));
        String::from_utf8_lossy(&said.stdout).trim().parse().unwrap_or(0)
    }

    #[track_caller]
    fn assert_flows(&self, stage: &Stage) {
        let before = self.count(stage);
        stage.wait_until("the connection goes on", |stage| self.count(stage) > before + 50);
    }
}

fn fast_path(stage: &Stage, number: u8) -> Value {
    stage.status(number)["fastPath"].clone()
}

/// Whether packets took the fast path on a node while the connections go on.
fn is_used(stage: &Stage, number: u8, connections: &[Connection]) -> bool {
    let packets = |stage: &Stage| fast_path(stage, number)["packets"].as_u64().unwrap_or(0);
    let before = packets(stage);
    connections.iter().for_each(|connection| connection.assert_flows(stage));
    packets(stage) > before + 40
}

/// What of the fast path is in the kernel of a node.
fn traces(stage: &Stage, number: u8) -> String {
    let script = "nft list tables | grep podwire_fast_path; \
        for device in $(ls /sys/class/net); do for side in ingress egress; do \
        tc filter show dev $device $side 2>/dev/null | grep -o podwire_fast_path; done; done; true";
    stage.node(number).sh(script)
}

fn check(backend: &str) {
    let mut stage = Stage::ready(Store::Embedded, json!({ "Type": backend }));
    let addresses = [stage.address(2, "pod2"), stage.address6(2, "pod2")];
    let connections: Vec<_> =
        (7001..).zip(&addresses).map(|(port, address)| Connection::start(&stage, port, address)).collect();
    for number in [1, 2] {
        stage.wait_until("the connections take the fast path", |stage| is_used(stage, number, &connections));
        let shown = fast_path(&stage, number);
        assert_eq!((&shown["on"], &shown["pods"]), (&json!(true), &json!(1)), "{shown}");
    }
    // The counters of pods have what took the fast path.
    let metrics = stage.metrics(2);
    let received =
        metrics.lines().filter(|line| line.starts_with("podwire_agent_pod_received_packets_total{"));
    let received: Vec<&str> = received.collect();
    let count = received.first().and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    let echoes: u64 = connections.iter().map(|connection| connection.count(&stage)).sum();
    assert!(
        received.len() == 1 && count.is_some_and(|count| count * 10 > echoes * 9),
        "{received:?}, {echoes} echoes"
    );
    // 1. Without an agent. 2. With one that turns it off. 3. With one that turns it on again. 4. Retired.
    stage.kill_agent(1);
    connections.iter().for_each(|connection| connection.assert_flows(&stage));
    assert!(traces(&stage, 1).contains("podwire_fast_path"));
    stage.start_agent(1, &["--fast-path=off"]);
    stage.wait_ready(1);
    stage.wait_until("the fast path is removed", |stage| traces(stage, 1).is_empty());
    let shown = fast_path(&stage, 1);
    assert_eq!(shown["reason"], "turned off by --fast-path=off", "{shown}");
    connections.iter().for_each(|connection| connection.assert_flows(&stage));
    stage.kill_agent(1);
    stage.start_agent(1, &[]);
    stage.wait_ready(1);
    stage.wait_until("the fast path is back", |stage| is_used(stage, 1, &connections));
    stage.kill_agent(1);
    stage.node(1).sh(&format!("{} agent flannel --retire", podwire()));
    assert_eq!(traces(&stage, 1), "");
    // Routes and tunnels stay when an agent retires.
    connections.iter().for_each(|connection| connection.assert_flows(&stage));
}

#[test]
fn connections_through_vxlan_take_the_fast_path() {
    check("vxlan");
}

#[test]
fn connections_by_direct_routes_take_the_fast_path() {
    check("host-gw");
}

/// As in a container without CAP_BPF: everything works, and log and status say what is missing.
#[test]
fn without_the_right_to_use_ebpf_packets_take_the_normal_path() {
    let mut stage = Stage::ready(Store::Embedded, json!({ "Type": "vxlan" }));
    stage.kill_agent(1);
    stage.start_agent_behind(1, &["setpriv", "--bounding-set=-bpf,-sys_admin,-perfmon"], &[]);
    stage.wait_ready(1);
    stage.wait_until("what the first agent had attached is removed", |stage| traces(stage, 1).is_empty());
    let shown = fast_path(&stage, 1);
    let reason = shown["reason"].as_str().unwrap_or_default();
    assert!(
        shown["on"] == false && reason.contains("CAP_BPF") && reason.contains("not permitted"),
        "{shown}"
    );
    stage.assert_model_holds();
}
