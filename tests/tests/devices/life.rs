//! An attachment from ADD to DEL, for each of the plugins and each choice of address families.

use podwire_tests::{assert_same, needs, ours, Chain, Invocation, Node, Pod};
use serde_json::{json, Value};

use crate::host_device::{create_device, DEVICE};
use crate::relay::{Relay, PLAIN};
use crate::{addresses, status, without_netns, Families};

/// A plugin in a chain.
struct Row {
    kind: &'static str,
    /// The drivers that the kernel needs.
    driver: &'static str,
    plugins: fn(Families) -> Vec<Value>,
    /// Prepares the node.
    prepare: fn(&Node),
    /// Panics if packets do not flow.
    talk: fn(&Node, &Pod, &Value, Families),
    /// A script that damages the pod `blue`, and the text of CHECK.
    damages: &'static [(&'static str, &'static str)],
}

const ROWS: &[Row] = &[
    Row {
        kind: "host-device",
        driver: "veth",
        plugins: |families| vec![json!({"type": "host-device", "device": DEVICE, "ipam": families.pool()})],
        prepare: |node| drop(create_device(node)),
        talk: talk_to_neighbour,
        damages: &[
            ("ip -n blue link set eth0 down", "eth0 is down"),
            ("ip -n blue address flush dev eth0", "lacks address"),
            ("ip -n blue route flush dev eth0; ip -n blue -6 route flush dev eth0", "is missing"),
            ("ip -n blue link set eth0 address 02:00:00:00:00:99", "02:00:00:00:00:99"),
            ("ip -n blue link set eth0 down; ip -n blue link set eth0 name other", "called other"),
            ("ip -n blue link set eth0 alias ''", "lost its alias"),
            ("ip -n blue link set eth0 down; ip -n blue link set eth0 name hostdev0; ip -n blue link set hostdev0 netns $$", "on the node"),
            ("rm /var/lib/cni/networks/net-host-device/[1f]*", "host-local"),
        ],
    },
    Row {
        kind: "tap",
        driver: "tun",
        plugins: |families| {
            vec![json!({"type": "tap", "mtu": 1400, "owner": 1234, "group": 5678, "ipam": families.pool()})]
        },
        prepare: |_| {},
        talk: talk_through_taps,
        damages: &[
            ("ip -n blue link set eth0 down", "eth0 is down"),
            ("ip -n blue address flush dev eth0", "lacks address"),
            ("ip -n blue route flush dev eth0; ip -n blue -6 route flush dev eth0", "is missing"),
            ("ip -n blue link set eth0 address 02:00:00:00:00:99", "02:00:00:00:00:99"),
            ("ip -n blue link set eth0 mtu 1300", "MTU is 1300, not 1400"),
            ("ip -n blue link delete eth0", "no interface eth0"),
            ("ip -n blue link delete eth0; ip -n blue tuntap add mode tap name eth0", "owner is unset, not 1234"),
            ("ip -n blue link delete eth0; ip -n blue link add eth0 type bridge", "not a TAP device but bridge"),
        ],
    },
    Row {
        kind: "vrf",
        driver: "vrf",
        plugins: |families| vec![behind_bridge(families), json!({"type": "vrf", "vrfname": "red"})],
        prepare: |_| {},
        talk: talk_in_vrf,
        damages: &[
            ("ip -n blue link set eth0 nomaster", "eth0 associated to vrf red"),
            ("ip -n blue link set red down", "red is down"),
            ("ip -n blue link delete red", "no VRF red"),
            ("for f in -4 -6; do ip -n blue $f route flush table 1 proto boot; done", "in table 1 of the VRF"),
        ],
    },
];

fn behind_bridge(families: Families) -> Value {
    json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": families.pool()})
}

fn talk_to_neighbour(node: &Node, pod: &Pod, result: &Value, families: Families) {
    let neighbour = Pod { name: "neighbour".into(), netns: "/run/netns/neighbour".into() };
    for host in families.neighbours() {
        assert!(node.pings(Some(pod), host), "{} cannot reach {host}", pod.name);
    }
    for host in addresses(result) {
        assert!(node.pings(Some(&neighbour), &host), "the neighbour cannot reach {host}");
    }
}

/// Another pod of the network, behind the other end of a link that a program relays.
fn talk_through_taps(node: &Node, pod: &Pod, result: &Value, families: Families) {
    let chain = chain(&ROWS[1], families);
    let other = node.pod("other");
    let in_other = chain.add(node, &other);
    {
        let _relay = Relay::open(node, PLAIN, &[pod, &other]).expect("the devices can be opened");
        for (from, hosts) in [(pod, addresses(&in_other)), (&other, addresses(result))] {
            for host in hosts {
                assert!(node.pings(Some(from), &host), "{} cannot reach {host}", from.name);
            }
        }
    }
    chain.del(node, &other, Some(&in_other));
    node.remove(&other);
}

fn talk_in_vrf(node: &Node, pod: &Pod, result: &Value, families: Families) {
    for host in families.neighbours() {
        let ping = |device: &str| format!("ip netns exec {} ping -q -c 1 -W 5 {device} {host}", pod.name);
        assert!(node.can(&ping("-I red")), "{host} in the VRF");
        assert!(!node.can(&ping("")), "{host} is known in the VRF only");
    }
    for host in addresses(result) {
        assert!(node.pings(None, &host), "the node cannot reach {host}");
    }
}

