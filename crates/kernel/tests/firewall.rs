//! Firewall features with the running kernel, real namespaces and real packets. Needs root, `ip`, `nft`, `iptables` and
//! `conntrack`.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use podwire_kernel::firewall::hostports::{self, Condition, Options, Part, PortMap, Protocol, Snat};
use podwire_kernel::firewall::{drop_empty_tables, forward, legacy, masquerade, spoof};
use podwire_kernel::{Error, Mac, Owner};
use podwire_netlink::{sys, Socket};

/// The timeout for an expected answer: the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The wait for an answer that must not arrive.
const SILENCE: Duration = Duration::from_millis(400);

/// Makes IPv6 addresses usable at once.
const NO_DAD: &str = "sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0";

/// Runs a command line in the calling thread's namespace.
fn run(line: &str) -> String {
    let output = Command::new("sh").arg("-c").arg(line).output().expect("sh runs");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn ruleset() -> String {
    run("nft list ruleset").replace('\t', "")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn net(text: &str) -> IpNet {
    text.parse().expect("an address with its prefix")
}

fn owner(container: &str) -> Owner {
    Owner::new("pods", container, "eth0")
}

/// Runs `test` in a thread with a fresh network namespace: the node.
fn on_a_node(test: impl FnOnce(&mut Socket) + Send + 'static) {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes network namespaces");
    let inside = move || {
        sys::new_network_namespace().expect("a new network namespace");
        run(NO_DAD);
        run("ip link set lo up; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        test(&mut Socket::netfilter().expect("a netfilter socket"));
    };
    if let Err(panic) = thread::spawn(inside).join() {
        std::panic::resume_unwind(panic);
    }
}

/// Another network namespace, connected to the node. It exists as long as its process.
struct Peer {
    process: Child,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Peer {
    /// A namespace with a device `eth0` whose other end, `host`, is in the calling thread's.
    fn connected(host: &str) -> Peer {
        let process = Command::new("unshare").args(["-n", "sleep", "1000"]).stdin(Stdio::null()).spawn();
        let process = process.expect("unshare runs");
        let peer = Peer { process };
        let link = |path: String| std::fs::read_link(path).expect("a namespace");
        while link(peer.path()) == link("/proc/thread-self/ns/net".into()) {
            thread::sleep(Duration::from_millis(1));
        }
        peer.sh(NO_DAD);
        run(&format!("ip link add {host} type veth peer name eth0 netns {}", peer.process.id()));
        run(&format!("ip link set {host} up"));
        peer.sh("ip link set eth0 up; ip link set lo up");
        peer
    }

    /// A pod on a bridge, which has the first address of its network.
    fn pod(host: &str, bridge: &str, addr: &str, gateway: &str) -> Peer {
        let pod = Peer::connected(host);
        run(&format!("ip link set {host} master {bridge}; bridge link set dev {host} hairpin on"));
        pod.sh(&format!("ip addr add {addr} dev eth0 nodad; ip route add default via {gateway}"));
        pod
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.process.id())
    }

    fn sh(&self, line: &str) -> String {
        run(&format!("nsenter -t {} -n sh -c '{line}'", self.process.id()))
    }

    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.path()).expect("a namespace");
        let inside = || {
            sys::enter_network_namespace(file.as_fd()).expect("inside");
            work()
        };
        thread::scope(|scope| scope.spawn(inside).join().expect("no panic"))
    }

    /// Answers every TCP connection to the port with `name` and whom it sees.
    fn serves(&self, port: u16, name: &'static str) {
        self.within(move || serve(port, name));
    }

    fn asks(&self, to: &str) -> Option<String> {
        self.within(|| ask(to))
    }

    /// The same where no answer is expected.
    fn asks_in_vain(&self, to: &str) -> Option<String> {
        self.within(|| ask_in_vain(to))
    }
}

fn serve(port: u16, name: &'static str) {
    let listener = TcpListener::bind(("::", port)).expect("a free port");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let peer =
                stream.peer_addr().map(|peer| peer.ip().to_canonical().to_string()).unwrap_or_default();
            let _ = write!(stream, "{name} sees {peer}");
        }
    });
}

/// What a server says, if it is reached.
fn ask(to: &str) -> Option<String> {
    ask_for(TIMEOUT, to)
}

/// The same where no answer is expected.
fn ask_in_vain(to: &str) -> Option<String> {
    ask_for(SILENCE, to)
}

