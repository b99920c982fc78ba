//! `podwire verify`: tests the Kubernetes network model with packets between the pods of this node and the node itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use podwire_cni_runtime::{Cache, Record};
use podwire_kernel::Netns;
use podwire_verify::{Endpoint, Kind, Options, Outcome, RemoteEndpoint, Report};
use serde::{Deserialize, Serialize};

use crate::duration;
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::table::table;

pub(crate) const EXAMPLES: &str = "Examples:
  podwire verify
  podwire verify --network pods --peers 10
  podwire verify --json | jq '.probes[] | select(.failure)'
  podwire verify --answer 1m --name n1 > n1.json     on one node of a cluster
  podwire verify --with n1.json                      on another node, within that minute

Every pod sends to every other pod and to the node, and the node sends to every pod, at each
address: a TCP stream, a UDP datagram, an ICMP echo, and a datagram of the interface's MTU that
must not be fragmented. The receiver returns the source address that it sees, which must be the
sender's address. With --answer the node and its pods answer other nodes; with --with they also
send to those. Run from every node, this covers all pairs of a cluster. The pods are those of every
runtime that uses the same cache directory. Threads of this program enter their namespaces; nothing
is installed in the pods. The exit status is 1 if a packet failed.";

/// The limits of the text output.
const MAX_MATRIX: usize = 16;
const MAX_FAILURES: usize = 40;

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Only pods of this network; repeatable.
    #[arg(long, value_name = "NAME")]
    network: Vec<String>,
    /// Number of receivers for each pod [default: all].
    #[arg(long, value_name = "COUNT")]
    peers: Option<usize>,
    /// Time limit for an answer.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    timeout: Duration,
    /// Also send to the pods in this file, which --answer wrote on another node; repeatable.
    #[arg(long, value_name = "FILE", conflicts_with = "answer")]
    with: Vec<PathBuf>,
    /// Answer other nodes for this time, and print the answering endpoints as JSON.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    answer: Option<Duration>,
    /// Name of this node in reports.
    #[arg(long, value_name = "NAME", default_value = "node")]
    name: String,
    /// Directory of the attachment records.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni")]
    cache_dir: PathBuf,
}

/// The output of --answer, and the input of --with.
#[derive(Serialize, Deserialize)]
struct Answer {
    endpoints: Vec<RemoteEndpoint>,
}

impl Verify {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let failed = |error: podwire_verify::Error| {
            Failure::new("cannot verify the network", podwire_cni_spec::Error::internal(error.to_string()))
        };
        let mut endpoints = self.pods()?;
        if endpoints.is_empty() {
            let error = podwire_cni_spec::Error::new(
                podwire_cni_spec::code::UNKNOWN_CONTAINER,
                "no pod runs on this node",
            )
            .with_details("attach one with `podwire cni add NETWORK NAMESPACE`");
            return Err(Failure::new("cannot verify the network", error));
        }
        let here = Netns::current().map_err(podwire_verify::Error::from).map_err(failed)?;
        endpoints.push(Endpoint::node(&self.name, here, Vec::new()).map_err(failed)?);
        if let Some(time) = self.answer {
            return self.answer(&endpoints, time).map_err(failed);
        }
        let remote = self.remote_endpoints()?;
        let peers = self.peers.unwrap_or(usize::MAX);
        let options = Options { timeout: self.timeout, peers, ..Options::default() };
        let report = podwire_verify::verify_with(&endpoints, &remote, options).map_err(failed)?;
        let output = Output::new(text(&report, Paint::stdout()), report.to_json());
        Ok(Output { success: report.holds(), ..output })
    }

    /// Answers packets of other nodes for a time.
    fn answer(&self, endpoints: &[Endpoint], time: Duration) -> Result<Output, podwire_verify::Error> {
        let (answering, mut answered) = podwire_verify::answer(endpoints)?;
        // Pods of two nodes may have the same name.
        for pod in answered.iter_mut().filter(|endpoint| endpoint.kind == Kind::Pod) {
            pod.name = format!("{}@{}", pod.name, self.name);
        }
        let text = serde_json::to_string_pretty(&Answer { endpoints: answered }).unwrap_or_default();
        // Printed now and not at the end: the reader needs it while this node answers.
        println!("{text}");
        let wait = |source| podwire_verify::Error::System { what: "wait", source };
        podwire_netlink::sys::readable(&[], time).map_err(wait)?;
        drop(answering);
        Ok(Output::new(String::new(), serde_json::Value::Null))
    }

    /// The endpoints that answer on other nodes.
    fn remote_endpoints(&self) -> Result<Vec<RemoteEndpoint>, Failure> {
        let mut all = Vec::new();
        for path in &self.with {
            let unreadable = |why: String| {
                let error = podwire_cni_spec::Error::new(
                    podwire_cni_spec::code::DECODE,
                    format!("{}: {why}", path.display()),
                )
                .with_details("use the output of `podwire verify --answer TIME` on another node");
                Failure::new("cannot send to other nodes", error)
            };
            let text = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
            let answer: Answer =
                serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
            all.extend(answer.endpoints);
        }
        Ok(all)
    }

    /// The running pods. A pod in several networks is listed once.
    fn pods(&self) -> Result<Vec<Endpoint>, Failure> {
        let mut found = BTreeMap::new();
        for record in Cache::new(&self.cache_dir).list().records {
            let is_selected = self.network.is_empty() || self.network.contains(&record.network);
            let name = name(&record);
            let netns = record.identity().ok().and_then(|identity| identity.netns);
            let Some(path) = netns.filter(|_| is_selected) else { continue };
            let Ok(Some(netns)) = Netns::find(&path) else { continue };
            let Ok(identity) = netns.identity() else { continue };
            found.entry(format!("{identity:?}")).or_insert((name, path));
        }
        let endpoint = |(name, path): (String, PathBuf)| {
            Endpoint::pod(&name, path).map_err(|error| {
                Failure::new(
                    format!("cannot enter pod {name}"),
                    podwire_cni_spec::Error::internal(error.to_string()),
                )
            })
        };
        let mut endpoints = found.into_values().map(endpoint).collect::<Result<Vec<_>, _>>()?;
        // A pod without addresses can neither send nor receive.
        endpoints.retain(|endpoint| !endpoint.own.is_empty());
        endpoints.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(endpoints)
    }
}

