//! host-device: changes of a device while it is in a pod, and the plugin together with Go's.

use podwire_tests::{assert_same, ours, Chain, Invocation, Node, Pod, GO};
use serde_json::{json, Value};

use crate::{addresses, link, network, refusal, status, without_netns, Families};

/// The device for host-device. It is the end of a veth pair; a physical device behaves the same.
pub const DEVICE: &str = "hostdev0";
const MAC: &str = "02:00:00:00:05:10";

/// Creates the device on the node, up, with a peer at the other end: .1 and ::1.
pub fn create_device(node: &Node) -> Pod {
    let neighbour = node.pod("neighbour");
    node.sh(&format!(
        "ip link add {DEVICE} address {MAC} type veth peer name hostdev1 netns neighbour
         ip link set {DEVICE} up
         ip -n neighbour link set lo up
         ip -n neighbour link set hostdev1 up
         ip -n neighbour address add 10.5.0.1/24 dev hostdev1
         ip -n neighbour -6 address add fd05::1/64 dev hostdev1 nodad"
    ));
    neighbour
}

fn by_name() -> Value {
    json!({"type": "host-device", "device": DEVICE, "ipam": Families::Both.pool()})
}

/// The name, the alias and the state of the device on the node.
fn on_node(node: &Node, name: &str) -> (String, bool) {
    let found = node.json(&format!("ip -j link show {name}"));
    let text = |key: &str| found[0][key].as_str().unwrap_or_default().to_string();
    let up = found[0]["flags"].as_array().into_iter().flatten().any(|flag| flag == "UP");
    (text("ifalias"), up)
}

#[test]
fn the_device_has_the_pods_name_and_keeps_its_own_as_its_alias() {
    let node = Node::new();
    create_device(&node);
    let (chain, pod) = (network("net", &by_name()), node.pod("blue"));
    let result = chain.add(&node, &pod);
    assert_eq!(
        result["interfaces"],
        json!([{"name": "eth0", "mac": MAC, "mtu": 1500, "sandbox": pod.netns}])
    );
    let inside = link(&node, &pod, "eth0");
    assert_eq!((&inside["ifalias"], &inside["address"]), (&json!(DEVICE), &json!(MAC)));
    assert!(!node.can(&format!("ip link show {DEVICE}")), "the device is no longer on the node");
    chain.del(&node, &pod, Some(&result));
    assert_eq!(on_node(&node, DEVICE), (String::new(), false), "on the node, without an alias, and down");
}

#[test]
fn names_in_use_on_either_side_are_handled() {
    let node = Node::new();
    create_device(&node);
    let (chain, pod) = (network("net", &by_name()), node.pod("blue"));
    // A device on the node has the name of the pod's interface, and an interface of the pod has the name of the node's.
    node.sh(&format!("ip link add eth0 type bridge; ip -n blue link add {DEVICE} type bridge"));
    let before = node.state(&pod);
    let result = chain.add(&node, &pod);
    assert!(node.pings(Some(&pod), "10.5.0.1"));
    chain.check(&node, &pod, &result).expect("CHECK");
    chain.del(&node, &pod, Some(&result));
    assert_same(&before, &node.state(&pod), "names");
}

#[test]
fn a_device_that_was_renamed_in_the_pod_is_moved_back() {
    let node = Node::new();
    create_device(&node);
    let (chain, pod) = (network("net", &by_name()), node.pod("blue"));
    let before = node.state(&pod);
    let result = chain.add(&node, &pod);
    node.sh("ip -n blue link set eth0 down; ip -n blue link set eth0 name wan; ip -n blue link set wan up");
    let (_, text) = chain.check(&node, &pod, &result).expect_err("renamed").error();
    assert!(text.contains("the device is called wan"), "{text}");
    chain.del(&node, &pod, Some(&result));
    assert_same(&before, &node.state(&pod), "renamed");
}

