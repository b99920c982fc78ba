//! Damage to the objects of chained plugins: host ports, firewall rules, limits, settings, source routes.

use serde_json::json;

use super::*;

/// Two host ports map to one port of the pod: they share some objects.
pub(super) fn ports() -> Scene {
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
            ("nft flush chain inet podwire_firewall admins", &["chain admins of table"]),
            ("nft flush chain inet podwire_firewall marked", &["chain marked of table"]),
            ("nft flush chain inet podwire_firewall forwarded", &["chain forwarded of table"]),
            (
                "nft delete table inet podwire_firewall",
                &["table inet podwire_firewall is missing", "10.7.0.3"],
            ),
            ("iptables -F FORWARD", &["chain FORWARD of table ip filter does not accept pod packets"]),
            ("ip6tables -F FORWARD", &["chain FORWARD of table ip6 filter does not accept pod packets"]),
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
fn an_mtu_of_a_pod_in_which_tuning_sets_none() {
    let mut scene = behind_bridge(json!({"sysctl": {"net.core.somaxconn": "500"}}), "tuning");
    scene.plugins[0]["macspoofchk"] = json!(false);
    all_survive(&scene, &[("ip -n blue link set eth0 mtu 1300", &["interface eth0 has MTU 1300, not 1400"])]);
}

#[test]
fn tuning() {
    let mut scene = behind_bridge(
        json!({"sysctl": {"net.core.somaxconn": "500", "net.ipv4.conf.IFNAME.arp_filter": "1",
                          "net.ipv4.ip_local_port_range": "20000 30000"},
               "mtu": 1350, "promisc": true, "allmulti": true, "txQLen": 77}),
        "tuning",
    );
    // The bridge's MTU differs: bridge ignores the MTU that tuning set, because results of this version do not contain
    // MTUs.
    scene.plugins[0]["macspoofchk"] = json!(false);
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

/// Packets that the pod sends from its address leave by the interface with that address.
fn by_source(plugin: Value) -> Scene {
    Scene { plugins: vec![plugin, json!({"type": "sbr"})], proof: REACHES_THE_WORLD }
}

#[test]
fn source_routes_on_a_bridge() {
    all_survive(
        &by_source(bridge()),
        &[
            ("ip -n blue rule delete from 10.7.0.3", &["lacks rule from 10.7.0.3/32 to its own table"]),
            ("ip -n blue -6 rule delete from fd07::3", &["lacks rule from fd07::3/128 to its own table"]),
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
fn source_routes_on_ptp() {
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
