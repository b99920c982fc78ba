//! DEL always succeeds and leaves nothing, whatever happened to the pod before, for every plugin type that the kernel
//! has a driver for.

use podwire_tests::{assert_same, check_rows, differences, ours, types, Chain, Invocation, Node, Pod};
use serde_json::{json, Value};

mod rows;

use rows::*;

/// A node where a pod of that network was attached and detached, so that what stays by design, the bridge and empty
/// tables, exists.
fn prepared(row: &Row) -> (Node, Chain) {
    let node = node_for(row);
    let chain = Chain::new(&ours(), &format!("net-{}", row.kind), &row.plugins);
    let first = node.pod("first");
    let result = chain.add(&node, &first);
    chain.del(&node, &first, Some(&result));
    node.remove(&first);
    (node, chain)
}

fn for_every_type(test: impl Fn(&Row, &Node, &Chain)) {
    check_rows(
        rows(),
        |row| row.kind.to_string(),
        |row| {
            let (node, chain) = prepared(&row);
            test(&row, &node, &chain);
        },
    );
}

/// All failures of a row's ADD.
fn for_every_failure(rows: impl Iterator<Item = Row>, test: impl Fn(&Row, &Failure)) {
    check_rows(
        rows,
        |row| row.kind.to_string(),
        |row| {
            check_rows(&row.failures, |failure| failure.because.to_string(), |failure| test(&row, failure));
        },
    );
}

fn without_netns(pod: &Pod) -> Pod {
    Pod { netns: String::new(), ..pod.clone() }
}

