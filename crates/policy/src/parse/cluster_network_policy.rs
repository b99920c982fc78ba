//! Reading ClusterNetworkPolicies.

use super::{namespaced_pods, network, port_number, selector, whole_namespaces};
use crate::api::{ClusterNetworkPolicy, CnpAction, CnpPeer, CnpPort, CnpProtocol, CnpTier, CnpTransport};
use crate::rule::{Action, NamedPort, Origin, Peers, Policy, PortRange, Ports, Rule, Selection, Tier};
use crate::warning::Warner;
use crate::{Direction, Kind, Protocol};

/// How many rules, peers and ports the API takes.
const MOST: usize = 25;

/// A part of a rule that cannot be understood: the rule fails closed.
struct Closed;

/// One rule of either direction, as it was written.
struct Written<'a> {
    direction: Direction,
    index: usize,
    name: &'a str,
    action: CnpAction,
    peers: &'a [CnpPeer],
    protocols: Option<&'a [CnpProtocol]>,
}

pub(super) fn read(policy: &ClusterNetworkPolicy, warner: &mut Warner<'_>) -> Policy {
    let spec = &policy.spec;
    warner.unknown("spec", &spec.unknown);
    if !(0..=1000).contains(&spec.priority) {
        warner.say("spec.priority", Kind::Refused, format!("{} is not from 0 to 1000", spec.priority));
    }
    let object = format!("ClusterNetworkPolicy {}", policy.metadata.name);
    let ingress = spec.ingress.iter().enumerate().map(|(index, rule)| {
        let protocols = rule.protocols.as_deref();
        let (name, action, direction) = (rule.name.as_str(), rule.action, Direction::Ingress);
        (Written { direction, index, name, action, peers: &rule.from, protocols }, &rule.unknown)
    });
    let egress = spec.egress.iter().enumerate().map(|(index, rule)| {
        let protocols = rule.protocols.as_deref();
        let (name, action, direction) = (rule.name.as_str(), rule.action, Direction::Egress);
        (Written { direction, index, name, action, peers: &rule.to, protocols }, &rule.unknown)
    });
    let mut rules = [Vec::new(), Vec::new()];
    for (written, unknown) in ingress.chain(egress) {
        warner.unknown(&written.place(), unknown);
        rules[usize::from(written.direction == Direction::Egress)].push(written.read(&object, warner));
    }
    let [ingress, egress] = rules.map(|rules| (!rules.is_empty()).then_some(rules));
    for (word, rules) in [("spec.ingress", &ingress), ("spec.egress", &egress)] {
        too_many(rules.as_ref().map_or(0, Vec::len), word, warner);
    }
    let tier = match spec.tier {
        CnpTier::Admin => Tier::Admin,
        CnpTier::Baseline => Tier::Baseline,
    };
    Policy { object, tier, priority: spec.priority, subject: subject(policy, warner), ingress, egress }
}

fn subject(policy: &ClusterNetworkPolicy, warner: &mut Warner<'_>) -> Option<Selection> {
    let subject = &policy.spec.subject;
    warner.unknown("spec.subject", &subject.unknown);
    match (&subject.namespaces, &subject.pods) {
        (Some(namespaces), None) => whole_namespaces(namespaces, "spec.subject.namespaces", warner),
        (None, Some(pods)) => namespaced_pods(pods, "spec.subject.pods", warner),
        (None, None) => {
            warner.say(
                "spec.subject",
                Kind::Refused,
                "neither namespaces nor pods: the policy is about nobody",
            );
            None
        }
        (Some(_), Some(_)) => {
            warner.say("spec.subject", Kind::Refused, "namespaces and pods: the policy is about nobody");
            None
        }
    }
}

