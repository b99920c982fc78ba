//! `podwire policy explain`: shows which rule of which policy decides about a connection.

use std::path::PathBuf;

use clap::Args;
use ipnet::IpNet;
use podwire_policy::oracle::{self, Decision, Evaluation};
use podwire_policy::{compile, Packet, Snapshot, Verdict};
use serde_json::{json, Value};

use super::expectation::{endpoints, packets, Endpoint};
use super::source::{self, POD_NETWORKS};
use super::{warning_json, warning_lines};
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;

pub(super) const EXAMPLES: &str = "Examples:
  podwire policy explain shop/web shop/db 5432                    as this node's agent decides
  podwire lab exec n1 -- podwire policy explain shop/web shop/db 5432
  podwire policy explain shop/web 8.8.8.8 53/UDP -f manifests/    without a cluster
  kubectl get pods,ns,nodes,netpol -A -o json > now.json
  kubectl get clusternetworkpolicies -o json > admin.json         if the cluster has them
  podwire policy explain shop/web shop/db pg -f now.json -f admin.json --json

POD is NAMESPACE/NAME (or a name in the namespace default), an address, or node:NAME. A Deployment
and other workloads in files stand for their pods. PORT is a number, a number with a protocol, the
name of a port of the receiver, or ping.

The output names the rule that decides, and why the policies and rules before it do not match.
The exit status is 0 if the connection is allowed, 1 if it is denied, 2 after an error.";

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Sender.
    #[arg(value_name = "POD")]
    from: String,
    /// Receiver.
    #[arg(value_name = "POD")]
    to: String,
    /// Destination port.
    port: String,
    /// File or directory with pods, nodes and policies; repeatable [default: ask the agent].
    #[arg(short, long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Socket of the policy agent to ask.
    #[arg(long, value_name = "PATH", default_value = podwire_agent_ipc::policy::SOCKET, conflicts_with = "files")]
    socket: PathBuf,
    /// Network for pods of files without addresses [default: 10.244.0.0/16 and fd00:10:244::/64].
    #[arg(long = "pod-network", value_name = "NETWORK", requires = "files")]
    networks: Vec<IpNet>,
}

impl Explain {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        // Status 1 is an answer: the connection is denied.
        self.explain().map_err(|failure| failure.with_status(2))
    }

    fn explain(&self) -> Result<Output, Failure> {
        let what = format!("cannot explain {} -> {} {}", self.from, self.to, self.port);
        let snapshot = self.snapshot().map_err(Failure::context(what.clone()))?;
        let wrong = |reason: String| {
            let hint = match self.files[..] {
                [] => {
                    "name pods as NAMESPACE/NAME; the agent knows those of its policy source and of this node"
                }
                _ => "name pods as NAMESPACE/NAME, and the files that define them with --file",
            };
            Failure::new(what.clone(), podwire_cni_spec::Error::invalid_config(reason).with_details(hint))
        };
        let (from, to) =
            (one(&self.from, &snapshot).map_err(wrong)?, one(&self.to, &snapshot).map_err(wrong)?);
        let packets = packets(&from, &to, &self.port, &snapshot).map_err(wrong)?;
        let evaluated: Vec<_> =
            packets.iter().map(|packet| (packet, oracle::explain(&snapshot, packet))).collect();
        let success = evaluated.iter().all(|(_, evaluation)| evaluation.verdict == Verdict::Allow);
        let (paint, warnings) = (Paint::stdout(), compile(&snapshot, None).warnings);
        let text: String = evaluated
            .iter()
            .map(|(packet, evaluation)| text(&from, &to, packet, evaluation, paint))
            .collect();
        let all: Vec<Value> =
            evaluated.iter().map(|(packet, evaluation)| to_json(&from, &to, packet, evaluation)).collect();
        let json = json!({
            "connections": all,
            "warnings": warnings.iter().map(warning_json).collect::<Vec<_>>(),
        });
        Ok(Output { text: text + &warning_lines(&warnings, paint), json, success })
    }

    fn snapshot(&self) -> Result<Snapshot, podwire_cni_spec::Error> {
        let mut snapshot = Snapshot::new();
        if self.files.is_empty() {
            source::read_agent(&self.socket, &mut snapshot)?;
            return Ok(snapshot);
        }
        source::read(&self.files, &mut snapshot)?;
        let mut networks = self.networks.clone();
        if networks.is_empty() {
            networks.extend(POD_NETWORKS.iter().filter_map(|network| network.parse::<IpNet>().ok()));
        }
        snapshot.assign_addresses(&networks);
        Ok(snapshot)
    }
}

