//! VLANs on a bridge: the frames that a pod's port passes, and the gateway's interface in a VLAN.
//!
//! Kernels without VLAN filtering cannot run most of these tests, which are then skipped with a message. The kernel of
//! the emulated machine (`scripts/vm`) can; there (`PODWIRE_REQUIRE_VLAN`) a skipped test fails.

use std::io::Write;
use std::sync::Once;

use podwire_tests::{ours, Chain, Invocation, Node, Pod, GO};
use serde_json::{json, Value};

/// The output of `bridge` for a VLAN whose frames have no tag on this port.
const NATIVE: &str = "PVID Egress Untagged";

/// A node whose kernel filters VLANs. None, with a message, where it does not.
fn node() -> Option<Node> {
    let node = Node::new();
    if node.can("ip link add probe type bridge vlan_filtering 1 && ip link delete probe") {
        return Some(node);
    }
    assert!(
        std::env::var_os("PODWIRE_REQUIRE_VLAN").is_none(),
        "this kernel was said to filter VLANs, and does not"
    );
    static SAID: Once = Once::new();
    // Not println: the test runner captures it.
    SAID.call_once(|| {
        drop(writeln!(std::io::stderr(), "left out: VLANs on bridges, which this kernel cannot filter"))
    });
    None
}

/// The bridge plugin as the gateway of a VLAN: 10.VLAN.0.0/24 and fd00:VLAN::/64.
fn gateway(vlan: u16) -> Value {
    let ranges =
        json!([[{"subnet": format!("10.{vlan}.0.0/24")}], [{"subnet": format!("fd00:{vlan}::/64")}]]);
    json!({"type": "bridge", "bridge": "sw0", "isGateway": true, "vlan": vlan,
           "ipam": {"type": "host-local", "ranges": ranges}})
}

/// The bridge plugin with a fixed address.
fn fixed(address: &str, more: &Value) -> Value {
    let mut config = json!({"type": "bridge", "bridge": "sw0",
                            "ipam": {"type": "static", "addresses": [{"address": address}]}});
    for (key, value) in more.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config
}

/// A network with one of Podwire's plugins.
fn network(name: &str, config: &Value) -> Chain {
    Chain::new(&ours(), name, std::slice::from_ref(config))
}

