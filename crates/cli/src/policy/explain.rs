//! `podwire policy explain`: which rule of which policy decides, and why.

use std::path::PathBuf;

use clap::Args;
use ipnet::IpNet;
use podwire_policy::oracle::{self, Decision, Evaluation};
use podwire_policy::{Packet, Snapshot, Verdict};
use serde_json::{json, Value};

use super::expectation::{ends, packets, End};
use super::source::{self, POD_NETWORKS};
use crate::paint::Paint;
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire policy explain shop/web shop/db 5432 -f manifests/
  podwire policy explain shop/web 8.8.8.8 53/UDP -f manifests/
  kubectl get pods,ns,nodes,netpol -A -o json > now.json
  kubectl get clusternetworkpolicies -o json > admin.json      where the cluster has them
  podwire policy explain shop/web shop/db pg -f now.json -f admin.json --json

POD is namespace/name (or a name in the namespace default), an address, or node:NAME; a Deployment and its like
stand for their pods. PORT is a number, a number with a protocol, the name of a port of the receiver, or ping.
The exit status is 1 if the connection is denied.";

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Who sends.
    #[arg(value_name = "POD")]
    from: String,
    /// Who receives.
    #[arg(value_name = "POD")]
    to: String,
    /// At which port.
    port: String,
    /// Files and folders with pods, namespaces, nodes and policies, in YAML or JSON; may be repeated.
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    files: Vec<PathBuf>,
    /// Where pods without addresses get theirs from [default: 10.244.0.0/16, fd00:10:244::/64].
    #[arg(long = "pod-network", value_name = "NETWORK")]
    networks: Vec<IpNet>,
}

impl Explain {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let what = format!("cannot explain {} -> {} {}", self.from, self.to, self.port);
        let mut snapshot = Snapshot::new();
        source::read(&self.files, &mut snapshot).map_err(Failure::to(what.clone()))?;
        let mut networks = self.networks.clone();
        if networks.is_empty() {
            networks.extend(POD_NETWORKS.iter().filter_map(|network| network.parse::<IpNet>().ok()));
        }
        snapshot.assign_addresses(&networks);
        let wrong = |reason: String| {
            let hint = "pods are named namespace/name; `--file` names where they stand";
            Failure::new(what.clone(), podwire_cni_spec::Error::invalid_config(reason).with_details(hint))
        };
        let (from, to) =
            (one(&self.from, &snapshot).map_err(wrong)?, one(&self.to, &snapshot).map_err(wrong)?);
        let packets = packets(&from, &to, &self.port, &snapshot).map_err(wrong)?;
        let judged: Vec<_> =
            packets.iter().map(|packet| (packet, oracle::evaluate(&snapshot, packet))).collect();
        let success = judged.iter().all(|(_, judgement)| judgement.verdict == Verdict::Allow);
        let paint = Paint::stdout();
        let text =
            judged.iter().map(|(packet, judgement)| text((&from, &to), packet, judgement, paint)).collect();
        let all: Vec<Value> =
            judged.iter().map(|(packet, judgement)| to_json((&from, &to), packet, judgement)).collect();
        Ok(Answer { text, json: all.into(), success })
    }
}

fn one(pattern: &str, snapshot: &Snapshot) -> Result<End, String> {
    let mut found = ends(pattern, snapshot)?;
    match (found.pop(), found.is_empty()) {
        (Some(end), true) => Ok(end),
        _ => Err(format!("{pattern:?} is more than one")),
    }
}

/// `TCP 80`, or `ping` for what has no ports.
pub(super) fn service(packet: &Packet) -> String {
    packet.service.map_or_else(|| "ping".to_owned(), |(protocol, port)| format!("{protocol} {port}"))
}

/// The reasons, a line for each.
pub(super) fn reasons(judgement: &Evaluation) -> Vec<String> {
    let lines = |decision: &Decision| {
        let side = format!("{} of {}", decision.direction, decision.pod);
        let passed = decision.passed.iter().map(|origin| format!("{side}: {origin} says Pass"));
        let last = format!("{side}: {}: {}", decision.verdict, decision.reason);
        passed.chain([last]).collect::<Vec<_>>()
    };
    let all: Vec<String> = judgement.decisions.iter().flat_map(lines).collect();
    match all.is_empty() {
        true => vec!["no pod with a network of its own takes part: policies are not asked".to_owned()],
        false => all,
    }
}

fn text((from, to): (&End, &End), packet: &Packet, judgement: &Evaluation, paint: Paint) -> String {
    let verdict = match judgement.verdict {
        Verdict::Allow => paint.good("allow"),
        Verdict::Deny => paint.bad("deny"),
    };
    let end = |end: &End, address: std::net::IpAddr| match end.name == address.to_string() {
        true => end.name.clone(),
        false => format!("{} ({address})", end.name),
    };
    let head = format!(
        "{} -> {} {}: {verdict}\n",
        end(from, packet.source),
        end(to, packet.destination),
        service(packet)
    );
    reasons(judgement).into_iter().fold(head, |text, line| format!("{text}  {line}\n"))
}

fn to_json((from, to): (&End, &End), packet: &Packet, judgement: &Evaluation) -> Value {
    let decision = |decision: &Decision| {
        json!({
            "pod": decision.pod,
            "direction": decision.direction.name(),
            "verdict": decision.verdict.to_string(),
            "reason": decision.reason.to_string(),
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
        "verdict": judgement.verdict.to_string(),
        "decisions": judgement.decisions.iter().map(decision).collect::<Vec<_>>(),
    })
}
