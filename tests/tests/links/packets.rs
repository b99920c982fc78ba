//! Real packets: between pods, and between a pod and the link.

use podwire_tests::Pod;

use super::*;

#[test]
fn pods_reach_each_other_and_the_outside_link() {
    for kind in ["macvlan", "ipvlan"].into_iter().filter(|kind| needs(kind)) {
        let (node, outside) = node_for(kind);
        let chain = network("net", &config(kind, &[V4, V6]));
        let (a, b) = (node.pod("a"), node.pod("b"));
        let (in_a, in_b) = (chain.add(&node, &a), chain.add(&node, &b));
        for n in [0, 1] {
            assert!(node.pings(Some(&a), address(&in_b, n)), "{kind}: from pod to pod");
            assert!(node.pings(Some(&b), ["10.5.0.1", "fd05::1"][n]), "{kind}: to the uplink");
            assert!(node.pings(Some(&outside), address(&in_a, n)), "{kind}: from the uplink");
        }
        let listener = node.listen(Some(&a), "tcp/80");
        let expected = |result: &Value| format!("a {}", address(result, 0));
        assert_eq!(node.ask(Some(&b), address(&in_a, 0), "tcp/80"), expected(&in_b), "{kind}");
        assert_eq!(node.ask(Some(&outside), address(&in_a, 0), "tcp/80"), "a 10.5.0.1", "{kind}");
        drop(listener);
        chain.del(&node, &a, Some(&in_a));
        assert!(
            !node.can(&format!("ip netns exec outside ping -q -c 1 -W 1 {}", address(&in_a, 0))),
            "{kind}"
        );
        assert!(node.pings(Some(&outside), address(&in_b, 0)), "{kind}: its sibling stays");
    }
}

#[test]
fn a_vlan_is_reached_and_no_other() {
    if !needs("vlan") {
        return;
    }
    let (node, outside) = node_for("vlan");
    let (a, b, c) = (node.pod("a"), node.pod("b"), node.pod("c"));
    let in_a = network("red", &config("vlan", &[V4, V6])).add(&node, &a);
    assert!(node.pings(Some(&a), "10.5.0.1") && node.pings(Some(&a), "fd05::1"));
    assert!(node.pings(Some(&outside), address(&in_a, 0)) && node.pings(Some(&outside), address(&in_a, 1)));
    let other = with(fixed("vlan", "10.5.0.30/24"), json!({"vlanId": 6}));
    network("blue", &other).add(&node, &b);
    assert!(!node.can("ip netns exec b ping -q -c 1 -W 1 10.5.0.1"), "another VLAN");

    // A VLAN id can be used once: the second ADD fails and leaves nothing.
    let before = node.state(&c);
    let (code, msg) = network("red", &config("vlan", &[V4])).try_add(&node, &c).expect_err("taken").error();
    assert!(code == 100 && msg.starts_with("failed to create vlan"), "{code} {msg}");
    podwire_tests::assert_same(&before, &node.state(&c), "the second pod of a VLAN");

    // From pod to pod, over a veth pair with both ends on the node.
    node.sh("ip link add left type veth peer name right; ip link set left up; ip link set right up");
    let on =
        |master: &str, address: &str| with(fixed("vlan", address), json!({"master": master, "vlanId": 7}));
    let (d, e) = (node.pod("d"), node.pod("e"));
    network("left", &on("left", "10.7.0.1/24")).add(&node, &d);
    network("right", &on("right", "10.7.0.2/24")).add(&node, &e);
    assert!(node.pings(Some(&d), "10.7.0.2") && node.pings(Some(&e), "10.7.0.1"));
}