/// The VLANs of a port: `20`, `20-22`, `1 Egress Untagged`…
fn vlans(node: &Node, port: &str) -> Vec<String> {
    let all = node.json(&format!("bridge -compressvlans -j vlan show dev {port}"));
    let one = |vlan: &Value| {
        let last = vlan["vlanEnd"].as_u64().map(|last| format!("-{last}")).unwrap_or_default();
        let flags = vlan["flags"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let words = flags.fold(String::new(), |words, flag| format!("{words} {flag}"));
        format!("{}{last}{words}", vlan["vlan"])
    };
    all[0]["vlans"].as_array().into_iter().flatten().map(one).collect()
}

/// The name of an interface of a result.
fn name(result: &Value, n: usize) -> &str {
    result["interfaces"][n]["name"].as_str().unwrap_or_else(|| panic!("no interface {n}: {result}"))
}

/// The pod's address, the first or the second.
fn address(result: &Value, n: usize) -> &str {
    let net = result["ips"][n]["address"].as_str().unwrap_or_else(|| panic!("no address {n}: {result}"));
    net.split('/').next().unwrap_or(net)
}

/// The bridge port of the gateway interface `leg`: its other end.
fn port_of(node: &Node, leg: &str) -> String {
    node.json(&format!("ip -j link show {leg}"))[0]["link"]
        .as_str()
        .unwrap_or_else(|| panic!("no end"))
        .to_string()
}

/// Whether `host` does not answer within a second.
fn is_cut_off(node: &Node, from: &Pod, host: &str) -> bool {
    !node.can(&format!("ip netns exec {} ping -q -c 2 -i 0.2 -W 1 {host}", from.name))
}

/// The error of an ADD.
fn refusal(node: &Node, pod: &Pod, config: &Value) -> (u64, String) {
    network("refused", config).try_add(node, pod).expect_err("an error").error()
}

#[test]
fn pods_reach_their_vlan_and_its_gateway_and_nothing_else() {
    let Some(node) = node() else { return };
    let red = network("red", &gateway(10));
    let (a, b) = (node.pod("a"), node.pod("b"));
    let (in_a, in_b) = (red.add(&node, &a), red.add(&node, &b));
    for n in [0, 1] {
        assert!(node.pings(Some(&a), address(&in_b, n)), "another pod of the VLAN");
        assert!(node.pings(Some(&b), address(&in_a, n)), "another pod of the VLAN");
        assert!(node.pings(None, address(&in_a, n)), "from the node");
    }
    for gateway in ["10.10.0.1", "fd00:10::1"] {
        assert!(
            node.pings(Some(&a), gateway) && node.pings(Some(&b), gateway),
            "the VLAN's gateway {gateway}"
        );
    }

    // Addresses of the same subnet in another VLAN and in the bridge's own VLAN.
    for (n, more) in [json!({"vlan": 20}), json!({})].iter().enumerate() {
        let other = node.pod(&format!("stranger{n}"));
        let host = format!("10.10.0.20{n}");
        network("strangers", &fixed(&format!("{host}/24"), more)).add(&node, &other);
        assert!(is_cut_off(&node, &a, &host), "{more}");
        assert!(is_cut_off(&node, &other, address(&in_a, 0)), "{more}");
        assert!(is_cut_off(&node, &other, "10.10.0.1"), "{more}");
    }
}

#[test]
fn the_gateway_has_a_separate_interface() {
    let Some(node) = node() else { return };
    let red = network("red", &gateway(10));
    let (a, b) = (node.pod("a"), node.pod("b"));
    let (in_a, in_b) = (red.add(&node, &a), red.add(&node, &b));

    for result in [&in_a, &in_b] {
        assert_eq!(result["interfaces"].as_array().map(Vec::len), Some(4), "{result}");
        assert_eq!((name(result, 0), name(result, 2), name(result, 3)), ("sw0", "eth0", "sw0.10"));
        assert_eq!(vlans(&node, name(result, 1)), [format!("10 {NATIVE}")]);
        assert!(result["ips"].as_array().into_iter().flatten().all(|ip| ip["interface"] == 2), "{result}");
    }
    let leg = &node.json("ip -j address show sw0.10")[0];
    assert_eq!(leg["address"], in_a["interfaces"][3]["mac"]);
    assert_eq!(in_a["interfaces"][3], in_b["interfaces"][3]);
    assert!(in_a["interfaces"][3].get("sandbox").is_none(), "{in_a}");
    for address in ["10.10.0.1", "fd00:10::1"] {
        let there = leg["addr_info"].as_array().into_iter().flatten().any(|one| one["local"] == address);
        assert!(there, "{address}: {leg}");
    }
    assert_eq!(vlans(&node, &port_of(&node, "sw0.10")), [format!("10 {NATIVE}")]);
    assert!(!node.can("ip address show dev sw0 | grep -F 10.10.0.1"), "the bridge itself is no gateway");

    // A second VLAN of the same bridge has a gateway interface too; the node routes between both.
    let mut config = gateway(20);
    config["isDefaultGateway"] = json!(true);
    let c = node.pod("c");
    network("blue", &config).add(&node, &c);
    node.sh("ip -n a route add default via 10.10.0.1");
    assert!(node.pings(Some(&c), address(&in_a, 0)), "from VLAN to VLAN through the node");
}

#[test]
fn a_trunk_carries_ids_and_ranges() {
    let Some(node) = node() else { return };
    let trunk =
        json!({"vlanTrunk": [{"id": 5}, {"minID": 20, "maxID": 22}, {"id": 40, "minID": 50, "maxID": 51}]});
    let (router, access) = (node.pod("router"), node.pod("access"));
    let mixed = network("mixed", &fixed("10.1.0.2/24", &trunk));
    let result = mixed.add(&node, &router);
    assert_eq!(
        vlans(&node, name(&result, 1)),
        [&*format!("1 {NATIVE}"), "5", "20-22", "40", "50-51"],
        "without a VLAN of its own, a trunk is native in the bridge's"
    );
    mixed.check(&node, &router, &result).expect("CHECK");

    network("access", &fixed("10.21.0.3/24", &json!({"vlan": 21}))).add(&node, &access);
    for (vlan, passes) in [(21, true), (23, false)] {
        node.sh(&format!(
            "ip -n router link add link eth0 name tagged type vlan id {vlan}
             ip -n router address add 10.21.0.2/24 dev tagged
             ip -n router link set tagged up"
        ));
        assert_eq!(!is_cut_off(&node, &router, "10.21.0.3"), passes, "tag {vlan}");
        node.sh("ip -n router link delete tagged");
    }

    // Untagged frames of the trunk reach the gateway on the bridge itself.
    let mut config = fixed("10.2.0.2/24", &trunk);
    config["isGateway"] = json!(true);
    let pod = node.pod("untagged");
    network("untagged", &config).add(&node, &pod);
    assert!(node.pings(Some(&pod), "10.2.0.1"));
}

#[test]
fn a_trunk_of_everything_keeps_its_native_vlan() {
    let Some(node) = node() else { return };
    let all = network(
        "all",
        &fixed("10.1.0.2/24", &json!({"vlan": 10, "vlanTrunk": [{"minID": 1, "maxID": 4094}]})),
    );
    let pod = node.pod("pod");
    let result = all.add(&node, &pod);
    assert_eq!(vlans(&node, name(&result, 1)), ["1-9", &format!("10 {NATIVE}"), "11-4094"]);
    all.check(&node, &pod, &result).expect("CHECK");
}

#[test]
fn the_default_vlan_stays_if_asked() {
    let Some(node) = node() else { return };
    let mut config = gateway(10);
    config["preserveDefaultVlan"] = json!(true);
    let result = network("red", &config).add(&node, &node.pod("a"));
    let expected = ["1 Egress Untagged".to_string(), format!("10 {NATIVE}")];
    assert_eq!(vlans(&node, name(&result, 1)), expected);
    assert_eq!(vlans(&node, &port_of(&node, "sw0.10")), expected);

    // Otherwise it is removed, whichever VLAN it is.
    node.sh("ip link add own up type bridge vlan_filtering 1 vlan_default_pvid 7");
    for (more, expected) in [
        (json!({"bridge": "own", "vlan": 10}), vec![format!("10 {NATIVE}")]),
        (json!({"bridge": "own", "vlanTrunk": [{"id": 9}]}), vec![format!("1 {NATIVE}"), "9".into()]),
    ] {
        let pod = node.pod(&format!("pod{}", expected.len()));
        let result = network("own", &fixed("10.1.0.2/24", &more)).add(&node, &pod);
        assert_eq!(vlans(&node, name(&result, 1)), expected, "{more}");
    }
}

#[test]
fn check_notices_what_changed() {
    let Some(node) = node() else { return };
    let mut config = gateway(10);
    config["vlanTrunk"] = json!([{"minID": 20, "maxID": 22}]);
    let red = network("red", &config);
    let pod = node.pod("a");
    let result = red.add(&node, &pod);
    red.check(&node, &pod, &result).expect("CHECK");

    let port = name(&result, 1);
    let undone = [("vid 10", "vid 10 pvid untagged", "VLAN 10"), ("vid 21", "vid 21", "VLAN 21")];
    for (lost, restored, complaint) in undone {
        node.sh(&format!("bridge vlan delete dev {port} {lost}"));
        let (_, msg) = red.check(&node, &pod, &result).expect_err("a VLAN is missing").error();
        assert!(msg.contains(complaint) && msg.contains(port), "{msg}");
        node.sh(&format!("bridge vlan add dev {port} {restored}"));
        red.check(&node, &pod, &result).expect("CHECK");
    }
    node.sh(&format!("bridge vlan add dev {port} vid 10"));
    let (_, msg) = red.check(&node, &pod, &result).expect_err("only tagged").error();
    assert!(msg.contains("VLAN 10"), "{msg}");
    node.sh(&format!("bridge vlan add dev {port} vid 10 pvid untagged"));

    node.sh("ip address delete 10.10.0.1/24 dev sw0.10");
    let (_, msg) = red.check(&node, &pod, &result).expect_err("the gateway is gone").error();
    assert!(msg.contains("10.10.0.1") && msg.contains("sw0.10"), "{msg}");
    node.sh("ip link delete sw0.10");
    let (_, msg) = red.check(&node, &pod, &result).expect_err("the leg is gone").error();
    assert!(msg.contains("sw0.10"), "{msg}");
    assert!(!node.can("ip link show sw0.10"), "CHECK changes nothing");
}

#[test]
fn del_and_gc_take_the_pods_ports_and_leave_the_leg() {
    let Some(node) = node() else { return };
    let red = network("red", &gateway(10));
    let (a, b, c) = (node.pod("a"), node.pod("b"), node.pod("c"));
    let result = red.add(&node, &a);
    red.del(&node, &a, Some(&result));
    let bare = node.leftovers();
    let links: Vec<_> = bare.lines().filter(|line| line.starts_with("link ")).collect();
    let port = format!("link {} veth", port_of(&node, "sw0.10"));
    assert_eq!(
        links,
        ["link sw0 bridge", "link sw0.10 veth", &port],
        "the bridge and the VLAN's gateway stay"
    );

    let (in_a, in_b, in_c) = (red.add(&node, &a), red.add(&node, &b), red.add(&node, &c));
    // The first pod's record is lost, the second pod's namespace is deleted, and the runtime sends no DEL for the
    // third.
    red.del(&node, &a, None);
    node.remove(&b);
    let gone = Pod { netns: String::new(), ..b };
    red.del(&node, &gone, Some(&in_b));
    red.gc(&node, &[("c", "eth0")]);
    assert!(node.pings(Some(&c), "10.10.0.1"), "a valid attachment survives GC");
    red.check(&node, &c, &in_c).expect("CHECK");
    assert!(!node.can(&format!("ip link show {}", name(&in_a, 1))));
    red.gc(&node, &[]);
    assert_eq!(node.leftovers(), bare);

    // The remaining pods still work.
    assert_eq!(vlans(&node, &port_of(&node, "sw0.10")), [format!("10 {NATIVE}")]);
    red.add(&node, &a);
    assert!(node.pings(Some(&a), "10.10.0.1") && node.pings(Some(&a), "fd00:10::1"));
}

#[test]
fn first_pods_that_are_attached_at_once_share_a_gateway_interface() {
    let Some(node) = node() else { return };
    let red = network("red", &gateway(10));
    let pods: Vec<_> = (0..6).map(|n| node.pod(&format!("pod{n}"))).collect();
    let results: Vec<_> = std::thread::scope(|scope| {
        let adds: Vec<_> = pods.iter().map(|pod| scope.spawn(|| red.add(&node, pod))).collect();
        adds.into_iter().map(|add| add.join().expect("ADD")).collect()
    });
    for (pod, result) in pods.iter().zip(&results) {
        assert_eq!(result["interfaces"][3], results[0]["interfaces"][3]);
        assert!(node.pings(Some(pod), "10.10.0.1"), "{}", pod.name);
    }
    assert_eq!(vlans(&node, &port_of(&node, "sw0.10")), [format!("10 {NATIVE}")]);
}

#[test]
fn a_leg_that_was_left_incomplete_is_completed() {
    let Some(node) = node() else { return };
    let red = network("red", &gateway(10));
    let (a, b) = (node.pod("a"), node.pod("b"));
    red.add(&node, &a);
    // As if the plugin had been killed before it was done.
    let port = port_of(&node, "sw0.10");
    node.sh(&format!(
        "ip link set sw0.10 down
         ip address flush dev sw0.10
         bridge vlan delete dev {port} vid 10
         bridge vlan add dev {port} vid 1 pvid untagged"
    ));
    red.add(&node, &b);
    assert_eq!(vlans(&node, &port), [format!("10 {NATIVE}")]);
    for pod in [&a, &b] {
        assert!(node.pings(Some(pod), "10.10.0.1") && node.pings(Some(pod), "fd00:10::1"), "{}", pod.name);
    }
}

/// Needs no VLAN filtering.
#[test]
fn invalid_configs_fail() {
    let node = Node::new();
    let pod = node.pod("a");

    node.sh("ip link add sw0 up type bridge");
    let before = node.leftovers();
    for more in [json!({"vlan": 10}), json!({"vlanTrunk": [{"id": 10}]})] {
        let (code, msg) = refusal(&node, &pod, &fixed("10.1.0.2/24", &more));
        assert!(
            code == 7 && msg.contains("\"sw0\"") && msg.contains("does not filter VLANs"),
            "{code} {msg}"
        );
    }
    assert!(!node.can("ip -d link show sw0 | grep 'vlan_filtering 1'"), "others' bridges stay as they are");

    let mut config = gateway(100);
    config["bridge"] = json!("a-long-name0");
    let (code, msg) = refusal(&node, &pod, &config);
    assert!(code == 7 && msg.contains("a-long-name0.100"), "{code} {msg}");

    for (more, complaint) in [
        (json!({"vlan": 4095}), "4095"),
        (json!({"vlan": -1}), "-1"),
        (json!({"vlanTrunk": [{"id": 5}, {"id": 0}]}), "incorrect trunk id parameter"),
        (json!({"vlanTrunk": [{"minID": 5}]}), "maxID"),
        (json!({"vlanTrunk": [{"minID": 5, "maxID": 4}]}), "minID is greater than maxID in trunk parameter"),
        (json!({"vlanTrunk": [{"minID": 5, "maxID": 4095}]}), "incorrect trunk maxID parameter"),
        (json!({"vlanTrunk": [{}]}), "vlanTrunk[0]"),
    ] {
        let (code, msg) = refusal(&node, &pod, &fixed("10.1.0.2/24", &more));
        assert!(code == 7 && msg.contains(complaint), "{more}: {code} {msg}");
    }
    assert_eq!(node.leftovers(), before);
}

/// Debian's version 1.1.1 always keeps the default VLAN, as Podwire's does on request. Newer Go versions need the
/// request too.
#[test]
fn go_makes_the_same() {
    let Some(node) = node() else { return };
    let mut config = gateway(10);
    config["preserveDefaultVlan"] = json!(true);
    let twin = Node::new();
    let go = Chain::new(GO, "red", std::slice::from_ref(&config));
    let (his, its) = (go.add(&twin, &twin.pod("a")), network("red", &config).add(&node, &node.pod("a")));

    for n in [0, 2, 3] {
        assert_eq!(name(&his, n), name(&its, n));
    }
    assert_eq!((&his["ips"], &his["routes"]), (&its["ips"], &its["routes"]));
    let state = |node: &Node, result: &Value| {
        let ports = ["sw0", name(result, 1), &port_of(node, "sw0.10")].map(|port| vlans(node, port));
        let legs = node.json("ip -j address show sw0.10")[0]["addr_info"].clone();
        let legs: Vec<_> =
            legs.as_array().into_iter().flatten().filter(|one| one["scope"] == "global").collect();
        let legs: Vec<_> = legs.iter().map(|one| format!("{}/{}", one["local"], one["prefixlen"])).collect();
        (ports, legs)
    };
    assert_eq!(state(&twin, &his), state(&node, &its));

    // Each plugin changes the VLANs of a port that the other created.
    let (b, c) = (twin.pod("b"), node.pod("c"));
    let in_b = network("red", &config).add(&twin, &b);
    assert_eq!(in_b["interfaces"][3], his["interfaces"][3]);
    assert!(twin.pings(Some(&b), address(&his, 0)) && twin.pings(Some(&b), "10.10.0.1"));
    let in_c = go.add(&node, &c);
    assert_eq!(in_c["interfaces"][3], its["interfaces"][3]);
    assert!(node.pings(Some(&c), address(&its, 0)) && node.pings(Some(&c), "10.10.0.1"));
    let a = Pod { name: "a".into(), netns: "/run/netns/a".into() };
    network("red", &config).check(&twin, &a, &his).expect("CHECK of Go's pod");
    network("red", &config).del(&twin, &a, Some(&his));
    let checked = Invocation::new(&node, GO, "CHECK", &a, &go.config(0)).prev(&its).run();
    assert_eq!(checked.status, 0, "{}", checked.stdout);
}
