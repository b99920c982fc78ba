//! The parser of NetworkPolicies.

use super::fields::{network, port_number, selector};
use crate::api::{IntOrString, IpBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use crate::networks::without;
use crate::rule::{
    Action, NamedPort, Namespaces, Origin, Peers, Policy, PortRange, Ports, Rule, Selection, Tier,
};
use crate::selector::Selector;
use crate::warning::WarningSink;
use crate::{Direction, Protocol, WarningKind};

/// More selectors in a rule get a warning.
const MAX_SELECTORS: usize = 1000;

/// A rule of either direction.
struct ApiRule<'a> {
    direction: Direction,
    index: usize,
    peers: &'a [NetworkPolicyPeer],
    ports: &'a [NetworkPolicyPort],
}

pub(super) fn parse(policy: &NetworkPolicy, warnings: &mut WarningSink<'_>) -> Policy {
    let (spec, namespace) = (&policy.spec, &policy.metadata.namespace);
    warnings.add_unknown("spec", &spec.unknown);
    let pods = selector(&spec.pod_selector, "spec.podSelector", warnings);
    let subject = pods.map(|pods| Selection { namespaces: Namespaces::Named(namespace.clone()), pods });
    let object = format!("NetworkPolicy {namespace}/{}", policy.metadata.name);
    let mut ingress = Vec::new();
    for (index, rule) in spec.ingress.iter().enumerate() {
        warnings.add_unknown(&format!("spec.ingress[{index}]"), &rule.unknown);
        let rule = ApiRule { direction: Direction::Ingress, index, peers: &rule.from, ports: &rule.ports };
        ingress.push(rule.parse(&object, namespace, warnings));
    }
    let mut egress = Vec::new();
    for (index, rule) in spec.egress.iter().enumerate() {
        warnings.add_unknown(&format!("spec.egress[{index}]"), &rule.unknown);
        let rule = ApiRule { direction: Direction::Egress, index, peers: &rule.to, ports: &rule.ports };
        egress.push(rule.parse(&object, namespace, warnings));
    }
    let (isolates_ingress, isolates_egress) = directions(policy, warnings);
    Policy {
        object,
        tier: Tier::NetworkPolicy,
        priority: 0,
        subject,
        ingress: isolates_ingress.then_some(ingress),
        egress: isolates_egress.then_some(egress),
    }
}

/// Whether the policy isolates ingress, and whether egress. Without policyTypes it isolates ingress, and egress only if
/// it has egress rules.
fn directions(policy: &NetworkPolicy, warnings: &mut WarningSink<'_>) -> (bool, bool) {
    let spec = &policy.spec;
    if spec.policy_types.is_empty() {
        return (true, !spec.egress.is_empty());
    }
    for written in spec.policy_types.iter().filter(|name| !["Ingress", "Egress"].contains(&name.as_str())) {
        warnings.add(
            "spec.policyTypes",
            WarningKind::Invalid,
            format!("{written:?} is neither Ingress nor Egress"),
        );
    }
    let lists = |name: &str| spec.policy_types.iter().any(|written| written == name);
    for (name, count) in [("Ingress", spec.ingress.len()), ("Egress", spec.egress.len())] {
        if count > 0 && !lists(name) {
            let text = format!("its {count} rules have no effect: policyTypes does not list {name}");
            warnings.add(format!("spec.{}", name.to_lowercase()), WarningKind::Suspicious, text);
        }
    }
    (lists("Ingress"), lists("Egress"))
}

impl ApiRule<'_> {
    fn parse(&self, object: &str, namespace: &str, warnings: &mut WarningSink<'_>) -> Rule {
        let field = format!("spec.{}[{}]", self.direction, self.index);
        let list = if self.direction == Direction::Ingress { "from" } else { "to" };
        let peers = if self.peers.is_empty() {
            Peers::Anyone
        } else {
            peers(self.peers, namespace, &format!("{field}.{list}"), warnings)
        };
        let ports = if self.ports.is_empty() {
            Ports::All
        } else {
            ports(self.ports, &format!("{field}.ports"), warnings)
        };
        let origin = Origin {
            policy: object.into(),
            direction: self.direction,
            index: self.index,
            name: String::new(),
        };
        Rule { origin, action: Action::Accept, peers, ports }
    }
}

fn peers(
    written: &[NetworkPolicyPeer],
    namespace: &str,
    field: &str,
    warnings: &mut WarningSink<'_>,
) -> Peers {
    let (mut pods, mut networks) = (Vec::new(), Vec::new());
    for (index, peer) in written.iter().enumerate() {
        let field = format!("{field}[{index}]");
        warnings.add_unknown(&field, &peer.unknown);
        match (&peer.ip_block, &peer.namespace_selector, &peer.pod_selector) {
            (Some(block), None, None) => {
                networks.extend(ip_block(block, &format!("{field}.ipBlock"), warnings))
            }
            (Some(_), _, _) => {
                warnings.add(
                    field,
                    WarningKind::Invalid,
                    "ipBlock and selectors exclude each other: the peer selects nothing",
                );
            }
            (None, None, None) => {
                warnings.add(field, WarningKind::Invalid, "no known field is set: the peer selects nothing");
            }
            (None, _, _) => {
                pods.extend(selection(peer, namespace, &field, warnings));
            }
        }
    }
    if pods.len() > MAX_SELECTORS {
        let text = format!("{} selectors in one rule: a packet may be compared with all of them", pods.len());
        warnings.add(field, WarningKind::Suspicious, text);
    }
    Peers::These { pods, nodes: Vec::new(), networks }
}

