//! The stage: a node in a network namespace, pods on a bridge or behind routes of their own, and a world outside.

#![allow(dead_code, clippy::unwrap_used)]

pub mod ears;
pub mod probe;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use podwire_netlink::sys;
use podwire_policy::{compile, Snapshot};
use podwire_policy_agent::dataplane::{Change, Nftables, NodeInput};
use serde_json::{json, Value};

/// Patience with an answer that should come, on a busy machine, too.
const PATIENCE: Duration = Duration::from_secs(20);
/// Patience with one that should not come: a denied connection is known by it.
const IMPATIENCE: Duration = Duration::from_secs(3);
/// A datagram may be lost: a question that should be answered is sent again after so long.
const AGAIN: Duration = Duration::from_secs(1);
/// IPv6 addresses are good at once.
const NO_DAD: &str = "sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0";

/// Runs a command line in the calling thread's namespace.
pub fn run(line: &str) -> String {
    let output = Command::new("sh").arg("-c").arg(line).output().expect("sh runs");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Runs `test` in a thread with a fresh network namespace: the node.
pub fn on_a_node(test: impl FnOnce(&mut Nftables) + Send + 'static) {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes network namespaces");
    let inside = move || {
        sys::new_network_namespace().expect("a new network namespace");
        run(NO_DAD);
        run("ip link set lo up; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        // As on a node whose administrator has not asked for it: only the pods' bridge is to be filtered.
        run("sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0");
        run("ip link add br0 type bridge; ip addr add 10.1.0.1/16 dev br0; ip addr add fd00:1::1/64 dev br0 nodad");
        run("ip addr add 10.244.0.1/16 dev br0; ip addr add fd00:10:244::1/64 dev br0 nodad; ip link set br0 up");
        run("ip addr add 10.0.0.1/16 dev br0; ip addr add fd00::1/64 dev br0 nodad");
        let mut host = podwire_kernel::Host::here().expect("the node");
        let bridge = host.get_link("br0").expect("br0");
        podwire_kernel::bridge::ensure_seen_by_ip_rules(&mut host, &bridge).expect("br_netfilter");
        test(&mut Nftables::open().expect("a netfilter socket"));
    };
    if let Err(panic) = thread::spawn(inside).join() {
        std::panic::resume_unwind(panic);
    }
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Yes,
    /// Nothing came back, not even a refusal.
    Silence,
    Refused,
}

/// A pod, or the world: a namespace that is wired to the node. It lives as long as its process.
pub struct Place {
    process: Child,
    pub ip4: String,
    pub ip6: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Place {
    fn wired(host: &str, ip4: &str, ip6: &str) -> Place {
        let process = Command::new("unshare").args(["-n", "sleep", "1000"]).stdin(Stdio::null()).spawn();
        let place = Place { process: process.expect("unshare runs"), ip4: ip4.into(), ip6: ip6.into() };
        let link = |path: String| std::fs::read_link(path).expect("a namespace");
        while link(place.path()) == link("/proc/thread-self/ns/net".into()) {
            thread::sleep(Duration::from_millis(1));
        }
        place.sh(NO_DAD);
        run(&format!("ip link add {host} type veth peer name eth0 netns {}", place.process.id()));
        run(&format!("ip link set {host} up"));
        place.sh("ip link set eth0 up; ip link set lo up");
        place
    }

    /// A pod on the bridge, with these last parts of its addresses.
    pub fn bridged(number: u8) -> Place {
        let (ip4, ip6) = (format!("10.1.0.{number}"), format!("fd00:1::{number}"));
        Place::on_bridge(&format!("veth{number}"), (&ip4, "10.1.0.1"), (&ip6, "fd00:1::1"))
    }

    /// A pod on the bridge, with addresses and gateways.
    pub fn on_bridge(host: &str, (ip4, gateway4): (&str, &str), (ip6, gateway6): (&str, &str)) -> Place {
        let pod = Place::wired(host, ip4, ip6);
        run(&format!("ip link set {host} master br0"));
        pod.sh(&format!("ip addr add {ip4}/16 dev eth0; ip addr add {ip6}/64 dev eth0 nodad"));
        pod.sh(&format!("ip route add default via {gateway4}; ip -6 route add default via {gateway6}"));
        pod.holds_nothing_back();
        pod.is_reached();
        pod
    }

    /// A refusal counts as an answer, so none may be held back.
    fn holds_nothing_back(&self) {
        self.sh("sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0");
    }

    /// Waits until the cable is good for packets.
    pub fn is_reached(&self) {
        for ip in [&self.ip4, &self.ip6] {
            run(&format!(
                "for n in 1 2 3 4 5 6 7 8 9; do ping -qc1 -W1 {ip} >/dev/null && exit; done; exit 1"
            ));
        }
    }

    /// A pod on a cable, with these last parts of its addresses.
    pub fn routed(number: u8) -> Place {
        Place::on_cable(&format!("ptp{number}"), &format!("10.2.0.{number}"), &format!("fd00:2::{number}"))
    }

    /// A pod with a cable and routes of its own, as the plugin ptp makes them.
    pub fn on_cable(host: &str, ip4: &str, ip6: &str) -> Place {
        let pod = Place::wired(host, ip4, ip6);
        run(&format!("ip addr add 10.2.0.254/32 dev {host}; ip addr add fd00:2::fe/128 dev {host} nodad"));
        run(&format!("ip route add {ip4} dev {host}; ip -6 route add {ip6} dev {host}"));
        pod.sh(&format!("ip addr add {ip4}/32 dev eth0; ip addr add {ip6}/128 dev eth0 nodad"));
        pod.sh("ip route add 10.2.0.254 dev eth0; ip route add default via 10.2.0.254");
        pod.sh("ip -6 route add fd00:2::fe dev eth0; ip -6 route add default via fd00:2::fe");
        pod.holds_nothing_back();
        pod.is_reached();
        pod
    }

    /// Another node on the wire, which is met at 192.0.2.2 or, in a tunnel, at 198.51.100.2.
    pub fn node() -> Place {
        let node = Place::world();
        node.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        let tunnel = |dev: &str, other: u8, own: u8| {
            format!(
                "ip link add tunnel type vxlan id 7 dev {dev} remote 192.0.2.{other} dstport 4789; \
                 ip addr add 198.51.100.{own}/24 dev tunnel; ip addr add fd00:8::{own}/64 dev tunnel nodad; \
                 ip link set tunnel up"
            )
        };
        run(&tunnel("uplink", 2, 1));
        node.sh(&tunnel("eth0", 1, 2));
        node
    }

    /// What lies behind the node's uplink.
    pub fn world() -> Place {
        let world = Place::wired("uplink", "192.0.2.2", "fd00:9::2");
        run("ip addr add 192.0.2.1/24 dev uplink; ip addr add fd00:9::1/64 dev uplink nodad");
        world.sh("ip addr add 192.0.2.2/24 dev eth0; ip addr add fd00:9::2/64 dev eth0 nodad");
        world.sh("ip route add default via 192.0.2.1; ip -6 route add default via fd00:9::1");
        world.is_reached();
        world
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.process.id())
    }

    pub fn sh(&self, line: &str) -> String {
        run(&format!("nsenter -t {} -n sh -c '{line}'", self.process.id()))
    }

    /// Starts a program inside, with pipes.
    pub fn start(&self, program: &str, args: &[&str]) -> Child {
        let pid = self.process.id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &pid, "-n", program]).args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().expect("nsenter runs")
    }

    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.path()).expect("a namespace");
        let inside = || {
            sys::enter_network_namespace(file.as_fd()).expect("inside");
            work()
        };
        thread::scope(|scope| scope.spawn(inside).join().expect("no panic"))
    }

    /// Answers at these ports, of TCP and of UDP.
    pub fn serves(&self, ports: &[u16]) {
        for port in ports.iter().copied() {
            self.within(move || serve(port));
        }
    }

    /// Asks both of the other's addresses, which should answer; they must agree.
    pub fn asks(&self, other: &Place, port: u16) -> Answer {
        self.asks_both(other, port, move |ip| ask_tcp(ip, port))
    }

    /// The same where no answer should come.
    pub fn asks_in_vain(&self, other: &Place, port: u16) -> Answer {
        self.asks_both(other, port, move |ip| ask_tcp_in_vain(ip, port))
    }

    pub fn asks_udp(&self, other: &Place, port: u16, size: usize) -> Answer {
        self.asks_both(other, port, move |ip| ask_udp(ip, port, size))
    }

    /// The same where no answer should come: one datagram to each address.
    pub fn asks_udp_in_vain(&self, other: &Place, port: u16, size: usize) -> Answer {
        self.asks_both(other, port, move |ip| ask_udp_for(IMPATIENCE, ip, port, size))
    }

    /// At the same time: silence takes long enough.
    fn asks_both(&self, other: &Place, port: u16, ask: impl Fn(&str) -> Answer + Copy + Send) -> Answer {
        let [four, six] = thread::scope(|scope| {
            let asked = [&other.ip4, &other.ip6].map(|ip| scope.spawn(move || self.within(move || ask(ip))));
            asked.map(|thread| thread.join().expect("no panic"))
        });
        assert_eq!(four, six, "IPv4 and IPv6 to port {port} of {}", other.ip4);
        four
    }
}

