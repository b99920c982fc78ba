//! `podwire verify`: tests the Kubernetes network model with packets between the pods of this node and the node itself.

mod denied;
mod pods;
mod progress;
mod text;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use podwire_kernel::Netns;
use podwire_verify::{Endpoint, Kind, Options, RemoteEndpoint};
use serde::{Deserialize, Serialize};

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
is installed in the pods. What the policies of this node deny is shown apart. The exit status is
1 if another packet failed, or if a recorded pod, or one of its addresses, is not there.";

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
        if let Some(time) = self.answer {
            return self.answer(Pods { endpoints, missing }, time).map_err(failed);
        }
        let remote = self.remote_endpoints()?;
        let peers = self.peers.unwrap_or(usize::MAX);
        let options = Options { timeout: self.timeout, peers, ..Options::default() };
        let progress = ProgressLine::default();
        let watch = |now| progress.show(now);
        let mut report = podwire_verify::verify_with(&endpoints, &remote, options, &watch).map_err(failed)?;
        denied::mark(&mut report, &endpoints);
        drop(progress);
        report.missing.extend(missing);
        let output = Output::new(text(&report, Paint::stdout()), report.to_json());
        Ok(Output { success: report.holds(), ..output })
    }

    /// Answers packets of other nodes for a time.
    fn answer(&self, pods: Pods, time: Duration) -> Result<Output, podwire_verify::Error> {
        let (answering, mut answered) = podwire_verify::answer(&pods.endpoints)?;
        answered.extend(pods.missing.into_iter().map(RemoteEndpoint::absent));
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
}
