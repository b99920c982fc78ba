//! `podwire policy explain`: shows which rule of which policy decides about a connection.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_policy::oracle::{self, Decision, Evaluation};
use podwire_policy::{compile, Packet, Snapshot, Verdict};
use serde_json::{json, Value};

use super::expectation::{endpoints, packets, Endpoint};
use super::source::{self, POD_NETWORKS};
use super::{warning_json, warning_lines};
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::service::{of_cluster_ips, ServiceEndpoint};

pub(super) const EXAMPLES: &str = "Examples:
  podwire policy explain shop/web shop/db 5432                    as this node's agent decides
  podwire lab exec n1 -- podwire policy explain shop/web shop/db 5432
  podwire policy explain shop/web service:shop/store 80           for each endpoint of a Service
  podwire policy explain shop/web 8.8.8.8 53/UDP -f manifests/    without a cluster
  kubectl get pods,ns,nodes,netpol -A -o json > now.json
  kubectl get clusternetworkpolicies -o json > admin.json         if the cluster has them
  podwire policy explain shop/web shop/db pg -f now.json -f admin.json --json

POD is NAMESPACE/NAME (or a name in the namespace default), an address, or node:NAME. A Deployment
and other workloads in files stand for their pods. PORT is a number, a number with a protocol, the
name of a port of the receiver, or ping.

The receiver can be service:NAMESPACE/NAME, a Service that this node serves, with one of its ports.
Policies see a packet after its destination has become an endpoint, so they are asked about a
connection to each endpoint that the kernel has for the cluster IPs.

The output names the rule that decides, and why the policies and rules before it do not match.
The exit status is 0 if all connections are allowed, 1 if one is denied, 2 after an error.";

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Sender.
    #[arg(value_name = "POD")]
    from: String,
    /// Receiver: a pod, or a Service.
    #[arg(value_name = "POD|service:NAME")]
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
        let from = one(&self.from, &snapshot).map_err(wrong)?;
        let connections = match self.to.strip_prefix("service:") {
            Some(service) => {
                let endpoints = self.endpoints(service, &what)?;
                to_service(&from, &endpoints, &snapshot).map_err(wrong)?
            }
            None => {
                let to = one(&self.to, &snapshot).map_err(wrong)?;
                let packets = packets(&from, &to, &self.port, &snapshot).map_err(wrong)?;
                packets
                    .into_iter()
                    .map(|packet| Connection { to: to.clone(), service: None, packet })
                    .collect()
            }
        };
        let evaluated: Vec<_> =
            connections.iter().map(|one| (one, oracle::explain(&snapshot, &one.packet))).collect();
        let success = evaluated.iter().all(|(_, evaluation)| evaluation.verdict == Verdict::Allow);
        let (paint, warnings) = (Paint::stdout(), compile(&snapshot, None).warnings);
        let text: String =
            evaluated.iter().map(|(one, evaluation)| one.text(&from, evaluation, paint)).collect();
        let all: Vec<Value> = evaluated.iter().map(|(one, evaluation)| one.json(&from, evaluation)).collect();
        let json = json!({
            "connections": all,
            "warnings": warnings.iter().map(warning_json).collect::<Vec<_>>(),
        });
        Ok(Output { text: text + &warning_lines(&warnings, paint), json, success })
    }

    /// The endpoints of a Service of this node.
    fn endpoints(&self, service: &str, what: &str) -> Result<Vec<ServiceEndpoint>, Failure> {
        if !self.files.is_empty() {
            let text = "a Service is resolved by the kernel of this node, and --file is about another place";
            let error = podwire_cni_spec::Error::env(text);
            return Err(Failure::new(what, error.with_details("leave out --file, or name an endpoint")));
        }
        of_cluster_ips(service, &self.port, what)
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

/// A packet of the sender to one receiver.
struct Connection {
    to: Endpoint,
    /// The Service port, if the receiver is one of its endpoints.
    service: Option<String>,
    packet: Packet,
}

/// The connections to the endpoints of a Service that have an address family of the sender.
fn to_service(
    from: &Endpoint,
    endpoints: &[ServiceEndpoint],
    snapshot: &Snapshot,
) -> Result<Vec<Connection>, String> {
    let mut connections = Vec::new();
    for endpoint in endpoints {
        let ip = endpoint.addr.ip();
        let pod = snapshot.pods.iter().find(|pod| pod.addresses().contains(&ip));
        let name = pod.map_or_else(|| ip.to_string(), |pod| pod.full_name());
        let to = Endpoint { name, addresses: vec![ip] };
        let has_family = |source: &&IpAddr| IpFamily::of(**source) == IpFamily::of(ip);
        for source in from.addresses.iter().filter(has_family) {
            let service = Some((endpoint.protocol, endpoint.addr.port()));
            let packet = Packet { source: *source, destination: ip, service };
            connections.push(Connection { to: to.clone(), service: Some(endpoint.service.clone()), packet });
        }
    }
    if connections.is_empty() {
        return Err(format!("{} has no address of the family of an endpoint", from.name));
    }
    Ok(connections)
}

impl Connection {
    fn text(&self, from: &Endpoint, evaluation: &Evaluation, paint: Paint) -> String {
        let verdict = match evaluation.verdict {
            Verdict::Allow => paint.good("allow"),
            Verdict::Deny => paint.bad("deny"),
        };
        let end = |end: &Endpoint, address: IpAddr| {
            if end.name == address.to_string() {
                end.name.clone()
            } else {
                format!("{} ({address})", end.name)
            }
        };
        let of_service = self.service.as_ref().map(|name| format!(", endpoint of {name}"));
        let head = format!(
            "{} -> {} {}{}: {verdict}\n",
            end(from, self.packet.source),
            end(&self.to, self.packet.destination),
            service(&self.packet),
            of_service.unwrap_or_default()
        );
        all_reasons(evaluation).into_iter().fold(head, |text, line| format!("{text}  {line}\n"))
    }

    fn json(&self, from: &Endpoint, evaluation: &Evaluation) -> Value {
        let mut value = to_json(from, &self.to, &self.packet, evaluation);
        if let Some(service) = &self.service {
            value["service"] = json!(service);
        }
        value
    }
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
