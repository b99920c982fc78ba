//! Verifies the Kubernetes network model with packets: every pod reaches every pod without NAT, every node reaches every pod,
//! and a pod sees itself with the address that the others see.
//!
//! An [`Endpoint`] is a network namespace with addresses: a pod or a node. Each endpoint runs an echo service on every address,
//! which answers with the source address that it saw. Each endpoint then probes all the others with every [`Protocol`]: a TCP
//! stream, a UDP datagram, an ICMP echo, and a datagram of the link's MTU that must not be fragmented. The [`Report`] has all
//! outcomes, and what should be there but could not be probed.
//!
//! [`Report::apply_policies`] separates what policies deny from what is broken.
//!
//! One endpoint that cannot be probed does not end the verification: it is [`Missing`], and the others are probed.
//!
//! Nothing is installed in the pods and no program is executed: threads of this process enter the namespaces.

#![forbid(unsafe_code)]

mod echo;
mod endpoint;
mod error;
mod neighbour_table;
mod policies;
mod probe;
mod remote;
mod report;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use neighbour_table::Overflows;

pub use echo::EchoAddress;
pub use endpoint::{Endpoint, Kind, OwnAddress};
pub use error::{Error, Result};
pub use probe::{ping, Protocol};
pub use remote::{answer, Answering, RemoteEndpoint};
pub use report::{Count, Missing, Outcome, Report, ReportedEndpoint, Rule};

/// What to probe, and how.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long to wait for each answer.
    pub timeout: Duration,
    /// How many others each endpoint probes: the next ones in the list.
    pub peers: usize,
    /// Whether pods probe nodes too. With masquerading the model promises nothing there: a node is outside the pod network.
    pub nodes_too: bool,
    /// The kinds of packets.
    pub protocols: &'static [Protocol],
}

impl Default for Options {
    fn default() -> Self {
        Options {
            timeout: Duration::from_secs(2),
            peers: usize::MAX,
            nodes_too: true,
            protocols: &Protocol::ALL,
        }
    }
}

/// How far a verification is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of probes that have an outcome.
    pub done: usize,
    /// How many of them failed.
    pub failed: usize,
    /// The number of all probes.
    pub all: usize,
}

/// The number of concurrent probes. A probe that waits for its timeout delays only a few others.
const CONCURRENCY: usize = 48;

/// Probes all pairs of endpoints of which at least one is a pod.
pub fn verify(endpoints: &[Endpoint], options: Options) -> Result<Report> {
    verify_with(endpoints, &[], options, &|_| {})
}

/// The same, and every endpoint probes those of other machines too. Calls `watch` after the probes of each pair.
pub fn verify_with(
    endpoints: &[Endpoint],
    remote: &[RemoteEndpoint],
    options: Options,
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Report> {
    let before = Overflows::read();
    let echoes = endpoints.iter().map(echo::Echo::start).collect::<Result<Vec<_>>>()?;
    let mut missing: Vec<Missing> = endpoints.iter().flat_map(Endpoint::report_missing).collect();
    missing.extend(echoes.iter().zip(endpoints).flat_map(|(echo, endpoint)| echo.report_missing(endpoint)));
    missing.extend(remote.iter().flat_map(RemoteEndpoint::report_missing));
    let reported = |name: &String, kind: Kind| ReportedEndpoint { name: name.clone(), kind };
    let all: Vec<ReportedEndpoint> = (endpoints.iter().map(|one| reported(&one.name, one.kind)))
        .chain(remote.iter().map(|one| reported(&one.name, one.kind)))
        .collect();
    let addresses: Vec<&[EchoAddress]> = (echoes.iter().map(|echo| &echo.addresses[..]))
        .chain(remote.iter().map(|one| &one.addresses[..]))
        .collect();
    let kinds: Vec<Kind> = all.iter().map(|one| one.kind).collect();
    let pairs: Vec<Pair<'_>> = (0..endpoints.len())
        .flat_map(|from| partners(&kinds, endpoints.len(), from, options))
        .map(|(from, to)| Pair { from, to, own: &endpoints[from], addresses: addresses[to] })
        .collect();
    let outcomes = probe_pairs(&pairs, options, watch)?;
    let disturbance = Overflows::read().warning_since(before);
    Ok(Report { endpoints: all, outcomes, missing, disturbance })
}

/// A sender and a receiver.
struct Pair<'a> {
    from: usize,
    to: usize,
    own: &'a Endpoint,
    /// The receiver's.
    addresses: &'a [EchoAddress],
}

