//! The parser of ClusterNetworkPolicies.

use super::fields::{namespaced_pods, network, port_number, selector, whole_namespaces};
use crate::api::{ClusterNetworkPolicy, CnpAction, CnpPeer, CnpPort, CnpProtocol, CnpTier, CnpTransport};
use crate::rule::{Action, NamedPort, Origin, Peers, Policy, PortRange, Ports, Rule, Selection, Tier};
use crate::warning::WarningSink;
use crate::{Direction, Protocol, WarningKind};

/// The API accepts at most this many rules, peers and ports.
const MAX_ENTRIES: usize = 25;

/// A part of a rule is invalid: the rule fails closed.
struct FailClosed;

/// A rule of either direction.
struct ApiRule<'a> {
    direction: Direction,
    index: usize,
    name: &'a str,
    action: CnpAction,
    peers: &'a [CnpPeer],
    protocols: Option<&'a [CnpProtocol]>,
}

pub(super) fn parse(policy: &ClusterNetworkPolicy, warnings: &mut WarningSink<'_>) -> Policy {
    let spec = &policy.spec;
    warnings.add_unknown("spec", &spec.unknown);
    if !(0..=1000).contains(&spec.priority) {
        warnings.add(
            "spec.priority",
            WarningKind::Invalid,
            format!("{} is not from 0 to 1000", spec.priority),
        );
    }
    let object = format!("ClusterNetworkPolicy {}", policy.metadata.name);
    let ingress = spec.ingress.iter().enumerate().map(|(index, rule)| {
        let protocols = rule.protocols.as_deref();
        let (name, action, direction) = (rule.name.as_str(), rule.action, Direction::Ingress);
        (ApiRule { direction, index, name, action, peers: &rule.from, protocols }, &rule.unknown)
    });
    let egress = spec.egress.iter().enumerate().map(|(index, rule)| {
        let protocols = rule.protocols.as_deref();
        let (name, action, direction) = (rule.name.as_str(), rule.action, Direction::Egress);
        (ApiRule { direction, index, name, action, peers: &rule.to, protocols }, &rule.unknown)
    });
    let mut rules = [Vec::new(), Vec::new()];
    for (rule, unknown) in ingress.chain(egress) {
        warnings.add_unknown(&rule.field(), unknown);
        rules[usize::from(rule.direction == Direction::Egress)].push(rule.parse(&object, warnings));
    }
    let [ingress, egress] = rules.map(|rules| (!rules.is_empty()).then_some(rules));
    for (field, rules) in [("spec.ingress", &ingress), ("spec.egress", &egress)] {
        check_count(rules.as_ref().map_or(0, Vec::len), field, warnings);
    }
    let tier = match spec.tier {
        CnpTier::Admin => Tier::Admin,
        CnpTier::Baseline => Tier::Baseline,
    };
    Policy { object, tier, priority: spec.priority, subject: subject(policy, warnings), ingress, egress }
}

fn subject(policy: &ClusterNetworkPolicy, warnings: &mut WarningSink<'_>) -> Option<Selection> {
    let subject = &policy.spec.subject;
    warnings.add_unknown("spec.subject", &subject.unknown);
    match (&subject.namespaces, &subject.pods) {
        (Some(namespaces), None) => whole_namespaces(namespaces, "spec.subject.namespaces", warnings),
        (None, Some(pods)) => namespaced_pods(pods, "spec.subject.pods", warnings),
        (None, None) => {
            warnings.add(
                "spec.subject",
                WarningKind::Invalid,
                "neither namespaces nor pods is set: the policy selects no pod",
            );
            None
        }
        (Some(_), Some(_)) => {
            warnings.add(
                "spec.subject",
                WarningKind::Invalid,
                "both namespaces and pods are set: the policy selects no pod",
            );
            None
        }
    }
}

