//! Sends many packets between pods of a lab at once, and checks which of them arrive. The test holds the sockets of
//! both ends, so it sees a packet where it arrives. A denied sender must get no answer, not even a refusal.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use podwire_kernel::Netns;
use podwire_policy::Protocol;
use podwire_tests::podwire;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::laboratory::Laboratory;

const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Allowed packets arrive at once, on a busy machine later. A datagram may be lost and is sent again.
const TIMEOUT: Duration = Duration::from_secs(8);
const RESEND_INTERVAL: Duration = Duration::from_millis(400);
/// The extra time for denied packets after all allowed ones have arrived.
const GRACE: Duration = Duration::from_millis(60);

/// A packet from a pod to an address of another, and whether it should arrive.
#[derive(Clone, Debug)]
pub struct Expected {
    pub from: String,
    pub to: String,
    pub ip: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
    pub allowed: bool,
}

/// A pod.
pub struct Endpoint {
    netns: Netns,
    pub ips: Vec<IpAddr>,
}

/// Pods that listen on all ports of the packets.
pub struct Prober {
    pub endpoints: BTreeMap<String, Endpoint>,
    listeners: Vec<TcpListener>,
    receivers: Vec<UdpSocket>,
}

/// A packet in flight.
struct Sent<'a> {
    expected: &'a Expected,
    socket: Socket,
    reached: bool,
    /// The error that came back.
    refusal: Option<String>,
}

/// The pods of a lab, by `namespace/name`.
pub fn endpoints(lab: &Laboratory) -> BTreeMap<String, Endpoint> {
    let mut endpoints = BTreeMap::new();
    for node in lab.status()["nodes"].as_array().expect("nodes") {
        let (name, process) = (node["name"].as_str().expect("a name"), &node["process"]);
        let said = lab.sh(name, &format!("{} --json pod list", podwire()));
        let said: Value = serde_json::from_str(&said).expect("JSON");
        for pod in said["pods"].as_array().expect("pods") {
            let text = |key: &str| pod[key].as_str().unwrap_or_else(|| panic!("{key}: {pod}"));
            // The path contains a process id of the node's PID namespace.
            let netns = Netns::open(format!("/proc/{process}/root{}", text("netns"))).expect("the pod");
            let ips = pod["ips"].as_array().expect("addresses").iter();
            let ips = ips.map(|ip| ip.as_str().expect("a text").parse().expect("an address")).collect();
            endpoints.insert(format!("{}/{}", text("namespace"), text("name")), Endpoint { netns, ips });
        }
    }
    endpoints
}

impl Prober {
    pub fn new(endpoints: BTreeMap<String, Endpoint>, ports: &BTreeSet<(Protocol, u16)>) -> Prober {
        let mut prober = Prober { endpoints, listeners: Vec::new(), receivers: Vec::new() };
        for endpoint in prober.endpoints.values() {
            let listen = || {
                for (protocol, port) in ports {
                    let any = SocketAddr::new("::".parse().expect("any"), *port);
                    if *protocol == Protocol::Tcp {
                        let listener = TcpListener::bind(any).expect("a free port");
                        listener.set_nonblocking(true).expect("a nonblocking listener");
                        prober.listeners.push(listener);
                    } else {
                        let receiver = UdpSocket::bind(any).expect("a free port");
                        receiver.set_nonblocking(true).expect("a nonblocking socket");
                        prober.receivers.push(receiver);
                    }
                }
            };
            endpoint.netns.run(listen).expect("the pod");
        }
        prober
    }

    /// Sends all packets at once. Returns the differences to the expectations.
    pub fn send(&self, expected: &[Expected]) -> Vec<String> {
        self.receive();
        let mut sent: Vec<Sent<'_>> = expected.iter().map(|one| self.open(one)).collect();
        sent.iter().enumerate().for_each(|(number, one)| one.send(number));
        let begin = Instant::now();
        let mut last = begin;
        while begin.elapsed() < TIMEOUT {
            sleep(POLL_INTERVAL);
            self.poll(&mut sent);
            if sent.iter().all(|one| one.reached || !one.expected.allowed) {
                break;
            }
            if last.elapsed() > RESEND_INTERVAL {
                last = Instant::now();
                sent.iter()
                    .enumerate()
                    .filter(|(_, one)| !one.reached)
                    .for_each(|(number, one)| one.send(number));
            }
        }
        sleep(GRACE);
        self.poll(&mut sent);
        sent.iter().filter_map(Sent::difference).collect()
    }

    fn open<'a>(&self, expected: &'a Expected) -> Sent<'a> {
        let kind = if expected.protocol == Protocol::Tcp { Type::STREAM } else { Type::DGRAM };
        let domain = Domain::for_address(SocketAddr::new(expected.ip, 0));
        let open = || Socket::new(domain, kind, None).expect("a socket");
        let socket = self.endpoints[&expected.from].netns.run(open).expect("the pod");
        socket.set_nonblocking(true).expect("a nonblocking socket");
        // Closing the socket resets the connection.
        socket.set_linger(Some(Duration::ZERO)).expect("SO_LINGER");
        // In progress: poll() reads the result.
        let _ = socket.connect(&SocketAddr::new(expected.ip, expected.port).into());
        Sent { expected, socket, reached: false, refusal: None }
    }

    /// The numbers of the received datagrams. Accepted connections are closed.
    fn receive(&self) -> BTreeSet<usize> {
        self.listeners.iter().for_each(|listener| while listener.accept().is_ok() {});
        let mut received = BTreeSet::new();
        let mut number = [0; 8];
        for receiver in &self.receivers {
            while receiver.recv(&mut number).is_ok() {
                received.insert(usize::from_be_bytes(number));
            }
        }
        received
    }

    fn poll(&self, sent: &mut [Sent<'_>]) {
        let received = self.receive();
        for (number, one) in sent.iter_mut().enumerate() {
            match one.expected.protocol {
                Protocol::Tcp => one.reached |= one.socket.peer_addr().is_ok(),
                _ => one.reached |= received.contains(&number),
            }
            let error = one.socket.take_error().expect("a socket");
            one.refusal = one.refusal.take().or(error.map(|error| error.to_string()));
        }
    }
}

impl Sent<'_> {
    /// Sends a datagram. The kernel itself retries a connection.
    fn send(&self, number: usize) {
        if self.expected.protocol != Protocol::Tcp {
            // poll() reads errors of earlier datagrams.
            let _ = self.socket.send(&number.to_be_bytes());
        }
    }

    fn difference(&self) -> Option<String> {
        let Expected { from, to, ip, protocol, port, allowed } = self.expected;
        let was = match (&self.refusal, self.reached) {
            (Some(error), _) => format!("the sender got {error}"),
            (None, true) if !allowed => "it arrived".into(),
            (None, false) if *allowed => "nothing arrived".into(),
            _ => return None,
        };
        let verdict = if *allowed { "allowed" } else { "denied" };
        Some(format!("{from} to {to} ({ip}) {protocol:?} {port} is {verdict}: {was}"))
    }
}