/// All probes of all pairs, in their order.
fn probe_pairs(
    pairs: &[Pair<'_>],
    options: Options,
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Outcome>> {
    let next = AtomicUsize::new(0);
    let all = pairs.iter().map(|pair| pair.targets().count() * options.protocols.len()).sum();
    let progress = Mutex::new(Progress { all, ..Progress::default() });
    let run = || {
        let mut done = Vec::new();
        while let Some((at, pair)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            pairs.get(at).map(|pair| (at, pair))
        } {
            let outcomes = pair.probe(options);
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.done += outcomes.len();
            progress.failed += outcomes.iter().filter(|one| one.result.is_err()).count();
            watch(*progress);
            done.push((at, outcomes));
        }
        done
    };
    let done = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..pairs.len().min(CONCURRENCY)).map(|_| scope.spawn(run)).collect();
        let done = workers.into_iter().map(|worker| worker.join().map_err(|_| Error::Panic));
        done.collect::<Result<Vec<_>>>()
    })?;
    let mut done: Vec<_> = done.into_iter().flatten().collect();
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().flat_map(|(_, outcomes)| outcomes).collect())
}

/// The pairs of one sender: the local endpoints, the next one first, then the remote ones.
fn partners(kinds: &[Kind], here: usize, from: usize, options: Options) -> Vec<(usize, usize)> {
    let is_pod = |at: usize| kinds[at] == Kind::Pod;
    let others = (1..here).map(|step| (from + step) % here).chain(here..kinds.len());
    let others = others.filter(|to| is_pod(*to) || (is_pod(from) && options.nodes_too));
    others.take(options.peers).map(|to| (from, to)).collect()
}

impl Pair<'_> {
    /// The receiver's addresses of the families that the sender has.
    fn targets(&self) -> impl Iterator<Item = &EchoAddress> {
        self.addresses.iter().filter(|echo| self.own.has_family_of(echo.address))
    }

    /// All probes of this pair.
    fn probe(&self, options: Options) -> Vec<Outcome> {
        let probes = || {
            let every = self.targets().flat_map(|to| options.protocols.iter().map(move |kind| (to, *kind)));
            let probe = |(to, protocol): (&EchoAddress, Protocol)| {
                let (result, answered) = match probe::send(protocol, self.own, to, options.timeout) {
                    Ok(answer) => (answer.check(self.own), true),
                    Err(failure) => (Err(failure.reason), failure.answered),
                };
                let source = probe::source(to);
                Outcome { source, answered, ..self.outcome(to, protocol, result) }
            };
            every.map(probe).collect()
        };
        let failed = |why: podwire_kernel::Error| {
            let every = self.targets().flat_map(|to| options.protocols.iter().map(move |kind| (to, *kind)));
            every.map(|(to, protocol)| self.outcome(to, protocol, Err(why.to_string()))).collect()
        };
        self.own.netns.run(probes).unwrap_or_else(failed)
    }

    fn outcome(&self, to: &EchoAddress, protocol: Protocol, result: Result<Duration, String>) -> Outcome {
        Outcome {
            from: self.from,
            to: self.to,
            source: None,
            address: to.address,
            protocol,
            port: protocol.port(to),
            result,
            answered: false,
            denied: None,
        }
    }
}