impl Written<'_> {
    fn place(&self) -> String {
        format!("spec.{}[{}]", self.direction, self.index)
    }

    fn read(&self, object: &str, warner: &mut Warner<'_>) -> Rule {
        let (place, word) = (self.place(), if self.direction == Direction::Ingress { "from" } else { "to" });
        let peers = self.peers(&format!("{place}.{word}"), warner);
        let ports = self.ports(&format!("{place}.protocols"), warner);
        let origin = Origin {
            policy: object.into(),
            direction: self.direction,
            index: self.index,
            name: self.name.to_owned(),
        };
        let action = match self.action {
            CnpAction::Accept => Action::Accept,
            CnpAction::Deny => Action::Deny,
            CnpAction::Pass => Action::Pass,
        };
        if let (Ok(peers), Ok(ports)) = (peers, ports) {
            return Rule { origin, action, peers, ports };
        }
        let nobody = Peers::These { pods: Vec::new(), nodes: Vec::new(), networks: Vec::new() };
        match action {
            Action::Accept => {
                warner.say(place, Kind::Refused, "the rule cannot be understood: it accepts nothing");
                Rule { origin, action, peers: nobody, ports: Ports::All }
            }
            Action::Deny | Action::Pass => {
                warner.say(place, Kind::Refused, "the rule cannot be understood: it denies everything");
                Rule { origin, action: Action::Deny, peers: Peers::Anyone, ports: Ports::All }
            }
        }
    }

    fn peers(&self, place: &str, warner: &mut Warner<'_>) -> Result<Peers, Closed> {
        if self.peers.is_empty() {
            warner.say(place, Kind::Refused, "names nobody");
            return Err(Closed);
        }
        too_many(self.peers.len(), place, warner);
        let (mut pods, mut nodes, mut networks) = (Vec::new(), Vec::new(), Vec::new());
        let mut closed = false;
        for (index, peer) in self.peers.iter().enumerate() {
            let place = format!("{place}[{index}]");
            warner.unknown(&place, &peer.unknown);
            let egress = self.direction == Direction::Egress;
            match peer {
                _ if fields(peer) != 1 => {
                    warner.say(place, Kind::Refused, "exactly one field that is known must be set");
                    closed = true;
                }
                CnpPeer { namespaces: Some(written), .. } => {
                    let selection = whole_namespaces(written, &format!("{place}.namespaces"), warner);
                    closed |= selection.is_none();
                    pods.extend(selection);
                }
                CnpPeer { pods: Some(written), .. } => {
                    let selection = namespaced_pods(written, &format!("{place}.pods"), warner);
                    closed |= selection.is_none();
                    pods.extend(selection);
                }
                CnpPeer { nodes: Some(written), .. } if egress => {
                    let selected = selector(written, &format!("{place}.nodes"), warner);
                    closed |= selected.is_none();
                    nodes.extend(selected);
                }
                CnpPeer { networks: Some(written), .. } if egress => {
                    closed |= written.is_empty();
                    too_many(written.len(), &format!("{place}.networks"), warner);
                    for (index, written) in written.iter().enumerate() {
                        let one = network(written, &format!("{place}.networks[{index}]"), warner);
                        closed |= one.is_none();
                        networks.extend(one);
                    }
                }
                CnpPeer { domain_names: Some(_), .. } if egress && self.action == CnpAction::Accept => {
                    let text = "domain names are not enforced: nothing is accepted for them";
                    warner.say(format!("{place}.domainNames"), Kind::Unsupported, text);
                }
                _ => {
                    warner.say(place, Kind::Refused, "not a peer for such a rule");
                    closed = true;
                }
            }
        }
        match closed {
            true => Err(Closed),
            false => Ok(Peers::These { pods, nodes, networks }),
        }
    }

    fn ports(&self, place: &str, warner: &mut Warner<'_>) -> Result<Ports, Closed> {
        let Some(written) = self.protocols else { return Ok(Ports::All) };
        if written.is_empty() {
            warner.say(place, Kind::Refused, "is there and empty");
            return Err(Closed);
        }
        too_many(written.len(), place, warner);
        let (mut numbers, mut names, mut closed) = (Vec::new(), Vec::new(), false);
        for (index, protocol) in written.iter().enumerate() {
            let place = format!("{place}[{index}]");
            warner.unknown(&place, &protocol.unknown);
            match one_protocol(protocol, &place, warner) {
                Some(One::Number(range)) => numbers.push(range),
                Some(One::Name(name)) => names.push(NamedPort { name, protocol: None }),
                None => {
                    warner.say(place, Kind::Refused, "not exactly one port, range or name that makes sense");
                    closed = true;
                }
            }
        }
        let nameless =
            |peer: &CnpPeer| peer.nodes.is_some() || peer.networks.is_some() || peer.domain_names.is_some();
        if !names.is_empty() && self.peers.iter().any(nameless) {
            warner.say(place, Kind::Refused, "nodes, networks and domain names have no ports with names");
            closed = true;
        }
        match closed {
            true => Err(Closed),
            false => Ok(Ports::These { numbers, names }),
        }
    }
}

enum One {
    Number(PortRange),
    Name(String),
}

fn one_protocol(written: &CnpProtocol, place: &str, warner: &mut Warner<'_>) -> Option<One> {
    let transports = [
        (Protocol::Tcp, "tcp", &written.tcp),
        (Protocol::Udp, "udp", &written.udp),
        (Protocol::Sctp, "sctp", &written.sctp),
    ];
    let mut found = Vec::new();
    for (protocol, word, transport) in transports {
        let Some(CnpTransport { destination_port, unknown }) = transport else { continue };
        warner.unknown(&format!("{place}.{word}"), unknown);
        let port = destination_port.as_ref();
        if let Some(port) = port {
            let place = format!("{place}.{word}.destinationPort");
            warner.unknown(&place, &port.unknown);
            if let Some(range) = &port.range {
                warner.unknown(&format!("{place}.range"), &range.unknown);
            }
        }
        let range = port.and_then(range).map(|(first, last)| PortRange { protocol, first, last });
        found.push(range.map(One::Number));
    }
    found.extend(
        written.destination_named_port.clone().map(|name| (!name.is_empty()).then_some(One::Name(name))),
    );
    match found.len() {
        1 => found.pop().flatten(),
        _ => None,
    }
}

fn range(written: &CnpPort) -> Option<(u16, u16)> {
    match (written.number, &written.range) {
        (Some(number), None) => port_number(number).map(|port| (port, port)),
        (None, Some(range)) => {
            let (first, last) = (port_number(range.start)?, port_number(range.end)?);
            (first < last).then_some((first, last))
        }
        _ => None,
    }
}

/// How many of the fields that are known are set.
fn fields(peer: &CnpPeer) -> usize {
    let set = [
        peer.namespaces.is_some(),
        peer.pods.is_some(),
        peer.nodes.is_some(),
        peer.networks.is_some(),
        peer.domain_names.is_some(),
    ];
    set.into_iter().filter(|set| *set).count()
}

fn too_many(count: usize, place: &str, warner: &mut Warner<'_>) {
    if count > MOST {
        warner.say(
            place,
            Kind::Refused,
            format!("{count} entries, and the API takes {MOST}; all are enforced"),
        );
    }
}
