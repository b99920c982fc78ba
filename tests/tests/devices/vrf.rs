//! vrf: tables, several interfaces and several VRFs in a pod, routes that the kernel drops, and invalid configs.

use podwire_tests::{assert_same, needs, ours, Chain, Invocation, Node, Pod, GO};
use serde_json::{json, Value};

use crate::{addresses, network, status};

/// A network behind a separate bridge, 10.N.0.0/24 and fd0N::/64, its interface in the VRF.
fn in_vrf(n: u8, more: Value) -> Chain {
    let mut vrf = json!({"type": "vrf", "vrfname": "red"});
    for (key, value) in more.as_object().expect("an object") {
        vrf[key] = value.clone();
    }
    let bridge = json!({"type": "bridge", "bridge": format!("br{n}"), "isDefaultGateway": true,
        "ipam": {"type": "host-local", "ranges": [
            [{"subnet": format!("10.{n}.0.0/24")}], [{"subnet": format!("fd0{n}::/64")}]]}});
    Chain { version: "1.1.0".into(), ..Chain::new(&ours(), &format!("net{n}"), &[bridge, vrf]) }
}

/// ADD or DEL of a chain for an interface other than eth0.
fn attach(node: &Node, chain: &Chain, pod: &Pod, ifname: &str) -> Value {
    let mut result = Value::Null;
    for n in 0..chain.plugins.len() {
        let mut call =
            Invocation::new(node, &chain.path, "ADD", pod, &chain.config(n)).env("CNI_IFNAME", ifname);
        if n > 0 {
            call = call.prev(&result);
        }
        result = call.run().result();
    }
    result
}

fn detach(node: &Node, chain: &Chain, pod: &Pod, ifname: &str) {
    for n in (0..chain.plugins.len()).rev() {
        let call = Invocation::new(node, &chain.path, "DEL", pod, &chain.config(n)).env("CNI_IFNAME", ifname);
        assert_eq!(call.run().status, 0);
    }
}

fn table(node: &Node, pod: &Pod, vrf: &str) -> u64 {
    let found = node.json(&format!("ip -n {} -j -d link show {vrf}", pod.name));
    found[0]["linkinfo"]["info_data"]["table"].as_u64().unwrap_or_else(|| panic!("no table: {found}"))
}

/// A VRF of the node has its own routes.
#[test]
fn a_bridge_in_a_vrf_of_the_node_may_have_the_subnet_of_another_bridge() {
    if !needs("vrf") {
        return;
    }
    let node = Node::new();
    node.sh("ip link add red type vrf table 100; ip link add br6 type bridge; ip link set br6 master red");
    let network = |bridge: &str| {
        let plugin = json!({"type": "bridge", "bridge": bridge, "isGateway": true,
            "ipam": {"type": "host-local", "subnet": "10.6.0.0/24"}});
        Chain { version: "1.1.0".into(), ..Chain::new(&ours(), bridge, &[plugin]) }
    };
    for (bridge, pod) in [("br5", "first"), ("br6", "second")] {
        assert_eq!(addresses(&network(bridge).add(&node, &node.pod(pod))), ["10.6.0.2"]);
    }
}

#[test]
fn addresses_and_routes_of_both_families_are_in_the_vrfs_table() {
    if !needs("vrf") {
        return;
    }
    let node = Node::new();
    let (chain, pod) = (in_vrf(5, json!({"table": 77})), node.pod("blue"));
    let result = chain.add(&node, &pod);
    assert_eq!(table(&node, &pod, "red"), 77);
    let all = node.sh("ip -n blue address show eth0");
    assert!(addresses(&result).iter().all(|address| all.contains(address)), "{all}");
    for (family, routes) in [
        ("-4", ["default via 10.5.0.1", "10.5.0.0/24 dev eth0"]),
        ("-6", ["default via fd05::1", "fd05::/64 dev eth0"]),
    ] {
        let reported = node.sh(&format!("ip -n blue {family} route show table 77"));
        assert!(routes.iter().all(|route| reported.contains(route)), "{reported}");
        let main = node.sh(&format!("ip -n blue {family} route show table main"));
        assert!(!main.contains("eth0"), "the main table has no route of eth0: {main}");
    }
    chain.check(&node, &pod, &result).expect("CHECK");
}

