//! DEL always succeeds and leaves nothing, whatever became of the pod meanwhile: for every plugin type that the kernel
//! has a driver for.

use podwire_tests::{assert_same, ours, should_try, types, Chain, Invocation, Node, Pod};
use serde_json::{json, Value};

/// A plugin type, at the end of a chain in which it makes sense.
struct Row {
    kind: &'static str,
    plugins: Vec<Value>,
    failures: Vec<Failure>,
}

/// A way to make the ADD of a row fail, as late as possible.
struct Failure {
    because: &'static str,
    /// Spoils the node, the pod or the config.
    spoil: fn(&Node, &Pod, &mut Chain),
}

fn failure(because: &'static str, spoil: fn(&Node, &Pod, &mut Chain)) -> Failure {
    Failure { because, spoil }
}

fn bridge() -> Value {
    json!({"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true,
        "hairpinMode": true, "ipam": {"type": "host-local", "ranges": [
            [{"subnet": "10.7.0.0/24"}], [{"subnet": "fd07::/64"}]]}})
}

/// What flanneld would write.
const SUBNET: &str =
    "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";

/// A fresh machine, on which flanneld has been.
fn node() -> Node {
    let node = Node::new();
    node.write("/run/test/subnet.env", SUBNET);
    node
}

fn behind_bridge(kind: &str, mut config: Value) -> Vec<Value> {
    config["type"] = json!(kind);
    vec![bridge(), config]
}

/// An interface that hangs on the wire (or on nothing).
fn hanging(kind: &'static str, mut config: Value) -> Row {
    config["type"] = json!(kind);
    config["ipam"] = json!({"type": "host-local", "ranges": [[{"subnet": "10.5.0.0/24"}]]});
    let mut failures = vec![
        failure("the pod has an interface of that name", taken_by_a_stranger),
        failure("another network's interface has that name", taken_by_another_network),
        failure("the second pool is full", full_pool),
        failure("a route of the pool leads nowhere", |_, _, chain| {
            chain.plugins[0]["ipam"]["routes"] = json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}]);
        }),
    ];
    if kind != "dummy" {
        failures.push(failure("the master is gone", |node, _, _| drop(node.sh("ip link delete wire"))));
        failures.push(failure(
            "another network's interface of the same kind has that name",
            |node, pod, chain| {
                let mut other = Chain { name: "other".into(), ..chain.clone() };
                other.plugins[0]["vlanId"] = json!(6);
                other.add(node, pod);
            },
        ));
    }
    Row { kind, plugins: vec![config], failures }
}

/// The rows of the types that are to be tried on this kernel.
fn rows() -> Vec<Row> {
    all_rows().into_iter().filter(|row| should_try(row.kind)).collect()
}