fn chain(row: &Row, families: Families) -> Chain {
    let name = format!("net-{}", row.kind);
    Chain { version: "1.1.0".into(), ..Chain::new(&ours(), &name, &(row.plugins)(families)) }
}

/// A state without the device: the kernel deletes a veth with the pod's namespace, unlike a physical device.
fn without_device(state: &str) -> String {
    state.lines().filter(|line| !line.contains("hostdev")).map(|line| format!("{line}\n")).collect()
}

/// Every row that this kernel can run, with each choice of families, on a node where a pod was attached and detached.
fn for_each(kind: &str, test: impl Fn(&Row, &Node, &Chain, Families)) {
    let row = ROWS.iter().find(|row| row.kind == kind).expect("a row");
    if !needs(row.driver) {
        return;
    }
    for families in Families::ALL {
        let node = Node::new();
        (row.prepare)(&node);
        let (chain, first) = (chain(row, families), node.pod("first"));
        let result = chain.add(&node, &first);
        chain.del(&node, &first, Some(&result));
        node.remove(&first);
        test(row, &node, &chain, families);
    }
}

fn lives(kind: &str) {
    for_each(kind, |row, node, chain, families| {
        let what = format!("{kind} {families:?}");
        let blue = node.pod("blue");
        let before = node.state(&blue);
        assert_eq!(status(node, chain).status, 0, "{what}: {}", status(node, chain).stdout);
        let result = chain.add(node, &blue);
        (row.talk)(node, &blue, &result, families);
        chain.check(node, &blue, &result).unwrap_or_else(|failed| panic!("{what}: {}", failed.stdout));
        chain.gc(node, &[("blue", "eth0")]);
        chain
            .check(node, &blue, &result)
            .unwrap_or_else(|failed| panic!("{what} after GC: {}", failed.stdout));
        (row.talk)(node, &blue, &result, families);
        for n in 1..3 {
            chain.del(node, &blue, Some(&result));
            assert_same(&before, &node.state(&blue), &format!("{what}, DEL number {n}"));
        }
        chain.del(node, &without_netns(&blue), None);
        assert_same(&before, &node.state(&blue), &format!("{what}, DEL of what is gone"));
    });
}

fn is_noticed(kind: &str) {
    for_each(kind, |row, node, chain, families| {
        for (damage, complaint) in row.damages {
            let what = format!("{kind} {families:?} {damage}");
            let blue = node.pod("blue");
            let before = node.leftovers();
            let result = chain.add(node, &blue);
            node.sh(damage);
            let last = chain.config(chain.plugins.len() - 1);
            let checked = Invocation::new(node, &chain.path, "CHECK", &blue, &last).prev(&result).run();
            let (_, text) = checked.error();
            assert!(text.contains(complaint), "{what}: {text}");
            chain.del(node, &blue, Some(&result));
            assert_same(&before, &node.leftovers(), &what);
            node.remove(&blue);
            if row.kind == "host-device" && !node.can(&format!("ip link show {DEVICE}")) {
                panic!("{what}: the device did not come home");
            }
        }
    });
}

fn leaves_nothing(kind: &str) {
    for_each(kind, |row, node, chain, families| {
        let what = format!("{kind} {families:?}");
        let before = node.leftovers();
        let blue = node.pod("blue");
        let result = chain.add(node, &blue);
        chain.del(node, &without_netns(&blue), Some(&result));
        assert_same(&before, &node.leftovers(), &format!("{what} without a namespace"));
        node.remove(&blue);

        let blue = node.pod("blue");
        chain.add(node, &blue);
        chain.gc(node, &[]);
        let leases = node.sh("cd /var/lib/cni/networks && find . -name '[1f][0d]*'");
        assert_eq!(leases, "", "{what}: GC releases leases of invalid attachments");
        chain.del(node, &blue, None);
        assert_same(&before, &node.leftovers(), &format!("{what} after GC"));
        node.remove(&blue);

        let blue = node.pod("blue");
        let result = chain.add(node, &blue);
        node.remove(&blue);
        chain.del(node, &blue, Some(&result));
        let after = node.leftovers();
        assert_same(
            &without_device(&before),
            &without_device(&after),
            &format!("{what} whose namespace vanished"),
        );
        let _ = row;
    });
}

#[test]
fn a_host_device_is_moved_carries_packets_and_is_moved_back() {
    lives("host-device");
}

#[test]
fn a_tap_device_is_created_carries_packets_and_is_deleted() {
    lives("tap");
}

#[test]
fn an_interface_joins_a_vrf_talks_in_it_and_leaves() {
    lives("vrf");
}

#[test]
fn check_notices_every_damage_of_a_host_device() {
    is_noticed("host-device");
}

#[test]
fn check_notices_every_damage_of_a_tap_device() {
    is_noticed("tap");
}

#[test]
fn check_notices_every_damage_of_a_vrf() {
    is_noticed("vrf");
}

#[test]
fn a_host_device_is_moved_back_without_records() {
    leaves_nothing("host-device");
}

#[test]
fn a_tap_device_leaves_nothing_without_records() {
    leaves_nothing("tap");
}

#[test]
fn a_vrf_leaves_nothing_without_records() {
    leaves_nothing("vrf");
}