#[test]
fn a_device_whose_name_is_used_on_the_node_returns_with_another_name() {
    let node = Node::new();
    create_device(&node);
    let (chain, pod) = (network("net", &by_name()), node.pod("blue"));
    let result = chain.add(&node, &pod);
    node.sh(&format!("ip link add {DEVICE} type bridge"));
    let call = |verb: &str| Invocation::new(&node, &ours(), verb, &pod, &chain.config(0)).prev(&result).run();
    let failed = call("DEL");
    let (_, text) = failed.error();
    assert!(text.starts_with("failed to restore \"eth0\" to original name \"hostdev0\""), "{text}");
    assert!(failed.stdout.contains("is back on the node as dev0"), "{}", failed.stdout);
    assert_eq!(on_node(&node, "dev0").0, DEVICE, "the alias is its own name");
    assert_eq!(call("DEL").status, 0, "nothing is left to do in the pod");
    assert_eq!(on_node(&node, "dev0").0, DEVICE);

    node.sh(&format!("ip link delete {DEVICE}"));
    assert_eq!(call("DEL").status, 0);
    assert_eq!(on_node(&node, DEVICE), (String::new(), false), "the free name is restored");
}

/// When a pod's namespace ends, the kernel moves physical devices back to the node, under any free name.
#[test]
fn a_device_that_fell_back_by_itself_gets_its_name_back() {
    for (fallen, by_gc) in [("eth0", false), ("dev7", false), ("dev7", true)] {
        let node = Node::new();
        create_device(&node);
        let (chain, pod) = (network("net", &by_name()), node.pod("blue"));
        let result = chain.add(&node, &pod);
        node.sh(&format!(
            "ip -n blue link set eth0 down
             [ {fallen} = eth0 ] || ip -n blue link set eth0 name {fallen}
             ip -n blue link set {fallen} netns $$"
        ));
        node.remove(&pod);
        if by_gc {
            chain.gc(&node, &[])
        } else {
            chain.del(&node, &pod, Some(&result))
        }
        assert_eq!(on_node(&node, DEVICE), (String::new(), false), "{fallen} {by_gc}");
    }
}

#[test]
fn links_of_the_node_with_similar_names_keep_them() {
    let node = Node::new();
    create_device(&node);
    let (chain, pod) = (network("net", &by_name()), node.pod("blue"));
    // One device is up, one is of another kind, one was named by an administrator.
    node.sh(&format!(
        "ip link add eth0 type bridge; ip link set eth0 up alias {DEVICE}
         ip link add dev3 type bridge; ip link set dev3 alias uplink
         ip link add wan type bridge; ip link set wan alias {DEVICE}
         ip link delete {DEVICE}"
    ));
    let before = node.leftovers();
    chain.del(&node, &pod, None);
    chain.gc(&node, &[]);
    assert_same(&before, &node.leftovers(), "strangers");
}

#[test]
fn the_device_of_another_attachment_is_not_moved() {
    let node = Node::new();
    create_device(&node);
    node.sh("ip link add hostdev7 type veth peer name hostdev8");
    let (chain, pod) = (network("net", &by_name()), node.pod("blue"));
    let result = chain.add(&node, &pod);
    let before = node.state(&pod);
    let other = network("other", &json!({"type": "host-device", "device": "hostdev7"}));
    let (_, text) = other.try_add(&node, &pod).expect_err("eth0 is taken").error();
    assert!(text.contains("the pod has an interface eth0"), "{text}");
    other.del(&node, &pod, None);
    assert_same(&before, &node.state(&pod), "the other device of that name");

    // The same device under a second name: another ADD fails, and does not affect the device.
    let call = |verb: &str| {
        Invocation::new(&node, &ours(), verb, &pod, &chain.config(0)).env("CNI_IFNAME", "eth1").run()
    };
    let (_, text) = call("ADD").error();
    assert!(text.starts_with("failed to find host device: Link not found"), "{text}");
    assert_eq!(call("DEL").status, 0);
    assert_same(&before, &node.state(&pod), "the device under another name");
    chain.check(&node, &pod, &result).expect("CHECK");
    let not_now = status(&node, &chain);
    assert_eq!(not_now.error().0, 50, "{}", not_now.stdout);
}

