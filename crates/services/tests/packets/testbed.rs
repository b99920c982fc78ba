//! A node in a network namespace with routed or bridged pods, and a host outside: it is a client, and another node with a pod.
//!
//! ```text
//! pods 10.1.0.N, fd00:1::N ── node 192.0.2.1, fd00:9::1 ── outside 192.0.2.2, fd00:9::2 ── pod 10.2.0.9, fd00:2::9
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;
use std::time::Duration;

use podwire_netlink::sys;

/// For a response that must come, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);
/// For a response that must not come.
const SILENCE: Duration = Duration::from_millis(1500);
/// Makes IPv6 addresses usable at once, and refusals complete.
const SETTINGS: &str = "net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.accept_dad=0 \
     net.ipv6.conf.default.accept_dad=0 net.ipv4.icmp_ratemask=0 net.ipv6.icmp.ratemask=0";

/// Runs a command line in the calling thread's namespace.
pub fn run(line: &str) -> String {
    let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A network namespace. It exists as long as this handle.
pub struct Namespace(File);

impl Namespace {
    fn new() -> Namespace {
        let inside = || {
            sys::new_network_namespace().unwrap();
            run(&format!("sysctl -qw {SETTINGS}; ip link set lo up"));
            Namespace(File::open("/proc/thread-self/ns/net").unwrap())
        };
        thread::spawn(inside).join().unwrap()
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let work = || {
            sys::enter_network_namespace(self.0.as_fd()).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    pub fn run(&self, line: &str) -> String {
        self.inside(|| run(line))
    }

    /// Serves these TCP and UDP addresses. The response is `name source`.
    pub fn serve(&self, name: &'static str, addrs: &[String]) {
        self.inside(|| addrs.iter().for_each(|addr| serve(name, addr.parse().unwrap())));
    }

    /// Connects to an address, such as `tcp 10.0.0.1:80`.
    pub fn ask(&self, target: &str) -> Outcome {
        self.inside(|| ask(target, TIMEOUT))
    }

    /// The same if no response should come.
    pub fn ask_briefly(&self, target: &str) -> Outcome {
        self.inside(|| ask(target, SILENCE))
    }

    /// The servers that respond to many connections.
    pub fn servers(&self, target: &str, times: usize) -> BTreeSet<String> {
        let name = |_| match self.ask(target) {
            Outcome::Reached { server, .. } => server,
            other => format!("{other:?}"),
        };
        (0..times).map(name).collect()
    }
}

/// The node, its pods, and the host outside.
pub struct Testbed {
    pub node: Namespace,
    pub pods: Vec<Namespace>,
    pub outside: Namespace,
    pub remote: Namespace,
}

impl Testbed {
    /// Pods with the numbers 1 to `pods`. The remote pod is called `r`, the node `n`.
    pub fn new(pods: u8) -> Testbed {
        Testbed::with(pods, pod)
    }

    /// The same with pods on a bridge.
    pub fn bridged(pods: u8) -> Testbed {
        Testbed::with(pods, bridged_pod)
    }

    fn with(pods: u8, attach: fn(&Namespace, u8, u8, &'static str) -> Namespace) -> Testbed {
        assert_eq!(sys::user_id(), 0, "this test needs root: it makes network namespaces");
        let (node, outside) = (Namespace::new(), Namespace::new());
        node.run(&format!("ip link add uplink type veth peer name eth0 netns {}", outside.path()));
        node.run("ip addr add 192.0.2.1/24 dev uplink; ip addr add fd00:9::1/64 dev uplink nodad; ip link set uplink up");
        outside.run(
            "ip addr add 192.0.2.2/24 dev eth0; ip addr add fd00:9::2/64 dev eth0 nodad; ip link set eth0 up",
        );
        outside.run("ip route add default via 192.0.2.1; ip -6 route add default via fd00:9::1");
        node.run("ip route add default via 192.0.2.2; ip -6 route add default via fd00:9::2");
        let names = ["1", "2", "3", "4", "5", "6"];
        let pods = (1..=pods).zip(names).map(|(number, name)| attach(&node, 1, number, name)).collect();
        let remote = pod(&outside, 2, 9, "r");
        node.serve("n", &["192.0.2.1:8080".into(), "[fd00:9::1]:8080".into()]);
        Testbed { node, pods, outside, remote }
    }
}

/// A pod as the plugin ptp creates it. It serves port 8080.
fn pod(node: &Namespace, net: u8, number: u8, name: &'static str) -> Namespace {
    let pod = Namespace::new();
    let (ip4, ip6) = (format!("10.{net}.0.{number}"), format!("fd00:{net}::{number}"));
    let (gateway4, gateway6) = (format!("10.{net}.0.254"), format!("fd00:{net}::fe"));
    node.run(&format!("ip link add pod{number} type veth peer name eth0 netns {}", pod.path()));
    node.run(&format!(
        "ip addr add {gateway4}/32 dev pod{number}; ip addr add {gateway6}/128 dev pod{number} nodad; \
         ip link set pod{number} up; ip route add {ip4} dev pod{number}; ip -6 route add {ip6} dev pod{number}"
    ));
    pod.run(&format!(
        "ip addr add {ip4}/32 dev eth0; ip addr add {ip6}/128 dev eth0 nodad; ip link set eth0 up; \
         ip route add {gateway4} dev eth0; ip route add default via {gateway4}; \
         ip -6 route add {gateway6} dev eth0; ip -6 route add default via {gateway6}"
    ));
    pod.serve(name, &[format!("{ip4}:8080"), format!("[{ip6}]:8080")]);
    pod
}

/// A pod as the plugin bridge creates it with `hairpinMode`.
fn bridged_pod(node: &Namespace, net: u8, number: u8, name: &'static str) -> Namespace {
    let pod = Namespace::new();
    let (ip4, ip6) = (format!("10.{net}.0.{number}"), format!("fd00:{net}::{number}"));
    let (gateway4, gateway6) = (format!("10.{net}.0.254"), format!("fd00:{net}::fe"));
    if number == 1 {
        node.run(&format!(
            "ip link add br0 type bridge; ip addr add {gateway4}/24 dev br0; \
             ip addr add {gateway6}/64 dev br0 nodad; ip link set br0 up"
        ));
        node.inside(|| {
            let mut host = podwire_kernel::Host::here().unwrap();
            let bridge = host.get_link("br0").unwrap();
            podwire_kernel::bridge::ensure_seen_by_ip_rules(&mut host, &bridge).unwrap();
        });
    }
    node.run(&format!("ip link add pod{number} type veth peer name eth0 netns {}", pod.path()));
    node.run(&format!(
        "ip link set pod{number} master br0; ip link set pod{number} type bridge_slave hairpin on; \
         ip link set pod{number} up"
    ));
    pod.run(&format!(
        "ip addr add {ip4}/24 dev eth0; ip addr add {ip6}/64 dev eth0 nodad; ip link set eth0 up; \
         ip route add default via {gateway4}; ip -6 route add default via {gateway6}"
    ));
    pod.serve(name, &[format!("{ip4}:8080"), format!("[{ip6}]:8080")]);
    pod
}

/// The outcome of a connection attempt.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The server, and the client's address as the server saw it.
    Reached {
        server: String,
        source: IpAddr,
    },
    /// No response, not even a refusal.
    Silence,
    Refused,
    Failed(ErrorKind),
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Reached { server, source } => write!(f, "{server} {source}"),
            Outcome::Silence => f.write_str("silence"),
            Outcome::Refused => f.write_str("refused"),
            Outcome::Failed(kind) => write!(f, "{kind:?}"),
        }
    }
}

fn serve(name: &'static str, addr: SocketAddr) {
    let response = move |from: SocketAddr| format!("{name} {}", from.ip());
    let listener = TcpListener::bind(addr).unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, from)) = listener.accept() {
            let _ = stream.write_all(response(from).as_bytes());
        }
    });
    let socket = UdpSocket::bind(addr).unwrap();
    thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 100]) {
            let _ = socket.send_to(response(from).as_bytes(), from);
        }
    });
}

/// Connects from the calling thread's namespace.
pub fn ask(target: &str, timeout: Duration) -> Outcome {
    let (protocol, addr) = target.split_once(' ').unwrap();
    let addr: SocketAddr = addr.parse().unwrap();
    let response = match protocol {
        "tcp" => ask_tcp(addr, timeout),
        "udp" => ask_udp(addr, timeout),
        other => panic!("{other}"),
    };
    match response {
        Ok(text) => {
            let (server, source) = text.split_once(' ').unwrap();
            Outcome::Reached { server: server.into(), source: source.parse().unwrap() }
        }
        Err(error) => match error.kind() {
            ErrorKind::ConnectionRefused => Outcome::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Outcome::Silence,
            other => Outcome::Failed(other),
        },
    }
}

fn ask_tcp(addr: SocketAddr, timeout: Duration) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn ask_udp(addr: SocketAddr, timeout: Duration) -> std::io::Result<String> {
    let any = if addr.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(addr)?;
    socket.set_read_timeout(Some(timeout))?;
    // A datagram that its own node rejects fails with EPERM, and its refusal follows.
    match socket.send(b"?") {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
        other => _ = other?,
    }
    let mut buffer = [0; 100];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
