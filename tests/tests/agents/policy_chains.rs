//! Policies of pods whose chain of plugins does more: tuning gives a pod another MAC address than its bridge knew, and
//! portmap publishes its ports, also to pods of this node and to the pod itself.

use std::process::Command;

use podwire_tests::{ours, podwire, Process};
use serde_json::json;

use crate::policies;
use crate::stage::Stage;

const LISTS: &str = "/run/test/chain";
/// Answers at TCP port 80 of both families.
const SERVE: &str = "
import socket, sys
server = socket.create_server(('::', 80), family=socket.AF_INET6, dualstack_ipv6=True)
print('listening', file=sys.stderr, flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b'!')
    connection.close()
";
/// Exits with 0 if the server answers.
const CONNECT: &str = "
import socket, sys
address, port, seconds = sys.argv[1:]
sys.exit(socket.create_connection((address, int(port)), float(seconds)).recv(1) != b'!')
";

fn python(stage: &Stage, pod: &str, program: &str, words: &[&str]) -> Command {
    let mut command = stage.node(1).command("ip");
    command.args(["netns", "exec", pod, "python3", "-c", program]).args(words);
    command
}

/// Attaches a pod whose tuning plugin sets this MAC address; the database is published at port 8080.
fn add(stage: &Stage, name: &str, mac: &str) {
    let node = stage.node(1);
    node.pod(name);
    node.sh(&format!("ip -n {name} link set lo up"));
    let (podwire, plugins, pod) = (podwire(), ours(), format!("K8S_POD_NAME={name}"));
    let (mac, namespace) = (format!("MAC={mac}"), "K8S_POD_NAMESPACE=shop");
    let mut words =
        vec![&*podwire, "cni", "add", "cbr0", name, "--plugin-dir", &plugins, "--conf-dir", LISTS];
    for arg in ["IgnoreUnknown=1", namespace, &pod, &mac] {
        words.extend(["--arg", arg]);
    }
    if name == "db" {
        words.extend(["--publish", "8080:80"]);
    }
    let said = node.output(&words, &[]);
    assert_eq!((said.status, said.stderr.as_str()), (0, ""), "{name}");
}

fn connects(stage: &Stage, from: &str, to: &str, port: &str, seconds: &str) -> bool {
    let mut command = python(stage, from, CONNECT, &[to, port, seconds]);
    command.output().expect("python3").status.success()
}

#[test]
fn policies_hold_with_other_mac_addresses_and_published_ports() {
    for creator in ["bridge", "ptp"] {
        let stage = policies::stage();
        let cidrs = stage.status(1)["podCidrs"].clone();
        let ranges: Vec<_> =
            cidrs.as_array().expect("pod CIDRs").iter().map(|cidr| json!([{ "subnet": cidr }])).collect();
        let routes = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]);
        let first = json!({ "type": creator, "isGateway": true, "hairpinMode": true, "policy": { "type": "k8s" },
            "ipam": { "type": "host-local", "ranges": ranges, "routes": routes } });
        let more = [
            json!({ "type": "tuning" }),
            json!({ "type": "portmap", "capabilities": { "portMappings": true } }),
        ];
        let plugins = [&[first], &more[..]].concat();
        let list = json!({ "cniVersion": "1.1.0", "name": "cbr0", "plugins": plugins });
        stage.node(1).write(&format!("{LISTS}/10-chain.conflist"), &list.to_string());
        for (name, mac) in
            [("web", "02:00:00:00:aa:01"), ("db", "02:00:00:00:aa:02"), ("other", "02:00:00:00:aa:03")]
        {
            add(&stage, name, mac);
            let link = stage.node(1).sh(&format!("ip -n {name} -o link show dev eth0"));
            assert!(link.contains(mac), "{creator}: {link}");
        }
        let mut server = Process::start(python(&stage, "db", SERVE, &[]));
        server.expect(&["listening"]);
        let own = [stage.address(1, "db"), stage.address6(1, "db")];
        let gateways = ["4", "6"].map(|family| {
            let script = format!("ip -n db -{family} route show default | sed 's/.*via \\([^ ]*\\).*/\\1/'");
            stage.node(1).sh(&script).trim().to_owned()
        });
        for (address, gateway) in own.iter().zip(&gateways) {
            for (to, port) in [(address, "80"), (gateway, "8080")] {
                let case = format!("{creator}: {to} port {port}");
                assert!(connects(&stage, "web", to, port, "10"), "{case}: the policy allows it");
                assert!(!connects(&stage, "other", to, port, "1"), "{case}: the policy does not allow it");
                assert!(connects(&stage, "db", to, port, "10"), "{case}: a pod reaches itself");
            }
        }
    }
}
