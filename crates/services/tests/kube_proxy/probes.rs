//! Which connections are tried, and what their clients see.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use podwire_ip::IpFamily;
use serde_json::Value;

use crate::testbed::{ask, Outcome, Testbed};
use crate::world::{address, World};

/// Two pods of the node, the node, the host outside, and a pod of another node.
const CLIENTS: [&str; 5] = ["1", "2", "n", "o", "r"];
/// Threads of each client: a connection without a response occupies one.
const THREADS: usize = 24;

/// Connections of one client to one frontend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probe {
    pub client: &'static str,
    /// `tcp 10.96.0.1:80`
    pub target: String,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ─▶ {}", self.client, self.target)
    }
}

/// Whether a probe reached a server.
pub fn reaches_server(seen: &Seen) -> bool {
    seen.iter().any(|one| one.contains(' '))
}

/// What the connections of a probe saw: `SERVER SOURCE`, `refused` or `silence`.
pub type Seen = BTreeSet<String>;

/// How long a probe goes on.
#[derive(Clone, Copy)]
pub struct Effort {
    /// It ends when this number of connections in a row saw nothing new, or when one has no response.
    draws: usize,
    timeout: Duration,
}

/// A server out of two is missed with a probability of 1/256, and on a busy machine a response is late: [`PATIENT`] decides
/// about differences.
pub const QUICK: Effort = Effort { draws: 8, timeout: Duration::from_millis(400) };
pub const PATIENT: Effort = Effort { draws: 12, timeout: Duration::from_secs(5) };
/// For all servers: one out of six is missed with a probability of 1/6000.
pub const THOROUGH: Effort = Effort { draws: 48, timeout: Duration::from_secs(5) };

/// All probes of a world: every frontend of every Service, ports that a Service does not have, and addresses without a
/// Service.
pub fn probes(world: &World) -> Vec<Probe> {
    let mut targets = BTreeSet::new();
    for service in world.services() {
        service_targets(service, &mut targets);
    }
    for family in IpFamily::ALL {
        let unused = match family {
            IpFamily::V4 => "10.96.0.200",
            IpFamily::V6 => "fd00:96::c8",
        };
        targets.insert(format!("tcp {}", with_port(unused, 80)));
        targets.insert(format!("udp {}", with_port(unused, 80)));
    }
    let of_client = |client| targets.iter().map(move |target| Probe { client, target: target.clone() });
    CLIENTS.into_iter().flat_map(of_client).collect()
}

fn service_targets(service: &Value, targets: &mut BTreeSet<String>) {
    let spec = &service["spec"];
    let texts = |list: &Value, field: Option<&str>| -> Vec<String> {
        let items = list.as_array().into_iter().flatten();
        let text = |item: &Value| field.map_or(item, |field| &item[field]).as_str().map(String::from);
        items.filter_map(text).filter(|text| text != "None").collect()
    };
    let mut ips = texts(&spec["clusterIPs"], None);
    targets.extend(ips.iter().map(|ip| format!("tcp {}", with_port(ip, 4444))));
    ips.extend(texts(&spec["externalIPs"], None));
    ips.extend(texts(&service["status"]["loadBalancer"]["ingress"], Some("ip")));
    for port in spec["ports"].as_array().unwrap() {
        let protocol = port["protocol"].as_str().unwrap().to_lowercase();
        let number = port["port"].as_u64().unwrap();
        targets.extend(ips.iter().map(|ip| format!("{protocol} {}", with_port(ip, number))));
        let Some(number) = port["nodePort"].as_u64() else { continue };
        // The second address of the node is not the one of its object. No NodePort is served at it, nor at loopback.
        for ip in [&address("n", IpFamily::V4), &address("n", IpFamily::V6), "10.1.0.254", "127.0.0.1"] {
            targets.insert(format!("{protocol} {}", with_port(ip, number)));
        }
    }
}

pub fn with_port(ip: &str, port: u64) -> String {
    if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    }
}

/// Tries these connections in all testbeds at the same time.
pub fn observe<const N: usize>(
    testbeds: [&Testbed; N],
    probes: &[Probe],
    effort: Effort,
) -> [BTreeMap<Probe, Seen>; N] {
    let all = testbeds.map(|_| Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for (testbed, seen) in testbeds.iter().zip(&all) {
            for client in CLIENTS {
                let own = probes.iter().filter(|probe| probe.client == client).cloned();
                let queue = Mutex::new(own.collect::<VecDeque<_>>());
                scope.spawn(move || {
                    thread::scope(|scope| {
                        (0..THREADS)
                            .for_each(|_| drop(scope.spawn(|| work(testbed, client, &queue, seen, effort))));
                    });
                });
            }
        }
    });
    all.map(|seen| seen.into_inner().unwrap())
}

/// Tries probes of a queue until it is empty.
fn work(
    testbed: &Testbed,
    client: &str,
    queue: &Mutex<VecDeque<Probe>>,
    all: &Mutex<BTreeMap<Probe, Seen>>,
    effort: Effort,
) {
    let namespace = match client {
        "n" => &testbed.node,
        "o" => &testbed.outside,
        "r" => &testbed.remote,
        number => &testbed.pods[number.parse::<usize>().unwrap() - 1],
    };
    let next = || queue.lock().unwrap().pop_front();
    namespace.inside(|| {
        while let Some(probe) = next() {
            let seen = try_probe(&probe, effort);
            all.lock().unwrap().insert(probe, seen);
        }
    });
}

fn try_probe(probe: &Probe, effort: Effort) -> Seen {
    let (mut seen, mut draws) = (Seen::new(), 0);
    while draws < effort.draws {
        let outcome = ask(&probe.target, effort.timeout);
        draws = if seen.insert(format!("{outcome:?}")) { 1 } else { draws + 1 };
        if outcome == Outcome::Silence {
            break;
        }
    }
    seen
}