/// The name of a pod in reports: its name in Kubernetes, the namespace that `podwire cni` or cnitool attached, or its
/// container id.
fn name(record: &Record) -> String {
    let in_kubernetes = record.args().get("K8S_POD_NAME").map(String::from);
    let by_hand = || record.container.starts_with("cnitool-").then(|| record.netns.as_ref()?.file_name());
    let namespace = || Some(by_hand()??.to_string_lossy().into_owned());
    let container = || record.container.chars().take(12).collect();
    in_kubernetes.or_else(namespace).unwrap_or_else(container)
}

/// The matrix, the failures and the verdict.
pub(crate) fn text(report: &Report, paint: Paint) -> String {
    let (sent, failed) = (report.outcomes.len(), report.failures().count());
    let pods = report.endpoints.iter().filter(|endpoint| endpoint.kind == Kind::Pod).count();
    let mut text = matrix(report, paint);
    let failures: Vec<&Outcome> = report.failures().collect();
    for outcome in failures.iter().take(MAX_FAILURES) {
        text += &format!("{} {}\n", paint.bad("failed:"), report.sentence(outcome));
    }
    if failures.len() > MAX_FAILURES {
        text += &format!("… and {} more: --json shows all\n", failures.len() - MAX_FAILURES);
    }
    if let (Some(why), false) = (&report.disturbance, failures.is_empty()) {
        text += &format!("{} {why}\n", paint.bad("but:"));
    }
    if !failures.is_empty() {
        text += "\n";
    }
    let verdict = match (sent, failed) {
        (0, _) => paint.bad("no packets were sent: the endpoints share no address family"),
        (_, 0) => format!("{}: no packet lost, no address translated", paint.good("the network model holds")),
        _ => format!("{}: {failed} packets failed", paint.bad("the network model does not hold")),
    };
    let others = if report.endpoints.len() - pods == 1 { "the node" } else { "the nodes" };
    text + &format!(
        "{verdict}\n{pods} pods and {others}, {sent} probes by TCP, UDP, ICMP and large packets\n"
    )
}

/// The results by sender (rows) and receiver (columns). Of many endpoints only those with failures are shown.
fn matrix(report: &Report, paint: Paint) -> String {
    let cells = report.matrix();
    let has_failure = |endpoint: &usize| {
        report.failures().any(|outcome| outcome.from == *endpoint || outcome.to == *endpoint)
    };
    let mut shown: Vec<usize> = (0..report.endpoints.len()).collect();
    if shown.len() > MAX_MATRIX {
        shown.retain(has_failure);
        shown.truncate(MAX_MATRIX);
    }
    if shown.is_empty() {
        return String::new();
    }
    let cell = |from: usize, to: usize| match cells.get(&(from, to)) {
        None => "-".to_owned(),
        Some((good, all)) if good == all => paint.good("ok"),
        Some((good, all)) => paint.bad(&format!("{good}/{all}")),
    };
    let name = |endpoint: usize| report.endpoints[endpoint].name.clone();
    let head: Vec<String> =
        std::iter::once("FROM \\ TO".to_owned()).chain(shown.iter().map(|to| name(*to))).collect();
    let row = |from: &usize| {
        let name = std::iter::once(name(*from));
        name.chain(shown.iter().map(|to| cell(*from, *to))).collect()
    };
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    format!("{}\n", table(&head, &shown.iter().map(row).collect::<Vec<_>>(), paint))
}
