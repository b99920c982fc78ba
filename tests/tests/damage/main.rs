//! CHECK names every damage of an attachment, and `podwire cni check --repair` restores it.
//!
//! A row damages the objects of a chain and has the texts that CHECK must print. After the repair the node and the pod
//! must be as before the damage, CHECK must pass, and packets too. After DEL nothing may be left. VLANs need a kernel
//! that filters them: see `vlan.rs`.

mod attachment;
mod chained;

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use podwire_tests::{assert_same, differences, ours, podwire, Node, Output, Pod};
use serde_json::{json, Value};

/// How many rows run at the same time: they mostly wait for the kernel.
const AT_A_TIME: usize = 3;

/// The damage, a script on the node ($end is the node's end of the pod's veth pair, `in_pod` runs a program in the
/// pod), and the texts that CHECK must print.
type Row<'a> = (&'a str, &'a [&'a str]);

const TOOLS: &str = r#"in_pod() { ip netns exec blue "$@"; }
index=$(ip -n blue -o link show eth0 2>/dev/null | sed 's/.*@if\([0-9]*\):.*/\1/')
end=$(ip -o link | sed -n "s/^$index: \([^@:]*\).*/\1/p")
set -e
"#;

/// A chain, and a script on the node that proves that its packets pass.
struct Scene {
    plugins: Vec<Value>,
    proof: &'static str,
}

/// The outside responds to the pod, over both families.
const REACHES_THE_WORLD: &str = "ip netns exec blue ping -q -c 1 -W 5 192.0.2.2 >&2
ip netns exec blue ping -q -c 1 -W 5 2001:db8:a::2 >&2";

fn pool() -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd07::/64"}]]})
}

fn bridge() -> Value {
    json!({"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "mtu": 1400,
           "hairpinMode": true, "macspoofchk": true, "ipam": pool()})
}

fn behind_bridge(mut config: Value, kind: &str) -> Scene {
    config["type"] = json!(kind);
    Scene { plugins: vec![bridge(), config], proof: REACHES_THE_WORLD }
}

fn run(node: &Node, verb: &str, more: &[&str]) -> Output {
    let (program, plugins) = (podwire(), ours());
    let mut words = vec![program.as_str(), "cni", verb, "net", "blue", "--container", "blue"];
    words.extend(["--conf-dir", "/run/test/net.d", "--plugin-dir", &plugins]);
    words.extend(more);
    node.output(&words, &[])
}

fn must(node: &Node, verb: &str, more: &[&str]) -> String {
    let output = run(node, verb, more);
    assert_eq!(output.status, 0, "{verb}: {}{}", output.stdout, output.stderr);
    output.stdout
}

/// A node where a pod of the network was attached and detached, so that what stays by design exists; and a new pod.
fn attached(scene: &Scene) -> (Node, Pod, String) {
    let node = Node::new();
    node.neighbour("outside", "192.0.2", "2001:db8:a");
    node.sh("ip -n outside route add default via 192.0.2.1
             ip -n outside -6 route add default via 2001:db8:a::1
             iptables -P FORWARD ACCEPT && ip6tables -P FORWARD ACCEPT");
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": scene.plugins});
    node.write("/run/test/net.d/10-net.conflist", &list.to_string());
    let pod = node.pod("blue");
    must(&node, "add", &[]);
    must(&node, "del", &[]);
    node.sh("ip netns delete blue && ip netns add blue");
    let before = state(&node, &pod);
    must(&node, "add", &[]);
    (node, pod, before)
}

/// The state of the node and the pod. The name of host-local's index depends on its directory's number, which a new
/// directory changes.
fn state(node: &Node, pod: &Pod) -> String {
    let index = "/run/podwire/host-local/";
    let reported = |line: &str| match line.strip_prefix(index).and_then(|rest| rest.split_once('/')) {
        Some((_, owner)) => format!("{index}*/{owner}\n"),
        None => format!("{line}\n"),
    };
    node.state(pod).lines().map(reported).collect()
}

/// Runs a row from ADD to DEL.
fn survives(scene: &Scene, (damage, says): Row<'_>) {
    let (node, pod, before) = attached(scene);
    must(&node, "check", &[]);
    let whole = state(&node, &pod);
    node.sh(&format!("{TOOLS}{damage}"));

    let checked = run(&node, "check", &[]);
    assert_eq!(checked.status, 1, "CHECK does not notice");
    for words in says {
        assert!(checked.stderr.contains(words), "CHECK does not say {words:?}: {}", checked.stderr);
    }
    let repaired = run(&node, "check", &["--repair"]);
    assert_eq!(repaired.status, 0, "{}{}", repaired.stdout, repaired.stderr);
    assert!(repaired.stdout.starts_with("eth0 of blue: repaired: "), "{}", repaired.stdout);
    must(&node, "check", &[]);
    assert_same(&whole, &state(&node, &pod), &format!("after the repair\n{}", repaired.stdout));
    node.sh(scene.proof);
    let again = must(&node, "check", &["--repair"]);
    assert_eq!(again, "the attachment of blue to net is intact\n", "nothing is left to repair");

    must(&node, "del", &[]);
    assert_same(&before, &state(&node, &pod), "after DEL");
}

/// Runs all rows and reports every failed one.
fn all_survive(scene: &Scene, rows: &[Row<'_>]) {
    let next = AtomicUsize::new(0);
    let complaints = Mutex::new(String::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let survived = std::panic::catch_unwind(|| survives(scene, *row));
                    if survived.is_err() {
                        *complaints.lock().unwrap() += &format!("\n{}", row.0);
                    }
                }
            });
        }
    });
    let complaints = complaints.into_inner().unwrap();
    assert!(complaints.is_empty(), "these were not survived:{complaints}");
}