fn all_rows() -> Vec<Row> {
    let pool =
        json!({"type": "host-local", "ranges": [[{"subnet": "10.8.0.0/24"}], [{"subnet": "fd08::/64"}]]});
    let fixed = json!({"type": "static", "addresses": [{"address": "10.9.0.5/24", "gateway": "10.9.0.1"}]});
    vec![
        Row {
            kind: "bridge",
            plugins: vec![bridge()],
            failures: vec![
                failure("the pod has an interface of that name", taken_by_a_stranger),
                failure("another network's interface has that name", taken_by_another_network),
                failure("the second pool is full", full_pool),
                failure("the bridge has another address", |node, _, _| {
                    node.sh("ip address flush dev br0 && ip address add 192.0.2.1/24 dev br0");
                }),
                failure("a route of the pool leads nowhere", |_, _, chain| {
                    chain.plugins[0]["ipam"]["routes"] =
                        json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}]);
                }),
            ],
        },
        Row {
            kind: "ptp",
            plugins: vec![json!({"type": "ptp", "ipMasq": true, "ipam": pool})],
            failures: vec![
                failure("the pod has an interface of that name", taken_by_a_stranger),
                failure("another network's interface has that name", taken_by_another_network),
                failure("the second pool is full", full_pool),
                failure("a route of the pool leads nowhere", |_, _, chain| {
                    chain.plugins[0]["ipam"]["routes"] =
                        json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}]);
                }),
            ],
        },
        Row {
            kind: "host-device",
            plugins: vec![json!({"type": "host-device", "device": "lent0", "ipam": pool})],
            failures: vec![
                failure("the pod has an interface of that name", taken_by_a_stranger),
                failure("another network's interface has that name", taken_by_another_network),
                failure("a route of the pool leads nowhere", |_, _, chain| {
                    chain.plugins[0]["ipam"]["routes"] =
                        json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}]);
                }),
                failure("another pod has the device", |node, _, chain| {
                    chain.add(node, &node.pod("holder"));
                }),
                failure("there is no such device", |_, _, chain| {
                    chain.plugins[0]["device"] = json!("nowhere");
                }),
            ],
        },
        Row {
            kind: "tap",
            plugins: vec![json!({"type": "tap", "multiQueue": true, "owner": 1000, "ipam": pool})],
            failures: vec![
                failure("the pod has an interface of that name", taken_by_a_stranger),
                failure("another network's interface has that name", taken_by_another_network),
                failure("the second pool is full", full_pool),
                failure("the pod has no such bridge", |_, _, chain| {
                    chain.plugins[0]["bridge"] = json!("br7");
                }),
                failure("a route of the pool leads nowhere", |_, _, chain| {
                    chain.plugins[0]["ipam"]["routes"] =
                        json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}]);
                }),
            ],
        },
        Row {
            kind: "vrf",
            plugins: behind_bridge("vrf", json!({"vrfname": "red"})),
            failures: vec![
                failure("the VRF has another table", |node, pod, chain| {
                    node.sh(&format!("ip -n {} link add red type vrf table 9", pod.name));
                    chain.plugins[1]["table"] = json!(10);
                }),
                failure("the VRF's name is a bridge's", |node, pod, _| {
                    node.sh(&format!("ip -n {} link add red type bridge", pod.name));
                }),
            ],
        },
        Row {
            kind: "loopback",
            plugins: vec![json!({"type": "loopback"})],
            failures: vec![failure("lo has an address of the world", |node, pod, _| {
                node.sh(&format!("ip -n {} address add 192.0.2.1/32 dev lo", pod.name));
            })],
        },
        Row {
            kind: "host-local",
            plugins: vec![json!({"type": "host-local", "ipam": pool})],
            failures: vec![
                failure("the second pool is full", full_pool),
                failure("the disk is full", |node, _, chain| {
                    node.sh("mkdir -p /var/lib/small && mount -t tmpfs -o size=4k,nr_inodes=4 none /var/lib/small");
                    chain.plugins[0]["ipam"]["dataDir"] = json!("/var/lib/small");
                }),
            ],
        },
        Row {
            kind: "dhcp",
            plugins: vec![json!({"type": "bridge", "bridge": "lan0", "ipam": {"type": "dhcp"}})],
            failures: vec![
                failure("no server answers", |node, _, _| drop(node.sh("ip link set s0 down"))),
                failure("the pod has an interface of that name", taken_by_a_stranger),
            ],
        },
        Row {
            kind: "static",
            plugins: vec![json!({"type": "static", "ipam": fixed})],
            failures: vec![failure("the address is none", |_, _, chain| {
                chain.plugins[0]["ipam"]["addresses"] = json!([{"address": "10.9.0.5"}]);
            })],
        },
        Row {
            kind: "portmap",
            plugins: behind_bridge(
                "portmap",
                json!({"capabilities": {"portMappings": true}, "runtimeConfig": {"portMappings": [
                    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
                    {"hostPort": 5353, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"}]}}),
            ),
            failures: vec![failure("the port is taken", |node, _, chain| {
                let other = node.pod("holder");
                chain.add(node, &other);
                let ports = &mut chain.plugins[1]["runtimeConfig"]["portMappings"];
                // One that is free comes first.
                ports
                    .as_array_mut()
                    .expect("a list")
                    .insert(0, json!({"hostPort": 9090, "containerPort": 90}));
            })],
        },
        Row {
            kind: "firewall",
            plugins: behind_bridge("firewall", json!({"ingressPolicy": "same-bridge"})),
            failures: vec![failure("the administrator's chain can have no such name", |_, _, chain| {
                chain.plugins[1]["iptablesAdminChainName"] = json!("A".repeat(300));
            })],
        },
        Row {
            kind: "bandwidth",
            plugins: behind_bridge(
                "bandwidth",
                json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000}),
            ),
            failures: vec![failure("devices that are no detours have its names", |node, pod, chain| {
                for ifname in ["", "eth0"] {
                    let hash = format!("printf {}{}{ifname} | sha512sum | cut -c1-12", chain.name, pod.name);
                    node.sh(&format!("ip link add bwp$({hash}) type bridge"));
                }
            })],
        },
        Row {
            kind: "tuning",
            plugins: behind_bridge(
                "tuning",
                json!({"sysctl": {"net.core.somaxconn": "4000", "net.ipv4.conf.IFNAME.arp_filter": "1"},
                    "mtu": 1400, "promisc": true, "mac": "02:00:00:00:07:01"}),
            ),
            failures: vec![
                failure("there is no such sysctl", |_, _, chain| {
                    chain.plugins[1]["sysctl"]["net.nowhere"] = json!("1");
                }),
                failure("the kernel takes no such MTU", |_, _, chain| {
                    chain.plugins[1]["mtu"] = json!(70_000)
                }),
            ],
        },
        Row {
            kind: "flannel",
            plugins: vec![json!({"type": "flannel", "subnetFile": "/run/test/subnet.env",
                "delegate": {"bridge": "br0", "isDefaultGateway": true}})],
            failures: vec![
                failure("the pod has an interface of that name", taken_by_a_stranger),
                failure("another network's interface has that name", taken_by_another_network),
                failure("the node's part of the network has no address left", |node, _, chain| {
                    chain.name = "net-flannel-full".into();
                    let small = SUBNET.replace("10.5.1.1/24", "10.5.1.1/30");
                    node.write("/run/test/subnet.env", &small);
                    node.sh("ip link delete br0");
                    chain.add(node, &node.pod("holder"));
                }),
                failure("flanneld is away", |node, _, _| drop(node.sh("rm /run/test/subnet.env"))),
            ],
        },
        Row {
            kind: "debug",
            plugins: behind_bridge(
                "debug",
                json!({"addHooks": [["true"]], "delHooks": [["false"], ["nowhere"]], "checkHooks": [[]]}),
            ),
            failures: vec![failure("a hook is no list", |_, _, chain| {
                chain.plugins[1]["addHooks"] = json!(["true"]);
            })],
        },
        Row { kind: "noop", plugins: behind_bridge("noop", json!({})), failures: vec![] },
        Row {
            kind: "sbr",
            plugins: behind_bridge("sbr", json!({})),
            failures: vec![failure("the gateway cannot be reached", |_, _, chain| {
                chain.plugins[1]["gateways"] = json!(["203.0.113.1"]);
            })],
        },
        hanging("macvlan", json!({"master": "wire", "mtu": 1400})),
        hanging("ipvlan", json!({"master": "wire"})),
        hanging("vlan", json!({"master": "wire", "vlanId": 5})),
        hanging("dummy", json!({})),
    ]
}

fn taken_by_a_stranger(node: &Node, pod: &Pod, _: &mut Chain) {
    node.sh(&format!("ip -n {} link add eth0 type bridge", pod.name));
}

fn taken_by_another_network(node: &Node, pod: &Pod, chain: &mut Chain) {
    let ipam = json!({"type": "host-local", "subnet": "10.6.0.0/24"});
    Chain::new(&chain.path, "other", &[json!({"type": "ptp", "ipam": ipam})]).add(node, pod);
    // What is compared later must not change by itself.
    node.settle(std::slice::from_ref(pod));
}

/// The first pool of the network gives an address, the second one has none left.
fn full_pool(node: &Node, _: &Pod, chain: &mut Chain) {
    let one = json!([{"subnet": "fd10::/64", "rangeStart": "fd10::9", "rangeEnd": "fd10::9"}]);
    let ranges = chain.plugins[0]["ipam"]["ranges"][0].clone();
    chain.plugins[0]["ipam"]["ranges"] = json!([ranges, one]);
    chain.name = format!("{}-full", chain.name);
    chain.add(node, &node.pod("holder"));
}

/// A machine with what a row needs: a device to lend, which is an end of a cable.
fn node_for(row: &Row) -> Node {
    let node = node();
    node.lay_wire();
    if row.kind == "dhcp" {
        node.lan();
        node.accompany(node.dhcp_server("--dhcp-range=10.66.0.50,10.66.0.250,255.255.255.0,2m"));
        node.accompany(node.dhcp_daemon("--timeout 5s"));
    }
    if row.kind == "host-device" {
        node.sh("ip link add lent0 type veth peer name lent1 && ip link set lent0 up");
    }
    node
}

/// What is left on a node on which a pod's namespace is gone. A cable that was lent ends with it, unlike a card.
fn remains(row: &Row, node: &Node) -> String {
    let all = node.leftovers();
    let lent = |line: &&str| row.kind == "host-device" && line.starts_with("link lent");
    all.lines().filter(|line| !lent(line)).map(|line| format!("{line}\n")).collect()
}

/// A node where a pod of that network has come and gone: what stays of it by design, the bridge and empty
/// tables, is there already.
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
    for row in rows() {
        let (node, chain) = prepared(&row);
        test(&row, &node, &chain);
    }
}

