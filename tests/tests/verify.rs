//! `podwire verify` reports that the network model holds, or which endpoint cannot reach which, and why.

use podwire_tests::{ours, podwire, Node, Output, Process};
use serde_json::{json, Value};

/// A config directory of the node. `/etc` is the machine's, which all tests share.
const NETWORKS: &str = "/run/test/net.d";
/// The timeout where an answer is expected, on a busy machine too.
const TIMEOUT: &str = "10s";

/// A node with pods `one`, `two` and `three` on a dual-stack network: `kind` is bridge (one segment) or ptp (routed).
fn node(kind: &str) -> Node {
    let node = Node::new();
    let plugin = json!({
        "type": kind, "bridge": "pods0", "isGateway": true,
        "ipam": { "type": "host-local", "ranges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd07::/64"}]] },
    });
    let list = json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [plugin] });
    node.write(&format!("{NETWORKS}/10-pods.conflist"), &list.to_string());
    for name in ["one", "two", "three"] {
        node.pod(name);
        let (program, plugins) = (podwire(), ours());
        let add = [&program, "cni", "add", "pods", name, "--conf-dir", NETWORKS, "--plugin-dir", &plugins];
        let added = node.output(&add, &[]);
        assert_eq!(added.status, 0, "{}", added.stderr);
    }
    node
}

fn verify(node: &Node, words: &[&str]) -> Output {
    let program = podwire();
    let all: Vec<&str> = [program.as_str(), "verify"].iter().chain(words).copied().collect();
    node.output(&all, &[])
}

/// The probes without a correct answer within `timeout`.
fn failures(node: &Node, timeout: &str) -> Vec<Value> {
    let said = verify(node, &["--json", "--timeout", timeout]);
    let report: Value = serde_json::from_str(&said.stdout).expect("JSON");
    assert_eq!(said.status, i32::from(report["holds"] != true), "{}", said.stdout);
    report["probes"]
        .as_array()
        .expect("probes")
        .iter()
        .filter(|probe| !probe["failure"].is_null())
        .cloned()
        .collect()
}

#[test]
fn the_model_holds_on_a_bridge_and_on_routed_pods() {
    for kind in ["bridge", "ptp"] {
        let said = verify(&node(kind), &["--timeout", TIMEOUT]);
        assert_eq!(said.status, 0, "{kind}: {}{}", said.stdout, said.stderr);
        for words in ["the network model holds", "3 pods and the node", "no address translated"] {
            assert!(said.stdout.contains(words), "{kind}: {words}: {}", said.stdout);
        }
        // Three pods and the node probe each other at an address of each family, with four protocols. On ptp the node
        // has a gateway address for each pod.
        assert!(!said.stdout.contains("failed"), "{}", said.stdout);
    }
}