impl ApiRule<'_> {
    fn field(&self) -> String {
        format!("spec.{}[{}]", self.direction, self.index)
    }

    fn parse(&self, object: &str, warnings: &mut WarningSink<'_>) -> Rule {
        let (field, list) = (self.field(), if self.direction == Direction::Ingress { "from" } else { "to" });
        let peers = self.peers(&format!("{field}.{list}"), warnings);
        let ports = self.ports(&format!("{field}.protocols"), warnings);
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
        let no_peer = Peers::These { pods: Vec::new(), nodes: Vec::new(), networks: Vec::new() };
        match action {
            Action::Accept => {
                warnings.add(field, WarningKind::Invalid, "the rule is invalid: it accepts nothing");
                Rule { origin, action, peers: no_peer, ports: Ports::All }
            }
            Action::Deny | Action::Pass => {
                warnings.add(field, WarningKind::Invalid, "the rule is invalid: it denies everything");
                Rule { origin, action: Action::Deny, peers: Peers::Anyone, ports: Ports::All }
            }
        }
    }

    fn peers(&self, field: &str, warnings: &mut WarningSink<'_>) -> Result<Peers, FailClosed> {
        if self.peers.is_empty() {
            warnings.add(field, WarningKind::Invalid, "the list is empty");
            return Err(FailClosed);
        }
        check_count(self.peers.len(), field, warnings);
        let (mut pods, mut nodes, mut networks) = (Vec::new(), Vec::new(), Vec::new());
        let mut invalid = false;
        for (index, peer) in self.peers.iter().enumerate() {
            let field = format!("{field}[{index}]");
            warnings.add_unknown(&field, &peer.unknown);
            let egress = self.direction == Direction::Egress;
            match peer {
                _ if fields_set(peer) != 1 => {
                    warnings.add(field, WarningKind::Invalid, "exactly one known field must be set");
                    invalid = true;
                }
                CnpPeer { namespaces: Some(written), .. } => {
                    let selection = whole_namespaces(written, &format!("{field}.namespaces"), warnings);
                    invalid |= selection.is_none();
                    pods.extend(selection);
                }
                CnpPeer { pods: Some(written), .. } => {
                    let selection = namespaced_pods(written, &format!("{field}.pods"), warnings);
                    invalid |= selection.is_none();
                    pods.extend(selection);
                }
                CnpPeer { nodes: Some(written), .. } if egress => {
                    let selected = selector(written, &format!("{field}.nodes"), warnings);
                    invalid |= selected.is_none();
                    nodes.extend(selected);
                }
                CnpPeer { networks: Some(written), .. } if egress => {
                    invalid |= written.is_empty();
                    check_count(written.len(), &format!("{field}.networks"), warnings);
                    for (index, written) in written.iter().enumerate() {
                        let one = network(written, &format!("{field}.networks[{index}]"), warnings);
                        invalid |= one.is_none();
                        networks.extend(one);
                    }
                }
                CnpPeer { domain_names: Some(_), .. } if egress && self.action == CnpAction::Accept => {
                    let text = "domain names are not supported: nothing is accepted for them";
                    warnings.add(format!("{field}.domainNames"), WarningKind::Unsupported, text);
                }
                _ => {
                    warnings.add(field, WarningKind::Invalid, "such a peer is not allowed in this rule");
                    invalid = true;
                }
            }
        }
        if invalid {
            return Err(FailClosed);
        }
        Ok(Peers::These { pods, nodes, networks })
    }

    fn ports(&self, field: &str, warnings: &mut WarningSink<'_>) -> Result<Ports, FailClosed> {
        let Some(written) = self.protocols else { return Ok(Ports::All) };
        if written.is_empty() {
            warnings.add(field, WarningKind::Invalid, "the list is empty");
            return Err(FailClosed);
        }
        check_count(written.len(), field, warnings);
        let (mut numbers, mut names, mut invalid) = (Vec::new(), Vec::new(), false);
        for (index, protocol) in written.iter().enumerate() {
            let field = format!("{field}[{index}]");
            warnings.add_unknown(&field, &protocol.unknown);
            match port_match(protocol, &field, warnings) {
                Some(PortMatch::Range(range)) => numbers.push(range),
                Some(PortMatch::Name(name)) => names.push(NamedPort { name, protocol: None }),
                None => {
                    warnings.add(
                        field,
                        WarningKind::Invalid,
                        "exactly one valid port, range or name must be set",
                    );
                    invalid = true;
                }
            }
        }
        let has_no_named_ports =
            |peer: &CnpPeer| peer.nodes.is_some() || peer.networks.is_some() || peer.domain_names.is_some();
        if !names.is_empty() && self.peers.iter().any(has_no_named_ports) {
            warnings.add(field, WarningKind::Invalid, "nodes, networks and domain names have no named ports");
            invalid = true;
        }
        if invalid {
            return Err(FailClosed);
        }
        Ok(Ports::These { numbers, names })
    }
}

enum PortMatch {
    Range(PortRange),
    Name(String),
}

fn port_match(written: &CnpProtocol, field: &str, warnings: &mut WarningSink<'_>) -> Option<PortMatch> {
    let transports = [
        (Protocol::Tcp, "tcp", &written.tcp),
        (Protocol::Udp, "udp", &written.udp),
        (Protocol::Sctp, "sctp", &written.sctp),
    ];
    let mut found = Vec::new();
    for (protocol, name, transport) in transports {
        let Some(CnpTransport { destination_port, unknown }) = transport else { continue };
        warnings.add_unknown(&format!("{field}.{name}"), unknown);
        let port = destination_port.as_ref();
        if let Some(port) = port {
            let field = format!("{field}.{name}.destinationPort");
            warnings.add_unknown(&field, &port.unknown);
            if let Some(range) = &port.range {
                warnings.add_unknown(&format!("{field}.range"), &range.unknown);
            }
        }
        let range = port.and_then(range).map(|(first, last)| PortRange { protocol, first, last });
        found.push(range.map(PortMatch::Range));
    }
    found.extend(
        written
            .destination_named_port
            .clone()
            .map(|name| (!name.is_empty()).then_some(PortMatch::Name(name))),
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

/// The number of known fields that are set.
fn fields_set(peer: &CnpPeer) -> usize {
    let set = [
        peer.namespaces.is_some(),
        peer.pods.is_some(),
        peer.nodes.is_some(),
        peer.networks.is_some(),
        peer.domain_names.is_some(),
    ];
    set.into_iter().filter(|set| *set).count()
}

fn check_count(count: usize, field: &str, warnings: &mut WarningSink<'_>) {
    if count > MAX_ENTRIES {
        warnings.add(
            field,
            WarningKind::Invalid,
            format!("{count} entries, but the API accepts {MAX_ENTRIES}; all are enforced"),
        );
    }
}