fn without_netns(pod: &Pod) -> Pod {
    Pod { netns: String::new(), ..pod.clone() }
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
fn a_pod_whose_namespace_is_not_told_leaves_nothing() {
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
        // What `ip netns` leaves when only the mount is gone.
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
    for row in rows() {
        let node = node_for(&row);
        let chain = Chain::new(&ours(), "never", &row.plugins);
        let before = node.leftovers();
        chain.del(&node, &node.pod("blue"), None);
        assert_same(&before, &node.leftovers(), row.kind);
    }
}

#[test]
fn an_add_that_fails_leaves_nothing_and_its_del_succeeds() {
    for row in rows() {
        for Failure { because, spoil } in &row.failures {
            let (node, mut chain) = prepared(&row);
            let pod = node.pod("blue");
            spoil(&node, &pod, &mut chain);
            let before = node.state(&pod);
            let (code, text) = chain.try_add(&node, &pod).expect_err(because).error();
            let context = format!("{}: {because}: {code} {text}", row.kind);
            // Plugins before the one that failed have done their work; a failed one takes its own back.
            if row.plugins.len() == 1 {
                assert_same(&before, &node.state(&pod), &context);
            }
            for _ in 0..2 {
                chain.del(&node, &pod, None);
                assert_same(&before, &node.state(&pod), &context);
            }
        }
    }
}

#[test]
fn a_chained_add_that_fails_takes_its_own_back_before_any_del() {
    for row in rows().into_iter().filter(|row| row.plugins.len() > 1) {
        for Failure { because, spoil } in &row.failures {
            let (node, mut chain) = prepared(&row);
            let pod = node.pod("blue");
            spoil(&node, &pod, &mut chain);
            let earlier = Chain { plugins: chain.plugins[..1].to_vec(), ..chain.clone() };
            let result = earlier.add(&node, &pod);
            let before = node.state(&pod);
            let call = Invocation::new(&node, &chain.path, "ADD", &pod, &chain.config(1)).prev(&result);
            let (code, text) = call.run().error();
            assert_same(&before, &node.state(&pod), &format!("{}: {because}: {code} {text}", row.kind));
        }
    }
}

/// Two networks with everything that could be mistaken for the other's: cable, rules by source, limits, backup.
#[test]
fn a_del_after_an_add_in_vain_spares_the_attachment_that_was_in_its_way() {
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

/// A cable's end that somebody lent to the pod has its old name as its alias, as host-device notes it.
#[test]
fn a_del_after_an_add_in_vain_spares_a_device_that_was_lent_to_the_pod() {
    for row in rows().iter().filter(|row| ["bridge", "ptp"].contains(&row.kind)) {
        let (node, chain) = prepared(row);
        let pod = node.pod("blue");
        node.sh("ip link add lent0 type veth peer name lent1
             ip link set lent0 netns blue && ip -n blue link set lent0 name eth0 alias lent0");
        let before = node.state(&pod);
        chain.try_add(&node, &pod).expect_err("the name is taken");
        chain.del(&node, &pod, None);
        assert_same(&before, &node.state(&pod), row.kind);
    }
}
