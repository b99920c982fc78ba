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
mod error;
mod place;
mod probe;
mod report;

use std::net::IpAddr;
use std::time::Duration;

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
}

impl Default for Options {
    fn default() -> Self {
        Options { patience: Duration::from_secs(2), peers: usize::MAX }
    }
}

/// Everybody asks everybody: all pairs of places of which at least one is a pod.
pub fn verify(places: &[Place], options: Options) -> Result<Report> {
    let echoes = places.iter().map(echo::Echo::start).collect::<Result<Vec<_>>>()?;
    let outcomes = std::thread::scope(|scope| {
        let ask = |from: usize| {
            let echoes = &echoes;
            move || questions(places, echoes, from, options)
        };
        let askers: Vec<_> = (0..places.len()).map(|from| scope.spawn(ask(from))).collect();
        let told = askers.into_iter().map(|asker| asker.join().unwrap_or(Err(Error::Panic)));
        told.collect::<Result<Vec<_>>>()
    })?;
    let outcomes = outcomes.into_iter().flatten().collect();
    Ok(Report { places: places.iter().map(|place| (place.name.clone(), place.kind)).collect(), outcomes })
}

/// What one place asks, and is told.
fn questions(places: &[Place], echoes: &[echo::Echo], from: usize, options: Options) -> Result<Vec<Outcome>> {
    let own = &places[from];
    let others = (1..places.len()).map(|step| (from + step) % places.len());
    let others = others.filter(|to| own.kind == Kind::Pod || places[*to].kind == Kind::Pod);
    let mut outcomes = Vec::new();
    let asking = || {
        for to in others.take(options.peers) {
            for door in &echoes[to].doors {
                if !own.speaks(door.address) {
                    continue;
                }
                for protocol in Protocol::ALL {
                    let result = probe::ask(protocol, own, door, options.patience)
                        .and_then(|answer| answer.judge(own));
                    outcomes.push(Outcome { from, to, address: door.address, protocol, result });
                }
            }
        }
    };
    own.netns.run(asking)?;
    Ok(outcomes)
}

/// Whether an address is one that the network gives: not of this link or this host only.
pub(crate) fn is_global(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && ip.segments()[0] & 0xffc0 != 0xfe80 && !ip.is_unspecified(),
    }
}