#[test]
fn addresses_that_the_kernel_drops_are_put_back() {
    if !needs("vrf") {
        return;
    }
    let node = Node::new();
    let (chain, pod) = (in_vrf(5, json!({})), node.pod("blue"));
    let first = Chain { plugins: chain.plugins[..1].to_vec(), ..chain.clone() };
    let result = first.add(&node, &pod);
    // As Go's plugin leaves them: the kernel deletes IPv6 addresses when the link goes down.
    node.sh("ip netns exec blue sysctl -qw net.ipv6.conf.eth0.keep_addr_on_down=0");
    let call = Invocation::new(&node, &ours(), "ADD", &pod, &chain.config(1)).prev(&result);
    assert_eq!(call.run().result()["ips"], result["ips"]);
    for address in addresses(&result) {
        assert!(node.pings(None, &address), "{address}");
    }
    assert!(node.can("ip netns exec blue ping -q -c 1 -W 5 -I red fd05::1"));
    chain.check(&node, &pod, &result).expect("CHECK");
}

#[test]
fn the_lowest_unused_table_is_used() {
    if !needs("vrf") {
        return;
    }
    let node = Node::new();
    let pod = node.pod("blue");
    node.sh("ip -n blue link set lo up
         ip -n blue route add 203.0.113.0/24 dev lo table 1
         ip -n blue -6 route add 2001:db8:9::/64 dev lo table 2
         ip -n blue rule add from 203.0.113.7 lookup 3
         ip -n blue link add blue4 type vrf table 4");
    let chain = in_vrf(5, json!({}));
    chain.add(&node, &pod);
    assert_eq!(table(&node, &pod, "red"), 5);
}

#[test]
fn a_vrf_lives_as_long_as_it_has_interfaces() {
    if !needs("vrf") {
        return;
    }
    let node = Node::new();
    let pod = node.pod("blue");
    let (five, six, green) =
        (in_vrf(5, json!({})), in_vrf(6, json!({})), in_vrf(7, json!({"vrfname": "green"})));
    attach(&node, &five, &pod, "eth0");
    attach(&node, &six, &pod, "eth1");
    attach(&node, &green, &pod, "eth2");
    assert_eq!((table(&node, &pod, "red"), table(&node, &pod, "green")), (1, 2));
    assert!(node.can("ip netns exec blue ping -q -c 1 -W 5 -I red 10.5.0.1"));
    assert!(node.can("ip netns exec blue ping -q -c 1 -W 5 -I green 10.7.0.1"));
    detach(&node, &five, &pod, "eth0");
    assert_eq!(table(&node, &pod, "red"), 1, "eth1 is in it still");
    assert!(node.can("ip netns exec blue ping -q -c 1 -W 5 -I red 10.6.0.1"));
    detach(&node, &six, &pod, "eth1");
    assert!(!node.can("ip -n blue link show red"), "the last one has left");
    assert_eq!(table(&node, &pod, "green"), 2);
    detach(&node, &green, &pod, "eth2");
}

#[test]
fn an_interface_that_stays_gets_its_routes_back() {
    if !needs("vrf") {
        return;
    }
    let node = Node::new();
    let (chain, pod) = (in_vrf(5, json!({})), node.pod("blue"));
    let first = Chain { plugins: chain.plugins[..1].to_vec(), ..chain.clone() };
    let result = first.add(&node, &pod);
    let before = node.state(&pod);
    let call = |verb: &str| Invocation::new(&node, &ours(), verb, &pod, &chain.config(1)).prev(&result).run();
    assert_eq!(call("ADD").status, 0);
    assert_eq!(call("ADD").status, 0, "a second time");
    assert_eq!(call("DEL").status, 0);
    assert_same(&before, &node.state(&pod), "vrf alone is taken back");
    assert!(node.pings(Some(&pod), "10.5.0.1") && node.pings(Some(&pod), "fd05::1"));
}

#[test]
fn invalid_configs_fail_and_change_nothing() {
    if !needs("vrf") {
        return;
    }
    let node = Node::new();
    let pod = node.pod("blue");
    let chain = in_vrf(5, json!({}));
    let first = Chain { plugins: chain.plugins[..1].to_vec(), ..chain.clone() };
    let result = first.add(&node, &pod);
    node.sh("ip -n blue link add other type vrf table 9; ip -n blue link add plain type bridge
         ip -n blue link add member type veth peer name member2; ip -n blue link set member master plain");
    let before = node.state(&pod);
    for (more, ifname, code, text) in [
        (json!({"vrfname": ""}), "eth0", 7, "configuration is expected to have a valid vrf name"),
        (json!({"vrfname": "a/b"}), "eth0", 7, "vrfname: "),
        (json!({"vrfname": "eth0"}), "eth0", 7, "vrfname: \"eth0\" is the name of the pod's interface"),
        (json!({"table": 254}), "eth0", 7, "table: 254 is one of the system's own tables"),
        (
            json!({"vrfname": "other", "table": 10}),
            "eth0",
            7,
            "VRF other already exist with different routing table 9",
        ),
        (json!({"vrfname": "plain"}), "eth0", 7, "vrfname: plain: \"plain\" already exists but is not a VRF"),
        (json!({}), "eth9", 100, "could not get link by name eth9"),
        (json!({}), "member", 999, "interface member has already a master set: plain"),
    ] {
        let config = in_vrf(5, more.clone()).config(1);
        let call =
            Invocation::new(&node, &ours(), "ADD", &pod, &config).env("CNI_IFNAME", ifname).prev(&result);
        let (found, said) = call.run().error();
        assert!(found == code && said.starts_with(text), "{more}: {found} {said}");
        assert_same(&before, &node.state(&pod), &more.to_string());
    }
    let (code, said) = Invocation::new(&node, &ours(), "ADD", &pod, &chain.config(1)).run().error();
    assert!(code == 7 && said.starts_with("missing prevResult from earlier plugin"), "{said}");
}

#[test]
fn go_and_ours_take_over_each_others_vrfs() {
    if !needs("vrf") {
        return;
    }
    for (maker, other) in [(ours(), GO.to_string()), (GO.to_string(), ours())] {
        let node = Node::new();
        let pod = node.pod("blue");
        let chain = |path: &String| {
            let mut chain = in_vrf(5, json!({"table": 50}));
            // Debian's version 1.1.1 loses all routes that the kernel drops, and CHECK would report them.
            chain.plugins[0]["isDefaultGateway"] = json!(false);
            chain.plugins[0]["isGateway"] = json!(true);
            Chain { path: path.clone(), version: "1.0.0".into(), ..chain }
        };
        let result = chain(&maker).add(&node, &pod);
        // Go's bridge looks for its routes in the main table only.
        let call = Invocation::new(&node, &other, "CHECK", &pod, &chain(&other).config(1)).prev(&result);
        assert_eq!(call.run().status, 0, "{other}: {}", call.run().stdout);
        assert_eq!(table(&node, &pod, "red"), 50);
        chain(&other).del(&node, &pod, Some(&result));
        assert!(!node.can("ip -n blue link show red") && !node.can("ip -n blue link show eth0"), "{other}");
    }
}

/// Needs no VRF of the kernel's.
#[test]
fn a_kernel_without_vrfs_takes_no_pods_and_lets_them_go() {
    let node = Node::new();
    let chain = network("net", &json!({"type": "vrf", "vrfname": "red"}));
    let said = status(&node, &chain);
    if node.can("ip link add probe type vrf table 10") {
        assert_eq!(said.status, 0, "{}", said.stdout)
    } else {
        assert_eq!(said.error().0, 50, "{}", said.stdout)
    }
    let pod = node.pod("blue");
    chain.del(&node, &pod, None);
    chain.del(&node, &Pod { netns: String::new(), ..pod.clone() }, None);
    node.remove(&pod);
    chain.del(&node, &pod, None);
    chain.gc(&node, &[]);
}
