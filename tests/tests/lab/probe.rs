//! Many questions at once between pods of a lab: which packets arrive. Both ends are held here, so what arrives is seen where it
//! arrives; who is kept from another hears nothing, not even a refusal.

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

const GLANCE: Duration = Duration::from_millis(5);
/// What may arrive does so at once; on a busy machine later. A datagram may be lost on the way, and is sent again.
const PATIENCE: Duration = Duration::from_secs(8);
const AGAIN: Duration = Duration::from_millis(400);
/// All that was allowed has arrived: what was sent beside it had this much longer.
const AFTERWARDS: Duration = Duration::from_millis(60);

/// Whether a packet from a pod to an address of another should arrive.
#[derive(Clone, Debug)]
pub struct Question {
    pub from: String,
    pub to: String,
    pub ip: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
    pub allowed: bool,
}

/// A pod.
pub struct Place {
    netns: Netns,
    pub ips: Vec<IpAddr>,
}

/// Pods that listen at all ports that anybody asks for.
pub struct Probe {
    pub places: BTreeMap<String, Place>,
    listeners: Vec<TcpListener>,
    ears: Vec<UdpSocket>,
}

/// A question on its way.
struct Asked<'a> {
    question: &'a Question,
    socket: Socket,
    reached: bool,
    /// What came back instead of silence.
    refusal: Option<String>,
}

/// The pods of a lab, by `namespace/name`.
pub fn places(lab: &Laboratory) -> BTreeMap<String, Place> {
    let mut places = BTreeMap::new();
    for node in lab.status()["nodes"].as_array().expect("nodes") {
        let (name, process) = (node["name"].as_str().expect("a name"), &node["process"]);
        let said = lab.sh(name, &format!("{} --json pod list", podwire()));
        let said: Value = serde_json::from_str(&said).expect("JSON");
        for pod in said["pods"].as_array().expect("pods") {
            let text = |key: &str| pod[key].as_str().unwrap_or_else(|| panic!("{key}: {pod}"));
            // The number of its process is one of the node's.
            let netns = Netns::open(format!("/proc/{process}/root{}", text("netns"))).expect("the pod");
            let ips = pod["ips"].as_array().expect("addresses").iter();
            let ips = ips.map(|ip| ip.as_str().expect("a text").parse().expect("an address")).collect();
            places.insert(format!("{}/{}", text("namespace"), text("name")), Place { netns, ips });
        }
    }
    places
}

impl Probe {
    pub fn new(places: BTreeMap<String, Place>, ports: &BTreeSet<(Protocol, u16)>) -> Probe {
        let mut probe = Probe { places, listeners: Vec::new(), ears: Vec::new() };
        for place in probe.places.values() {
            let listen = || {
                for (protocol, port) in ports {
                    let any = SocketAddr::new("::".parse().expect("any"), *port);
                    if *protocol == Protocol::Tcp {
                        let listener = TcpListener::bind(any).expect("a free port");
                        listener.set_nonblocking(true).expect("a listener that does not wait");
                        probe.listeners.push(listener);
                    } else {
                        let ear = UdpSocket::bind(any).expect("a free port");
                        ear.set_nonblocking(true).expect("a socket that does not wait");
                        probe.ears.push(ear);
                    }
                }
            };
            place.netns.run(listen).expect("the pod");
        }
        probe
    }

    /// Asks all questions at once; returns those that are answered otherwise than they should be.
    pub fn ask(&self, questions: &[Question]) -> Vec<String> {
        self.hear();
        let mut asked: Vec<Asked<'_>> = questions.iter().map(|question| self.begin(question)).collect();
        asked.iter().enumerate().for_each(|(number, one)| one.send(number));
        let begin = Instant::now();
        let mut sent = begin;
        while begin.elapsed() < PATIENCE {
            sleep(GLANCE);
            self.look(&mut asked);
            if asked.iter().all(|one| one.reached || !one.question.allowed) {
                break;
            }
            if sent.elapsed() > AGAIN {
                sent = Instant::now();
                asked
                    .iter()
                    .enumerate()
                    .filter(|(_, one)| !one.reached)
                    .for_each(|(number, one)| one.send(number));
            }
        }
        sleep(AFTERWARDS);
        self.look(&mut asked);
        asked.iter().filter_map(Asked::complaint).collect()
    }

    fn begin<'a>(&self, question: &'a Question) -> Asked<'a> {
        let kind = if question.protocol == Protocol::Tcp { Type::STREAM } else { Type::DGRAM };
        let domain = Domain::for_address(SocketAddr::new(question.ip, 0));
        let open = || Socket::new(domain, kind, None).expect("a socket");
        let socket = self.places[&question.from].netns.run(open).expect("the pod");
        socket.set_nonblocking(true).expect("a socket that does not wait");
        // Whatever stands is forgotten with the socket: nobody waits for its end.
        socket.set_linger(Some(Duration::ZERO)).expect("a short end");
        // In progress: the answer is looked for later.
        let _ = socket.connect(&SocketAddr::new(question.ip, question.port).into());
        Asked { question, socket, reached: false, refusal: None }
    }

    /// The numbers of the datagrams that came; connections are let go.
    fn hear(&self) -> BTreeSet<usize> {
        self.listeners.iter().for_each(|listener| while listener.accept().is_ok() {});
        let mut heard = BTreeSet::new();
        let mut number = [0; 8];
        for ear in &self.ears {
            while ear.recv(&mut number).is_ok() {
                heard.insert(usize::from_be_bytes(number));
            }
        }
        heard
    }

    fn look(&self, asked: &mut [Asked<'_>]) {
        let heard = self.hear();
        for (number, one) in asked.iter_mut().enumerate() {
            match one.question.protocol {
                Protocol::Tcp => one.reached |= one.socket.peer_addr().is_ok(),
                _ => one.reached |= heard.contains(&number),
            }
            let error = one.socket.take_error().expect("a socket");
            one.refusal = one.refusal.take().or(error.map(|error| error.to_string()));
        }
    }
}

impl Asked<'_> {
    /// A connection asks again by itself.
    fn send(&self, number: usize) {
        if self.question.protocol != Protocol::Tcp {
            // An error of one before is looked for elsewhere.
            let _ = self.socket.send(&number.to_be_bytes());
        }
    }

    fn complaint(&self) -> Option<String> {
        let Question { from, to, ip, protocol, port, allowed } = self.question;
        let was = match (&self.refusal, self.reached) {
            (Some(error), _) => format!("it was told {error}"),
            (None, true) if !allowed => "it arrived".into(),
            (None, false) if *allowed => "nothing arrived".into(),
            _ => return None,
        };
        let verdict = if *allowed { "allowed" } else { "denied" };
        Some(format!("{from} to {to} ({ip}) {protocol:?} {port} is {verdict}: {was}"))
    }
}
