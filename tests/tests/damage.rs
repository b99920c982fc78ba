//! Whatever is damaged of an attachment, CHECK names it, and `podwire cni check --repair` puts it back as it was.
//!
//! A row is a way to damage what a chain made, and the words that CHECK must say of it. After the repair everything
//! on the node and in the pod must be as before the damage, CHECK must pass, and packets too; after DEL nothing may
//! be left. VLANs need a kernel that filters them: see `vlan.rs`.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use podwire_tests::{assert_same, differences, ours, podwire, Node, Output, Pod};
use serde_json::{json, Value};

/// How many rows run at the same time: they mostly wait for the kernel.
const AT_A_TIME: usize = 3;

/// What to damage, a script on the node ($end is the node's end of the pod's cable, `in_pod` runs something in the
/// pod), and what CHECK must say.
type Row<'a> = (&'a str, &'a [&'a str]);

const TOOLS: &str = r#"in_pod() { ip netns exec blue "$@"; }
index=$(ip -n blue -o link show eth0 2>/dev/null | sed 's/.*@if\([0-9]*\):.*/\1/')
end=$(ip -o link | sed -n "s/^$index: \([^@:]*\).*/\1/p")
set -e
"#;

/// A chain, and what proves that its packets pass: a script on the node.
struct Scene {
    plugins: Vec<Value>,
    proof: &'static str,
}

/// The world behind the node answers the pod, over both families.
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

/// A node where a pod of the network has come and gone, so that what stays of it by design is there; and the pod.
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

/// What is on the node and in the pod. host-local's index is named by its folder's number, which a new folder changes.
fn state(node: &Node, pod: &Pod) -> String {
    let index = "/run/podwire/host-local/";
    let told = |line: &str| match line.strip_prefix(index).and_then(|rest| rest.split_once('/')) {
        Some((_, owner)) => format!("{index}*/{owner}\n"),
        None => format!("{line}\n"),
    };
    node.state(pod).lines().map(told).collect()
}

/// Takes a row all the way from ADD to DEL.
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
    assert!(repaired.stdout.starts_with("eth0 of blue: put back: "), "{}", repaired.stdout);
    must(&node, "check", &[]);
    assert_same(&whole, &state(&node, &pod), &format!("after the repair\n{}", repaired.stdout));
    node.sh(scene.proof);
    let again = must(&node, "check", &["--repair"]);
    assert_eq!(again, "blue is attached to net as it should be\n", "nothing is left to repair");

    must(&node, "del", &[]);
    assert_same(&before, &state(&node, &pod), "after DEL");
}

/// Runs all rows and tells of every one that failed.
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

#[test]
fn a_bridge_and_its_port() {
    let scene = Scene { plugins: vec![bridge()], proof: REACHES_THE_WORLD };
    all_survive(
        &scene,
        &[
            ("ip link delete br0", &["bridge \"br0\" is missing", "is not a port of", "lost hairpinMode"]),
            ("ip link set br0 down", &["bridge \"br0\" is down"]),
            ("ip link set br0 address 02:00:00:00:00:99", &["bridge \"br0\" has hardware address 02:00"]),
            ("ip address delete 10.7.0.1/24 dev br0", &["\"br0\" lost the gateway's address 10.7.0.1"]),
            ("ip address delete fd07::1/64 dev br0", &["\"br0\" lost the gateway's address fd07::1"]),
            ("echo 1 > /proc/sys/net/ipv6/conf/br0/accept_ra", &["conf/br0/accept_ra is 1, not 0"]),
            ("ip link set $end nomaster", &["is not a port of bridge \"br0\""]),
            ("ip link set $end down", &["bridge port veth", "is down"]),
            ("bridge link set dev $end hairpin off", &["lost hairpinMode"]),
            ("ip link set $end mtu 1300", &["has MTU 1300, not 1400"]),
            ("nft flush set bridge podwire_spoof guarded", &["lost its guard (macspoofchk)"]),
            ("nft flush set bridge podwire_spoof allowed", &["lost its guard (macspoofchk)"]),
            (
                "nft flush chain bridge podwire_spoof prerouting",
                &["the rules of macspoofchk are not complete: chain prerouting of table bridge podwire_spoof is empty"],
            ),
            ("nft delete table bridge podwire_spoof", &["table bridge podwire_spoof is missing"]),
            ("echo 0 > /proc/sys/net/ipv4/ip_forward", &["/proc/sys/net/ipv4/ip_forward is 0, not 1"]),
            ("echo 0 > /proc/sys/net/ipv6/conf/all/forwarding", &["conf/all/forwarding is 0, not 1"]),
        ],
    );
}

