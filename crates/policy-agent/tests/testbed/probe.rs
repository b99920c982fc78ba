//! Many connectivity checks in parallel, with real packets. A denied connection gets no response, not even an error.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use podwire_policy::Protocol;

use super::raw_sockets::{RawSockets, SCTP};
use super::{connect_tcp_within, send_udp_within, Endpoint, Outcome};

/// The timeout of the first attempt. A check that should succeed is repeated with the longer one.
const DENIED_TIMEOUT: Duration = Duration::from_millis(400);
const TIMEOUT: Duration = Duration::from_secs(3);
/// An SCTP check is identified by its source port, which no other check had recently.
const PORTS: std::ops::Range<u16> = 20_000..60_000;

/// A packet from an endpoint to an address, and whether it should arrive.
#[derive(Clone, Debug)]
pub struct Check {
    pub from: String,
    pub ip: String,
    pub protocol: Protocol,
    pub port: u16,
    pub allowed: bool,
}

/// The endpoints and their raw sockets.
pub struct Probe<'a> {
    endpoints: &'a BTreeMap<String, Endpoint>,
    sockets: BTreeMap<&'a String, RawSockets>,
    next_port: Cell<u16>,
}

impl<'a> Probe<'a> {
    pub fn new(endpoints: &'a BTreeMap<String, Endpoint>) -> Probe<'a> {
        let sockets = endpoints.iter().map(|(name, endpoint)| (name, RawSockets::of(endpoint))).collect();
        Probe { endpoints, sockets, next_port: Cell::new(PORTS.start) }
    }

    /// Runs all checks in parallel, each in its endpoint. Panics if an outcome is wrong.
    pub fn run(&self, title: &str, checks: &[Check]) {
        self.sockets.values().for_each(|sockets| drop((sockets.received_inits(), sockets.icmp_errors())));
        let (by_raw_socket, by_socket): (Vec<_>, Vec<_>) =
            checks.iter().partition(|check| check.protocol == Protocol::Sctp);
        let mut wrong: Vec<Check> = thread::scope(|scope| {
            let running = self.endpoints.iter().map(|(name, endpoint)| {
                let mine: Vec<&Check> =
                    by_socket.iter().copied().filter(|check| check.from == *name).collect();
                scope.spawn(
                    move || if mine.is_empty() { Vec::new() } else { endpoint.run_inside(|| wrong(&mine)) },
                )
            });
            let running: Vec<_> = running.collect();
            let by_raw_socket = self.wrong_sctp(&by_raw_socket);
            running
                .into_iter()
                .flat_map(|thread| thread.join().expect("no panic"))
                .chain(by_raw_socket)
                .collect()
        });
        wrong.extend(self.icmp_errors(checks));
        assert!(wrong.is_empty(), "{title}: {wrong:#?}");
    }

    /// The SCTP checks with a wrong outcome. The receiving endpoint sees which packets arrive.
    fn wrong_sctp(&self, checks: &[&Check]) -> Vec<Check> {
        if checks.is_empty() {
            return Vec::new();
        }
        let many = checks.len() as u16;
        let first = self.next_port.get();
        let first = if first < PORTS.end - many { first } else { PORTS.start };
        self.next_port.set(first + many);
        let port_of = |number: usize| first + number as u16;
        let mut arrived = BTreeSet::new();
        let is_missing = |number: usize, arrived: &BTreeSet<(u16, u16)>| {
            checks[number].allowed && !arrived.contains(&(port_of(number), checks[number].port))
        };
        let begin = Instant::now();
        let mut waited = Duration::ZERO;
        while waited < TIMEOUT {
            for (number, check) in checks.iter().enumerate() {
                if waited.is_zero() || is_missing(number, &arrived) {
                    let to = check.ip.parse().expect("an address");
                    self.sockets[&check.from].send_init(to, port_of(number), check.port);
                }
            }
            thread::sleep(DENIED_TIMEOUT);
            self.sockets.values().for_each(|sockets| arrived.extend(sockets.received_inits()));
            if !(0..checks.len()).any(|number| is_missing(number, &arrived)) {
                break;
            }
            waited = begin.elapsed();
        }
        let is_wrong = |(number, check): (usize, &&Check)| {
            let reached = arrived.contains(&(port_of(number), check.port));
            (reached != check.allowed).then(|| (*check).clone())
        };
        checks.iter().enumerate().filter_map(is_wrong).collect()
    }

    /// Denied checks that got an ICMP error.
    fn icmp_errors(&self, checks: &[Check]) -> Vec<Check> {
        let errors: BTreeMap<_, _> =
            self.sockets.iter().map(|(name, sockets)| (*name, sockets.icmp_errors())).collect();
        let got_error = |check: &&Check| {
            let ip: IpAddr = check.ip.parse().expect("an address");
            let protocol = match check.protocol {
                Protocol::Tcp => 6,
                Protocol::Udp => 17,
                Protocol::Sctp => SCTP,
            };
            !check.allowed && errors[&check.from].contains(&(ip, protocol, check.port))
        };
        checks.iter().filter(got_error).cloned().collect()
    }
}

/// An endpoint's checks with a wrong outcome. New threads inherit the namespace of their creator.
fn wrong(mine: &[&Check]) -> Vec<Check> {
    thread::scope(|scope| {
        let running = mine.iter().map(|check| {
            let check: Check = (*check).clone();
            scope.spawn(move || (reaches(&check) != check.allowed).then_some(check))
        });
        let running: Vec<_> = running.collect();
        running.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// No process listens: a refusal comes from the other pod, so the packet reached it.
fn reaches(check: &Check) -> bool {
    let Check { ip, protocol, port, allowed, .. } = check;
    let ask = |timeout| match protocol {
        Protocol::Udp => send_udp_within(timeout, ip, *port, 1),
        _ => connect_tcp_within(timeout, ip, *port),
    };
    let first = ask(DENIED_TIMEOUT) != Outcome::Timeout;
    if *allowed && !first {
        return ask(TIMEOUT) != Outcome::Timeout;
    }
    first
}
