//! Host ports, and the guard of loopback addresses that they need.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

use podwire_kernel::firewall::hostports::{self, Condition, Options, Part, PortMap, Protocol, Snat};
use podwire_kernel::firewall::{drop_empty_tables, masquerade};
use podwire_kernel::Error;

use crate::testbed::{
    ask, ask_in_vain, external_host, ip, net, on_a_node, owner, ruleset, run, tcp, Peer, SILENCE, TIMEOUT,
};

#[test]
fn a_host_port_leads_to_the_pod_from_everywhere() {
    on_a_node(|nft| {
        let world = external_host();
        let pod = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        let neighbour = Peer::pod("pod2", "br0", "10.1.0.6/16", "10.1.0.1");
        run("sysctl -qw net.ipv4.conf.br0.route_localnet=1");
        pod.serves(80, "pod");
        world.serves(8080, "world");
        assert_eq!(world.asks_in_vain("192.0.2.1:8080"), None);
        hostports::add(nft, &owner("c1"), &[tcp(8080, "10.1.0.5/16", 80)], &Options::default()).unwrap();

        assert_eq!(world.asks("192.0.2.1:8080").as_deref(), Some("pod sees 192.0.2.2"));
        assert_eq!(ask("192.0.2.1:8080").as_deref(), Some("pod sees 192.0.2.1"));
        assert_eq!(ask("127.0.0.1:8080").as_deref(), Some("pod sees 10.1.0.1"));
        assert_eq!(neighbour.asks("192.0.2.1:8080").as_deref(), Some("pod sees 10.1.0.1"));
        assert_eq!(pod.asks("192.0.2.1:8080").as_deref(), Some("pod sees 10.1.0.1"));
        // What only passes through, to the same port of another machine, is left alone.
        assert_eq!(pod.asks("192.0.2.2:8080").as_deref(), Some("world sees 10.1.0.5"));
        assert_eq!(ask("192.0.2.2:8080").as_deref(), Some("world sees 192.0.2.1"));
        // Who asks the pod itself is seen as he is.
        assert_eq!(neighbour.asks("10.1.0.5:80").as_deref(), Some("pod sees 10.1.0.6"));

        assert!(hostports::remove(nft, &owner("c1"), &[tcp(8080, "10.1.0.5/16", 80)], &Options::default())
            .unwrap());
        assert_eq!(world.asks_in_vain("192.0.2.1:8080"), None);
    });
}

#[test]
fn host_ports_support_one_address_snat_and_conditions() {
    on_a_node(|nft| {
        let world = external_host();
        let pod = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        run("ip addr add 192.0.2.9/24 dev uplink; sysctl -qw net.ipv4.conf.br0.route_localnet=1");
        pod.serves(80, "any");
        pod.serves(81, "one");
        let one = PortMap { host_ip: Some(ip("192.0.2.9")), ..tcp(8080, "10.1.0.5/16", 81) };
        let wrong = PortMap { host_ip: Some(ip("fd00:2::1")), ..tcp(8080, "10.1.0.5/16", 81) };
        let any = PortMap { host_ip: Some(ip("0.0.0.0")), ..tcp(8080, "10.1.0.5/16", 80) };
        hostports::add(nft, &owner("c1"), &[one, any, wrong], &Options::default()).unwrap();
        assert_eq!(world.asks("192.0.2.9:8080").as_deref(), Some("one sees 192.0.2.2"));
        assert_eq!(world.asks("192.0.2.1:8080").as_deref(), Some("any sees 192.0.2.2"));

        let all = Options { snat: Snat::All, ..Options::default() };
        hostports::add(nft, &owner("c1"), &[tcp(8082, "10.1.0.5/16", 82)], &all).unwrap();
        pod.serves(82, "all");
        assert_eq!(world.asks("192.0.2.1:8082").as_deref(), Some("all sees 10.1.0.1"));
        let off = Options { snat: Snat::Off, ..Options::default() };
        hostports::add(nft, &owner("c2"), &[tcp(8083, "10.1.0.5/16", 83)], &off).unwrap();
        pod.serves(83, "off");
        assert_eq!(world.asks("192.0.2.1:8083").as_deref(), Some("off sees 192.0.2.2"));
        assert_eq!(ask_in_vain("127.0.0.1:8083"), None);

        let not_from = |net: &str| Condition { part: Part::Source(net.parse().unwrap()), negated: true };
        let not_world = Options { conditions_v4: vec![not_from("192.0.2.2/32")], ..Options::default() };
        hostports::add(nft, &owner("c3"), &[tcp(8084, "10.1.0.5/16", 80)], &not_world).unwrap();
        assert_eq!(world.asks_in_vain("192.0.2.1:8084"), None);
        assert_eq!(ask("192.0.2.1:8084").as_deref(), Some("any sees 192.0.2.1"));
        let by = Condition { part: Part::Interface("uplink".into()), negated: false };
        let by_uplink = Options { conditions_v4: vec![by], ..Options::default() };
        hostports::add(nft, &owner("c3"), &[tcp(8085, "10.1.0.5/16", 80)], &by_uplink).unwrap();
        assert_eq!(world.asks("192.0.2.1:8085").as_deref(), Some("any sees 192.0.2.2"));
        assert_eq!(ask_in_vain("192.0.2.1:8085"), None);

        let mut ports: Vec<u16> =
            hostports::list(nft).unwrap().iter().map(|(map, _)| map.host_port).collect();
        ports.sort_unstable();
        assert_eq!(ports, [8080, 8080, 8082, 8083, 8084, 8085]);
        assert!(hostports::remove_all(nft, &owner("c3")).unwrap());
        assert_eq!(drop_empty_tables(nft).unwrap(), 2);
    });
}

