//! CHECK and repair for each kind of damage.

use podwire_cni_plugin::{Command, Registry, Request, Source};
use podwire_kernel::Netns;
use podwire_tests::{ours, Chain, Node, Pod};
use serde_json::{json, Value};

use super::*;

/// A damage: the script for pod `blue`, the text of CHECK, whether it can be repaired.
type Damage = (&'static str, &'static str, bool);

const COMMON: &[Damage] = &[
    ("ip -n blue link set eth0 down", "interface eth0 is down", true),
    ("ip -n blue address delete 10.5.0.9/24 dev eth0", "lacks address 10.5.0.9/24", true),
    ("ip -n blue address delete fd05::9/64 dev eth0", "lacks address fd05::9/64", true),
    ("ip -n blue route delete 198.51.100.0/24", "route to 198.51.100.0/24", true),
    ("ip -n blue route delete 2001:db8:1::/48", "route to 2001:db8:1::/48", true),
    ("ip -n blue link set eth0 mtu 1300", "interface eth0 has MTU 1300, not 1400", true),
    ("ip -n blue link delete eth0", "the pod has no interface eth0", true),
    (
        "ip -n blue link set eth0 down && ip -n blue address flush dev eth0 && ip -n blue link set eth0 mtu 1300",
        "has MTU 1300",
        true,
    ),
    (
        "ip -n blue link delete eth0 && ip -n blue link add eth0 type bridge && ip -n blue link set eth0 up",
        "interface eth0 is bridge, not",
        false,
    ),
];

fn own(kind: &str) -> Vec<Damage> {
    let mac =
        ("ip -n blue link set eth0 address 02:00:00:00:00:99", "hardware address 02:00:00:00:00:99", true);
    match kind {
        "macvlan" => vec![
            mac,
            ("ip -n blue link set eth0 type macvlan mode private", "of mode private", true),
            ("ip -n blue link set eth0 type macvlan bcqueuelen 50", "broadcast queue of 50", true),
            (
                "ip -n blue link delete eth0
                 ip link add other type veth peer name end && ip link set other up
                 ip link add link other name eth0 netns blue type macvlan mode bridge bcqueuelen 77",
                "interface eth0 is not on master uplink",
                false,
            ),
        ],
        "ipvlan" => vec![(
            "ip -n blue link set eth0 type ipvlan mode l3",
            "ipvlan of mode l3 bridge, not ipvlan of mode l2",
            true,
        )],
        "vlan" => vec![
            mac,
            (
                "ip -n blue link delete eth0 && ip link add link uplink name eth0 netns blue type vlan id 6",
                "is interface of VLAN 6, not interface of VLAN 5",
                false,
            ),
        ],
        _ => vec![mac],
    }
}

fn wanted(kind: &str) -> Value {
    let ipam = json!({"type": "static",
        "addresses": [{"address": "10.5.0.9/24", "gateway": "10.5.0.1"}, {"address": "fd05::9/64", "gateway": "fd05::1"}],
        "routes": [{"dst": "198.51.100.0/24"}, {"dst": "2001:db8:1::/48"}]});
    let more = if kind == "macvlan" { json!({"bcqueuelen": 77}) } else { json!({}) };
    with(with(bare(kind), json!({"mtu": 1400, "ipam": ipam})), more)
}

