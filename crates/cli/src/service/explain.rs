//! `podwire service explain`: what happens to a packet to a Service.

use std::path::PathBuf;

use clap::Args;
use podwire_cni_spec::Error;
use podwire_services::{
    explain, Admission, Client, Explanation, Fate, Frontend, Refusal, Target as Endpoint,
};
use serde_json::{json, Value};

use super::client::Sender;
use super::node_services::NodeServices;
use super::source_flags::SourceFlags;
use super::target::Target;
use super::view::{left_out_json, EndpointView, FrontendView, ServiceView};
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;

pub(super) const EXAMPLES: &str = "Examples:
  podwire service explain --from shop/client shop/web        from a pod of this node
  podwire service explain --from node shop/web:http          from a process of this node
  podwire service explain --from 203.0.113.9 shop/web:30080  from this address
  podwire service explain --from outside 10.96.0.10:53/UDP   from any other host
  podwire service explain --from node shop/web --services files:/etc/podwire/services

The explanation is about packets that pass this node, and about its kernel's table as it is now. It
does not ask network policies, which see the packet after its destination is an endpoint:
`podwire policy explain` does. The exit status is 0 if nothing stops the packet, 1 if it is refused
or dropped or has no route, 2 after an error.";

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Sender: a pod of this node, an address, node, or outside.
    #[arg(long, value_name = "POD|ADDRESS|node|outside")]
    from: String,
    /// Receiver: NAMESPACE/NAME, with :PORT or :PORT/UDP after it, or ADDRESS:PORT.
    #[arg(value_name = "SERVICE[:PORT]")]
    to: String,
    #[command(flatten)]
    source: SourceFlags,
    /// Directory of the attachment records, for the addresses of pods.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni")]
    cache_dir: PathBuf,
}

/// A packet to one frontend.
struct Packet<'a> {
    sender: &'a Sender,
    frontend: Frontend,
    /// The frontend, if the Service was named.
    view: Option<&'a FrontendView>,
    outcome: Outcome,
}

enum Outcome {
    Explained(Client, Explanation),
    /// The kernel has no route, so no packet is sent.
    NoRoute(std::io::Error),
}

impl Explain {
    pub(super) fn run(&self) -> Result<Output, Failure> {
        // Status 1 is an answer: the packet is refused.
        self.explain().map_err(|failure| failure.with_status(2))
    }

    fn explain(&self) -> Result<Output, Failure> {
        let what = format!("cannot explain packets from {} to {}", self.from, self.to);
        let failed = |error: Error| Failure::new(what.clone(), error);
        let target = Target::parse(&self.to).map_err(failed)?;
        let node = NodeServices::read(&self.source, &what)?;
        let sender = Sender::find(&self.from, &self.cache_dir).map_err(failed)?;
        let (frontends, service) = target.frontends(&node).map_err(failed)?;
        let packets: Vec<Packet<'_>> =
            frontends.iter().filter_map(|one| packet(&node, &sender, *one, service.as_ref())).collect();
        if packets.is_empty() {
            let text = format!("{} has no address of the family of {}", sender.name(), self.to);
            return Err(failed(Error::invalid_config(text)));
        }
        let paint = Paint::stdout();
        let texts: Vec<String> = packets.iter().map(|packet| packet.text(&node, paint)).collect();
        let json =
            json!({ "connections": packets.iter().map(|packet| packet.json(&node)).collect::<Vec<_>>() });
        let success = packets.iter().all(|packet| matches!(packet.verdict(), "forwarded" | "not a Service"));
        Ok(Output { text: texts.join("\n"), json, success })
    }
}

fn packet<'a>(
    node: &NodeServices,
    sender: &'a Sender,
    frontend: Frontend,
    service: Option<&'a ServiceView>,
) -> Option<Packet<'a>> {
    let outcome = match sender.client(&frontend)? {
        Ok(client) => Outcome::Explained(client, explain(&node.installed, &node.node, client, &frontend)),
        Err(error) => Outcome::NoRoute(error),
    };
    let view = service.and_then(|service| service.frontends.iter().find(|one| one.frontend == frontend));
    Some(Packet { sender, frontend, view, outcome })
}