fn one(pattern: &str, snapshot: &Snapshot) -> Result<Endpoint, String> {
    let mut found = endpoints(pattern, snapshot)?;
    match (found.pop(), found.is_empty()) {
        (Some(endpoint), true) => Ok(endpoint),
        _ => Err(format!("{pattern:?} matches more than one pod")),
    }
}

/// `TCP 80`, or `ping` for a packet without ports.
pub(super) fn service(packet: &Packet) -> String {
    packet.service.map_or_else(|| "ping".to_owned(), |(protocol, port)| format!("{protocol} {port}"))
}

/// The reasons of a verdict, one line each.
pub(super) fn reasons(evaluation: &Evaluation) -> Vec<String> {
    lines(evaluation, |_| Vec::new())
}

/// The same, with what did not match.
fn all_reasons(evaluation: &Evaluation) -> Vec<String> {
    lines(evaluation, |decision| {
        decision.skipped.iter().map(|skipped| format!("  no match: {skipped}")).collect()
    })
}

fn lines(evaluation: &Evaluation, details: impl Fn(&Decision) -> Vec<String>) -> Vec<String> {
    let of_decision = |decision: &Decision| {
        let at = format!("{} of {}", decision.direction, decision.pod);
        let passed = decision.passed.iter().map(|origin| format!("{at}: {origin} says Pass"));
        let last = format!("{at}: {}: {}", decision.verdict, decision.reason);
        passed.chain([last]).chain(details(decision)).collect::<Vec<_>>()
    };
    let all: Vec<String> = evaluation.decisions.iter().flat_map(of_decision).collect();
    if all.is_empty() {
        return vec!["neither end is a pod with its own network: no policy applies".to_owned()];
    }
    all
}

fn text(from: &Endpoint, to: &Endpoint, packet: &Packet, evaluation: &Evaluation, paint: Paint) -> String {
    let verdict = match evaluation.verdict {
        Verdict::Allow => paint.good("allow"),
        Verdict::Deny => paint.bad("deny"),
    };
    let end = |end: &Endpoint, address: std::net::IpAddr| {
        if end.name == address.to_string() {
            end.name.clone()
        } else {
            format!("{} ({address})", end.name)
        }
    };
    let head = format!(
        "{} -> {} {}: {verdict}\n",
        end(from, packet.source),
        end(to, packet.destination),
        service(packet)
    );
    all_reasons(evaluation).into_iter().fold(head, |text, line| format!("{text}  {line}\n"))
}

pub(super) fn to_json(from: &Endpoint, to: &Endpoint, packet: &Packet, evaluation: &Evaluation) -> Value {
    let decision = |decision: &Decision| {
        json!({
            "pod": decision.pod,
            "direction": decision.direction.name(),
            "verdict": decision.verdict.to_string(),
            "reason": decision.reason.to_string(),
            "skipped": decision.skipped.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "passedBy": decision.passed.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    };
    json!({
        "from": from.name,
        "to": to.name,
        "source": packet.source,
        "destination": packet.destination,
        "protocol": packet.service.map(|(protocol, _)| protocol.name()),
        "port": packet.service.map(|(_, port)| port),
        "verdict": evaluation.verdict.to_string(),
        "decisions": evaluation.decisions.iter().map(decision).collect::<Vec<_>>(),
    })
}
