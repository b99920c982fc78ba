//! A continuous probe: pods send datagrams to others without a pause, and every arrival is recorded.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{sleep, spawn, JoinHandle};
use std::time::{Duration, Instant};

use podwire_kernel::Netns;

use crate::stage::Stage;

const PAUSE: Duration = Duration::from_millis(4);
/// What is sent last has this long to arrive.
const AFTERWARDS: Duration = Duration::from_millis(300);
/// Less than this says nothing.
const ENOUGH: usize = 50;
/// So often each tries once more at the end: on a busy machine there may have been no time for enough until then, and a
/// question for a neighbour that was lost is asked again after a second.
const AT_THE_END: usize = 8 * ENOUGH;
/// Bytes that a socket keeps until they are read.
const ROOM: usize = 2 << 20;
/// The first port; each flow has a separate one.
const FIRST_PORT: u16 = 7100;

/// The senders and receivers, until the result is requested.
pub struct Vigil {
    over: Arc<AtomicBool>,
    all_is_sent: Arc<AtomicBool>,
    flows: Vec<Flow>,
}

struct Flow {
    from: String,
    to: String,
    sender: JoinHandle<Vec<Instant>>,
    receiver: JoinHandle<Vec<u32>>,
}

/// What became of a flow's datagrams.
#[derive(Debug)]
pub struct Seen {
    from: String,
    to: String,
    /// Which arrived.
    arrived: Vec<bool>,
    /// When each was sent.
    sent: Vec<Instant>,
}

impl Vigil {
    /// Each of these pods of the first node sends to the other, over IPv4 and over IPv6.
    pub fn begin(stage: &Stage, pairs: &[(&str, &str)]) -> Vigil {
        let [over, all_is_sent] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let mut flows = Vec::new();
        for (from, to) in pairs {
            for ip in addresses(stage, to) {
                let port = FIRST_PORT + flows.len() as u16;
                let [target, source] =
                    [(to, port), (from, 0)].map(|(pod, port)| socket(stage, pod, ip, port));
                let (stop, hush) = (over.clone(), all_is_sent.clone());
                flows.push(Flow {
                    from: (*from).into(),
                    to: format!("{to} at {ip}"),
                    receiver: spawn(move || receive(&target, &hush)),
                    sender: spawn(move || send(&source, SocketAddr::new(ip, port), &stop)),
                });
            }
        }
        Vigil { over, all_is_sent, flows }
    }

    /// Ends it.
    pub fn end(self) -> Vec<Seen> {
        self.over.store(true, Ordering::Relaxed);
        let sent = |flow: Flow| {
            let sent = flow.sender.join().expect("the sender");
            (flow.from, flow.to, sent, flow.receiver)
        };
        let flows: Vec<_> = self.flows.into_iter().map(sent).collect();
        self.all_is_sent.store(true, Ordering::Relaxed);
        let seen = |(from, to, sent, receiver): (_, _, Vec<_>, JoinHandle<Vec<u32>>)| {
            let mut arrived = vec![false; sent.len()];
            for number in receiver.join().expect("the receiver") {
                arrived[number as usize] = true;
            }
            Seen { from, to, arrived, sent }
        };
        flows.into_iter().map(seen).collect()
    }
}

impl Seen {
    pub fn is_from(&self, pod: &str) -> bool {
        self.from == pod
    }

    /// When those were sent that arrived.
    pub fn arrivals(&self) -> impl Iterator<Item = Instant> + '_ {
        self.sent.iter().zip(&self.arrived).filter(|(_, arrived)| **arrived).map(|(sent, _)| *sent)
    }

    /// The longest time in which none arrived, after the first that did. Without end if that says nothing.
    pub fn longest_silence(&self) -> Duration {
        if self.arrivals().count() <= ENOUGH {
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
            (Some(since), Some(last)) => longest.max(*last - since + PAUSE),
            _ => longest,
        }
    }

    /// Not one arrived of many.
    #[track_caller]
    pub fn assert_silent(&self) {
        let (Seen { from, to, .. }, sent) = (self, self.sent.len());
        assert!(sent > ENOUGH, "{from} to {to}: only {sent} were sent");
        let arrived: Vec<_> = self.arrivals().map(|sent| sent - self.sent[0]).collect();
        assert!(arrived.is_empty(), "{from} to {to}: sent and arrived after {arrived:?}");
    }

    /// All arrived, but for this long.
    #[track_caller]
    pub fn assert_heard(&self, but: Duration) {
        let (Seen { from, to, .. }, sent, arrived) = (self, self.sent.len(), self.arrivals().count());
        assert!(arrived > ENOUGH, "{from} to {to}: only {arrived} of {sent} arrived");
        let silence = self.longest_silence();
        assert!(silence <= but, "{from} to {to}: none arrived for {silence:?}");
    }
}

/// The addresses of a pod, IPv4 and IPv6.
fn addresses(stage: &Stage, pod: &str) -> [IpAddr; 2] {
    let six = format!(
        "ip -n {pod} -6 -o address show dev eth0 scope global | sed 's/.*inet6 \\([0-9a-f:]*\\).*/\\1/'"
    );
    let six = stage.node(1).sh(&six);
    [&stage.address(1, pod), six.trim()].map(|ip| ip.parse().unwrap_or_else(|_| panic!("{pod} has {ip:?}")))
}

/// A socket in a pod, of the family of an address. It stays in the pod's namespace.
fn socket(stage: &Stage, pod: &str, like: IpAddr, port: u16) -> UdpSocket {
    let path = format!("/proc/{}/root/run/netns/{pod}", stage.node(1).pid());
    let any = if like.is_ipv6() { "::" } else { "0.0.0.0" };
    let open = || {
        let socket = UdpSocket::bind((any, port)).expect("a socket");
        // Room for what comes while the receiver is not let run for seconds.
        socket2::SockRef::from(&socket).set_recv_buffer_size(ROOM).expect("room");
        socket
    };
    Netns::open(path).expect("the pod").run(open).expect("the pod")
}

/// Sends consecutive numbers. A pod without an interface cannot send and retries.
fn send(socket: &UdpSocket, to: SocketAddr, over: &AtomicBool) -> Vec<Instant> {
    let mut sent = Vec::new();
    let mut left = AT_THE_END;
    while left > 0 {
        if over.load(Ordering::Relaxed) {
            left -= 1;
        }
        let number = sent.len() as u32;
        if socket.send_to(&number.to_be_bytes(), to).is_ok() {
            // Taken after the send, so that an interruption in between cannot make the time too early.
            sent.push(Instant::now());
        }
        sleep(PAUSE);
    }
    sent
}

/// The numbers that come.
fn receive(socket: &UdpSocket, all_is_sent: &AtomicBool) -> Vec<u32> {
    socket.set_read_timeout(Some(AFTERWARDS)).expect("a timeout");
    let mut received = Vec::new();
    let mut number = [0; 4];
    loop {
        match socket.recv(&mut number) {
            Ok(_) => received.push(u32::from_be_bytes(number)),
            Err(_) if all_is_sent.load(Ordering::Relaxed) => return received,
            Err(_) => {}
        }
    }
}