fn selection(
    peer: &NetworkPolicyPeer,
    own_namespace: &str,
    field: &str,
    warnings: &mut WarningSink<'_>,
) -> Option<Selection> {
    let namespaces = match &peer.namespace_selector {
        None => Some(Namespaces::Named(own_namespace.to_owned())),
        Some(written) => {
            selector(written, &format!("{field}.namespaceSelector"), warnings).map(Namespaces::Labelled)
        }
    };
    let pods = match &peer.pod_selector {
        None => Some(Selector::everything()),
        Some(written) => selector(written, &format!("{field}.podSelector"), warnings),
    };
    Some(Selection { namespaces: namespaces?, pods: pods? })
}

fn ip_block(block: &IpBlock, field: &str, warnings: &mut WarningSink<'_>) -> Vec<ipnet::IpNet> {
    warnings.add_unknown(field, &block.unknown);
    let whole = network(&block.cidr, &format!("{field}.cidr"), warnings);
    let mut exceptions = Vec::new();
    for (index, written) in block.except.iter().enumerate() {
        let field = format!("{field}.except[{index}]");
        let exception = network(written, &field, warnings);
        match (&whole, exception) {
            (Some(whole), Some(exception)) if whole.contains(&exception) && *whole != exception => {
                exceptions.push(exception)
            }
            (Some(whole), Some(exception)) if whole.contains(&exception) || exception.contains(whole) => {
                warnings.add(field, WarningKind::Invalid, format!("{exception} leaves nothing of {whole}"));
                exceptions.push(*whole);
            }
            (Some(whole), Some(exception)) => {
                warnings.add(
                    field,
                    WarningKind::Invalid,
                    format!("{exception} is not inside {whole}: it has no effect"),
                );
            }
            // An invalid exception could mean any network: nothing of the block is allowed.
            (Some(whole), None) => exceptions.push(*whole),
            (None, _) => {}
        }
    }
    whole.map(|whole| without(whole, &exceptions)).unwrap_or_default()
}

fn ports(written: &[NetworkPolicyPort], field: &str, warnings: &mut WarningSink<'_>) -> Ports {
    let (mut numbers, mut names) = (Vec::new(), Vec::new());
    for (index, port) in written.iter().enumerate() {
        let field = format!("{field}[{index}]");
        warnings.add_unknown(&field, &port.unknown);
        let name = port.protocol.as_deref().unwrap_or("TCP");
        let Some(protocol) = Protocol::ALL.into_iter().find(|protocol| protocol.name() == name) else {
            warnings.add(
                field,
                WarningKind::Invalid,
                format!("{name:?} is none of TCP, UDP, SCTP: the port allows nothing"),
            );
            continue;
        };
        match range(port) {
            Ok(Some((first, last))) => numbers.push(PortRange { protocol, first, last }),
            Ok(None) => {
                let Some(IntOrString::Name(name)) = &port.port else { continue };
                if !is_port_name(name) {
                    warnings.add(field, WarningKind::Invalid, format!("{name:?} is not a port name"));
                }
                names.push(NamedPort { name: name.clone(), protocol: Some(protocol) });
            }
            Err(reason) => {
                warnings.add(field, WarningKind::Invalid, format!("{reason}: the port allows nothing"))
            }
        }
    }
    Ports::These { numbers, names }
}

/// The first and last port; `None` for a named port.
fn range(port: &NetworkPolicyPort) -> Result<Option<(u16, u16)>, String> {
    let number = |written: i64| port_number(written).ok_or_else(|| format!("{written} is not a port number"));
    match (&port.port, port.end_port) {
        (None, None) => Ok(Some((0, u16::MAX))),
        (None, Some(_)) => Err("endPort without port".into()),
        (Some(IntOrString::Name(_)), Some(_)) => Err("endPort with a port name".into()),
        (Some(IntOrString::Name(_)), None) => Ok(None),
        (Some(IntOrString::Number(first)), None) => number(*first).map(|port| Some((port, port))),
        (Some(IntOrString::Number(first)), Some(last)) => match (number(*first)?, number(last)?) {
            (first, last) if first <= last => Ok(Some((first, last))),
            (first, last) => Err(format!("endPort {last} is below port {first}")),
        },
    }
}

/// RFC 6335: letters, digits and hyphens, at most 15 characters, at least one letter.
fn is_port_name(name: &str) -> bool {
    name.len() <= 15
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && name.bytes().any(|byte| byte.is_ascii_alphabetic())
}