fn ask_for(timeout: Duration, to: &str) -> Option<String> {
    let to: SocketAddr = to.parse().expect("an address with a port");
    let mut stream = TcpStream::connect_timeout(&to, timeout).ok()?;
    stream.set_read_timeout(Some(timeout)).expect("a timeout");
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// An external host behind the node's uplink (192.0.2.2, fd00:2::2), and a bridge `br0` for pods (10.1.0.1/16).
fn external_host() -> Peer {
    let world = Peer::connected("uplink");
    run("ip addr add 192.0.2.1/24 dev uplink; ip addr add fd00:2::1/64 dev uplink nodad");
    world.sh("ip addr add 192.0.2.2/24 dev eth0; ip addr add fd00:2::2/64 dev eth0 nodad");
    world.sh("ip route add 10.0.0.0/8 via 192.0.2.1; ip route add fd00:1::/64 via fd00:2::1");
    run("ip link add br0 type bridge; ip link set br0 up; ip addr add 10.1.0.1/16 dev br0");
    world
}

fn tcp(host_port: u16, pod: &str, pod_port: u16) -> PortMap {
    PortMap { protocol: Protocol::Tcp, host_ip: None, host_port, pod: net(pod), pod_port }
}

#[test]
fn a_pod_is_masqueraded_outside_its_network_and_not_inside() {
    on_a_node(|nft| {
        let world = external_host();
        let pod = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        // Of the same network, but not on the bridge: packets to it are routed through the node.
        let far = Peer::connected("pod2");
        run("ip route add 10.1.9.9 dev pod2; ip addr add 10.1.0.1/32 dev pod2");
        far.sh("ip addr add 10.1.9.9/32 dev eth0; ip route add 10.1.0.1 dev eth0");
        far.sh("ip route add default via 10.1.0.1");
        pod.sh("ip route add 10.1.9.9 via 10.1.0.1");
        world.serves(9000, "world");
        far.serves(9000, "far");
        assert_eq!(pod.asks("192.0.2.2:9000").as_deref(), Some("world sees 10.1.0.5"));

        masquerade::add(nft, &owner("c1"), &[net("10.1.0.5/16")]).unwrap();
        assert_eq!(pod.asks("192.0.2.2:9000").as_deref(), Some("world sees 192.0.2.1"));
        assert_eq!(pod.asks("10.1.9.9:9000").as_deref(), Some("far sees 10.1.0.5"));
        assert!(masquerade::is_present(nft, &owner("c1"), ip("10.1.0.5")).unwrap());
        assert!(!masquerade::is_present(nft, &owner("c2"), ip("10.1.0.5")).unwrap());

        assert!(!masquerade::remove(nft, &owner("c2"), &[ip("10.1.0.5")]).unwrap());
        assert!(masquerade::remove(nft, &owner("c1"), &[ip("10.1.0.5")]).unwrap());
        assert_eq!(pod.asks("192.0.2.2:9000").as_deref(), Some("world sees 10.1.0.5"));
    });
}

#[test]
fn an_address_of_another_running_pod_is_not_taken_over() {
    on_a_node(|nft| {
        let (other, own) = (Owner::new("other", "c1", "eth0"), owner("c2"));
        let is_running = |comment: &str| comment == "other/c1/eth0";
        let rules =
            forward::Rules { admin_chain: "CNI-ADMIN".into(), policy: forward::Policy::Open, bridge: None };
        let (nets, ips) = ([net("10.1.0.5/16")], [ip("10.1.0.5")]);
        let (maps, options) = ([tcp(8080, "10.1.0.5/16", 80)], Options::default());
        masquerade::add(nft, &other, &nets).unwrap();
        forward::add(nft, &other, &ips, &rules).unwrap();
        hostports::add(nft, &other, &maps, &options).unwrap();
        let before = ruleset();
        let text = "address 10.1.0.5 belongs to other/c1/eth0, which is running";
        let masqueraded = masquerade::add_if_free(nft, &own, &nets, &is_running).unwrap_err();
        let passed = forward::add_if_free(nft, &own, &ips, &rules, &is_running).unwrap_err();
        assert_eq!((masqueraded.to_string(), passed.to_string()), (text.to_owned(), text.to_owned()));
        let mapped = hostports::add_if_free(nft, &own, &maps, &options, &is_running).unwrap_err();
        assert_eq!(mapped.to_string(), "host port 8080/tcp is taken by other/c1/eth0");
        assert_eq!(ruleset(), before);
        assert_eq!(masquerade::holders(nft, ip("10.1.0.5")).unwrap(), ["other/c1/eth0"]);
        assert_eq!(forward::holder(nft, ip("10.1.0.5")).unwrap().as_deref(), Some("other/c1/eth0"));

        // Its own elements, and those of a deleted pod, are no obstacle.
        masquerade::add_if_free(nft, &other, &nets, &is_running).unwrap();
        masquerade::add_if_free(nft, &own, &nets, &|_| false).unwrap();
        forward::add_if_free(nft, &own, &ips, &rules, &|_| false).unwrap();
        hostports::add_if_free(nft, &own, &maps, &options, &|_| false).unwrap();
        assert!(!ruleset().contains("other/c1/eth0"), "{}", ruleset());
    });
}

#[test]
fn masquerades_are_listed_replaced_collected_and_removed() {
    on_a_node(|nft| {
        assert!(!masquerade::remove(nft, &owner("c1"), &[ip("10.1.0.5")]).unwrap());
        assert!(!masquerade::remove_all(nft, &owner("c1")).unwrap());
        assert_eq!(masquerade::collect(nft, "pods", &[]).unwrap(), 0);
        masquerade::add(nft, &owner("dead"), &[net("10.1.0.5/16")]).unwrap();
        masquerade::add(nft, &owner("c1"), &[net("10.1.0.5/16"), net("fd00:1::5/64")]).unwrap();
        masquerade::add(nft, &owner("c1"), &[net("10.1.0.5/16"), net("fd00:1::5/64")]).unwrap();
        masquerade::add(nft, &owner("c2"), &[net("10.2.0.5/16")]).unwrap();
        // Each alone in its network: they share a set and a chain.
        masquerade::add(nft, &owner("c1"), &[net("10.4.0.5/32"), net("10.4.0.6/32")]).unwrap();
        masquerade::add(nft, &owner("c1"), &[net("10.4.0.7/32")]).unwrap();
        masquerade::add(nft, &Owner::new("other", "c3", "eth0"), &[net("10.3.0.5/16")]).unwrap();
        let listed = ruleset();
        for line in [
            "set net4_10.1.0.0_16 {\ntype ipv4_addr\nelements = { 10.1.0.5 comment \"pods/c1/eth0\" }",
            "set net6_fd00_1___64 {\ntype ipv6_addr\nelements = { fd00:1::5 comment \"pods/c1/eth0\" }",
            "chain net4_10.1.0.0_16 {\ntype nat hook postrouting priority srcnat; policy accept;\n\
             ip saddr @net4_10.1.0.0_16 ip daddr != 10.1.0.0/16 ip daddr != 224.0.0.0/4 masquerade\n}",
            "chain net4_alone {\ntype nat hook postrouting priority srcnat; policy accept;\n\
             ip saddr @net4_alone ip daddr != 224.0.0.0/4 masquerade\n}",
            "ip6 saddr @net6_fd00_1___64 ip6 daddr != fd00:1::/64 ip6 daddr != ff00::/8 masquerade\n}",
        ] {
            assert!(listed.contains(line), "no {line:?} in {listed}");
        }
        assert!(!listed.contains("dead") && !listed.contains("_32"), "{listed}");
        assert_eq!(masquerade::collect(nft, "pods", &[owner("c1")]).unwrap(), 1);
        assert!(masquerade::is_present(nft, &owner("c1"), ip("fd00:1::5")).unwrap());
        assert!(masquerade::remove_all(nft, &owner("c1")).unwrap());
        assert_eq!(drop_empty_tables(nft).unwrap(), 0, "the other network's pod is still there");
        assert_eq!(masquerade::collect(nft, "other", &[]).unwrap(), 1);
        assert_eq!(drop_empty_tables(nft).unwrap(), 1);
        assert_eq!(ruleset(), "");
    });
}

#[test]
fn concurrent_adds_create_the_skeleton_once() {
    on_a_node(|nft| {
        thread::scope(|scope| {
            for n in 0..16 {
                scope.spawn(move || {
                    let nft = &mut Socket::netfilter().unwrap();
                    for m in 0..20 {
                        let addr = net(&format!("10.{}.{n}.{m}/16", n % 4));
                        masquerade::add(nft, &owner(&format!("c{n}-{m}")), &[addr]).unwrap();
                        if m % 2 == 0 {
                            assert!(masquerade::remove(nft, &owner(&format!("c{n}-{m}")), &[addr.addr()])
                                .unwrap());
                        }
                    }
                });
            }
        });
        let listed = ruleset();
        assert_eq!(listed.matches("hook postrouting").count(), 4, "{listed}");
        assert_eq!(listed.matches("masquerade\n").count(), 4, "{listed}");
        assert_eq!(masquerade::collect(nft, "pods", &[]).unwrap(), 160);
    });
}

#[test]
fn a_damaged_skeleton_is_repaired() {
    on_a_node(|nft| {
        masquerade::add(nft, &owner("c1"), &[net("10.1.0.5/16")]).unwrap();
        masquerade::add(nft, &owner("c2"), &[net("fd00:1::5/64")]).unwrap();
        run("nft flush chain inet podwire_masq net6_fd00_1___64; nft delete set inet podwire_masq net6_fd00_1___64");
        masquerade::add(nft, &owner("c3"), &[net("fd00:1::6/64")]).unwrap();
        let listed = ruleset();
        assert_eq!(listed.matches("masquerade\n").count(), 2, "{listed}");
        assert!(listed.contains("pods/c1/eth0") && listed.contains("pods/c3/eth0"), "{listed}");
        run("nft flush ruleset");
        masquerade::add(nft, &owner("c4"), &[net("10.1.0.6/16")]).unwrap();
        assert!(masquerade::is_present(nft, &owner("c4"), ip("10.1.0.6")).unwrap());
    });
}

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
fn isolated_bridges_reach_only_published_ports() {
    on_a_node(|nft| {
        let world = external_host();
        run("ip link add br1 type bridge; ip link set br1 up; ip addr add 10.2.0.1/16 dev br1");
        let one = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        let two = Peer::pod("pod2", "br1", "10.2.0.5/16", "10.2.0.1");
        one.serves(80, "one");
        two.serves(80, "two");
        world.serves(80, "world");
        let rules = |bridge: &str, policy| forward::Rules {
            admin_chain: "CNI-ADMIN".into(),
            policy,
            bridge: Some(bridge.into()),
        };
        let apart = |nft: &mut Socket, policy| {
            forward::add(nft, &owner("c1"), &[ip("10.1.0.5")], &rules("br0", policy)).unwrap();
            forward::add(nft, &owner("c2"), &[ip("10.2.0.5")], &rules("br1", policy)).unwrap();
        };
        apart(nft, forward::Policy::Open);
        assert!(one.asks("10.2.0.5:80").is_some() && two.asks("10.1.0.5:80").is_some());
        apart(nft, forward::Policy::SameBridge);
        assert!(one.asks_in_vain("10.2.0.5:80").is_none() && two.asks_in_vain("10.1.0.5:80").is_none());
        assert!(world.asks("10.1.0.5:80").is_some() && one.asks("192.0.2.2:80").is_some());
        assert!(ruleset().contains("\"br0\" . \"br0\""));
        // A network of others on the same bridge does not open it.
        let other = Owner::new("others", "c3", "eth0");
        forward::add(nft, &other, &[ip("10.1.0.9")], &rules("br0", forward::Policy::Open)).unwrap();
        forward::remove_all(nft, &other).unwrap();
        assert!(one.asks_in_vain("10.2.0.5:80").is_none() && two.asks_in_vain("10.1.0.5:80").is_none());
        hostports::add(nft, &owner("c1"), &[tcp(8080, "10.1.0.5/16", 80)], &Options::default()).unwrap();
        assert_eq!(two.asks("192.0.2.1:8080").as_deref(), Some("one sees 10.2.0.5"));
        apart(nft, forward::Policy::Isolated);
        assert!(!ruleset().contains("\"br0\" . \"br0\""));
        assert!(one.asks_in_vain("10.2.0.5:80").is_none());
        apart(nft, forward::Policy::Open);
        assert!(one.asks("10.2.0.5:80").is_some());
    });
}

#[test]
fn pod_packets_pass_an_iptables_forward_policy_of_drop() {
    on_a_node(|nft| {
        let world = external_host();
        let pod = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        world.serves(80, "world");
        pod.serves(80, "pod");
        run("iptables -P FORWARD DROP; iptables -N DOCKER-USER; iptables -A FORWARD -j DOCKER-USER");
        // After our second chain the mark is cleared.
        run("nft add table inet watch; nft 'add chain inet watch f { type filter hook forward priority 10; }'; \
             nft add rule inet watch f meta mark != 0 counter drop");
        assert_eq!(pod.asks_in_vain("192.0.2.2:80"), None);
        let rules =
            forward::Rules { admin_chain: "CNI-ADMIN".into(), policy: forward::Policy::Open, bridge: None };
        forward::add(nft, &owner("c1"), &[ip("10.1.0.5")], &rules).unwrap();
        forward::add(nft, &owner("c2"), &[ip("10.1.0.6"), ip("fd00:1::6")], &rules).unwrap();
        assert_eq!(pod.asks("192.0.2.2:80").as_deref(), Some("world sees 10.1.0.5"));
        assert_eq!(world.asks_in_vain("10.1.0.5:80"), None, "only answers reach a pod");
        // A table that sets the mark before ours, as the overlay's does, lets the packet pass.
        run("nft add table inet earlier; nft 'add chain inet earlier f { type filter hook forward priority -1; }'; \
             nft add rule inet earlier f ip daddr 10.1.0.5 meta mark set meta mark or 0x1000000");
        assert_eq!(world.asks("10.1.0.5:80").as_deref(), Some("pod sees 192.0.2.2"));
        run("nft delete table inet earlier");
        let listed = run("iptables -S FORWARD");
        let ours = "-A FORWARD -m mark --mark 0x1000000/0x1000000 -m comment --comment \"podwire: pods may pass\" -j ACCEPT";
        assert_eq!(listed, format!("-P FORWARD DROP\n{ours}\n-A FORWARD -j DOCKER-USER\n"));

        // It survives iptables-save and iptables-restore, which rewrite it.
        run("iptables-save > /tmp/podwire-test-$$ && iptables-restore < /tmp/podwire-test-$$; rm /tmp/podwire-test-$$");
        forward::add(nft, &owner("c1"), &[ip("10.1.0.5")], &rules).unwrap();
        assert_eq!(run("iptables -S FORWARD").matches("podwire").count(), 1);
        run("nft add rule inet podwire_firewall CNI-ADMIN tcp dport 80 accept");
        assert!(pod.asks("192.0.2.2:80").is_some());
        assert_eq!(
            world.asks("10.1.0.5:80").as_deref(),
            Some("pod sees 192.0.2.2"),
            "what the administrator lets pass does"
        );
        run("nft insert rule inet podwire_firewall CNI-ADMIN tcp dport 80 drop");
        assert_eq!(pod.asks_in_vain("192.0.2.2:80"), None, "the administrator has the first word");

        assert!(forward::is_present(nft, &owner("c1"), ip("10.1.0.5")).unwrap());
        assert!(forward::remove(nft, &owner("c1"), &[ip("10.1.0.5")]).unwrap());
        assert_eq!(forward::collect(nft, "pods", &[]).unwrap(), 2);
        assert_eq!(drop_empty_tables(nft).unwrap(), 0, "the administrator's rules stay");
        run("nft flush chain inet podwire_firewall CNI-ADMIN");
        assert_eq!(drop_empty_tables(nft).unwrap(), 1);
        assert!(!run("iptables -S FORWARD").contains("podwire"));
    });
}

/// The chains of table `podwire_firewall`, sorted.
fn chains_of_forwarding() -> Vec<String> {
    let table = run("nft list table inet podwire_firewall").replace('\t', "");
    let chain = |text: &str| text.split('}').next().unwrap_or_default().trim_end().to_owned();
    let mut chains: Vec<String> = table.split("chain ").skip(1).map(chain).collect();
    chains.sort();
    chains
}

fn rules_for(bridge: &str, policy: forward::Policy) -> forward::Rules {
    forward::Rules { admin_chain: "CNI-ADMIN".into(), policy, bridge: Some(bridge.into()) }
}

const LEAN: [&str; 3] = [
    "CNI-ADMIN {",
    "admins {\njump CNI-ADMIN",
    "forward {\ntype filter hook forward priority filter - 1; policy accept;\njump CNI-ADMIN",
];

#[test]
fn forwarded_packets_are_marked_only_while_iptables_filters_them() {
    on_a_node(|nft| {
        let world = external_host();
        let pod = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        world.serves(80, "world");
        let rules = rules_for("br0", forward::Policy::Open);
        forward::add(nft, &owner("c1"), &[ip("10.1.0.5")], &rules).unwrap();
        assert_eq!(chains_of_forwarding(), LEAN);
        assert_eq!(pod.asks("192.0.2.2:80").as_deref(), Some("world sees 10.1.0.5"));
        // The administrator's rules take effect at once, and for every packet.
        let client = pod.within(|| UdpSocket::bind("10.1.0.5:4000").unwrap());
        let server = world.within(|| UdpSocket::bind("192.0.2.2:4000").unwrap());
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        client.set_read_timeout(Some(SILENCE)).unwrap();
        client.send_to(b"ask", "192.0.2.2:4000").unwrap();
        server.recv(&mut [0; 16]).unwrap();
        run("nft add rule inet podwire_firewall CNI-ADMIN ip daddr 10.1.0.5 drop");
        server.send_to(b"answer", "10.1.0.5:4000").unwrap();
        assert!(client.recv(&mut [0; 16]).is_err(), "an answer passes the administrator's chain");
        run("nft flush chain inet podwire_firewall CNI-ADMIN");
        server.send_to(b"answer", "10.1.0.5:4000").unwrap();
        client.recv(&mut [0; 16]).unwrap();

        run("iptables -P FORWARD DROP");
        assert_eq!(pod.asks_in_vain("192.0.2.2:80"), None);
        let absent = forward::absent(nft, &owner("c1"), &rules).unwrap();
        assert!(absent.iter().any(|text| text.starts_with("chain forwarded of table")), "{absent:?}");
        // An ADD of another pod is enough.
        forward::add(nft, &owner("c2"), &[ip("10.1.0.6")], &rules).unwrap();
        assert_eq!(forward::absent(nft, &owner("c1"), &rules).unwrap(), [""; 0]);
        assert_eq!(pod.asks("192.0.2.2:80").as_deref(), Some("world sees 10.1.0.5"));
        let names: Vec<String> = chains_of_forwarding();
        let names: Vec<&str> = names.iter().filter_map(|chain| chain.split(' ').next()).collect();
        assert_eq!(names, ["CNI-ADMIN", "admins", "forward", "forwarded", "marked"]);

        run("nft delete table ip filter");
        assert_eq!(forward::absent(nft, &owner("c1"), &rules).unwrap(), [""; 0], "more than needed");
        forward::add(nft, &owner("c2"), &[ip("10.1.0.6")], &rules).unwrap();
        assert_eq!(chains_of_forwarding(), LEAN);
        assert!(pod.asks("192.0.2.2:80").is_some());
        // iptables for IPv6 only.
        run("ip6tables -P FORWARD DROP");
        forward::prepare(nft, &owner("c1"), &rules).unwrap();
        assert!(chains_of_forwarding().iter().any(|chain| chain.starts_with("forwarded {")));
        assert!(run("ip6tables -S FORWARD").contains("podwire: pods may pass"));
    });
}

#[test]
fn rules_of_isolation_exist_only_while_a_bridge_is_isolated() {
    on_a_node(|nft| {
        let isolated = Owner::new("isolated", "c2", "eth0");
        let (open, apart) =
            (rules_for("br0", forward::Policy::Open), rules_for("br1", forward::Policy::Isolated));
        forward::add(nft, &owner("c1"), &[ip("10.1.0.5")], &open).unwrap();
        let has_rule =
            || ruleset().contains("iifname @bridges oifname @bridges iifname . oifname != @same drop");
        assert!(!has_rule());
        forward::add(nft, &isolated, &[ip("10.2.0.5")], &apart).unwrap();
        assert!(has_rule());
        // The other network neither opens the bridge nor misses anything.
        forward::add(nft, &owner("c3"), &[ip("10.1.0.6")], &open).unwrap();
        assert!(has_rule());
        assert_eq!(forward::absent(nft, &owner("c3"), &open).unwrap(), [""; 0]);
        run("nft flush chain inet podwire_firewall forward");
        assert_ne!(forward::absent(nft, &owner("c3"), &open).unwrap(), [""; 0]);
        forward::add(nft, &owner("c3"), &[ip("10.1.0.6")], &open).unwrap();
        assert!(has_rule());
        forward::remove_all(nft, &isolated).unwrap();
        assert!(has_rule(), "until GC finds no pod of the network");
        forward::collect(nft, "isolated", &[]).unwrap();
        assert_eq!(chains_of_forwarding(), LEAN);
        assert_eq!(forward::absent(nft, &owner("c3"), &open).unwrap(), [""; 0]);
        // For a pod whose packets firewalld accepts, an open bridge needs no table.
        run("nft delete table inet podwire_firewall");
        forward::isolate(nft, &owner("c4"), &open).unwrap();
        assert_eq!(ruleset(), "");
        forward::isolate(nft, &isolated, &apart).unwrap();
        assert!(has_rule());
    });
}

#[test]
fn concurrent_adds_agree_on_the_chains_of_forwarding() {
    on_a_node(|nft| {
        run("iptables -P FORWARD DROP");
        thread::scope(|scope| {
            for n in 0..8 {
                scope.spawn(move || {
                    let nft = &mut Socket::netfilter().unwrap();
                    let policy = [forward::Policy::Open, forward::Policy::SameBridge][n % 2];
                    let rules = forward::Rules {
                        admin_chain: format!("ADMIN{}", n % 3),
                        ..rules_for(&format!("br{n}"), policy)
                    };
                    for m in 0..10 {
                        let owner = Owner::new(format!("net{n}"), format!("c{m}"), "eth0");
                        forward::add(nft, &owner, &[ip(&format!("10.1.{n}.{m}"))], &rules).unwrap();
                    }
                });
            }
        });
        for n in 0..8 {
            let policy = [forward::Policy::Open, forward::Policy::SameBridge][n % 2];
            let rules = forward::Rules {
                admin_chain: format!("ADMIN{}", n % 3),
                ..rules_for(&format!("br{n}"), policy)
            };
            let owner = Owner::new(format!("net{n}"), "c0", "eth0");
            assert_eq!(forward::absent(nft, &owner, &rules).unwrap(), [""; 0], "{}", ruleset());
        }
        let listed = ruleset();
        assert_eq!(listed.matches("jump ADMIN").count(), 9, "{listed}");
        assert_eq!(listed.matches("oifname @bridges").count(), 2, "{listed}");
    });
}

/// The table as earlier versions created it, with a pod of theirs.
const EARLIER: &str = r#"nft -f - <<END
table inet podwire_firewall {
    set pods4 { type ipv4_addr; elements = { 10.1.0.5 comment "pods/c1/eth0" }; }
    set pods6 { type ipv6_addr; }
    set bridges { type ifname; }
    set same { type ifname . ifname; }
    chain CNI-ADMIN { }
    chain admins { jump CNI-ADMIN; }
    chain unmarked {
        meta mark set meta mark | 0x01000000 jump admins
        meta mark set meta mark & 0xfeffffff
    }
    chain forward { type filter hook forward priority -1; policy accept;
        meta mark & 0x01000000 == 0x01000000 jump admins
        meta mark & 0x01000000 == 0x00000000 jump unmarked
        iifname @bridges oifname @bridges ct state ! established,related ct status ! dnat iifname . oifname != @same drop
        ip saddr @pods4 meta mark set meta mark | 0x01000000 accept
        ct state established,related ip daddr @pods4 meta mark set meta mark | 0x01000000 accept
        ip6 saddr @pods6 meta mark set meta mark | 0x01000000 accept
        ct state established,related ip6 daddr @pods6 meta mark set meta mark | 0x01000000 accept
    }
    chain forwarded { type filter hook forward priority 1; policy accept;
        meta mark & 0x01000000 == 0x01000000 meta mark set meta mark & 0xfeffffff
    }
}
END"#;

#[test]
fn chains_of_earlier_versions_are_replaced_by_an_add() {
    for is_filtered in [false, true] {
        on_a_node(move |nft| {
            let world = external_host();
            let pod = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
            world.serves(80, "world");
            if is_filtered {
                run("iptables -P FORWARD DROP");
            }
            run(EARLIER);
            run("nft add rule inet podwire_firewall CNI-ADMIN tcp dport 81 drop");
            let rules = rules_for("br0", forward::Policy::Open);
            forward::add(nft, &owner("c2"), &[ip("10.1.0.6")], &rules).unwrap();
            let replaced = chains_of_forwarding();
            assert_eq!(forward::absent(nft, &owner("c2"), &rules).unwrap(), [""; 0]);
            assert!(pod.asks("192.0.2.2:80").is_some(), "a pod of before");
            assert!(ruleset().contains("tcp dport 81 drop"));
            assert!(forward::is_present(nft, &owner("c1"), ip("10.1.0.5")).unwrap());

            run("nft delete table inet podwire_firewall");
            forward::add(nft, &owner("c2"), &[ip("10.1.0.6")], &rules).unwrap();
            run("nft add rule inet podwire_firewall CNI-ADMIN tcp dport 81 drop");
            assert_eq!(replaced, chains_of_forwarding());
        });
    }
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

#[test]
fn a_pod_cannot_spoof_hardware_addresses() {
    on_a_node(|nft| {
        let _world = external_host();
        let pod = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        serve(80, "node");
        let mac: Mac = pod.sh("ip -br link show eth0").split_whitespace().nth(2).unwrap().parse().unwrap();
        spoof::add(nft, &owner("c1"), "pod1", mac, false).unwrap();
        assert!(pod.asks("10.1.0.1:80").is_some());
        assert!(spoof::is_present(nft, &owner("c1"), "pod1", mac, false).unwrap());
        pod.sh("ip link set eth0 address 02:00:00:00:00:99; ip neigh flush dev eth0");
        assert!(pod.asks_in_vain("10.1.0.1:80").is_none());
        assert!(
            ruleset().contains("iifname @guarded iifname . ether saddr != @allowed drop"),
            "{}",
            ruleset()
        );
        assert!(!spoof::remove(nft, &owner("c2"), "pod1").unwrap());
        assert!(spoof::remove(nft, &owner("c1"), "pod1").unwrap());
        pod.sh("ip neigh flush dev eth0");
        assert!(pod.asks("10.1.0.1:80").is_some());
        spoof::add(nft, &owner("c1"), "pod1", mac, false).unwrap();
        spoof::add(nft, &owner("c2"), "pod1", mac, false).unwrap();
        assert_eq!(spoof::collect(nft, "pods", &[owner("c1")]).unwrap(), 4);
        assert!(!spoof::remove_all(nft, &owner("c2")).unwrap());
        assert_eq!(drop_empty_tables(nft).unwrap(), 1);
    });
}

/// The rules of the Go plugins for container `1234` of network `test`, whose chains are named `CNI-2bbe0c48…`.
const GO_IPTABLES: &str = r#"
for i in iptables ip6tables; do
    addr=10.1.0.5/32; net=10.1.0.0/16; to=10.1.0.5:80
    [ $i = ip6tables ] && addr=fd00:1::5/128 && net=fd00:1::/64 && to=[fd00:1::5]:80
    $i -t nat -N CNI-2bbe0c48b91a7d1b8a6753a8
    $i -t nat -A CNI-2bbe0c48b91a7d1b8a6753a8 -d $net -m comment --comment 'name: "test" id: "1234"' -j ACCEPT
    $i -t nat -A CNI-2bbe0c48b91a7d1b8a6753a8 -j MASQUERADE
    $i -t nat -A POSTROUTING -s $addr -m comment --comment 'name: "test" id: "1234"' -j CNI-2bbe0c48b91a7d1b8a6753a8
    $i -t nat -N CNI-HOSTPORT-DNAT
    $i -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
    $i -t nat -N CNI-DN-2bbe0c48b91a7d1b8a675
    $i -t nat -A CNI-DN-2bbe0c48b91a7d1b8a675 -p tcp --dport 8080 -j DNAT --to-destination $to
    $i -t nat -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment 'dnat name: "test" id: "1234"' -m multiport --dports 8080 -j CNI-DN-2bbe0c48b91a7d1b8a675
    $i -N CNI-FORWARD
    $i -A CNI-FORWARD -d $addr -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    $i -A CNI-FORWARD -s $addr -j ACCEPT
done
iptables -t nat -A POSTROUTING -s 10.1.0.6/32 -m comment --comment 'name: "test" id: "5678"' -j MASQUERADE
iptables -A CNI-FORWARD -s 10.1.0.6/32 -j ACCEPT
"#;

/// `printf test | sha512sum` and `printf eth0:1234 | sha512sum` begin the comment of the masquerade.
const GO_NFTABLES: &str = r#"
hash() { printf %s "$1" | sha512sum | cut -c1-16; }
nft -f - <<END
table inet cni_plugins_masquerade {
    chain masq_checks {
        ip saddr 10.1.0.5 ip daddr != 10.1.0.0/16 masquerade comment "$(hash test)-$(hash eth0:1234), net: test, if: eth0, id: 1234"
        ip saddr 10.1.0.6 ip daddr != 10.1.0.0/16 masquerade comment "$(hash test)-$(hash eth0:5678), net: test, if: eth0, id: 5678"
    }
    chain postrouting { type nat hook postrouting priority srcnat; goto masq_checks; }
}
table ip cni_hostport {
    chain hostports {
        tcp dport 8080 dnat to 10.1.0.5:80 comment "1234"
        tcp dport 8081 dnat to 10.1.0.6:80 comment "5678"
    }
    chain masquerading { type nat hook postrouting priority srcnat
        ip saddr 10.1.0.5 ip daddr 10.1.0.5 masquerade comment "1234"
    }
}
table bridge nat {
    chain cni-br-iface-1234-eth0-mac {
        ether saddr 02:00:00:00:00:01 return comment "macspoofchk-1234-eth0"
        drop comment "macspoofchk-1234-eth0"
    }
    chain cni-br-iface-1234-eth0 { jump cni-br-iface-1234-eth0-mac comment "macspoofchk-1234-eth0"; }
    chain PREROUTING { type filter hook prerouting priority -300
        iifname "veth1" jump cni-br-iface-1234-eth0 comment "macspoofchk-1234-eth0"
    }
}
END
"#;

/// As our plugins of a chain do it, each for its counterpart.
fn remove_go_rules(nft: &mut Socket, owner: &Owner, addrs: &[IpAddr]) -> bool {
    let removed = [
        legacy::remove_passes(nft, addrs).unwrap(),
        legacy::remove_ports(nft, owner).unwrap(),
        legacy::remove_masquerade(nft, owner).unwrap(),
    ];
    removed.contains(&true)
}

fn collect_go_rules(nft: &mut Socket, network: &str, keep: &[Owner]) -> usize {
    let masquerades = legacy::collect_masquerades(nft, network, keep).unwrap();
    masquerades + legacy::collect_ports(nft, network, keep).unwrap()
}

#[test]
fn rules_of_go_plugins_are_removed() {
    on_a_node(|nft| {
        let gone = Owner::new("test", "1234", "eth0");
        assert!(!remove_go_rules(nft, &gone, &[ip("10.1.0.5")]));
        run(GO_IPTABLES);
        assert!(legacy::masquerades(nft, &gone).unwrap() && legacy::maps_ports(nft, &gone).unwrap());
        assert!(remove_go_rules(nft, &gone, &[ip("10.1.0.5"), ip("fd00:1::5")]));
        assert!(!legacy::masquerades(nft, &gone).unwrap() && !legacy::maps_ports(nft, &gone).unwrap());
        let left = run("iptables-save; ip6tables-save");
        for word in ["2bbe0c48", "1234", "10.1.0.5", "fd00:1::5"] {
            assert!(!left.contains(word), "{word} in {left}");
        }
        assert!(left.contains("-s 10.1.0.6/32 -j ACCEPT") && left.contains("id: \\\"5678\\\""), "{left}");
        assert!(left.contains("-j CNI-HOSTPORT-DNAT"));
        assert!(!remove_go_rules(nft, &gone, &[ip("10.1.0.5")]));

        run(GO_NFTABLES);
        assert!(legacy::masquerades(nft, &gone).unwrap() && legacy::maps_ports(nft, &gone).unwrap());
        assert!(remove_go_rules(nft, &gone, &[ip("10.1.0.5")]));
        assert!(!legacy::masquerades(nft, &gone).unwrap() && !legacy::maps_ports(nft, &gone).unwrap());
        let left = run("nft list ruleset 2>/dev/null");
        assert!(!left.contains("1234") && left.matches("5678").count() >= 2, "{left}");
    });
}

#[test]
fn rules_of_go_plugins_are_collected_except_kept_ones() {
    on_a_node(|nft| {
        run(GO_IPTABLES);
        run(GO_NFTABLES);
        let (gone, kept) = (Owner::new("test", "1234", "eth0"), Owner::new("test", "5678", "eth0"));
        assert_eq!(collect_go_rules(nft, "other", &[]), 0);
        assert_eq!(collect_go_rules(nft, "test", &[gone.clone(), kept.clone()]), 0);
        assert!(collect_go_rules(nft, "test", std::slice::from_ref(&kept)) > 0);
        assert!(!legacy::masquerades(nft, &gone).unwrap() && legacy::masquerades(nft, &kept).unwrap());
        assert!(!run("iptables-save; ip6tables-save").contains("2bbe0c48"));
    });
}

/// ADD by the Go plugins that Debian installs, with all they do to a firewall.
const GO_ADD: &str = r#"
export CNI_COMMAND=ADD CNI_CONTAINERID=1234 CNI_IFNAME=eth0 CNI_PATH=/usr/lib/cni CNI_NETNS=$NETNS
base='"cniVersion":"1.0.0","name":"test"'
ipam='"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/16","gateway":"10.1.0.1"}]}'
result=$(echo "{$base,\"type\":\"bridge\",\"bridge\":\"go0\",\"isGateway\":true,\"ipMasq\":true,\"macspoofchk\":true,$ipam}" |
    /usr/lib/cni/bridge) || { echo "$result" >&2; exit 1; }
ports='"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}'
echo "{$base,\"type\":\"portmap\",\"capabilities\":{\"portMappings\":true},$ports,\"prevResult\":$result}" | /usr/lib/cni/portmap >&2
echo "{$base,\"type\":\"firewall\",\"backend\":\"iptables\",\"prevResult\":$result}" | /usr/lib/cni/firewall >&2
"#;

#[test]
fn rules_of_the_real_go_plugins_are_removed() {
    if !std::path::Path::new("/usr/lib/cni/bridge").exists() {
        eprintln!("not tested: Debian's containernetworking-plugins are not installed");
        return;
    }
    on_a_node(|nft| {
        let pod = Peer::connected("spare");
        pod.sh("ip link delete eth0");
        run(&format!("NETNS={}; {GO_ADD}", pod.path()));
        let made = run("nft list ruleset 2>/dev/null; iptables-save; ip6tables-save");
        for word in ["CNI-2bbe0c48", "CNI-DN-2bbe0c48", "cni-br-iface-1234-eth0", "-s 10.1.0.5/32 -j ACCEPT"]
        {
            assert!(made.contains(word), "the plugins made no {word}: {made}");
        }
        let gone = Owner::new("test", "1234", "eth0");
        assert!(legacy::masquerades(nft, &gone).unwrap() && legacy::maps_ports(nft, &gone).unwrap());
        assert!(remove_go_rules(nft, &gone, &[ip("10.1.0.5")]));
        let left = run("nft list ruleset 2>/dev/null; iptables-save; ip6tables-save");
        for word in ["2bbe0c48", "1234", "10.1.0.5"] {
            assert!(!left.contains(word), "{word} in {left}");
        }
    });
}

#[test]
fn flushed_rules_are_reported_and_restored() {
    on_a_node(|nft| {
        let (nets, owner) = ([net("10.1.0.5/16"), net("fd00:1::5/64")], owner("c1"));
        let map =
            |pod: IpNet| PortMap { protocol: Protocol::Tcp, host_ip: None, host_port: 80, pod, pod_port: 80 };
        let (maps, options) = (nets.map(map), Options::default());
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let bridge = Some("br0".to_owned());
        let rules =
            forward::Rules { admin_chain: "ADMIN".into(), policy: forward::Policy::SameBridge, bridge };
        let missing = |nft: &mut Socket| {
            let mut all = masquerade::absent(nft, &nets).unwrap();
            all.extend(hostports::absent(nft, &maps, &options).unwrap());
            all.extend(forward::absent(nft, &owner, &rules).unwrap());
            all.extend(spoof::absent(nft).unwrap());
            all
        };
        masquerade::add(nft, &owner, &nets).unwrap();
        hostports::add(nft, &owner, &maps, &options).unwrap();
        forward::add(nft, &owner, &nets.map(|net| net.addr()), &rules).unwrap();
        spoof::add(nft, &owner, "pod1", mac, false).unwrap();
        assert_eq!(missing(nft), [""; 0], "all is as it was made");
        let whole = ruleset();
        for table in
            ["inet podwire_masq", "inet podwire_ports", "inet podwire_firewall", "bridge podwire_spoof"]
        {
            run(&format!("nft flush table {table}"));
            assert!(!missing(nft).is_empty(), "{table}");
        }
        masquerade::prepare(nft, &nets).unwrap();
        hostports::prepare(nft, &maps, &options).unwrap();
        forward::prepare(nft, &owner, &rules).unwrap();
        spoof::prepare(nft).unwrap();
        assert_eq!(missing(nft), [""; 0]);
        assert_eq!(ruleset(), whole, "and no element was lost");
    });
}
