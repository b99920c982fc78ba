//! Damage to the objects of the main plugins: bridge, veth pair, pod interface, masquerading, lease.

use serde_json::json;

use super::*;

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
            ("nft flush set bridge podwire_spoof guarded", &["lost its spoof check (macspoofchk)"]),
            ("nft flush set bridge podwire_spoof allowed", &["lost its spoof check (macspoofchk)"]),
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
fn a_routed_pod_of_calicos() {
    // Only this pod has the address: the outside has a route to it.
    let scene = Scene {
        plugins: vec![json!({"type": "calico", "mtu": 1400, "ipam": pool()})],
        proof: REACHES_THE_WORLD,
    };
    all_survive(
        &scene,
        &[
            (
                "ip link set $end address 02:00:00:00:00:99",
                &["has hardware address 02:00:00:00:00:99, not ee:ee"],
            ),
            ("ip link set $end mtu 1300", &["has MTU 1300, not 1400"]),
            ("ip link set $end down", &["is down"]),
            ("ip route delete 10.7.0.3", &["10.7.0.3"]),
            ("ip -6 route delete fd07::3", &["fd07::3"]),
            ("echo 0 > /proc/sys/net/ipv4/conf/$end/proxy_arp", &["proxy_arp is 0, not 1"]),
            ("echo 0 > /proc/sys/net/ipv6/conf/$end/proxy_ndp", &["proxy_ndp is 0, not 1"]),
            ("echo 0 > /proc/sys/net/ipv4/ip_forward", &["/proc/sys/net/ipv4/ip_forward is 0, not 1"]),
            ("ip -n blue route delete default", &["route to 0.0.0.0/0 via 169.254.1.1 on eth0 is missing"]),
            (
                "ip -n blue -6 route delete default",
                &["route to ::/0 via fe80::ecee:eeff:feee:eeee on eth0 is missing"],
            ),
            (
                "ip -n blue neighbour replace 169.254.1.1 lladdr 02:00:00:00:00:99 dev eth0 nud permanent",
                &["has a wrong hardware address for gateway 169.254.1.1"],
            ),
            ("ip -n blue address delete 10.7.0.3/32 dev eth0", &["interface eth0 lacks address 10.7.0.3/32"]),
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
fn ptp() {
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