#[test]
fn an_add_that_fails_puts_everything_back_on_the_node() {
    let node = Node::new();
    create_device(&node);
    node.sh(&format!(
        "ip address add 192.0.2.7/24 dev {DEVICE}
         ip -6 address add 2001:db8:7::7/64 dev {DEVICE} nodad
         ip route add 203.0.113.0/24 via 192.0.2.1
         ip -6 route add 2001:db8:8::/64 via 2001:db8:7::1
         ip link set {DEVICE} alias 'our uplink'"
    ));
    let pod = node.pod("blue");
    let everything = |node: &Node| {
        let reported = format!(
            "ip address show {DEVICE}; ip route; ip -6 route show dev {DEVICE}; ip link show {DEVICE}"
        );
        node.state(&pod) + &node.sh(&format!("({reported}) | sed 's/^[0-9]*: //; s/if[0-9]*//'"))
    };
    let before = everything(&node);
    let mut config = by_name();
    config["ipam"]["routes"] = json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.9"}]);
    let (_, text) = refusal(&node, &pod, &config);
    assert!(text.contains("198.51.100.0/24"), "{text}");
    assert_same(&before, &everything(&node), "a route that leads nowhere");
    config["ipam"]["ranges"] = json!([[{"subnet": "10.5.0.0/29", "rangeStart": "10.5.0.9"}]]);
    refusal(&node, &pod, &config);
    assert_same(&before, &everything(&node), "a pool that is none");
}

#[test]
fn addresses_and_routes_of_the_device_can_move_with_it() {
    let node = Node::new();
    create_device(&node);
    node.sh(&format!(
        "ip address add 10.5.0.77/24 dev {DEVICE}
         ip -6 address add fd05::77/64 dev {DEVICE} nodad
         ip route add default via 10.5.0.1
         ip route add 203.0.113.0/24 dev {DEVICE}
         ip -6 route add 2001:db8:8::/64 via fd05::1"
    ));
    let pod = node.pod("blue");
    let config = json!({"type": "host-device", "device": DEVICE, "useInterfaceNetwork": true});
    let chain = network("cloud", &config);
    let result = chain.add(&node, &pod);
    assert_eq!(addresses(&result), ["10.5.0.77", "fd05::77"]);
    assert_eq!(result["ips"][0]["gateway"], "10.5.0.1");
    let routes: Vec<_> =
        result["routes"].as_array().expect("routes").iter().map(|one| one["dst"].clone()).collect();
    assert_eq!(json!(routes), json!(["203.0.113.0/24", "0.0.0.0/0", "2001:db8:8::/64"]));
    for host in ["10.5.0.1", "fd05::1"] {
        assert!(node.pings(Some(&pod), host), "{host}");
    }
    assert!(node.can("ip -n blue route get 8.8.8.8 | grep -q 'via 10.5.0.1'"));
    assert!(node.can("ip -n blue -6 route get 2001:db8:8::1 | grep -q 'via fd05::1'"));
    chain.check(&node, &pod, &result).expect("CHECK");
    node.sh("ip -n blue route delete 203.0.113.0/24");
    chain.check(&node, &pod, &result).expect_err("a route that came along is missing");
    chain.del(&node, &pod, Some(&result));

    // Together with host-local.
    node.sh(&format!("ip address add 10.5.0.77/24 dev {DEVICE}; ip link set {DEVICE} up"));
    let mut both = by_name();
    both["useInterfaceNetwork"] = json!(true);
    let result = network("both", &both).add(&node, &pod);
    assert_eq!(addresses(&result), ["10.5.0.2", "fd05::2", "10.5.0.77"]);
    let all = node.sh("ip -n blue address show eth0");
    assert!(addresses(&result).iter().all(|address| all.contains(address)), "{all}");
}

#[test]
fn a_device_without_addresses_is_up_in_the_pod() {
    let node = Node::new();
    create_device(&node);
    let pod = node.pod("blue");
    let chain = network("bare", &json!({"type": "host-device", "device": DEVICE}));
    let result = chain.add(&node, &pod);
    assert!(node.can("ip -n blue link show eth0 up | grep -q eth0"));
    chain.check(&node, &pod, &result).expect("CHECK");
    chain.del(&node, &pod, None);
    assert_eq!(on_node(&node, DEVICE), (String::new(), false));
}

