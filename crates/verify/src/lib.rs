//! Verifies the Kubernetes network model with packets: every pod reaches every pod without NAT, every node reaches every pod,
//! and a pod sees itself with the address that the others see.
//!
//! An [`Endpoint`] is a network namespace with addresses: a pod or a node. Each endpoint runs an echo service on every address,
//! which answers with the source address that it saw. Each endpoint then probes all the others with every [`Protocol`]: a TCP
//! stream, a UDP datagram, an ICMP echo, and a datagram of the link's MTU that must not be fragmented. The [`Report`] has all
//! outcomes.
//!
//! Nothing is installed in the pods and no program is executed: threads of this process enter the namespaces.

#![forbid(unsafe_code)]

mod echo;
mod endpoint;
mod error;
mod neighbour_table;
mod probe;
mod remote;
mod report;

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use neighbour_table::Overflows;

pub use echo::EchoAddress;
pub use endpoint::{Endpoint, Kind, OwnAddress};
pub use error::{Error, Result};
pub use probe::{ping, Protocol};
pub use remote::{answer, Answering, RemoteEndpoint};
pub use report::{Outcome, Report, ReportedEndpoint};

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

/// The number of concurrent probes. A probe that waits for its timeout delays only a few others.
const CONCURRENCY: usize = 48;

/// Probes all pairs of endpoints of which at least one is a pod.
pub fn verify(endpoints: &[Endpoint], options: Options) -> Result<Report> {
    verify_with(endpoints, &[], options)
}

/// The same, and every endpoint probes those of other machines too.
pub fn verify_with(endpoints: &[Endpoint], remote: &[RemoteEndpoint], options: Options) -> Result<Report> {
    let before = Overflows::read();
    let echoes = endpoints.iter().map(echo::Echo::start).collect::<Result<Vec<_>>>()?;
    let reported = |name: &String, kind: Kind| ReportedEndpoint { name: name.clone(), kind };
    let all: Vec<ReportedEndpoint> = (endpoints.iter().map(|one| reported(&one.name, one.kind)))
        .chain(remote.iter().map(|one| reported(&one.name, one.kind)))
        .collect();
    let addresses: Vec<&[EchoAddress]> = (echoes.iter().map(|echo| &echo.addresses[..]))
        .chain(remote.iter().map(|one| &one.addresses[..]))
        .collect();
    let kinds: Vec<Kind> = all.iter().map(|one| one.kind).collect();
    let pairs: Vec<_> =
        (0..endpoints.len()).flat_map(|from| partners(&kinds, endpoints.len(), from, options)).collect();
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        while let Some((at, (from, to))) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            pairs.get(at).map(|pair| (at, *pair))
        } {
            done.push((at, probe_all(&endpoints[from], addresses[to], options)?));
        }
        Ok(done)
    };
    let done = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..pairs.len().min(CONCURRENCY)).map(|_| scope.spawn(run)).collect();
        let done = workers.into_iter().map(|worker| worker.join().unwrap_or(Err(Error::Panic)));
        done.collect::<Result<Vec<_>>>()
    })?;
    let mut done: Vec<_> = done.into_iter().flatten().collect();
    done.sort_by_key(|(at, _)| *at);
    let outcomes = done.into_iter().flat_map(|(at, results)| {
        let (from, to) = pairs[at];
        let outcome = move |one: ProbeResult| Outcome {
            from,
            to,
            address: one.address,
            protocol: one.protocol,
            result: one.result,
        };
        results.into_iter().map(outcome)
    });
    let outcomes = outcomes.collect();
    Ok(Report { endpoints: all, outcomes, disturbance: Overflows::read().warning_since(before) })
}

/// The pairs of one sender: the local endpoints, the next one first, then the remote ones.
fn partners(kinds: &[Kind], here: usize, from: usize, options: Options) -> Vec<(usize, usize)> {
    let is_pod = |at: usize| kinds[at] == Kind::Pod;
    let others = (1..here).map(|step| (from + step) % here).chain(here..kinds.len());
    let others = others.filter(|to| is_pod(*to) || (is_pod(from) && options.nodes_too));
    others.take(options.peers).map(|to| (from, to)).collect()
}

/// The result of one probe of a pair.
struct ProbeResult {
    address: IpAddr,
    protocol: Protocol,
    result: std::result::Result<Duration, String>,
}

/// All probes of one pair.
fn probe_all(own: &Endpoint, addresses: &[EchoAddress], options: Options) -> Result<Vec<ProbeResult>> {
    let mut results = Vec::new();
    let probes = || {
        for echo in addresses.iter().filter(|echo| own.has_family_of(echo.address)) {
            for protocol in options.protocols {
                let answer = probe::send(*protocol, own, echo, options.timeout);
                let result = answer.and_then(|answer| answer.check(own));
                results.push(ProbeResult { address: echo.address, protocol: *protocol, result });
            }
        }
    };
    own.netns.run(probes)?;
    Ok(results)
}