/// If the harness did not list an object, every plugin could leave it behind, and no test would fail.
#[test]
fn every_kind_of_leftover_is_detected() {
    let node = Node::new();
    let pod = node.pod("blue");
    let before = node.state(&pod);
    node.sh("ip link add left0 type veth peer name left1 && ip link set left0 up && ip link set left1 up
        ip address add 10.6.0.1/24 dev left0 && ip address add fd06::1/64 dev left0 nodad
        ip route add 198.51.100.0/24 via 10.6.0.9 && ip route add 2001:db8:7::/64 via fd06::9 table 77
        ip rule add from 10.6.0.7 table 77 && ip -6 rule add from fd06::7 table 77
        tc qdisc add dev left0 root handle 1: tbf rate 1mbit burst 10k latency 10ms
        nft 'table ip left { set who { type ipv4_addr; elements = { 10.6.0.7 }; }; }'
        iptables -N CNI-LEFT && iptables -A CNI-LEFT -s 10.6.0.7 -j ACCEPT
        mkdir -p /var/lib/cni/left && touch /var/lib/cni/left/file
        ip -n blue link add left2 type veth peer name left3 && ip -n blue link set left2 up
        ip -n blue address add fd06::2/64 dev left2 nodad && ip -n blue rule add from 10.6.0.8 table 78
        ip -n blue -6 route add 2001:db8:8::/64 dev left2 && ip netns exec blue sh -c 'echo 99 >/proc/sys/net/core/somaxconn'");
    let found = differences(&before, &node.state(&pod));
    for trace in [
        "link left0 veth",
        "route 198.51.100.0/24 dev left0 table",
        "route 2001:db8:7::/64 dev left0 table 77",
        "\"src\":\"10.6.0.7\"",
        "\"src\":\"fd06::7\"",
        "queue tbf of left0",
        "element of ip left who",
        "-A CNI-LEFT -s 10.6.0.7/32 -j ACCEPT",
        "/var/lib/cni/left/file",
        "link left2 veth",
        "address fd06::2/64",
        "\"src\":\"10.6.0.8\"",
        "route 2001:db8:8::/64 dev left2",
        "+ somaxconn 99",
        "- somaxconn ",
    ] {
        assert!(found.contains(trace), "{trace:?} is not seen:{found}");
    }
}

#[test]
fn every_plugin_type_has_a_row() {
    let mut rows: Vec<_> = all_rows().iter().map(|row| row.kind.to_string()).collect();
    rows.sort();
    assert_eq!(rows, types());
}

#[test]
fn a_pod_that_is_detached_leaves_nothing() {
    for_every_type(|row, node, chain| {
        let pod = node.pod("blue");
        let before = node.state(&pod);
        let result = chain.add(node, &pod);
        chain.del(node, &pod, Some(&result));
        assert_same(&before, &node.state(&pod), row.kind);
    });
}

#[test]
fn del_without_a_namespace_leaves_nothing() {
    for_every_type(|row, node, chain| {
        let (before, pod) = (node.leftovers(), node.pod("blue"));
        let result = chain.add(node, &pod);
        chain.del(node, &without_netns(&pod), Some(&result));
        assert_same(&before, &node.leftovers(), row.kind);
    });
}

#[test]
fn a_pod_whose_namespace_has_vanished_leaves_nothing() {
    for_every_type(|row, node, chain| {
        let (before, pod) = (remains(row, node), node.pod("blue"));
        let result = chain.add(node, &pod);
        node.remove(&pod);
        chain.del(node, &pod, Some(&result));
        assert_same(&before, &remains(row, node), row.kind);
    });
}

#[test]
fn a_pod_whose_namespace_has_become_a_plain_file_leaves_nothing() {
    for_every_type(|row, node, chain| {
        let (before, pod) = (remains(row, node), node.pod("blue"));
        let result = chain.add(node, &pod);
        // `ip netns` leaves this file when only the mount is removed.
        node.sh(&format!("umount {} && test -f {}", pod.netns, pod.netns));
        chain.del(node, &pod, Some(&result));
        assert_same(&before, &remains(row, node), row.kind);
    });
}

#[test]
fn a_pod_may_be_detached_again_and_again() {
    for_every_type(|row, node, chain| {
        let pod = node.pod("blue");
        let before = node.state(&pod);
        let result = chain.add(node, &pod);
        for _ in 0..2 {
            chain.del(node, &pod, Some(&result));
            assert_same(&before, &node.state(&pod), row.kind);
        }
        chain.del(node, &pod, None);
        chain.del(node, &without_netns(&pod), None);
        assert_same(&before, &node.state(&pod), row.kind);
    });
}

#[test]
fn a_pod_of_which_nothing_was_remembered_leaves_nothing() {
    for_every_type(|row, node, chain| {
        let pod = node.pod("blue");
        let before = node.state(&pod);
        chain.add(node, &pod);
        chain.del(node, &pod, None);
        assert_same(&before, &node.state(&pod), row.kind);
    });
}

#[test]
fn a_pod_of_which_nothing_is_left_to_go_by_leaves_nothing() {
    for_every_type(|row, node, chain| {
        let (before, pod) = (remains(row, node), node.pod("blue"));
        chain.add(node, &pod);
        node.remove(&pod);
        chain.del(node, &without_netns(&pod), None);
        assert_same(&before, &remains(row, node), row.kind);
    });
}

#[test]
fn a_pod_that_never_was_attached_is_detached() {
    check_rows(
        rows(),
        |row| row.kind.to_string(),
        |row| {
            let node = node_for(&row);
            let chain = Chain::new(&ours(), "never", &row.plugins);
            let before = node.leftovers();
            chain.del(&node, &node.pod("blue"), None);
            assert_same(&before, &node.leftovers(), row.kind);
        },
    );
}

#[test]
fn an_add_that_fails_leaves_nothing_and_its_del_succeeds() {
    for_every_failure(rows().into_iter(), |row, Failure { because, spoil }| {
        let (node, mut chain) = prepared(row);
        let pod = node.pod("blue");
        spoil(&node, &pod, &mut chain);
        let before = node.state(&pod);
        let (code, text) = chain.try_add(&node, &pod).expect_err(because).error();
        let context = format!("{}: {because}: {code} {text}", row.kind);
        // The plugins before the failed one have done their work; the failed one undoes its own.
        if row.plugins.len() == 1 {
            assert_same(&before, &node.state(&pod), &context);
        }
        for _ in 0..2 {
            chain.del(&node, &pod, None);
            assert_same(&before, &node.state(&pod), &context);
        }
    });
}

#[test]
fn a_chained_add_that_fails_takes_its_own_back_before_any_del() {
    let chained = rows().into_iter().filter(|row| row.plugins.len() > 1);
    for_every_failure(chained, |row, Failure { because, spoil }| {
        let (node, mut chain) = prepared(row);
        let pod = node.pod("blue");
        spoil(&node, &pod, &mut chain);
        let earlier = Chain { plugins: chain.plugins[..1].to_vec(), ..chain.clone() };
        let result = earlier.add(&node, &pod);
        let before = node.state(&pod);
        let call = Invocation::new(&node, &chain.path, "ADD", &pod, &chain.config(1)).prev(&result);
        let (code, text) = call.run().error();
        assert_same(&before, &node.state(&pod), &format!("{}: {because}: {code} {text}", row.kind));
    });
}

/// Two networks with all objects that could be confused: veth pair, source rules, limits, backup.
#[test]
fn del_after_a_failed_add_keeps_the_attachment_with_the_same_name() {
    let node = Node::new();
    let chain = |name: &str, main: Value| {
        let limits = json!({"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000,
            "egressRate": 8_000_000, "egressBurst": 800_000});
        let tuned = json!({"type": "tuning", "mtu": 1400});
        Chain::new(&ours(), name, &[main, limits, tuned, json!({"type": "sbr"})])
    };
    let pool = json!({"type": "host-local", "subnet": "10.8.0.0/24"});
    let (first, second) = (chain("first", json!({"type": "ptp", "ipam": pool})), chain("second", bridge()));
    let warm = node.pod("warm");
    let result = second.add(&node, &warm);
    second.del(&node, &warm, Some(&result));
    let pod = node.pod("blue");
    let result = first.add(&node, &pod);
    let before = node.state(&pod);
    second.try_add(&node, &pod).expect_err("the name is taken");
    second.del(&node, &pod, None);
    assert_same(&before, &node.state(&pod), "after DEL of the second network");
    first.check(&node, &pod, &result).unwrap_or_else(|failed| panic!("{}", failed.stdout));
}

/// The end of a veth pair that host-device moved into the pod has its old name as its alias.
#[test]
fn del_after_a_failed_add_keeps_a_device_that_another_attachment_holds() {
    for row in rows().iter().filter(|row| ["bridge", "ptp"].contains(&row.kind)) {
        let (node, chain) = prepared(row);
        let pod = node.pod("blue");
        node.sh("ip link add hostdev0 type veth peer name hostdev1
             ip link set hostdev0 netns blue && ip -n blue link set hostdev0 name eth0 alias hostdev0");
        let before = node.state(&pod);
        chain.try_add(&node, &pod).expect_err("the name is taken");
        chain.del(&node, &pod, None);
        assert_same(&before, &node.state(&pod), row.kind);
    }
}
