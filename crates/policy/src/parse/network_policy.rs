//! Reading NetworkPolicies.

use super::{network, port_number, selector};
use crate::api::{IntOrString, IpBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use crate::rule::{
    Action, NamedPort, Namespaces, Origin, Peers, Policy, PortRange, Ports, Rule, Selection, Tier,
};
use crate::selector::Selector;
use crate::subtract::without;
use crate::warning::Warner;
use crate::{Direction, Kind, Protocol};

/// Beyond this many, a rule's selectors are worth a word.
const MANY: usize = 1000;

/// One rule of either direction, as it was written.
struct Written<'a> {
    direction: Direction,
    index: usize,
    peers: &'a [NetworkPolicyPeer],
    ports: &'a [NetworkPolicyPort],
}

pub(super) fn read(policy: &NetworkPolicy, warner: &mut Warner<'_>) -> Policy {
    let (spec, namespace) = (&policy.spec, &policy.metadata.namespace);
    warner.unknown("spec", &spec.unknown);
    let pods = selector(&spec.pod_selector, "spec.podSelector", warner);
    let subject = pods.map(|pods| Selection { namespaces: Namespaces::Named(namespace.clone()), pods });
    let object = format!("NetworkPolicy {namespace}/{}", policy.metadata.name);
    let mut ingress = Vec::new();
    for (index, rule) in spec.ingress.iter().enumerate() {
        warner.unknown(&format!("spec.ingress[{index}]"), &rule.unknown);
        let written = Written { direction: Direction::Ingress, index, peers: &rule.from, ports: &rule.ports };
        ingress.push(written.read(&object, namespace, warner));
    }
    let mut egress = Vec::new();
    for (index, rule) in spec.egress.iter().enumerate() {
        warner.unknown(&format!("spec.egress[{index}]"), &rule.unknown);
        let written = Written { direction: Direction::Egress, index, peers: &rule.to, ports: &rule.ports };
        egress.push(written.read(&object, namespace, warner));
    }
    let (isolates_ingress, isolates_egress) = directions(policy, warner);
    Policy {
        object,
        tier: Tier::NetworkPolicy,
        priority: 0,
        subject,
        ingress: isolates_ingress.then_some(ingress),
        egress: isolates_egress.then_some(egress),
    }
}

/// Whether the policy is about ingress, and about egress. If it does not say, it is about ingress, and about egress only
/// if it has rules for it.
fn directions(policy: &NetworkPolicy, warner: &mut Warner<'_>) -> (bool, bool) {
    let spec = &policy.spec;
    if spec.policy_types.is_empty() {
        return (true, !spec.egress.is_empty());
    }
    for written in spec.policy_types.iter().filter(|name| !["Ingress", "Egress"].contains(&name.as_str())) {
        warner.say("spec.policyTypes", Kind::Refused, format!("{written:?} is neither Ingress nor Egress"));
    }
    let says = |name: &str| spec.policy_types.iter().any(|written| written == name);
    for (name, count) in [("Ingress", spec.ingress.len()), ("Egress", spec.egress.len())] {
        if count > 0 && !says(name) {
            let text = format!("its {count} rules have no effect: policyTypes does not name {name}");
            warner.say(format!("spec.{}", name.to_lowercase()), Kind::Suspicious, text);
        }
    }
    (says("Ingress"), says("Egress"))
}