#[test]
fn echo_replies_to_other_pings_do_not_delay_a_probe() {
    let node = node("bridge");
    node.sh("ip netns exec two nft add table inet silence
             ip netns exec two nft add chain inet silence in '{ type filter hook input priority 0; }'
             ip netns exec two nft add rule inet silence in meta l4proto { icmp, ipv6-icmp } drop");
    // A ping in each pod runs until the node ends.
    for pod in ["one", "three"] {
        node.sh(&format!("ip -n {pod} link set lo up"));
        let mut ping = node.command("ip");
        ping.args(["netns", "exec", pod, "ping", "-q", "-i", "0.01", "127.0.0.1"]);
        node.accompany(Process::start(ping));
    }
    let found = failures(&node, "3s");
    assert!(found.iter().any(|probe| probe["protocol"] == "icmp"), "{found:?}");
}

#[test]
fn a_translated_address_is_reported() {
    let node = node("ptp");
    node.sh("nft add table ip meddler
             nft add chain ip meddler out '{ type nat hook postrouting priority 100; }'
             nft add rule ip meddler out ip saddr 10.7.0.0/24 ip daddr 10.7.0.0/24 masquerade");
    let found = failures(&node, TIMEOUT);
    assert!(!found.is_empty());
    for probe in found {
        let why = probe["failure"].as_str().unwrap();
        assert!(why.contains("NAT changed it") && probe["protocol"] != "icmp", "{probe}");
        assert!(probe["address"].as_str().unwrap().starts_with("10.7."), "{probe}");
    }
}

#[test]
fn a_path_mtu_below_the_interface_mtu_is_reported_with_both() {
    let node = node("ptp");
    // A smaller MTU at the node's end of one veth pair: packets of 1500 bytes do not reach that pod.
    node.sh("index=$(ip -n two -o link show eth0 | sed 's/.*@if\\([0-9]*\\):.*/\\1/')
             end=$(ip -o link | sed -n \"s/^$index: \\([^@:]*\\).*/\\1/p\"); ip link set $end mtu 1400");
    let found = failures(&node, TIMEOUT);
    let reported: Vec<_> =
        found.iter().filter(|probe| probe["protocol"] == "large" && probe["to"] == "two").collect();
    assert!(!reported.is_empty(), "{found:?}");
    for probe in reported {
        let why = probe["failure"].as_str().unwrap();
        assert!(why.contains("has MTU 1500") && why.contains("1400"), "{probe}");
    }
}

#[test]
fn packets_that_a_firewall_drops_are_reported_by_protocol_and_direction() {
    let node = node("ptp");
    node.sh("nft add table inet meddler
             nft add chain inet meddler pass '{ type filter hook forward priority 0; }'
             nft add rule inet meddler pass ip saddr \"$(ip -n one -4 -o address show eth0 | sed 's/.*inet \\([0-9.]*\\).*/\\1/')\" meta l4proto udp drop");
    let found = failures(&node, TIMEOUT);
    assert!(!found.is_empty());
    for probe in &found {
        let is_udp = ["udp", "large"].contains(&probe["protocol"].as_str().unwrap());
        // The probes of `one`, and its answers.
        assert!(is_udp && (probe["from"] == "one" || probe["to"] == "one"), "{probe}");
    }
    let said = verify(&node, &["--timeout", "3s"]);
    assert!(said.stdout.contains("the network model does not hold"), "{}", said.stdout);
    assert!(said.stdout.contains("failed: one to"), "{}", said.stdout);
}

#[test]
fn without_pods_there_is_nothing_to_prove() {
    let said = verify(&Node::new(), &[]);
    assert_eq!(said.status, 1);
    assert!(said.stderr.contains("no pod runs"), "{}", said.stderr);
}

#[test]
fn pods_of_other_networks_are_left_out() {
    let said = verify(&node("bridge"), &["--network", "other"]);
    assert!(said.status == 1 && said.stderr.contains("no pod runs"), "{}", said.stderr);
}

/// Every way in which a recorded pod cannot be probed, with the words that report it.
#[test]
fn a_recorded_pod_that_cannot_be_probed_is_missing() {
    let cases = [
        ("ip netns delete three", "its network namespace /run/netns/three is gone"),
        ("ip -n three link set eth0 down", ": interface eth0 is down"),
        ("ip -n three address flush dev eth0 scope global", ": no interface has this address"),
        ("ip -n three -4 address flush dev eth0", ": no interface has this address"),
        ("ip -n three link delete eth0", ": no interface has this address"),
        (
            "sed -i 's/,\"result\":.*/}/' /var/lib/cni/results/pods-*",
            "its ADD to network pods did not finish",
        ),
    ];
    let wrong = cases.into_iter().filter_map(|(damage, reported)| {
        let node = node("bridge");
        node.sh(damage);
        let said = verify(&node, &["--timeout", "3s"]);
        let is_reported = said
            .stdout
            .lines()
            .any(|line| line.starts_with("missing: pod three: ") && line.contains(reported));
        let holds = said.stdout.contains("the network model holds");
        let is_right = said.status == 1 && is_reported && !holds;
        (!is_right).then(|| format!("{damage}: {}{}", said.stdout, said.stderr))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_others_are_probed_around_a_missing_pod() {
    let node = node("bridge");
    node.sh("ip netns delete three");
    let said = verify(&node, &["--json", "--timeout", TIMEOUT]);
    let report: Value = serde_json::from_str(&said.stdout).expect("JSON");
    assert_eq!((&report["holds"], &report["missing"][0]["name"]), (&json!(false), &json!("three")));
    let probes = report["probes"].as_array().expect("probes");
    assert!(!probes.is_empty() && probes.iter().all(|probe| probe["failure"].is_null()), "{report}");
}

/// The tunnel device of IPv6 pods has the first address of the node's pod CIDR. The bridge makes it an anycast address, to
/// which the kernel accepts no TCP connection.
#[test]
fn the_anycast_address_of_the_bridge_is_no_address_of_the_node() {
    let node = node("bridge");
    node.sh("echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
             ip link add tunnel type veth peer name far; ip link set tunnel up; ip link set far up
             ip -6 address add fd07::/128 dev tunnel nodad; ip address add 10.7.0.0/32 dev tunnel
             grep -q fd070000000000000000000000000000 /proc/net/anycast6");
    let said = verify(&node, &["--timeout", "3s"]);
    assert!(said.status == 0 && said.stdout.contains("the network model holds"), "{}", said.stdout);
}

/// Pods of two namespaces may have the same name.
#[test]
fn pods_are_named_with_their_namespaces() {
    let node = node("bridge");
    let (program, plugins) = (podwire(), ours());
    let run =
        [&program, "pod", "run", "shop/db", "test/db", "--conf-dir", NETWORKS, "--plugin-dir", &plugins];
    let run = node.output(&run, &[]);
    assert_eq!(run.status, 0, "{}", run.stderr);
    let healthy = verify(&node, &["--timeout", TIMEOUT]).stdout;
    let list = node.output(&[&program, "pod", "list", "--json"], &[]);
    let list: Value = serde_json::from_str(&list.stdout).expect("JSON");
    let end = |namespace: &str| {
        let pods = list["pods"].as_array().expect("pods");
        let pod = pods.iter().find(|pod| pod["namespace"] == namespace).expect("the pod");
        node.sh(&format!("kill -9 {}", pod["pid"]));
    };
    end("shop");
    let said = verify(&node, &["--json", "--timeout", TIMEOUT]);
    // The pod's process outlives the node.
    end("test");
    let names: Vec<&str> = healthy.lines().next().unwrap_or_default().split_whitespace().skip(3).collect();
    assert_eq!(names, ["one", "shop/db", "test/db", "three", "two", "node"], "{healthy}");
    let report: Value = serde_json::from_str(&said.stdout).expect("JSON");
    let is_named = |probe: &&Value| probe["from"] == "test/db" && probe["to"] == "one";
    let probes = report["probes"].as_array().expect("probes");
    assert_eq!(probes.iter().filter(is_named).count(), 8, "{report}");
    assert_eq!(report["missing"][0]["name"], "shop/db", "{report}");
}

#[test]
fn the_failures_of_a_pair_are_one_line() {
    let node = node("ptp");
    node.sh("nft add table inet meddler
             nft add chain inet meddler pass '{ type filter hook forward priority 0; }'
             nft add rule inet meddler pass oifname eth0 drop; nft add rule inet meddler pass drop");
    let said = verify(&node, &["--timeout", "1s"]);
    let lines = said.stdout.lines().filter(|line| line.starts_with("failed: one to two: "));
    let lines: Vec<_> = lines.collect();
    let all = "tcp udp icmp";
    assert!(lines.len() == 1 && lines[0].contains(all), "{}", said.stdout);
}

#[test]
fn a_terminal_shows_the_progress() {
    let node = node("bridge");
    let seen =
        node.output(&["script", "-qec", &format!("{} verify 2>&1 >/dev/null", podwire()), "/dev/null"], &[]);
    assert!(seen.stdout.contains(" of 96 probes"), "{}", seen.stdout);
}
