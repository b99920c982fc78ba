//! `podwire verify`: tests the Kubernetes network model with packets between the pods of this node and the node itself.

mod pods;
mod policies;
mod progress;
mod text;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use podwire_kernel::Netns;
use podwire_policy::Snapshot;
use podwire_verify::{Endpoint, Kind, Options, RemoteEndpoint};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::duration;
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use pods::Pods;
pub(crate) use progress::ProgressLine;
pub(crate) use text::text;

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
is installed in the pods. Lost packets that policies deny are shown apart: the oracle decides, as in
`podwire policy explain`. The exit status is 1 if another packet is lost, if a packet arrives that
policies deny, or if a recorded pod, or one of its addresses, is not there.";

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
    /// Answer other nodes for this time, and print the endpoints and the node's policies as JSON.
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
    /// The objects by which the node's policy agent decides; none without policies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    policies: Vec<Value>,
}

/// The nodes of --with.
#[derive(Default)]
struct OtherNodes {
    endpoints: Vec<RemoteEndpoint>,
    policies: Vec<Option<Snapshot>>,
    /// For each endpoint, an index of `policies`.
    node_of: Vec<usize>,
}

impl Verify {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let failed = |error: podwire_verify::Error| {
            Failure::new("cannot verify the network", podwire_cni_spec::Error::internal(error.to_string()))
        };
        let Pods { mut endpoints, missing } = Pods::find(&self.cache_dir, &self.network);
        if endpoints.is_empty() && missing.is_empty() {
            let error = podwire_cni_spec::Error::new(
                podwire_cni_spec::code::UNKNOWN_CONTAINER,
                "no pod runs on this node",
            )
            .with_details("attach one with `podwire cni add NETWORK NAMESPACE`");
            return Err(Failure::new("cannot verify the network", error));
        }
        let here = Netns::current().map_err(podwire_verify::Error::from).map_err(failed)?;
        endpoints.push(Endpoint::node(&self.name, here, Vec::new()).map_err(failed)?);
        let (mut policies, problem) = match policies::of_this_node(&endpoints) {
            Ok(policies) => (policies, None),
            Err(problem) => (None, Some(problem)),
        };
        if let Some(time) = self.answer {
            problem.iter().for_each(|problem| eprintln!("podwire: {problem}"));
            return self.answer(Pods { endpoints, missing }, policies, time).map_err(failed);
        }
        let mut others = self.other_nodes()?;
        for snapshot in policies.iter_mut().chain(others.policies.iter_mut().flatten()) {
            policies::retain_ends(snapshot, &endpoints, &others.endpoints);
        }
        let peers = self.peers.unwrap_or(usize::MAX);
        let options = Options { timeout: self.timeout, peers, ..Options::default() };
        let progress = ProgressLine::default();
        let watch = |now| progress.show(now);
        let report = podwire_verify::verify_with(&endpoints, &others.endpoints, options, &watch);
        drop(progress);
        let mut report = report.map_err(failed)?;
        report.apply_policies(|at| match at.checked_sub(endpoints.len()) {
            None => policies.as_ref(),
            Some(at) => others.policies[others.node_of[at]].as_ref(),
        });
        let disturbances: Vec<String> = report.disturbance.take().into_iter().chain(problem).collect();
        report.disturbance = (!disturbances.is_empty()).then(|| disturbances.join("; "));
        report.missing.extend(missing);
        let output = Output::new(text(&report, Paint::stdout()), report.to_json());
        Ok(Output { success: report.holds(), ..output })
    }

    /// Answers packets of other nodes for a time.
    fn answer(
        &self,
        pods: Pods,
        policies: Option<Snapshot>,
        time: Duration,
    ) -> Result<Output, podwire_verify::Error> {
        let (answering, mut answered) = podwire_verify::answer(&pods.endpoints)?;
        answered.extend(pods.missing.into_iter().map(RemoteEndpoint::absent));
        // Pods of two nodes may have the same name.
        for pod in answered.iter_mut().filter(|endpoint| endpoint.kind == Kind::Pod) {
            pod.name = format!("{}@{}", pod.name, self.name);
        }
        let policies = policies.iter().flat_map(Snapshot::objects).collect();
        let answer = Answer { endpoints: answered, policies };
        let text = serde_json::to_string_pretty(&answer).unwrap_or_default();
        // Printed now and not at the end: the reader needs it while this node answers.
        println!("{text}");
        let wait = |source| podwire_verify::Error::System { what: "wait", source };
        podwire_netlink::sys::readable(&[], time).map_err(wait)?;
        drop(answering);
        Ok(Output::new(String::new(), serde_json::Value::Null))
    }

    /// What --answer printed on other nodes.
    fn other_nodes(&self) -> Result<OtherNodes, Failure> {
        let mut all = OtherNodes::default();
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
            let mut snapshot = Snapshot::new();
            for object in answer.policies {
                snapshot.add(object).map_err(|error| unreadable(error.to_string()))?;
            }
            all.node_of.resize(all.node_of.len() + answer.endpoints.len(), all.policies.len());
            all.policies.push(Some(snapshot).filter(|snapshot| *snapshot != Snapshot::new()));
            all.endpoints.extend(answer.endpoints);
        }
        Ok(all)
    }
}