#[test]
fn a_port_has_one_owner_and_a_deleted_one_is_replaced() {
    on_a_node(|nft| {
        let options = Options::default();
        let udp = |port| PortMap { protocol: Protocol::Udp, ..tcp(port, "10.1.0.6/16", 53) };
        let mine = [tcp(8080, "10.1.0.5/16", 80), tcp(8081, "10.1.0.5/16", 80)];
        hostports::add(nft, &owner("c1"), &mine, &options).unwrap();
        hostports::add(nft, &owner("c1"), &mine, &options).unwrap();
        let other = [udp(53), tcp(8081, "10.1.0.6/16", 80)];
        let error = hostports::add(nft, &owner("c2"), &other, &options).unwrap_err();
        assert_eq!(error.to_string(), "host port 8081/tcp is taken by pods/c1/eth0");
        assert!(matches!(error, Error::PortTaken { port: 8081, .. }));
        assert_eq!(hostports::list(nft).unwrap().len(), 2, "all or none");
        hostports::add(nft, &owner("c2"), &[udp(53), udp(8081)], &options).unwrap();
        assert_eq!(hostports::missing(nft, &owner("c2"), &[udp(53), udp(54)], &options).unwrap(), [udp(54)]);

        // c1 died without a DEL, and its address went to c3.
        hostports::add(nft, &owner("c3"), &mine, &options).unwrap();
        assert!(!hostports::remove(nft, &owner("c1"), &mine, &options).unwrap());
        assert_eq!(hostports::missing(nft, &owner("c3"), &mine, &options).unwrap(), []);
        assert_eq!(hostports::collect(nft, "pods", &[owner("c3")]).unwrap(), 3);
        assert_eq!(hostports::list(nft).unwrap().len(), 2);
    });
}

#[test]
fn host_ports_work_with_ipv6() {
    on_a_node(|nft| {
        let world = external_host();
        run("ip addr add fd00:1::1/64 dev br0 nodad");
        let pod = Peer::pod("pod1", "br0", "fd00:1::5/64", "fd00:1::1");
        pod.serves(80, "pod");
        world.serves(9000, "world");
        let maps = [tcp(8080, "fd00:1::5/64", 80)];
        hostports::add(nft, &owner("c1"), &maps, &Options::default()).unwrap();
        masquerade::add(nft, &owner("c1"), &[net("fd00:1::5/64")]).unwrap();
        assert_eq!(world.asks("[fd00:2::1]:8080").as_deref(), Some("pod sees fd00:2::2"));
        assert_eq!(pod.asks("[fd00:2::1]:8080").as_deref(), Some("pod sees fd00:1::1"));
        assert_eq!(pod.asks("[fd00:2::2]:9000").as_deref(), Some("world sees fd00:2::1"));
    });
}

