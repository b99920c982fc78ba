//! A continuous probe: pods send datagrams to other pods every few milliseconds, and every arrival is recorded.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{sleep, spawn, JoinHandle};
use std::time::{Duration, Instant};

use podwire_kernel::Netns;

use crate::stage::Stage;

/// The interval between two datagrams of a flow.
const INTERVAL: Duration = Duration::from_millis(4);
/// How long a receiver waits for the last datagrams.
const LAST_WAIT: Duration = Duration::from_millis(300);
/// A result with fewer datagrams proves nothing.
const MIN_DATAGRAMS: usize = 50;
/// How many datagrams each flow sends after the stop. On a busy machine a flow may have sent too few until then, and the
/// kernel repeats a lost neighbour request only after a second.
const AFTER_STOP: usize = 8 * MIN_DATAGRAMS;
/// The receive buffer of a socket in bytes.
const BUFFER: usize = 2 << 20;
/// The first port; each flow has a separate one.
const FIRST_PORT: u16 = 7100;

/// The running senders and receivers.
pub struct ContinuousProbe {
    stopped: Arc<AtomicBool>,
    all_sent: Arc<AtomicBool>,
    flows: Vec<Flow>,
}

struct Flow {
    from: String,
    to: String,
    sender: JoinHandle<Vec<Instant>>,
    receiver: JoinHandle<Vec<u32>>,
}

/// The datagrams of a flow.
#[derive(Debug)]
pub struct FlowResult {
    from: String,
    to: String,
    /// Whether each datagram arrived.
    arrived: Vec<bool>,
    /// When each datagram was sent.
    sent: Vec<Instant>,
}

impl ContinuousProbe {
    /// Starts flows from the first to the second pod of each pair, over IPv4 and IPv6. The pods are on node 1.
    pub fn start(stage: &Stage, pairs: &[(&str, &str)]) -> ContinuousProbe {
        let [stopped, all_sent] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let mut flows = Vec::new();
        for (from, to) in pairs {
            for ip in addresses(stage, to) {
                let port = FIRST_PORT + flows.len() as u16;
                let [target, source] =
                    [(to, port), (from, 0)].map(|(pod, port)| socket(stage, pod, ip, port));
                let (is_stopped, is_all_sent) = (stopped.clone(), all_sent.clone());
                flows.push(Flow {
                    from: (*from).into(),
                    to: format!("{to} at {ip}"),
                    receiver: spawn(move || receive(&target, &is_all_sent)),
                    sender: spawn(move || send(&source, SocketAddr::new(ip, port), &is_stopped)),
                });
            }
        }
        ContinuousProbe { stopped, all_sent, flows }
    }

    /// Stops the senders, waits for the last datagrams and returns the results.
    pub fn stop(self) -> Vec<FlowResult> {
        self.stopped.store(true, Ordering::Relaxed);
        let join_sender = |flow: Flow| {
            let sent = flow.sender.join().expect("the sender");
            (flow.from, flow.to, sent, flow.receiver)
        };
        let flows: Vec<_> = self.flows.into_iter().map(join_sender).collect();
        self.all_sent.store(true, Ordering::Relaxed);
        let result = |(from, to, sent, receiver): (_, _, Vec<_>, JoinHandle<Vec<u32>>)| {
            let mut arrived = vec![false; sent.len()];
            for number in receiver.join().expect("the receiver") {
                arrived[number as usize] = true;
            }
            FlowResult { from, to, arrived, sent }
        };
        flows.into_iter().map(result).collect()
    }
}

impl FlowResult {
    pub fn is_from(&self, pod: &str) -> bool {
        self.from == pod
    }