#[test]
fn a_bridge_that_listens_and_a_port_that_is_alone() {
    let mut config = bridge();
    config["hairpinMode"] = json!(false);
    (config["promiscMode"], config["portIsolation"]) = (json!(true), json!(true));
    let scene = Scene { plugins: vec![config], proof: REACHES_THE_WORLD };
    all_survive(
        &scene,
        &[
            ("ip link set br0 promisc off", &["bridge \"br0\" is not promiscuous"]),
            ("bridge link set dev $end isolated off", &["lost portIsolation"]),
            ("ip link delete br0", &["bridge \"br0\" is missing", "lost portIsolation"]),
        ],
    );
}

#[test]
fn a_masquerade() {
    let scene = Scene { plugins: vec![bridge()], proof: REACHES_THE_WORLD };
    all_survive(
        &scene,
        &[
            (
                "nft flush set inet podwire_masq net4_10.7.0.0_24",
                &["10.7.0.3 is not masqueraded any more (ipMasq)"],
            ),
            (
                "nft flush set inet podwire_masq net6_fd07___64",
                &["fd07::3 is not masqueraded any more (ipMasq)"],
            ),
            ("nft flush chain inet podwire_masq net4_10.7.0.0_24", &["the rules of ipMasq are not complete"]),
            (
                "nft delete chain inet podwire_masq net6_fd07___64",
                &["chain net6_fd07___64 of table", "is missing"],
            ),
            (
                "nft delete table inet podwire_masq",
                &["table inet podwire_masq is missing", "10.7.0.3", "fd07::3"],
            ),
            (
                "nft flush ruleset",
                &["table inet podwire_masq is missing", "table bridge podwire_spoof is missing"],
            ),
        ],
    );
}

#[test]
fn an_interface_in_a_pod() {
    let mut config = bridge();
    config["macspoofchk"] = json!(false);
    config["ipam"]["routes"] = json!([{"dst": "198.51.100.0/24"}, {"dst": "2001:db8:9::/48"}]);
    let scene = Scene { plugins: vec![config], proof: REACHES_THE_WORLD };
    all_survive(
        &scene,
        &[
            ("ip -n blue link set eth0 down", &["interface eth0 is down"]),
            (
                "ip -n blue link set eth0 address 02:00:00:00:00:77",
                &["has hardware address 02:00:00:00:00:77"],
            ),
            ("ip -n blue link set eth0 mtu 1300", &["interface eth0 has MTU 1300, not 1400"]),
            ("ip -n blue address delete 10.7.0.3/24 dev eth0", &["interface eth0 lacks address 10.7.0.3/24"]),
            ("ip -n blue address delete fd07::3/64 dev eth0", &["interface eth0 lacks address fd07::3/64"]),
            (
                "ip -n blue address flush dev eth0 scope global",
                &["lacks address 10.7.0.3/24", "lacks address fd07::3/64"],
            ),
            (
                "in_pod sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1",
                &["interface eth0 lacks address fd07::3/64"],
            ),
            ("ip -n blue route delete default", &["route to 0.0.0.0/0 via 10.7.0.1 is missing"]),
            ("ip -n blue -6 route delete default", &["route to ::/0 via fd07::1 is missing"]),
            (
                "ip -n blue route replace default via 10.7.0.99",
                &["route to 0.0.0.0/0 via 10.7.0.1 is missing"],
            ),
            ("ip -n blue -6 route replace default via fd07::99", &["route to ::/0 via fd07::1 is missing"]),
            (
                "ip -n blue route replace 198.51.100.0/24 via 10.7.0.99",
                &["route to 198.51.100.0/24 is missing"],
            ),
            ("ip -n blue route delete 198.51.100.0/24", &["route to 198.51.100.0/24 is missing"]),
            ("ip -n blue -6 route delete 2001:db8:9::/48", &["route to 2001:db8:9::/48 is missing"]),
        ],
    );
}