/// What `podwire cni check --repair` does with a plugin's findings.
fn repair(node: &Node, pod: &Pod, chain: &Chain, result: &Value) {
    let plugin =
        podwire_plugins::PLUGINS.iter().find(|one| one.name() == chain.plugins[0]["type"]).expect("a plugin");
    let files = format!("/proc/{}/root", node.pid());
    let source = Source {
        container: pod.name.clone(),
        ifname: "eth0".into(),
        netns: format!("{files}{}", pod.netns),
        path: ours(),
        ..Source::default()
    };
    let config = with(chain.config(0), json!({"prevResult": result}));
    let run_repair = || {
        let req = Request::new(Command::Check, &source, config, Registry::none()).expect("a request");
        for finding in plugin.inspect(&req).expect("findings") {
            let what = finding.to_string();
            finding.repair().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    };
    Netns::open(format!("/proc/{}/ns/net", node.pid()))
        .expect("the node")
        .run(run_repair)
        .expect("on the node");
}

/// One pod gets all repairable damage, one after the other; each other damage gets a separate pod.
#[test]
fn check_names_each_damage_and_repair_restores_it() {
    for kind in kinds() {
        let (node, outside) = node_for(kind);
        let (chain, pod) = (network("net", &wanted(kind)), node.pod("blue"));
        let attach = || {
            let result = chain.add(&node, &pod);
            chain.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{kind}: {}", said.stdout));
            result
        };
        let result = attach();
        let whole = facts(&node, &pod);
        let (repairable, lost): (Vec<_>, Vec<_>) =
            COMMON.iter().copied().chain(own(kind)).partition(|damage| damage.2);
        for (damage, said, _) in repairable {
            complain(&node, &pod, &chain, (&result, damage, said));
            repair(&node, &pod, &chain, &result);
            let reported = |said: podwire_tests::Output| panic!("{kind}, {damage}: {}", said.stdout);
            chain.check(&node, &pod, &result).unwrap_or_else(reported);
            assert_eq!(facts(&node, &pod), whole, "{kind}, {damage}");
        }
        if kind != "dummy" {
            node.settle(&[pod.clone(), outside]);
            assert!(node.pings(Some(&pod), "10.5.0.1") && node.pings(Some(&pod), "fd05::1"), "{kind}");
        }
        chain.del(&node, &pod, Some(&result));
        assert!(!has(&node, &pod, "eth0"), "{kind}");
        for (damage, said, _) in lost {
            let result = attach();
            let hint = complain(&node, &pod, &chain, (&result, damage, said));
            assert!(hint.contains("recreate the pod"), "{kind}, {damage}: {hint}");
            chain.del(&node, &pod, Some(&result));
            assert_eq!(
                has(&node, &pod, "eth0"),
                damage.contains("type bridge"),
                "{kind}: DEL takes what is its own"
            );
            node.sh("ip -n blue link delete eth0 2>/dev/null || true");
        }
    }
}

/// Does the damage, and asserts that CHECK reports it. Returns its whole output.
fn complain(node: &Node, pod: &Pod, chain: &Chain, (result, damage, said): (&Value, &str, &str)) -> String {
    node.sh(&format!("set -e\n{damage}"));
    let output = chain.check(node, pod, result).expect_err(damage);
    let (_, msg) = output.error();
    assert!(msg.contains(said), "{}, {damage}: {msg}", chain.plugins[0]);
    output.stdout
}

/// What a repair must bring back.
fn facts(node: &Node, pod: &Pod) -> Vec<String> {
    let found = link(node, pod, "eth0");
    let mut all: Vec<_> =
        ["address", "mtu", "ifalias", "linkinfo"].iter().map(|key| found[*key].to_string()).collect();
    let script = format!(
        "ip -n {0} -br address show dev eth0 | tr -s ' ' '\\n' | grep -e ^10 -e ^fd
         ip -n {0} route; ip -n {0} -6 route | grep 2001",
        pod.name
    );
    all.extend(node.sh(&script).lines().map(|line| line.trim().to_string()));
    all.sort();
    all
}

/// The node's default route may move to another interface. The interfaces on the old one are not affected.
#[test]
fn check_is_content_when_the_default_route_has_moved() {
    for kind in children().filter(|kind| *kind != "vlan") {
        let (node, _) = node_for(kind);
        node.sh("ip address add 10.5.0.3/24 dev uplink && ip route add default via 10.5.0.1");
        let mut config = fixed(kind, "10.5.0.9/24");
        config.as_object_mut().unwrap().remove("master");
        let (chain, pod) = (network("net", &config), node.pod("blue"));
        let result = chain.add(&node, &pod);
        node.sh("ip route delete default");
        chain.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{kind}: {}", said.stdout));
        chain.del(&node, &pod, Some(&result));
        assert!(!has(&node, &pod, "eth0"), "{kind}");
    }
}

/// An ipvlan has its master's hardware address, which may change.
#[test]
fn an_ipvlan_follows_its_masters_hardware_address() {
    if !needs("ipvlan") {
        return;
    }
    let (node, _) = node_for("ipvlan");
    let (chain, pod) = (network("net", &config("ipvlan", &[V4])), node.pod("blue"));
    let result = chain.add(&node, &pod);
    node.sh("ip link set uplink address 02:00:00:00:00:77");
    chain.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{}", said.stdout));
    assert!(node.pings(Some(&pod), "10.5.0.1"));
}

/// A later plugin of the chain may have set another MTU, which is in the result.
#[test]
fn check_is_content_with_the_mtu_that_a_later_plugin_has_set() {
    for kind in kinds() {
        let (node, _) = node_for(kind);
        let (tuning, pod) = (json!({"type": "tuning", "mtu": 1300}), node.pod("blue"));
        let chain = Chain::new(&ours(), "net", &[wanted(kind), tuning]);
        let chain = Chain { version: "1.1.0".into(), ..chain };
        let result = chain.add(&node, &pod);
        assert_eq!(link(&node, &pod, "eth0")["mtu"], 1300, "{kind}");
        chain.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{kind}: {}", said.stdout));
        complain(
            &node,
            &pod,
            &chain,
            (&result, "ip -n blue link set eth0 mtu 1400", "has MTU 1400, not 1300"),
        );
        chain.del(&node, &pod, Some(&result));
        assert!(!has(&node, &pod, "eth0"), "{kind}");
    }
}