    /// The send times of the datagrams that arrived.
    pub fn arrivals(&self) -> impl Iterator<Item = Instant> + '_ {
        self.sent.iter().zip(&self.arrived).filter(|(_, arrived)| **arrived).map(|(sent, _)| *sent)
    }

    /// The longest time without an arrival, after the first arrival. `Duration::MAX` if too few arrived.
    pub fn longest_gap(&self) -> Duration {
        if self.arrivals().count() <= MIN_DATAGRAMS {
            return Duration::MAX;
        }
        let mut longest = Duration::ZERO;
        let mut lost = None;
        let first = self.arrived.iter().position(|arrived| *arrived).unwrap_or(self.arrived.len());
        for (sent, arrived) in self.sent.iter().zip(&self.arrived).skip(first) {
            match (arrived, lost) {
                (true, Some(since)) => (longest, lost) = (longest.max(*sent - since), None),
                (false, None) => lost = Some(*sent),
                _ => {}
            }
        }
        match (lost, self.sent.last()) {
            (Some(since), Some(last)) => longest.max(*last - since + INTERVAL),
            _ => longest,
        }
    }

    /// Checks that enough datagrams were sent and none arrived.
    #[track_caller]
    pub fn assert_none_arrived(&self) {
        let (FlowResult { from, to, .. }, sent) = (self, self.sent.len());
        assert!(sent > MIN_DATAGRAMS, "{from} to {to}: sent only {sent} datagrams");
        let arrived: Vec<_> = self.arrivals().map(|sent| sent - self.sent[0]).collect();
        assert!(
            arrived.is_empty(),
            "{from} to {to}: datagrams arrived that were sent this long after the start: {arrived:?}"
        );
    }

    /// Checks that enough datagrams arrived, without a gap longer than `limit`.
    #[track_caller]
    pub fn assert_arrived(&self, limit: Duration) {
        let (FlowResult { from, to, .. }, sent, arrived) = (self, self.sent.len(), self.arrivals().count());
        assert!(arrived > MIN_DATAGRAMS, "{from} to {to}: only {arrived} of {sent} arrived");
        let gap = self.longest_gap();
        assert!(gap <= limit, "{from} to {to}: none arrived for {gap:?}");
    }
}

/// The addresses of a pod, IPv4 and IPv6.
fn addresses(stage: &Stage, pod: &str) -> [IpAddr; 2] {
    let script = format!(
        "ip -n {pod} -6 -o address show dev eth0 scope global | sed 's/.*inet6 \\([0-9a-f:]*\\).*/\\1/'"
    );
    let ipv6 = stage.node(1).sh(&script);
    [&stage.address(1, pod), ipv6.trim()].map(|ip| ip.parse().unwrap_or_else(|_| panic!("{pod} has {ip:?}")))
}

/// Opens a socket of the family of `address` in a pod. The socket stays in the pod's namespace.
fn socket(stage: &Stage, pod: &str, address: IpAddr, port: u16) -> UdpSocket {
    let path = format!("/proc/{}/root/run/netns/{pod}", stage.node(1).pid());
    let any = if address.is_ipv6() { "::" } else { "0.0.0.0" };
    let open = || {
        let socket = UdpSocket::bind((any, port)).expect("a socket");
        // On a busy machine the receiver may not run for seconds.
        socket2::SockRef::from(&socket).set_recv_buffer_size(BUFFER).expect("a receive buffer");
        socket
    };
    Netns::open(path).expect("the pod").run(open).expect("the pod")
}

/// Sends consecutive numbers. In a pod without an interface sending fails, and is tried again.
fn send(socket: &UdpSocket, to: SocketAddr, stopped: &AtomicBool) -> Vec<Instant> {
    let mut sent = Vec::new();
    let mut left = AFTER_STOP;
    while left > 0 {
        if stopped.load(Ordering::Relaxed) {
            left -= 1;
        }
        let number = sent.len() as u32;
        if socket.send_to(&number.to_be_bytes(), to).is_ok() {
            // The time is read after the send, so that it is never earlier than the send.
            sent.push(Instant::now());
        }
        sleep(INTERVAL);
    }
    sent
}

/// Receives numbers until all are sent and none arrives any more.
fn receive(socket: &UdpSocket, all_sent: &AtomicBool) -> Vec<u32> {
    socket.set_read_timeout(Some(LAST_WAIT)).expect("a timeout");
    let mut received = Vec::new();
    let mut number = [0; 4];
    loop {
        match socket.recv(&mut number) {
            Ok(_) => received.push(u32::from_be_bytes(number)),
            Err(_) if all_sent.load(Ordering::Relaxed) => return received,
            Err(_) => {}
        }
    }
}
