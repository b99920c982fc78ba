//! Every plugin type at the end of a useful chain, and failures of its ADD.

use podwire_tests::{podwire, should_try, Chain, Node, Pod};
use serde_json::{json, Value};

/// A plugin type, at the end of a chain.
pub struct Row {
    pub kind: &'static str,
    pub plugins: Vec<Value>,
    pub failures: Vec<Failure>,
}

/// A failure of a row's ADD, as late as possible.
pub struct Failure {
    pub because: &'static str,
    /// Damages the node, the pod or the config.
    pub spoil: fn(&Node, &Pod, &mut Chain),
}

fn failure(because: &'static str, spoil: fn(&Node, &Pod, &mut Chain)) -> Failure {
    Failure { because, spoil }
}

pub fn bridge() -> Value {
    json!({"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true,
        "hairpinMode": true, "ipam": {"type": "host-local", "ranges": [
            [{"subnet": "10.7.0.0/24"}], [{"subnet": "fd07::/64"}]]}})
}

/// The file that flanneld writes.
const SUBNET: &str =
    "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";

/// A new machine with the file of flanneld.
pub fn node() -> Node {
    let node = Node::new();
    node.write("/run/test/subnet.env", SUBNET);
    // Pools that a whole cluster shares, and a first pod, so that what stays exists.
    for (name, cidr) in [("v4", "10.244.0.0/24"), ("v6", "fd44::/112")] {
        node.sh(&format!("{} ipam pool {name} {cidr}", podwire()));
    }
    node
}

pub fn behind_bridge(kind: &str, mut config: Value) -> Vec<Value> {
    config["type"] = json!(kind);
    vec![bridge(), config]
}

/// An interface with the master `uplink`, or without a master.
fn hanging(kind: &'static str, mut config: Value) -> Row {
    config["type"] = json!(kind);
    config["ipam"] = json!({"type": "host-local", "ranges": [[{"subnet": "10.5.0.0/24"}]]});
    let mut failures = vec![
        failure("the pod has an interface of that name", taken_by_another_program),
        failure("another network's interface has that name", taken_by_another_network),
        failure("the second pool is full", full_pool),
        failure("a route of the pool leads nowhere", |_, _, chain| {
            chain.plugins[0]["ipam"]["routes"] = json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}]);
        }),
    ];
    if kind != "dummy" {
        failures.push(failure("the master is gone", |node, _, _| drop(node.sh("ip link delete uplink"))));
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

/// The rows of the types that this run tests.
pub fn rows() -> Vec<Row> {
    all_rows().into_iter().filter(|row| should_try(row.kind)).collect()
}

pub fn all_rows() -> Vec<Row> {
    let pool =
        json!({"type": "host-local", "ranges": [[{"subnet": "10.8.0.0/24"}], [{"subnet": "fd08::/64"}]]});
    let fixed = json!({"type": "static", "addresses": [{"address": "10.9.0.5/24", "gateway": "10.9.0.1"}]});
    vec![
        Row {
            kind: "bridge",
            plugins: vec![bridge()],
            failures: vec![
                failure("the pod has an interface of that name", taken_by_another_program),
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
                failure("the pod has an interface of that name", taken_by_another_program),
                failure("another network's interface has that name", taken_by_another_network),
                failure("the second pool is full", full_pool),
                failure("a route of the pool leads nowhere", |_, _, chain| {
                    chain.plugins[0]["ipam"]["routes"] =
                        json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}]);
                }),
            ],
        },
        Row {
            kind: "calico",
            plugins: vec![json!({"type": "calico", "mtu": 1400, "ipam": pool})],
            failures: vec![
                failure("the pod has an interface of that name", taken_by_another_program),
                failure("another network's interface has that name", taken_by_another_network),
                failure("the second pool is full", full_pool),
                failure("the node has a route to the address already", |node, _, _| {
                    node.sh("for host in 2 3 4; do ip route add blackhole 10.8.0.$host; done");
                }),
            ],
        },
        Row {
            kind: "calico-ipam",
            plugins: vec![json!({"type": "calico", "datastore_type": "sqlite", "nodename": "node1",
                "ipam": {"type": "calico-ipam", "assign_ipv6": "true"}})],
            failures: vec![
                failure("the pod has an interface of that name", taken_by_another_program),
                failure("another network's interface has that name", taken_by_another_network),
                failure("there is no such pool", |_, _, chain| {
                    chain.plugins[0]["ipam"]["ipv6_pools"] = json!(["none"]);
                }),
            ],
        },
        Row {
            kind: "host-device",
            plugins: vec![json!({"type": "host-device", "device": "hostdev0", "ipam": pool})],
            failures: vec![
                failure("the pod has an interface of that name", taken_by_another_program),
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
                failure("the pod has an interface of that name", taken_by_another_program),
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
                failure("no server answers", |node, _, _| {
                    // This one waits until its timeout.
                    serve_dhcp(node, "5s");
                    node.sh("ip link set s0 down");
                }),
                failure("the pod has an interface of that name", taken_by_another_program),
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
                // The first address of the list is free.
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
                failure("the pod has an interface of that name", taken_by_another_program),
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
        hanging("macvlan", json!({"master": "uplink", "mtu": 1400})),
        hanging("ipvlan", json!({"master": "uplink"})),
        hanging("vlan", json!({"master": "uplink", "vlanId": 5})),
        hanging("dummy", json!({})),
    ]
}