#[test]
fn the_nodes_loopback_cannot_be_reached_from_outside() {
    on_a_node(|nft| {
        let world = external_host();
        run("sysctl -qw net.ipv4.conf.uplink.route_localnet=1 net.ipv4.conf.all.rp_filter=0");
        world.sh("ip link set lo down; ip addr flush dev lo; sysctl -qw net.ipv4.conf.eth0.route_localnet=1");
        world.sh("ip route add 127.0.0.1/32 via 192.0.2.1 src 192.0.2.2");
        let listener = TcpListener::bind("127.0.0.1:7000").unwrap();
        listener.set_nonblocking(true).unwrap();
        let loopback: SocketAddr = "127.0.0.1:7000".parse().unwrap();
        let reached = |timeout| world.within(|| TcpStream::connect_timeout(&loopback, timeout).is_ok());
        assert!(reached(TIMEOUT), "route_localnet alone exposes the loopback");
        hostports::add(nft, &owner("c1"), &[tcp(8080, "10.1.0.5/16", 80)], &Options::default()).unwrap();
        assert!(!reached(SILENCE));
    });
}

#[test]
fn a_continuous_udp_client_reaches_the_new_pod() {
    on_a_node(|nft| {
        let world = external_host();
        let first = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        let second = Peer::pod("pod2", "br0", "10.1.0.6/16", "10.1.0.1");
        let listen = |pod: &Peer| {
            let socket = pod.within(|| UdpSocket::bind("0.0.0.0:53").unwrap());
            socket.set_read_timeout(Some(SILENCE)).unwrap();
            socket
        };
        let (first, second) = (listen(&first), listen(&second));
        let client = world.within(|| UdpSocket::bind("0.0.0.0:4000").unwrap());
        let reaches = |socket: &UdpSocket| {
            client.send_to(b"hello", "192.0.2.1:5300").unwrap();
            socket.recv(&mut [0; 16]).is_ok()
        };
        // What must arrive is sent again.
        let reaches_at_last = |socket: &UdpSocket| {
            let end = Instant::now() + TIMEOUT;
            while !reaches(socket) {
                if Instant::now() > end {
                    return false;
                }
            }
            true
        };
        let map = |pod| PortMap { protocol: Protocol::Udp, ..tcp(5300, pod, 53) };
        let (to_first, to_second) = ([map("10.1.0.5/16")], [map("10.1.0.6/16")]);
        let options = Options::default();

        assert!(!reaches(&first));
        hostports::add(nft, &owner("c1"), &to_first, &options).unwrap();
        hostports::forget_earlier_connections(nft, &to_first).unwrap();
        assert!(reaches_at_last(&first));
        hostports::remove(nft, &owner("c1"), &to_first, &options).unwrap();
        hostports::add(nft, &owner("c2"), &to_second, &options).unwrap();
        assert!(!reaches(&second), "the old entry lives on");
        hostports::forget_connections_to_pod(nft, &to_first).unwrap();
        assert!(reaches_at_last(&second));
    });
}

#[test]
fn loopback_addresses_are_guarded_only_for_ports_of_the_loopback() {
    on_a_node(|nft| {
        let guard = || ruleset().matches("hook prerouting priority raw").count();
        let off = Options { snat: Snat::Off, ..Options::default() };
        hostports::add(nft, &owner("c1"), &[tcp(8081, "10.1.0.5/16", 80)], &off).unwrap();
        hostports::add(nft, &owner("c2"), &[tcp(8082, "fd00:1::5/64", 80)], &Options::default()).unwrap();
        assert_eq!(guard(), 0, "{}", ruleset());
        assert_eq!(hostports::absent(nft, &[tcp(8081, "10.1.0.5/16", 80)], &off).unwrap(), [""; 0]);
        let maps = [tcp(8083, "10.1.0.6/16", 80)];
        hostports::add(nft, &owner("c3"), &maps, &Options::default()).unwrap();
        assert_eq!(guard(), 1, "{}", ruleset());
        // The rules of earlier versions are replaced.
        let fresh = ruleset();
        run("nft flush chain inet podwire_ports guard; \
             nft add rule inet podwire_ports guard iifname != lo ip daddr 127.0.0.0/8 drop");
        hostports::add(nft, &owner("c3"), &maps, &Options::default()).unwrap();
        assert_eq!(ruleset(), fresh);
    });
}