#[test]
fn a_cable_of_its_own() {
    let config = json!({"type": "ptp", "ipMasq": true, "mtu": 1400, "ipam": pool()});
    let mut config = config;
    config["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    let scene = Scene { plugins: vec![config], proof: REACHES_THE_WORLD };
    all_survive(
        &scene,
        &[
            ("ip link set $end down", &["the node's end veth", "is down"]),
            ("ip link set $end mtu 1300", &["has MTU 1300, not 1400"]),
            ("ip -n blue link set eth0 mtu 1300", &["interface eth0 has MTU 1300, not 1400"]),
            ("ip address delete 10.7.0.1/32 dev $end", &["lost the gateway's address 10.7.0.1"]),
            ("ip address delete fd07::1/128 dev $end", &["lost the gateway's address fd07::1"]),
            ("ip route delete 10.7.0.3 dev $end", &["the node has no route to 10.7.0.3 through veth"]),
            ("ip -6 route delete fd07::3 dev $end", &["the node has no route to fd07::3 through veth"]),
            ("echo 1 > /proc/sys/net/ipv6/conf/$end/accept_ra", &["accept_ra is 1, not 0"]),
            ("echo 0 > /proc/sys/net/ipv4/ip_forward", &["/proc/sys/net/ipv4/ip_forward is 0, not 1"]),
            ("ip -n blue link set eth0 down", &["interface eth0 is down", "route to 10.7.0.1/32 on eth0"]),
            ("ip -n blue route delete 10.7.0.1", &["route to 10.7.0.1/32 on eth0 is missing"]),
            (
                "ip -n blue route delete 10.7.0.0/24",
                &["route to 10.7.0.0/24 via 10.7.0.1 on eth0 is missing"],
            ),
            ("ip -n blue -6 route delete fd07::1", &["route to fd07::1/128 on eth0 is missing"]),
            ("ip -n blue -6 route delete fd07::/64", &["route to fd07::/64 via fd07::1 on eth0 is missing"]),
            (
                "ip -n blue route append 10.7.0.0/24 dev eth0 proto kernel scope link src 10.7.0.3",
                &["route to 10.7.0.0/24 is on eth0, not behind the gateway"],
            ),
            (
                "ip -n blue -6 route add fd07::/64 dev eth0 metric 256 proto kernel",
                &["route to fd07::/64 is on eth0, not behind the gateway"],
            ),
            (
                "ip -n blue address flush dev eth0 scope global",
                &["lacks address 10.7.0.3/24", "lacks address fd07::3/64"],
            ),
            ("ip -n blue route delete default", &["route to 0.0.0.0/0 is missing"]),
            (
                "nft delete table inet podwire_masq",
                &["10.7.0.3 is not masqueraded", "fd07::3 is not masqueraded"],
            ),
        ],
    );
}

#[test]
fn a_reservation() {
    let scene = Scene { plugins: vec![bridge()], proof: REACHES_THE_WORLD };
    all_survive(
        &scene,
        &[
            ("rm /var/lib/cni/networks/net/10.7.0.3", &["networks/net/10.7.0.3 is missing"]),
            ("rm /var/lib/cni/networks/net/fd07::3", &["networks/net/fd07::3 is missing"]),
            ("truncate -s 0 /var/lib/cni/networks/net/10.7.0.3", &["networks/net/10.7.0.3 is missing"]),
            (
                "rm -r /var/lib/cni/networks/net /run/podwire/host-local",
                &["there is no folder /var/lib/cni/networks/net"],
            ),
        ],
    );
}

/// Two ports of the node lead to one of the pod: what both need is there once.
fn ports() -> Scene {
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
                       {"hostPort": 8081, "containerPort": 80, "protocol": "tcp"},
                       {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"}]);
    behind_bridge(json!({"runtimeConfig": {"portMappings": ports}}), "portmap")
}

#[test]
fn host_ports() {
    all_survive(
        &ports(),
        &[
            (
                "nft delete element inet podwire_ports ports4 '{ tcp . 8080 }'",
                &["host port 8080/tcp is not mapped to 10.7.0.3 any more"],
            ),
            (
                "nft delete element inet podwire_ports ports6 '{ tcp . 8081 }'",
                &["host port 8081/tcp is not mapped to fd07::3 any more"],
            ),
            (
                "nft flush map inet podwire_ports hostports4",
                &["host port 53/udp of 127.0.0.1 is not mapped to 10.7.0.3 any more"],
            ),
            (
                "nft flush set inet podwire_ports local4_10.7.0.0_24",
                &["host port 8080/tcp", "host port 8081/tcp"],
            ),
            ("nft flush chain inet podwire_ports prerouting", &["the rules of port maps are not complete"]),
            (
                "nft flush chain inet podwire_ports guard",
                &["chain guard of table inet podwire_ports is empty"],
            ),
            (
                "nft flush chain inet podwire_ports local6_fd07___64",
                &["the rules of port maps are not complete"],
            ),
            (
                "nft delete table inet podwire_ports",
                &["table inet podwire_ports is missing", "8080/tcp", "53/udp"],
            ),
            ("echo 0 > /proc/sys/net/ipv4/conf/br0/route_localnet", &["conf/br0/route_localnet is 0, not 1"]),
        ],
    );
}

#[test]
fn the_firewall() {
    let scene = behind_bridge(json!({"backend": "nftables", "ingressPolicy": "same-bridge"}), "firewall");
    all_survive(
        &scene,
        &[
            (
                "nft flush set inet podwire_firewall pods4",
                &["packets of 10.7.0.3 are not let through any more"],
            ),
            (
                "nft flush set inet podwire_firewall pods6",
                &["packets of fd07::3 are not let through any more"],
            ),
            ("nft flush set inet podwire_firewall bridges", &["bridge br0 is not in set bridges"]),
            ("nft flush set inet podwire_firewall same", &["bridge br0 is not in set same"]),
            (
                "nft flush chain inet podwire_firewall forward",
                &["the rules of the firewall are not complete"],
            ),
            ("nft flush chain inet podwire_firewall admins", &["nothing leads to the chain CNI-ADMIN"]),
            ("nft flush chain inet podwire_firewall forwarded", &["chain forwarded of table"]),
            (
                "nft delete table inet podwire_firewall",
                &["table inet podwire_firewall is missing", "10.7.0.3"],
            ),
            ("iptables -F FORWARD", &["chain FORWARD of table ip filter does not let pods pass"]),
            ("ip6tables -F FORWARD", &["chain FORWARD of table ip6 filter does not let pods pass"]),
        ],
    );
}

#[test]
fn limits() {
    let limits = json!({"ingressRate": 80_000_000, "ingressBurst": 8_000_000,
                        "egressRate": 40_000_000, "egressBurst": 4_000_000});
    let detour = "detour=$(ip -o link show type ifb | sed 's/^[0-9]*: \\([^@:]*\\).*/\\1/')\n";
    let rows = [
        ("tc qdisc delete dev $end root", &["has no token bucket"][..]),
        (
            "tc qdisc delete dev $end root; tc qdisc add dev $end root handle 1: pfifo",
            &["has no token bucket"],
        ),
        (
            "tc qdisc change dev $end root handle 1: tbf rate 1mbit burst 100kb limit 1mb",
            &["rate is 125000 bytes"],
        ),
        ("tc qdisc delete dev $detour root", &["has no token bucket"]),
        (
            "tc qdisc change dev $detour root handle 1: tbf rate 40mbit burst 1kb limit 625000",
            &["burst is 1"],
        ),
        ("ip link set $detour down", &["is down"]),
        ("ip link delete $detour", &["the device bwp", "is missing"]),
        ("tc filter delete dev $end ingress", &["is not redirected to bwp"]),
        ("tc qdisc delete dev $end ingress", &["is not redirected to bwp"]),
    ];
    let scripts: Vec<String> = rows.iter().map(|(damage, _)| format!("{detour}{damage}")).collect();
    let rows: Vec<Row<'_>> = scripts.iter().zip(rows).map(|(script, (_, says))| (&**script, says)).collect();
    all_survive(&behind_bridge(limits, "bandwidth"), &rows);
}

#[test]
fn what_was_tuned() {
    let mut scene = behind_bridge(
        json!({"sysctl": {"net.core.somaxconn": "500", "net.ipv4.conf.IFNAME.arp_filter": "1",
                          "net.ipv4.ip_local_port_range": "20000 30000"},
               "mtu": 1350, "promisc": true, "allmulti": true, "txQLen": 77}),
        "tuning",
    );
    // Each would complain of the other's MTU, and of the hardware address that is not its own.
    (scene.plugins[0]["mtu"], scene.plugins[0]["macspoofchk"]) = (json!(0), json!(false));
    let says = "Error: Tuning configured";
    all_survive(
        &scene,
        &[
            (
                "in_pod sysctl -qw net.core.somaxconn=9",
                &[says, "/proc/sys/net/core/somaxconn is 500, current value is 9"],
            ),
            (
                "in_pod sysctl -qw net.ipv4.conf.eth0.arp_filter=0",
                &[says, "conf/eth0/arp_filter is 1, current value is 0"],
            ),
            (
                "in_pod sysctl -qw net.ipv4.ip_local_port_range='20000 29999'",
                &[says, "is 20000 30000, current value is"],
            ),
            ("ip -n blue link set eth0 mtu 1300", &[says, "MTU of eth0 is 1350, current value is 1300"]),
            (
                "ip -n blue link set eth0 promisc off",
                &[says, "promisc of eth0 is true, current value is false"],
            ),
            ("ip -n blue link set eth0 allmulticast off", &[says, "all-multicast mode of eth0 is true"]),
            ("ip -n blue link set eth0 txqueuelen 5", &[says, "TxQLen of eth0 is 77, current value is 5"]),
        ],
    );
}

#[test]
fn a_tuned_hardware_address() {
    let mut scene = behind_bridge(json!({"mac": "02:00:00:00:07:01"}), "tuning");
    scene.plugins[0]["macspoofchk"] = json!(false);
    let row: Row<'_> = ("ip -n blue link set eth0 address 02:00:00:00:07:02", &["02:00:00:00:07:01"]);
    all_survive(&scene, &[row]);
}

/// What the pod sends from its address reaches the world by the interface that has it.
fn by_source(plugin: Value) -> Scene {
    Scene { plugins: vec![plugin, json!({"type": "sbr"})], proof: REACHES_THE_WORLD }
}

#[test]
fn ways_by_source_on_a_bridge() {
    all_survive(
        &by_source(bridge()),
        &[
            ("ip -n blue rule delete from 10.7.0.3", &["lacks rule from 10.7.0.3/32 to a table of its own"]),
            (
                "ip -n blue -6 rule delete from fd07::3",
                &["lacks rule from fd07::3/128 to a table of its own"],
            ),
            ("ip -n blue route delete default table 100", &["route to 0.0.0.0/0 via 10.7.0.1 is missing"]),
            ("ip -n blue route delete 10.7.0.0/24 table 100", &["lacks route to 10.7.0.0/24 in table 100"]),
            ("ip -n blue -6 route delete fd07::/64 table 101", &["lacks route to fd07::/64 in table 101"]),
            ("ip -n blue route flush table 100", &["route to 0.0.0.0/0 via 10.7.0.1 is missing"]),
            ("ip -n blue -6 route flush table 101", &["route to ::/0 via fd07::1 is missing"]),
            (
                "ip -n blue route add 10.7.0.0/24 dev eth0 proto kernel scope link src 10.7.0.3",
                &["route to 10.7.0.0/24 of eth0 is in the main table again"],
            ),
            (
                "ip -n blue link set eth0 down; ip -n blue link set eth0 up",
                &["0.0.0.0/0 via 10.7.0.1 is missing"],
            ),
            (
                "ip -n blue rule delete from 10.7.0.3; ip -n blue route flush table 100",
                &["route to 0.0.0.0/0 via 10.7.0.1 is missing"],
            ),
        ],
    );
}

#[test]
fn ways_by_source_on_a_cable() {
    let mut config = json!({"type": "ptp", "ipMasq": true, "ipam": pool()});
    config["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    all_survive(
        &by_source(config),
        &[
            ("ip -n blue rule delete from 10.7.0.3", &["lacks rule from 10.7.0.3/32"]),
            ("ip -n blue route flush table 100", &["route to 0.0.0.0/0 is missing"]),
            ("ip -n blue -6 route flush table 101", &["route to ::/0 is missing"]),
            (
                "ip -n blue link set eth0 down; ip -n blue link set eth0 up",
                &["route to 0.0.0.0/0 is missing"],
            ),
        ],
    );
}

#[test]
fn a_loopback() {
    let proof =
        "ip netns exec blue ping -q -c 1 -W 5 127.0.0.1 >&2; ip netns exec blue ping -q -c 1 -W 5 ::1 >&2";
    let scene = Scene { plugins: vec![json!({"type": "loopback"})], proof };
    all_survive(
        &scene,
        &[
            ("ip -n blue link set lo down", &["loopback interface is down"]),
            (
                "ip -n blue address delete 127.0.0.1/8 dev lo",
                &["loopback interface lacks address 127.0.0.1/8"],
            ),
            ("ip -n blue address delete ::1/128 dev lo", &["loopback interface lacks address ::1/128"]),
        ],
    );
}

/// A node whose kernel filters VLANs; says so and is none elsewhere.
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
    // Where br_netfilter shows bridged packets to the firewall, they would be masqueraded on their way to the leg.
    config["ipMasq"] = json!(false);
    let rows = [
        ("bridge vlan delete dev $end vid 10", &["is not in VLAN 10 as configured"][..]),
        ("bridge vlan add dev $end vid 10", &["is not in VLAN 10 as configured"]),
        ("bridge vlan delete dev $end vid 21", &["is not in VLAN 21 as configured"]),
        ("bridge vlan add dev $end vid 99", &["is in VLAN 99, which is not configured"]),
        (
            "ip link delete br0",
            &["bridge \"br0\" is missing", "is not in VLAN", "of the gateway's leg br0.10"],
        ),
        ("ip link delete br0.10", &["the gateway's leg br0.10 is missing"]),
        ("ip link set br0.10 down", &["the gateway's leg br0.10 is down"]),
        ("ip address delete 10.7.0.1/24 dev br0.10", &["\"br0.10\" lost the gateway's address 10.7.0.1"]),
        ("ip address delete fd07::1/64 dev br0.10", &["\"br0.10\" lost the gateway's address fd07::1"]),
    ];
    all_survive(&Scene { plugins: vec![config], proof: REACHES_THE_WORLD }, &rows);
}

#[test]
fn what_only_a_new_attachment_brings_back_is_told_and_left_alone() {
    let scene = Scene { plugins: vec![bridge()], proof: "" };
    for (damage, says) in [
        ("ip -n blue link delete eth0", "not put back: the pod has no interface eth0"),
        ("printf 'other\\r\\neth0' > /var/lib/cni/networks/net/10.7.0.3", "10.7.0.3 belongs to other (eth0)"),
    ] {
        let (node, pod, _) = attached(&scene);
        node.sh(&format!("{TOOLS}{damage}"));
        let damaged = state(&node, &pod);
        let checked = run(&node, "check", &[]);
        assert!(checked.stderr.contains("attach it anew to repair it"), "{}", checked.stderr);
        let repaired = run(&node, "check", &["--repair"]);
        assert_eq!(repaired.status, 1, "{}", repaired.stdout);
        assert!(repaired.stdout.contains(says), "{}", repaired.stdout);
        assert!(repaired.stdout.ends_with("as it should be: attach it anew\n"), "{}", repaired.stdout);
        assert_eq!(differences(&damaged, &state(&node, &pod)), "", "{damage}");
        must(&node, "del", &[]);
    }
}

#[test]
fn a_repair_says_in_json_what_was_put_back_and_what_was_not() {
    let (node, _, _) = attached(&ports());
    let repaired = |node: &Node| -> Value {
        serde_json::from_str(&run(node, "check", &["--repair", "--json"]).stdout).expect("JSON")
    };
    let whole = json!({"network": "net", "container": "blue", "ifname": "eth0", "ok": true, "repaired": [], "left": []});
    assert_eq!(repaired(&node), whole);
    node.sh("nft delete element inet podwire_ports ports4 '{ tcp . 8080 }'");
    let what = "host port 8080/tcp is not mapped to 10.7.0.3 any more";
    assert_eq!(repaired(&node)["repaired"], json!([{"plugin": "portmap", "what": what}]));
    // Somebody else was faster.
    node.sh("nft delete element inet podwire_ports ports4 '{ tcp . 8080 }'
             nft add element inet podwire_ports ports4 '{ tcp . 8080 comment \"net/red/eth0\" : 10.7.0.9 . 80 }'");
    let answer = repaired(&node);
    assert_eq!((&answer["ok"], &answer["repaired"]), (&json!(false), &json!([])));
    assert_eq!(answer["left"][0]["what"], what);
    let why = answer["left"][0]["why"].as_str().expect("why");
    assert!(why.contains("host port 8080/tcp is taken by net/red/eth0"), "{why}");
    must(&node, "del", &[]);
}

#[test]
fn several_things_at_once_are_all_named_and_all_put_back() {
    let (node, pod, before) = attached(&ports());
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
    let told = must(&node, "check", &["--repair"]);
    must(&node, "check", &[]);
    assert_same(&whole, &state(&node, &pod), &told);
    node.sh(REACHES_THE_WORLD);
    must(&node, "del", &[]);
    assert_same(&before, &state(&node, &pod), "after DEL");
}