impl Packet<'_> {
    fn verdict(&self) -> &'static str {
        match &self.outcome {
            Outcome::NoRoute(_) => "no route",
            Outcome::Explained(_, Explanation { admission: Admission::Denied(_), .. }) => "dropped",
            Outcome::Explained(_, explanation) => match &explanation.fate {
                Fate::Forwarded { .. } => "forwarded",
                Fate::Refused(Refusal::Reject, _) => "refused",
                Fate::Refused(Refusal::Drop, _) => "dropped",
                Fate::Untouched => "not a Service",
            },
        }
    }

    /// Why the packet does not get to an endpoint.
    fn reason(&self) -> Option<String> {
        match &self.outcome {
            Outcome::NoRoute(error) => Some(format!(
                "the kernel has no route to {}, so connect() fails before nftables: {error}",
                self.frontend.ip
            )),
            Outcome::Explained(_, Explanation { admission: Admission::Denied(_), .. }) => {
                Some("loadBalancerSourceRanges do not have the client".into())
            }
            Outcome::Explained(_, Explanation { fate: Fate::Refused(refusal, reason), .. }) => {
                let answer = match refusal {
                    Refusal::Reject => "the client gets ICMP port unreachable",
                    Refusal::Drop => "the client gets no answer",
                };
                Some(format!("{reason}; {answer}"))
            }
            Outcome::Explained(_, Explanation { fate: Fate::Untouched, .. }) => {
                Some("no Service has this address and port; the packet goes on unchanged".into())
            }
            Outcome::Explained(..) => None,
        }
    }

    /// The endpoints that may get the connection.
    fn endpoints(&self) -> &[Endpoint] {
        match &self.outcome {
            Outcome::Explained(_, Explanation { admission: Admission::Denied(_), .. }) => &[],
            Outcome::Explained(_, Explanation { fate: Fate::Forwarded { targets, .. }, .. }) => targets,
            _ => &[],
        }
    }

    fn source(&self) -> Option<std::net::IpAddr> {
        match &self.outcome {
            Outcome::Explained(Client::Address(ip), _) => Some(*ip),
            _ => None,
        }
    }

    fn text(&self, node: &NodeServices, paint: Paint) -> String {
        let verdict = match self.verdict() {
            good @ ("forwarded" | "not a Service") => paint.good(good),
            bad => paint.bad(bad),
        };
        let (name, source) = (self.sender.name(), self.source().map(|ip| ip.to_string()));
        let from = match source.filter(|ip| ip != name) {
            Some(ip) => format!("{name} ({ip})"),
            None => name.to_owned(),
        };
        let mut lines = vec![format!("{from} -> {}{}: {verdict}", self.frontend, self.service_text())];
        lines.extend(self.admission());
        lines.extend(self.reason());
        lines.extend(self.endpoints().iter().map(|endpoint| self.endpoint_text(node, endpoint)));
        if let Some(view) = self.view {
            let left_out = view.left_out.iter();
            lines.extend(left_out.map(|one| format!("left out {}: {}", one.addr, one.cluster)));
        }
        let affinity = self.affinity().map(|seconds| {
            format!(
                "session affinity: the client keeps its endpoint for {seconds} s after its last connection"
            )
        });
        lines.extend(affinity);
        lines.join("\n  ") + "\n"
    }

    fn service_text(&self) -> String {
        let service = match &self.outcome {
            Outcome::Explained(_, explanation) => explanation.service.as_deref(),
            Outcome::NoRoute(_) => None,
        };
        service.map(|service| format!(" of {service}")).unwrap_or_default()
    }

    fn admission(&self) -> Option<String> {
        let Outcome::Explained(_, explanation) = &self.outcome else { return None };
        let (ranges, word) = match &explanation.admission {
            Admission::Everybody => return None,
            Admission::Admitted(ranges) => (ranges, "admit the client"),
            Admission::Denied(ranges) => (ranges, "do not have the client"),
            Admission::Depends(ranges) => {
                (ranges, "drop packets of other clients; name an address with --from")
            }
        };
        let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        Some(format!("source ranges {}: {word}", ranges.join(", ")))
    }

    fn endpoint_text(&self, node: &NodeServices, endpoint: &Endpoint) -> String {
        let view = self.view_of(endpoint);
        let place = if node.is_local(endpoint.endpoint.ip()) { "on this node" } else { "on another node" };
        let remark = view.unwrap_or_else(|| place.to_owned());
        let source = match endpoint.masquerade {
            None => "it sees the client's address".to_owned(),
            Some(why) => format!("it sees an address of this node, because {why}"),
        };
        format!("endpoint {} ({remark}): {source}", endpoint.endpoint)
    }

    /// Where the endpoint is and why it was chosen, if the Service was named.
    fn view_of(&self, endpoint: &Endpoint) -> Option<String> {
        let view = self.view?;
        let all = view.endpoints.iter().chain(&view.others);
        all.into_iter().find(|one| one.addr == endpoint.endpoint).map(EndpointView::remark)
    }

    fn affinity(&self) -> Option<u64> {
        match &self.outcome {
            Outcome::Explained(_, Explanation { fate: Fate::Forwarded { affinity, .. }, .. }) => {
                affinity.map(|time| time.as_secs())
            }
            _ => None,
        }
    }

    fn json(&self, node: &NodeServices) -> Value {
        let endpoint = |one: &Endpoint| {
            json!({
                "ip": one.endpoint.ip(),
                "port": one.endpoint.port(),
                "local": node.is_local(one.endpoint.ip()),
                "masqueraded": one.masquerade.is_some(),
                "masqueradeReason": one.masquerade.map(|why| why.to_string()),
            })
        };
        let service = match &self.outcome {
            Outcome::Explained(_, explanation) => explanation.service.clone(),
            Outcome::NoRoute(_) => None,
        };
        json!({
            "from": self.sender.name(),
            "source": self.source(),
            "destination": self.frontend.ip,
            "protocol": self.frontend.protocol.name(),
            "port": self.frontend.port,
            "service": service,
            "verdict": self.verdict(),
            "reason": self.reason(),
            "admission": self.admission(),
            "endpoints": self.endpoints().iter().map(endpoint).collect::<Vec<_>>(),
            "leftOut": self.view.map(|view| view.left_out.iter().map(left_out_json).collect::<Vec<_>>()),
            "affinitySeconds": self.affinity(),
        })
    }
}