#[test]
fn modes_decide_who_sees_whom() {
    // Plugin, keys, whether pods reach each other.
    let cases = [
        ("macvlan", json!({"mode": "bridge"}), true),
        ("macvlan", json!({"mode": "private"}), false),
        ("macvlan", json!({"mode": "vepa"}), false),
        ("ipvlan", json!({"mode": "l2"}), true),
        ("ipvlan", json!({"mode": "l3"}), true),
        ("ipvlan", json!({"mode": "l3s"}), true),
        ("ipvlan", json!({"mode": "l2", "flag": "private"}), false),
        ("ipvlan", json!({"mode": "l2", "flag": "vepa"}), false),
    ];
    for (kind, keys, sees) in cases.into_iter().filter(|(kind, ..)| needs(kind)) {
        let (node, outside) = node_for(kind);
        let chain = network("net", &with(config(kind, &[V4]), keys.clone()));
        let pods: Vec<Pod> = ["a", "b"].iter().map(|name| node.pod(name)).collect();
        let results: Vec<_> = pods.iter().map(|pod| chain.add(&node, pod)).collect();
        let other = address(&results[1], 0);
        // Expected packets have a longer timeout.
        let timeout = if sees { 5 } else { 1 };
        let reached = node.can(&format!("ip netns exec a ping -q -c 2 -i 0.2 -W {timeout} {other}"));
        assert_eq!(reached, sees, "{kind} {keys}");
        // Routing modes need a route on the other side, because the master's address is used for all pods.
        if !keys["mode"].as_str().is_some_and(|mode| mode.starts_with("l3")) {
            assert!(node.pings(Some(&outside), address(&results[0], 0)), "{kind} {keys}");
        }
        for (pod, result) in pods.iter().zip(&results) {
            chain.check(&node, pod, result).unwrap_or_else(|said| panic!("{kind} {keys}: {}", said.stdout));
        }
    }
}

#[test]
fn an_address_in_use_on_the_link_fails() {
    for kind in children() {
        let (node, _) = node_for(kind);
        let pod = node.pod("blue");
        let before = node.state(&pod);
        let chain = network("net", &fixed(kind, "fd05::1/64"));
        let (_, msg) = chain.try_add(&node, &pod).expect_err("a duplicate").error();
        assert!(msg.contains("fd05::1 is used by another host"), "{kind}: {msg}");
        podwire_tests::assert_same(&before, &node.state(&pod), kind);
        // Without a carrier, duplicate address detection finds nothing.
        node.sh("ip -n outside link set far down");
        let result = chain.add(&node, &pod);
        chain.del(&node, &pod, Some(&result));
    }
}

#[test]
fn a_pod_without_addresses_has_the_link() {
    for kind in ["macvlan", "vlan"].into_iter().filter(|kind| needs(kind)) {
        let (node, _) = node_for(kind);
        let (chain, pod) = (network("net", &bare(kind)), node.pod("blue"));
        let before = node.state(&pod);
        let result = chain.add(&node, &pod);
        assert!(result.get("ips").is_none_or(|ips| ips.as_array().is_some_and(Vec::is_empty)), "{result}");
        chain.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{kind}: {}", said.stdout));
        node.sh("ip -n blue address add 10.5.0.40/24 dev eth0");
        assert!(node.pings(Some(&pod), "10.5.0.1"), "{kind}");
        chain.gc(&node, &[]);
        chain.del(&node, &pod, Some(&result));
        podwire_tests::assert_same(&before, &node.state(&pod), kind);
    }
}

#[test]
fn a_master_may_be_in_the_pod() {
    for kind in children() {
        let (node, outside) = node_for(kind);
        // The uplink itself is in the pod, as if host-device had moved it.
        let pod = node.pod("blue");
        node.sh("ip link set uplink netns blue && ip -n blue link set uplink up");
        node.settle(std::slice::from_ref(&pod));
        let before = node.state(&pod);
        let chain = network("net", &with(config(kind, &[V4, V6]), json!({"linkInContainer": true})));
        let result = chain.add(&node, &pod);
        chain.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{kind}: {}", said.stdout));
        assert!(
            node.pings(Some(&pod), "10.5.0.1") && node.pings(Some(&outside), address(&result, 1)),
            "{kind}"
        );
        chain.del(&node, &pod, Some(&result));
        podwire_tests::assert_same(&before, &node.state(&pod), kind);

        node.sh("ip -n blue link delete uplink");
        let (code, msg) = chain.try_add(&node, &pod).expect_err("no master").error();
        assert!(code == 7 && msg.ends_with("Link not found"), "{msg}");
    }
}
