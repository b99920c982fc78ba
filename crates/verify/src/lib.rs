//! The Kubernetes network model, proven with packets instead of believed: every pod reaches every pod without address
//! translation, every node reaches every pod, and a pod sees the address that the others see.
//!
//! A [`Place`] is a network namespace with addresses: a pod, or a node. Each place answers for a while on every address of its
//! own (`echo`): whoever asks is told as whom he was seen. Each place then asks all the others (`probe`), by every
//! [`Protocol`]: a TCP stream, a UDP datagram, an ICMP echo, and a datagram as large as the way is said to carry, that nobody
//! may cut into pieces. The [`Report`] is the matrix of all that.
//!
//! Nothing is installed and no program is run: threads of this process visit the namespaces.

#![forbid(unsafe_code)]

mod echo;
mod elsewhere;
mod error;
mod neighbours;
mod place;
mod probe;
mod report;

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use neighbours::Overflows;

pub use echo::Door;
pub use elsewhere::{answer, Answering, Elsewhere};
pub use error::{Error, Result};
pub use place::{Kind, Place};
pub use probe::{ping, Protocol};
pub use report::{Outcome, Report};

/// How to go about it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long to wait for an answer.
    pub patience: Duration,
    /// How many others each place asks: the next ones in the list of places.
    pub peers: usize,
    /// Whether pods ask nodes, too. A cluster that masquerades promises nothing there: a node is outside of the pods' network.
    pub nodes_too: bool,
    /// What is sent.
    pub protocols: &'static [Protocol],
}

impl Default for Options {
    fn default() -> Self {
        Options {
            patience: Duration::from_secs(2),
            peers: usize::MAX,
            nodes_too: true,
            protocols: &Protocol::ALL,
        }
    }
}

/// So many questions are on their way at once: one that waits for an answer that never comes keeps few others waiting.
const AT_ONCE: usize = 48;

/// Everybody asks everybody: all pairs of places of which at least one is a pod.
pub fn verify(places: &[Place], options: Options) -> Result<Report> {
    verify_with(places, &[], options)
}

/// The same, and everybody here also asks who answers elsewhere.
pub fn verify_with(places: &[Place], elsewhere: &[Elsewhere], options: Options) -> Result<Report> {
    let before = Overflows::until_now();
    let echoes = places.iter().map(echo::Echo::start).collect::<Result<Vec<_>>>()?;
    let all: Vec<(String, Kind)> = (places.iter().map(|place| (place.name.clone(), place.kind)))
        .chain(elsewhere.iter().map(|place| (place.name.clone(), place.kind)))
        .collect();
    let doors: Vec<&[Door]> = (echoes.iter().map(|echo| &echo.doors[..]))
        .chain(elsewhere.iter().map(|place| &place.doors[..]))
        .collect();
    let kinds: Vec<Kind> = all.iter().map(|(_, kind)| *kind).collect();
    let pairs: Vec<_> =
        (0..places.len()).flat_map(|from| partners(&kinds, places.len(), from, options)).collect();
    let next = AtomicUsize::new(0);
    let ask = || {
        let mut told = Vec::new();
        while let Some((at, (from, to))) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            pairs.get(at).map(|pair| (at, *pair))
        } {
            told.push((at, questions(&places[from], doors[to], options)?));
        }
        Ok(told)
    };
    let told = std::thread::scope(|scope| {
        let askers: Vec<_> = (0..pairs.len().min(AT_ONCE)).map(|_| scope.spawn(ask)).collect();
        let told = askers.into_iter().map(|asker| asker.join().unwrap_or(Err(Error::Panic)));
        told.collect::<Result<Vec<_>>>()
    })?;
    let mut told: Vec<_> = told.into_iter().flatten().collect();
    told.sort_by_key(|(at, _)| *at);
    let outcomes = told.into_iter().flat_map(|(at, answers)| {
        let (from, to) = pairs[at];
        let outcome = move |(address, protocol, result)| Outcome { from, to, address, protocol, result };
        answers.into_iter().map(outcome)
    });
    let outcomes = outcomes.collect();
    Ok(Report { places: all, outcomes, disturbance: Overflows::until_now().told_since(before) })
}

/// Whom one place asks: the others here, the next ones first, and those elsewhere.
fn partners(kinds: &[Kind], here: usize, from: usize, options: Options) -> Vec<(usize, usize)> {
    let is_pod = |place: usize| kinds[place] == Kind::Pod;
    let others = (1..here).map(|step| (from + step) % here).chain(here..kinds.len());
    let others = others.filter(|to| is_pod(*to) || (is_pod(from) && options.nodes_too));
    others.take(options.peers).map(|to| (from, to)).collect()
}

/// An address, how it was asked, and what came of it.
type Answer = (IpAddr, Protocol, std::result::Result<Duration, String>);

/// What one place asks another, and is told.
fn questions(own: &Place, doors: &[Door], options: Options) -> Result<Vec<Answer>> {
    let mut answers = Vec::new();
    let asking = || {
        for door in doors.iter().filter(|door| own.speaks(door.address)) {
            for protocol in options.protocols {
                let answer = probe::ask(*protocol, own, door, options.patience);
                answers.push((door.address, *protocol, answer.and_then(|answer| answer.judge(own))));
            }
        }
    };
    own.netns.run(asking)?;
    Ok(answers)
}

/// Whether an address is one that the network gives: not of this link or this host only.
pub(crate) fn is_global(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && ip.segments()[0] & 0xffc0 != 0xfe80 && !ip.is_unspecified(),
    }
}
