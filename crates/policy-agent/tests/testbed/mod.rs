//! The testbed: a node in a network namespace, bridged and routed pods, and an external host.

#![allow(dead_code, clippy::unwrap_used)]

pub mod connections;
pub mod probe;
pub mod raw_sockets;

use std::cell::RefCell;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use podwire_fast_path::FastPath;
use podwire_netlink::sys;
use podwire_policy::{compile, Snapshot};
use podwire_policy_agent::dataplane::{Change, Nftables, NodeInput};
use serde_json::{json, Value};

/// For a response that must come, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);
/// For a response that must not come: a connection without one in this time counts as denied.
pub const DENIED_TIMEOUT: Duration = Duration::from_secs(3);
/// A datagram may be lost; it is sent again after this time.
const RESEND_AFTER: Duration = Duration::from_secs(1);
/// Makes IPv6 addresses usable at once.
const NO_DAD: &str = "sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0";

/// Runs a command line in the calling thread's namespace.
pub fn run(line: &str) -> String {
    let output = Command::new("sh").arg("-c").arg(line).output().expect("sh runs");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

thread_local! {
    /// The fast path of the node, unless the environment says off.
    static FAST_PATH: RefCell<Option<FastPath>> = const { RefCell::new(None) };
}

/// The fast path of the node, if the tests run with it.
pub fn fast_path() -> Option<FastPath> {
    FAST_PATH.with_borrow(Option::clone)
}

/// Stops the thread of the node's fast path. The programs stay.
pub fn stop_fast_path() {
    drop(FAST_PATH.take());
}

/// All tests run with the fast path, as agents do; with `PODWIRE_FAST_PATH=off` they run without it. New devices get programs without a
/// pause, so that no test is over before.
fn start_fast_path() {
    if std::env::var("PODWIRE_FAST_PATH").is_ok_and(|value| value == "off") {
        return;
    }
    let fast_path = FastPath::start(Duration::ZERO).expect("the kernel has what the fast path needs");
    fast_path.set_links(vec!["uplink".into(), "tunnel".into()]);
    FAST_PATH.set(Some(fast_path));
}

/// Runs `test` in a thread with a fresh network namespace: the node.
pub fn on_node(test: impl FnOnce(&mut Nftables) + Send + 'static) {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes network namespaces");
    let inside = move || {
        sys::new_network_namespace().expect("a new network namespace");
        run(NO_DAD);
        run("ip link set lo up; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        // The default of a node: only the pods' bridge is filtered.
        run("sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0");
        run("ip link add br0 type bridge; ip addr add 10.1.0.1/16 dev br0; ip addr add fd00:1::1/64 dev br0 nodad");
        run("ip addr add 10.244.0.1/16 dev br0; ip addr add fd00:10:244::1/64 dev br0 nodad; ip link set br0 up");
        run("ip addr add 10.0.0.1/16 dev br0; ip addr add fd00::1/64 dev br0 nodad");
        let mut host = podwire_kernel::Host::here().expect("the node");
        let bridge = host.get_link("br0").expect("br0");
        podwire_kernel::bridge::ensure_seen_by_ip_rules(&mut host, &bridge).expect("br_netfilter");
        start_fast_path();
        test(&mut Nftables::open().expect("a netfilter socket"));
    };
    if let Err(panic) = thread::spawn(inside).join() {
        std::panic::resume_unwind(panic);
    }
}

/// The outcome of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Reached,
    /// No response, not even a refusal.
    Timeout,
    Refused,
}

/// A pod or an external host: a network namespace with a veth pair to the node. It exists as long as its process.
pub struct Endpoint {
    process: Child,
    pub ip4: String,
    pub ip6: String,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Endpoint {
    fn attached(host: &str, ip4: &str, ip6: &str) -> Endpoint {
        let process = Command::new("unshare").args(["-n", "sleep", "1000"]).stdin(Stdio::null()).spawn();
        let endpoint = Endpoint { process: process.expect("unshare runs"), ip4: ip4.into(), ip6: ip6.into() };
        let link = |path: String| std::fs::read_link(path).expect("a namespace");
        while link(endpoint.path()) == link("/proc/thread-self/ns/net".into()) {
            thread::sleep(Duration::from_millis(1));
        }
        endpoint.sh(NO_DAD);
        run(&format!("ip link add {host} type veth peer name eth0 netns {}", endpoint.process.id()));
        run(&format!("tc qdisc add dev {host} clsact; ip link set {host} up"));
        endpoint.sh("ip link set eth0 up; ip link set lo up");
        if host != "uplink" {
            // As plugins write it.
            run(&format!("ip link set {host} alias net/{host}/eth0"));
        }
        endpoint
    }

    /// Waits until the endpoint's packets can take the fast path, if the tests run with it.
    fn wait_for_fast_path(&self, host: &str) {
        let Some(fast_path) = fast_path() else { return };
        let (owner, begin) = (format!("net/{host}/eth0"), Instant::now());
        while !fast_path.status().fast.contains(&owner) {
            assert!(begin.elapsed() < TIMEOUT, "{owner}: {:?}", fast_path.status());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// A pod on the bridge; `number` is the last part of its addresses.
    pub fn bridged(number: u8) -> Endpoint {
        let (ip4, ip6) = (format!("10.1.0.{number}"), format!("fd00:1::{number}"));
        Endpoint::on_bridge(&format!("veth{number}"), [&ip4, &ip6], ["10.1.0.1", "fd00:1::1"])
    }

    /// A pod on the bridge, with an IPv4 and an IPv6 address and their gateways.
    pub fn on_bridge(host: &str, [ip4, ip6]: [&str; 2], [gateway4, gateway6]: [&str; 2]) -> Endpoint {
        let pod = Endpoint::attached(host, ip4, ip6);
        run(&format!("ip link set {host} master br0"));
        pod.wait_for_fast_path(host);
        pod.sh(&format!("ip addr add {ip4}/16 dev eth0; ip addr add {ip6}/64 dev eth0 nodad"));
        pod.sh(&format!("ip route add default via {gateway4}; ip -6 route add default via {gateway6}"));
        pod.disable_icmp_rate_limit();
        pod.wait_until_reachable();
        pod
    }

    /// A refusal counts as a response, so the kernel must not suppress any.
    fn disable_icmp_rate_limit(&self) {
        self.sh("sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0");
    }

    /// Waits until the endpoint responds to ping.
    pub fn wait_until_reachable(&self) {
        for ip in [&self.ip4, &self.ip6] {
            run(&format!(
                "for n in 1 2 3 4 5 6 7 8 9; do ping -qc1 -W1 {ip} >/dev/null && exit; done; exit 1"
            ));
        }
    }

    /// A routed pod; `number` is the last part of its addresses.
    pub fn routed(number: u8) -> Endpoint {
        Endpoint::on_veth(&format!("ptp{number}"), &format!("10.2.0.{number}"), &format!("fd00:2::{number}"))
    }

    /// A routed pod as the plugin ptp creates it.
    pub fn on_veth(host: &str, ip4: &str, ip6: &str) -> Endpoint {
        let pod = Endpoint::attached(host, ip4, ip6);
        pod.wait_for_fast_path(host);
        run(&format!("ip addr add 10.2.0.254/32 dev {host}; ip addr add fd00:2::fe/128 dev {host} nodad"));
        run(&format!("ip route add {ip4} dev {host}; ip -6 route add {ip6} dev {host}"));
        pod.sh(&format!("ip addr add {ip4}/32 dev eth0; ip addr add {ip6}/128 dev eth0 nodad"));
        pod.sh("ip route add 10.2.0.254 dev eth0; ip route add default via 10.2.0.254");
        pod.sh("ip -6 route add fd00:2::fe dev eth0; ip -6 route add default via fd00:2::fe");
        pod.disable_icmp_rate_limit();
        pod.wait_until_reachable();
        pod
    }

    /// A routed pod as the plugin calico creates it; `number` is the last part of its addresses.
    pub fn calico(number: u8) -> Endpoint {
        let (host, ip4, ip6) =
            (format!("cali{number}"), format!("10.3.0.{number}"), format!("fd00:3::{number}"));
        let pod = Endpoint::attached(&host, &ip4, &ip6);
        pod.wait_for_fast_path(&host);
        let (mac, gateway) = ("ee:ee:ee:ee:ee:ee", "fe80::ecee:eeff:feee:eeee");
        run(&format!("ip link set {host} address {mac}; ip addr add {gateway}/64 dev {host} nodad || true"));
        run(&format!("sysctl -qw net.ipv4.conf.{host}.proxy_arp=1"));
        run(&format!("ip route add {ip4} dev {host}; ip -6 route add {ip6} dev {host}"));
        pod.sh(&format!("ip addr add {ip4}/32 dev eth0; ip addr add {ip6}/128 dev eth0 nodad"));
        pod.sh("ip route add 169.254.1.1 dev eth0; ip route add default via 169.254.1.1");
        pod.sh(&format!("ip neigh replace 169.254.1.1 lladdr {mac} dev eth0"));
        pod.sh(&format!("ip -6 neigh replace {gateway} lladdr {mac} dev eth0"));
        pod.sh(&format!("ip -6 route add default via {gateway} dev eth0"));
        pod.disable_icmp_rate_limit();
        pod.wait_until_reachable();
        pod
    }

    /// Another node on the same L2 segment: 192.0.2.2, and 198.51.100.2 through a tunnel.
    pub fn node() -> Endpoint {
        let node = Endpoint::external();
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

    /// An external host at the node's uplink.
    pub fn external() -> Endpoint {
        let external = Endpoint::attached("uplink", "192.0.2.2", "fd00:9::2");
        run("ip addr add 192.0.2.1/24 dev uplink; ip addr add fd00:9::1/64 dev uplink nodad");
        external.sh("ip addr add 192.0.2.2/24 dev eth0; ip addr add fd00:9::2/64 dev eth0 nodad");
        external.sh("ip route add default via 192.0.2.1; ip -6 route add default via fd00:9::1");
        external.wait_until_reachable();
        external
    }

    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.process.id())
    }

    pub fn sh(&self, line: &str) -> String {
        run(&format!("nsenter -t {} -n sh -c '{line}'", self.process.id()))
    }

    /// Starts a program in the namespace, with a pipe for its output.
    pub fn start(&self, program: &str, args: &[&str]) -> Child {
        self.start_with_input(program, args, Stdio::null())
    }

    pub fn start_with_input(&self, program: &str, args: &[&str], input: Stdio) -> Child {
        let pid = self.process.id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &pid, "-n", program]).args(args).stdin(input).stdout(Stdio::piped());
        command.spawn().expect("nsenter runs")
    }

    pub fn run_inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.path()).expect("a namespace");
        let inside = || {
            sys::enter_network_namespace(file.as_fd()).expect("inside");
            work()
        };
        thread::scope(|scope| scope.spawn(inside).join().expect("no panic"))
    }

    /// Serves these TCP and UDP ports.
    pub fn serve(&self, ports: &[u16]) {
        for port in ports.iter().copied() {
            self.run_inside(move || serve(port));
        }
    }

    /// Connects to both addresses of another endpoint, which should respond. Both outcomes must be the same.
    pub fn tcp(&self, other: &Endpoint, port: u16) -> Outcome {
        self.try_both_families(other, port, move |ip| connect_tcp(ip, port))
    }

    /// The same if no response should come.
    pub fn tcp_denied(&self, other: &Endpoint, port: u16) -> Outcome {
        self.try_both_families(other, port, move |ip| connect_tcp_denied(ip, port))
    }

    pub fn udp(&self, other: &Endpoint, port: u16, size: usize) -> Outcome {
        self.try_both_families(other, port, move |ip| send_udp(ip, port, size))
    }

    /// The same if no response should come: one datagram to each address.
    pub fn udp_denied(&self, other: &Endpoint, port: u16, size: usize) -> Outcome {
        self.try_both_families(other, port, move |ip| send_udp_within(DENIED_TIMEOUT, ip, port, size))
    }

    /// In parallel, because each timeout takes long.
    fn try_both_families(
        &self,
        other: &Endpoint,
        port: u16,
        ask: impl Fn(&str) -> Outcome + Copy + Send,
    ) -> Outcome {
        let [four, six] = thread::scope(|scope| {
            let asked =
                [&other.ip4, &other.ip6].map(|ip| scope.spawn(move || self.run_inside(move || ask(ip))));
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
            // Echoes each byte until the client closes the connection.
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
    SocketAddr::new(ip.parse().expect("address"), port)
}

pub fn connect_tcp(ip: &str, port: u16) -> Outcome {
    connect_tcp_within(TIMEOUT, ip, port)
}

pub fn connect_tcp_denied(ip: &str, port: u16) -> Outcome {
    connect_tcp_within(DENIED_TIMEOUT, ip, port)
}

pub fn connect_tcp_within(timeout: Duration, ip: &str, port: u16) -> Outcome {
    match TcpStream::connect_timeout(&address(ip, port), timeout) {
        Ok(_) => Outcome::Reached,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Outcome::Refused,
        Err(error) if error.kind() == ErrorKind::TimedOut => Outcome::Timeout,
        Err(error) => panic!("connect to {ip} {port}: {error}"),
    }
}

fn send_udp(ip: &str, port: u16, size: usize) -> Outcome {
    send_udp_repeatedly(TIMEOUT.as_secs() / RESEND_AFTER.as_secs(), RESEND_AFTER, ip, port, size)
}

/// One datagram.
pub fn send_udp_within(timeout: Duration, ip: &str, port: u16, size: usize) -> Outcome {
    send_udp_repeatedly(1, timeout, ip, port, size)
}

/// Sends up to `times` datagrams, and waits for a response after each.
fn send_udp_repeatedly(times: u64, timeout: Duration, ip: &str, port: u16, size: usize) -> Outcome {
    let any = if ip.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).expect("a socket");
    socket.connect(address(ip, port)).expect("a destination");
    socket.set_read_timeout(Some(timeout)).expect("a timeout");
    for _ in 0..times {
        // The kernel may report the refusal of a datagram when the next one is sent.
        match socket.send(&vec![7; size]).and_then(|_| socket.recv(&mut [0; 65536])) {
            Ok(length) => {
                assert_eq!(length, size);
                return Outcome::Reached;
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Outcome::Refused,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("a datagram to {ip} {port}: {error}"),
        }
    }
    Outcome::Timeout
}

/// A pod of the API.
pub fn pod(name: &str, labels: Value, endpoint: &Endpoint) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": "x", "name": name, "labels": labels },
        "spec": { "nodeName": "node", "containers": [{ "ports": [{ "name": "web", "containerPort": 80 }] }] },
        "status": { "podIPs": [{ "ip": endpoint.ip4 }, { "ip": endpoint.ip6 }] } })
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

/// Applies the program of the objects.
pub fn apply(nft: &mut Nftables, objects: &[Value]) -> Change {
    nft.apply(&compile(&snapshot(objects), Some("node")).program, &NodeInput::default()).expect("applied")
}