#[test]
fn devices_that_cannot_be_moved_fail_with_the_reason() {
    let node = Node::new();
    create_device(&node);
    node.sh("ip link add br0 type bridge; ip link add twin address 02:00:00:00:05:10 type bridge");
    let pod = node.pod("blue");
    let before = node.state(&pod);
    for (key, value, code, text) in [
        ("device", "", 7, "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\""),
        ("device", "nowhere", 999, "failed to find host device: Link not found"),
        ("device", "br0", 100, "failed to move link br0"),
        ("hwaddr", "02:00", 7, "failed to find host device: failed to parse MAC address \"02:00\""),
        ("hwaddr", "02:00:00:00:00:77", 999, "failed to find host device: failed to find physical interface"),
        ("hwaddr", MAC, 7, "hwaddr: 02:00:00:00:05:10 is the address of several links: hostdev0, twin"),
        ("kernelpath", "/etc", 7, "failed to find host device: kernel device path \"/etc\" must be absolute"),
        ("kernelpath", "/sys/devices/none", 7, "kernelpath: there is no device"),
        ("pciBusID", "0000:ff:ff.7", 7, "pciBusID: device \"0000:ff:ff.7\" is neither"),
        ("pciBusID", "../../../etc", 7, "pciBusID: device \"../../../etc\" is neither"),
    ] {
        let (found, said) = refusal(&node, &pod, &json!({"type": "host-device", key: value}));
        assert!(found == code && said.starts_with(text), "{key} {value}: {found} {said}");
    }
    assert_same(&before, &node.state(&pod), "refusals");
    node.sh("ip link delete twin");
    let chain = network("by-address", &json!({"type": "host-device", "hwaddr": MAC.to_uppercase()}));
    let result = chain.add(&node, &pod);
    assert_eq!(result["interfaces"][0]["mac"], MAC);
    chain.del(&node, &pod, None);
}

#[test]
fn a_device_is_returned_although_the_config_no_longer_has_it() {
    let node = Node::new();
    create_device(&node);
    let (chain, pod) = (network("net", &by_name()), node.pod("blue"));
    let before = node.state(&pod);
    chain.add(&node, &pod);
    let mut forgetful = by_name();
    forgetful["device"] = json!(null);
    network("net", &forgetful).del(&node, &pod, None);
    assert_same(&before, &node.state(&pod), "no device in the config");
}

#[test]
fn go_and_ours_answer_alike_and_bring_home_each_others_devices() {
    for families in Families::ALL {
        let config = json!({"type": "host-device", "device": DEVICE, "ipam": families.pool()});
        let (ours, go) = (ours(), GO.to_string());
        let mut answers = Vec::new();
        for (lender, returner) in [(&ours, &go), (&go, &ours), (&ours, &ours), (&go, &go)] {
            let what = format!("{families:?}: lent by {lender}, brought home by {returner}");
            let node = Node::new();
            create_device(&node);
            let pod = node.pod("blue");
            // Go plugins do not update Podwire's index and ledger. A stale index entry is only a hint; a stale ledger
            // file stays until the next GC.
            let state = || -> String {
                let all = node.state(&pod);
                all.lines()
                    .filter(|line| !line.starts_with("/run/podwire/"))
                    .map(|line| format!("{line}\n"))
                    .collect()
            };
            let before = state();
            let chain = |path: &String| Chain::new(path, "net", std::slice::from_ref(&config));
            let result = chain(lender).add(&node, &pod);
            for path in [lender, returner] {
                let checked = chain(path).check(&node, &pod, &result);
                checked.unwrap_or_else(|failed| panic!("{what}: CHECK by {path}: {}", failed.stdout));
            }
            assert!(families.neighbours().iter().all(|host| node.pings(Some(&pod), host)), "{what}");
            chain(returner).del(&node, &pod, Some(&result));
            assert_same(&before, &state(), &what);
            assert!(!on_node(&node, DEVICE).1, "{what}: it is down");
            // The device can be moved again.
            let again = chain(lender).add(&node, &pod);
            chain(returner).del(&node, &pod, Some(&again));
            let mut plain = result.clone();
            plain.as_object_mut().expect("an object").remove("dns");
            answers.push((what, plain));
        }
        for (what, answer) in &answers {
            assert_eq!(answer, &answers[0].1, "{what}");
        }
    }
}

/// Go's plugin leaks the lease of a DEL without a namespace, and fails if the namespace is gone.
#[test]
fn ours_moves_back_a_device_that_go_cannot() {
    let node = Node::new();
    create_device(&node);
    let pod = node.pod("blue");
    let before = node.state(&pod);
    let config = by_name();
    let result = Chain::new(GO, "net", std::slice::from_ref(&config)).add(&node, &pod);
    let ours = Chain::new(&ours(), "net", &[config]);
    ours.del(&node, &without_netns(&pod), Some(&result));
    assert_same(&before, &node.state(&pod), "the record has the namespace of the pod");
}