fn taken_by_another_program(node: &Node, pod: &Pod, _: &mut Chain) {
    node.sh(&format!("ip -n {} link add eth0 type bridge", pod.name));
}

fn taken_by_another_network(node: &Node, pod: &Pod, chain: &mut Chain) {
    let ipam = json!({"type": "host-local", "subnet": "10.6.0.0/24"});
    Chain::new(&chain.path, "other", &[json!({"type": "ptp", "ipam": ipam})]).add(node, pod);
    // Objects that are compared later must not change by themselves.
    node.settle(std::slice::from_ref(pod));
}

/// The first range of the network has a free address, the second one has none.
fn full_pool(node: &Node, _: &Pod, chain: &mut Chain) {
    let one = json!([{"subnet": "fd10::/64", "rangeStart": "fd10::9", "rangeEnd": "fd10::9"}]);
    let ranges = chain.plugins[0]["ipam"]["ranges"][0].clone();
    chain.plugins[0]["ipam"]["ranges"] = json!([ranges, one]);
    chain.name = format!("{}-full", chain.name);
    chain.add(node, &node.pod("holder"));
}

/// A daemon that waits this long for a server, in place of the previous one. A zombie holds no files.
fn serve_dhcp(node: &Node, timeout: &str) {
    let is_alive = "ps -o stat= -p $pid | grep -qv Z";
    node.sh(&format!(
        "for pid in $(cat /run/test/daemon 2>/dev/null); do kill $pid; while {is_alive}; do sleep 0.02; done; done"
    ));
    node.accompany(node.dhcp_daemon(&format!("--resend-timeout {timeout} --pid-file /run/test/daemon")));
}

/// A machine for a row, with the end of a veth pair as the device for host-device.
pub fn node_for(row: &Row) -> Node {
    let node = node();
    node.create_uplink();
    if row.kind == "dhcp" {
        node.lan();
        node.accompany(node.dhcp_server("--dhcp-range=10.66.0.50,10.66.0.250,255.255.255.0,2m"));
        serve_dhcp(&node, "30s");
    }
    if row.kind == "host-device" {
        node.sh("ip link add hostdev0 type veth peer name hostdev1 && ip link set hostdev0 up");
    }
    node
}

/// What is left on a node after a pod's namespace is gone. A moved veth device ends with the namespace, unlike a
/// physical one.
pub fn remains(row: &Row, node: &Node) -> String {
    let all = node.leftovers();
    let is_device = |line: &&str| row.kind == "host-device" && line.starts_with("link hostdev");
    all.lines().filter(|line| !is_device(line)).map(|line| format!("{line}\n")).collect()
}