impl Written<'_> {
    fn read(&self, object: &str, namespace: &str, warner: &mut Warner<'_>) -> Rule {
        let place = format!("spec.{}[{}]", self.direction, self.index);
        let word = if self.direction == Direction::Ingress { "from" } else { "to" };
        let peers = match self.peers.is_empty() {
            true => Peers::Anyone,
            false => peers(self.peers, namespace, &format!("{place}.{word}"), warner),
        };
        let ports = match self.ports.is_empty() {
            true => Ports::All,
            false => ports(self.ports, &format!("{place}.ports"), warner),
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

fn peers(written: &[NetworkPolicyPeer], namespace: &str, place: &str, warner: &mut Warner<'_>) -> Peers {
    let (mut pods, mut networks) = (Vec::new(), Vec::new());
    for (index, peer) in written.iter().enumerate() {
        let place = format!("{place}[{index}]");
        warner.unknown(&place, &peer.unknown);
        match (&peer.ip_block, &peer.namespace_selector, &peer.pod_selector) {
            (Some(block), None, None) => {
                networks.extend(ip_block(block, &format!("{place}.ipBlock"), warner))
            }
            (Some(_), _, _) => {
                warner.say(
                    place,
                    Kind::Refused,
                    "ipBlock and selectors exclude each other: it selects nothing",
                );
            }
            (None, None, None) => {
                warner.say(place, Kind::Refused, "says nothing that is known: it selects nothing");
            }
            (None, namespaces, selected) => {
                pods.extend(selection((namespaces.as_ref(), selected.as_ref()), namespace, &place, warner));
            }
        }
    }
    if pods.len() > MANY {
        let text =
            format!("{} selectors in one rule: each packet may be held against all of them", pods.len());
        warner.say(place, Kind::Suspicious, text);
    }
    Peers::These { pods, nodes: Vec::new(), networks }
}

fn selection(
    (namespaces, pods): (Option<&crate::api::LabelSelector>, Option<&crate::api::LabelSelector>),
    own: &str,
    place: &str,
    warner: &mut Warner<'_>,
) -> Option<Selection> {
    let namespaces = match namespaces {
        None => Some(Namespaces::Named(own.to_owned())),
        Some(written) => {
            selector(written, &format!("{place}.namespaceSelector"), warner).map(Namespaces::Labelled)
        }
    };
    let pods = match pods {
        None => Some(Selector::everything()),
        Some(written) => selector(written, &format!("{place}.podSelector"), warner),
    };
    Some(Selection { namespaces: namespaces?, pods: pods? })
}

fn ip_block(block: &IpBlock, place: &str, warner: &mut Warner<'_>) -> Vec<ipnet::IpNet> {
    warner.unknown(place, &block.unknown);
    let whole = network(&block.cidr, &format!("{place}.cidr"), warner);
    let mut holes = Vec::new();
    for (index, written) in block.except.iter().enumerate() {
        let place = format!("{place}.except[{index}]");
        let hole = network(written, &place, warner);
        match (&whole, hole) {
            (Some(whole), Some(hole)) if whole.contains(&hole) && *whole != hole => holes.push(hole),
            (Some(whole), Some(hole)) if whole.contains(&hole) || hole.contains(whole) => {
                warner.say(place, Kind::Refused, format!("{hole} leaves nothing of {whole}"));
                holes.push(*whole);
            }
            (Some(whole), Some(hole)) => {
                warner.say(
                    place,
                    Kind::Refused,
                    format!("{hole} is not inside of {whole}: it has no effect"),
                );
            }
            // A hole that cannot be read may be anything: nothing of the block is allowed.
            (Some(whole), None) => holes.push(*whole),
            (None, _) => {}
        }
    }
    whole.map(|whole| without(whole, &holes)).unwrap_or_default()
}

fn ports(written: &[NetworkPolicyPort], place: &str, warner: &mut Warner<'_>) -> Ports {
    let (mut numbers, mut names) = (Vec::new(), Vec::new());
    for (index, port) in written.iter().enumerate() {
        let place = format!("{place}[{index}]");
        warner.unknown(&place, &port.unknown);
        let name = port.protocol.as_deref().unwrap_or("TCP");
        let Some(protocol) = Protocol::ALL.into_iter().find(|protocol| protocol.name() == name) else {
            warner.say(
                place,
                Kind::Refused,
                format!("{name:?} is none of TCP, UDP, SCTP: it allows nothing"),
            );
            continue;
        };
        match range(port) {
            Ok(Some((first, last))) => numbers.push(PortRange { protocol, first, last }),
            Ok(None) => {
                let Some(IntOrString::Name(name)) = &port.port else { continue };
                if !is_port_name(name) {
                    warner.say(place, Kind::Refused, format!("{name:?} is no name of a port"));
                }
                names.push(NamedPort { name: name.clone(), protocol: Some(protocol) });
            }
            Err(reason) => warner.say(place, Kind::Refused, format!("{reason}: it allows nothing")),
        }
    }
    Ports::These { numbers, names }
}

/// First and last port; `None` for a port with a name.
fn range(port: &NetworkPolicyPort) -> Result<Option<(u16, u16)>, String> {
    let number = |written: i64| port_number(written).ok_or_else(|| format!("{written} is no port"));
    match (&port.port, port.end_port) {
        (None, None) => Ok(Some((0, u16::MAX))),
        (None, Some(_)) => Err("endPort without port".into()),
        (Some(IntOrString::Name(_)), Some(_)) => Err("endPort with a port's name".into()),
        (Some(IntOrString::Name(_)), None) => Ok(None),
        (Some(IntOrString::Number(first)), None) => number(*first).map(|port| Some((port, port))),
        (Some(IntOrString::Number(first)), Some(last)) => match (number(*first)?, number(last)?) {
            (first, last) if first <= last => Ok(Some((first, last))),
            (first, last) => Err(format!("endPort {last} is below port {first}")),
        },
    }
}

/// Letters, digits and hyphens, at most 15, with at least one letter: RFC 6335.
fn is_port_name(name: &str) -> bool {
    name.len() <= 15
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && name.bytes().any(|byte| byte.is_ascii_alphabetic())
}