pub fn serve(port: u16) {
    let listener = TcpListener::bind(("::", port)).expect("a free port");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            // One byte back for each that comes, until the caller leaves.
            thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
    let socket = UdpSocket::bind(("::", port)).expect("a free port");
    thread::spawn(move || {
        let mut buffer = [0; 65536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
}

fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().expect("an address"), port)
}

pub fn ask_tcp(ip: &str, port: u16) -> Answer {
    ask_tcp_for(PATIENCE, ip, port)
}

pub fn ask_tcp_in_vain(ip: &str, port: u16) -> Answer {
    ask_tcp_for(IMPATIENCE, ip, port)
}

pub fn ask_tcp_for(patience: Duration, ip: &str, port: u16) -> Answer {
    match TcpStream::connect_timeout(&address(ip, port), patience) {
        Ok(_) => Answer::Yes,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Answer::Refused,
        Err(error) if error.kind() == ErrorKind::TimedOut => Answer::Silence,
        Err(error) => panic!("connect to {ip} {port}: {error}"),
    }
}

fn ask_udp(ip: &str, port: u16, size: usize) -> Answer {
    ask_udp_times(PATIENCE.as_secs() / AGAIN.as_secs(), AGAIN, ip, port, size)
}

/// One datagram.
pub fn ask_udp_for(patience: Duration, ip: &str, port: u16, size: usize) -> Answer {
    ask_udp_times(1, patience, ip, port, size)
}

/// Sends up to so many datagrams, and waits for an answer after each.
fn ask_udp_times(times: u64, patience: Duration, ip: &str, port: u16, size: usize) -> Answer {
    let any = if ip.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).expect("a socket");
    socket.connect(address(ip, port)).expect("a destination");
    socket.set_read_timeout(Some(patience)).expect("a timeout");
    for _ in 0..times {
        // A refusal of the last one may be told when the next is sent.
        match socket.send(&vec![7; size]).and_then(|_| socket.recv(&mut [0; 65536])) {
            Ok(length) => {
                assert_eq!(length, size);
                return Answer::Yes;
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Answer::Refused,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("a datagram to {ip} {port}: {error}"),
        }
    }
    Answer::Silence
}

/// A pod of the API.
pub fn pod(name: &str, labels: Value, place: &Place) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": "x", "name": name, "labels": labels },
        "spec": { "nodeName": "node", "containers": [{ "ports": [{ "name": "web", "containerPort": 80 }] }] },
        "status": { "podIPs": [{ "ip": place.ip4 }, { "ip": place.ip6 }] } })
}

/// A NetworkPolicy of the namespace x.
pub fn network_policy(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "x", "name": name }, "spec": spec })
}

/// A ClusterNetworkPolicy.
pub fn cluster_policy(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": name }, "spec": spec })
}

pub fn snapshot(objects: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::new();
    for object in objects {
        assert!(snapshot.add(object.clone()).expect("an object"));
    }
    snapshot
}

/// Enforces what the objects say.
pub fn apply(nft: &mut Nftables, objects: &[Value]) -> Change {
    nft.apply(&compile(&snapshot(objects), Some("node")).program, &NodeInput::default()).expect("applied")
}
