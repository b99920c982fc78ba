//! A node and its peers, each in a network namespace, with servers and clients.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use ipnet::IpNet;
use podwire_kernel::firewall::hostports::{PortMap, Protocol};
use podwire_kernel::Owner;
use podwire_netlink::{sys, Socket};

/// The timeout for an expected answer: the machine may be busy.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// The wait for an answer that must not arrive.
pub const SILENCE: Duration = Duration::from_millis(400);

/// Makes IPv6 addresses usable at once.
pub const NO_DAD: &str = "sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0";

/// Runs a command line in the calling thread's namespace.
pub fn run(line: &str) -> String {
    let output = Command::new("sh").arg("-c").arg(line).output().expect("sh runs");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

pub fn ruleset() -> String {
    run("nft list ruleset").replace('\t', "")
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub fn net(text: &str) -> IpNet {
    text.parse().expect("an address with its prefix")
}

pub fn owner(container: &str) -> Owner {
    Owner::new("pods", container, "eth0")
}

/// Runs `test` in a thread with a fresh network namespace: the node.
pub fn on_a_node(test: impl FnOnce(&mut Socket) + Send + 'static) {
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
pub struct Peer {
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
    pub fn connected(host: &str) -> Peer {
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
    pub fn pod(host: &str, bridge: &str, addr: &str, gateway: &str) -> Peer {
        let pod = Peer::connected(host);
        run(&format!("ip link set {host} master {bridge}; bridge link set dev {host} hairpin on"));
        pod.sh(&format!("ip addr add {addr} dev eth0 nodad; ip route add default via {gateway}"));
        pod
    }

    pub fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.process.id())
    }

    pub fn sh(&self, line: &str) -> String {
        run(&format!("nsenter -t {} -n sh -c '{line}'", self.process.id()))
    }

    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.path()).expect("a namespace");
        let inside = || {
            sys::enter_network_namespace(file.as_fd()).expect("inside");
            work()
        };
        thread::scope(|scope| scope.spawn(inside).join().expect("no panic"))
    }

    /// Answers every TCP connection to the port with `name` and whom it sees.
    pub fn serves(&self, port: u16, name: &'static str) {
        self.within(move || serve(port, name));
    }

    pub fn asks(&self, to: &str) -> Option<String> {
        self.within(|| ask(to))
    }

    /// The same where no answer is expected.
    pub fn asks_in_vain(&self, to: &str) -> Option<String> {
        self.within(|| ask_in_vain(to))
    }
}

pub fn serve(port: u16, name: &'static str) {
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
pub fn ask(to: &str) -> Option<String> {
    ask_for(TIMEOUT, to)
}

/// The same where no answer is expected.
pub fn ask_in_vain(to: &str) -> Option<String> {
    ask_for(SILENCE, to)
}

pub fn ask_for(timeout: Duration, to: &str) -> Option<String> {
    let to: SocketAddr = to.parse().expect("an address with a port");
    let mut stream = TcpStream::connect_timeout(&to, timeout).ok()?;
    stream.set_read_timeout(Some(timeout)).expect("a timeout");
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// An external host behind the node's uplink (192.0.2.2, fd00:2::2), and a bridge `br0` for pods (10.1.0.1/16).
pub fn external_host() -> Peer {
    let world = Peer::connected("uplink");
    run("ip addr add 192.0.2.1/24 dev uplink; ip addr add fd00:2::1/64 dev uplink nodad");
    world.sh("ip addr add 192.0.2.2/24 dev eth0; ip addr add fd00:2::2/64 dev eth0 nodad");
    world.sh("ip route add 10.0.0.0/8 via 192.0.2.1; ip route add fd00:1::/64 via fd00:2::1");
    run("ip link add br0 type bridge; ip link set br0 up; ip addr add 10.1.0.1/16 dev br0");
    world
}

pub fn tcp(host_port: u16, pod: &str, pod_port: u16) -> PortMap {
    PortMap { protocol: Protocol::Tcp, host_ip: None, host_port, pod: net(pod), pod_port }
}