/// A node whose kernel filters VLANs. None, with a message, where it does not.
fn filters_vlans() -> bool {
    if Node::new().can("ip link add probe type bridge vlan_filtering 1 && ip link delete probe") {
        return true;
    }
    assert!(std::env::var_os("PODWIRE_REQUIRE_VLAN").is_none(), "this kernel was said to filter VLANs");
    drop(writeln!(
        std::io::stderr(),
        "left out: damage of VLANs on bridges, which this kernel cannot filter"
    ));
    false
}

#[test]
fn vlans() {
    if !filters_vlans() {
        return;
    }
    let mut config = bridge();
    (config["vlan"], config["vlanTrunk"]) = (json!(10), json!([{"minID": 20, "maxID": 22}]));
    // Where br_netfilter passes bridged packets to the firewall, they would be masqueraded on their way to the VLAN.
    config["ipMasq"] = json!(false);
    let rows = [
        ("bridge vlan delete dev $end vid 10", &["is not in VLAN 10 as configured"][..]),
        ("bridge vlan add dev $end vid 10", &["is not in VLAN 10 as configured"]),
        ("bridge vlan delete dev $end vid 21", &["is not in VLAN 21 as configured"]),
        ("bridge vlan add dev $end vid 99", &["is in VLAN 99, which is not configured"]),
        (
            "ip link delete br0",
            &["bridge \"br0\" is missing", "is not in VLAN", "of the gateway link br0.10"],
        ),
        ("ip link delete br0.10", &["the gateway link br0.10 is missing"]),
        ("ip link set br0.10 down", &["the gateway link br0.10 is down"]),
        ("ip address delete 10.7.0.1/24 dev br0.10", &["\"br0.10\" lost the gateway's address 10.7.0.1"]),
        ("ip address delete fd07::1/64 dev br0.10", &["\"br0.10\" lost the gateway's address fd07::1"]),
    ];
    all_survive(&Scene { plugins: vec![config], proof: REACHES_THE_WORLD }, &rows);
}

#[test]
fn unrepairable_damage_is_reported_and_not_changed() {
    let scene = Scene { plugins: vec![bridge()], proof: "" };
    for (damage, says) in [
        ("ip -n blue link delete eth0", "not repaired: the pod has no interface eth0"),
        ("printf 'other\\r\\neth0' > /var/lib/cni/networks/net/10.7.0.3", "10.7.0.3 belongs to other (eth0)"),
    ] {
        let (node, pod, _) = attached(&scene);
        node.sh(&format!("{TOOLS}{damage}"));
        let damaged = state(&node, &pod);
        let checked = run(&node, "check", &[]);
        assert!(checked.stderr.contains("recreate the pod to repair it"), "{}", checked.stderr);
        let repaired = run(&node, "check", &["--repair"]);
        assert_eq!(repaired.status, 1, "{}", repaired.stdout);
        assert!(repaired.stdout.contains(says), "{}", repaired.stdout);
        assert!(repaired.stdout.ends_with("is damaged: detach and attach it again\n"), "{}", repaired.stdout);
        assert_eq!(differences(&damaged, &state(&node, &pod)), "", "{damage}");
        must(&node, "del", &[]);
    }
}

#[test]
fn a_repair_lists_repaired_and_remaining_differences_in_json() {
    let (node, _, _) = attached(&chained::ports());
    let repaired = |node: &Node| -> Value {
        serde_json::from_str(&run(node, "check", &["--repair", "--json"]).stdout).expect("JSON")
    };
    let whole = json!({"network": "net", "container": "blue", "ifname": "eth0", "ok": true, "repaired": [], "left": []});
    assert_eq!(repaired(&node), whole);
    node.sh("nft delete element inet podwire_ports ports4 '{ tcp . 8080 }'");
    let what = "host port 8080/tcp is not mapped to 10.7.0.3 any more";
    assert_eq!(repaired(&node)["repaired"], json!([{"plugin": "portmap", "what": what}]));
    // Another container gets the port first.
    node.sh("nft delete element inet podwire_ports ports4 '{ tcp . 8080 }'
             nft add element inet podwire_ports ports4 '{ tcp . 8080 comment \"net/red/eth0\" : 10.7.0.9 . 80 }'");
    let answer = repaired(&node);
    assert_eq!((&answer["ok"], &answer["repaired"]), (&json!(false), &json!([])));
    assert_eq!(answer["left"][0]["what"], what);
    let reason = answer["left"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("host port 8080/tcp is taken by net/red/eth0"), "{reason}");
    must(&node, "del", &[]);
}

#[test]
fn several_things_at_once_are_all_named_and_all_put_back() {
    let (node, pod, before) = attached(&chained::ports());
    let whole = state(&node, &pod);
    node.sh(&format!(
        "{TOOLS}nft flush ruleset; ip link delete br0; ip -n blue link set eth0 down; ip -n blue address flush dev eth0 scope global
         rm -r /var/lib/cni/networks/net /run/podwire/host-local; echo 0 > /proc/sys/net/ipv4/ip_forward"
    ));
    let said = run(&node, "check", &[]).stderr;
    for words in [
        "bridge \"br0\" is missing",
        "podwire_masq is missing",
        "eth0 is down",
        "no folder",
        "ip_forward is 0",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let reported = must(&node, "check", &["--repair"]);
    must(&node, "check", &[]);
    assert_same(&whole, &state(&node, &pod), &reported);
    node.sh(REACHES_THE_WORLD);
    must(&node, "del", &[]);
    assert_same(&before, &state(&node, &pod), "after DEL");
}
