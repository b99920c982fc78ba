//! The oracle: decides about one packet directly from the objects, and gives the reason.
//!
//! It is written for clarity, from the text of the two APIs, and shares no code with the compiler beyond the objects
//! themselves: it has its own matching of selectors, networks and ports. It is slow, and it is the reference.
//!
//! A packet between two pods is evaluated twice: as the sender's egress and as the receiver's ingress. Both must allow
//! it. For each direction the tiers apply in order:
//!
//! 1. *Admin*: the rules of ClusterNetworkPolicies by priority, then in list order. Accept and Deny decide, Pass
//!    continues with the next tier.
//! 2. *NetworkPolicy*: if any selects the pod in this direction, the packet is allowed if one of them allows it,
//!    else denied.
//! 3. *Baseline*: like Admin, for pods that no NetworkPolicy selects.
//! 4. Everything else is allowed.

mod description;
mod matching;
mod mismatch;

use std::fmt;

use crate::api::{ClusterNetworkPolicy, CnpAction, CnpTier, NetworkPolicy, Pod};
use crate::{Action, Direction, Origin, Packet, Snapshot, Verdict};
use matching::{cluster_rules, Traffic};
pub use mismatch::{Mismatch, Skipped};

/// The verdict for a packet, with reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The verdict.
    pub verdict: Verdict,
    /// The decision of each pod's policies: the sender's egress, the receiver's ingress.
    pub decisions: Vec<Decision>,
}

/// The decision of one pod's policies.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The pod, `namespace/name`.
    pub pod: String,
    /// Whether it sends or receives.
    pub direction: Direction,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason.
    pub reason: Reason,
    /// The Pass rules that matched before.
    pub passed: Vec<Origin>,
    /// The policies and rules that did not match before, in the order of evaluation; only of [`explain`].
    pub skipped: Vec<Skipped>,
}

/// What was considered before the decision.
struct Trace {
    passed: Vec<Origin>,
    /// `None` if the caller does not need them.
    skipped: Option<Vec<Skipped>>,
}

impl Trace {
    fn skip(&mut self, skipped: impl FnOnce() -> Skipped) {
        if let Some(all) = &mut self.skipped {
            all.push(skipped());
        }
    }
}

/// The reason of a decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// A rule matches.
    Rule {
        /// The rule.
        origin: Origin,
        /// The action.
        action: Action,
        /// Whether the rule is invalid and therefore denies everything.
        failed_closed: bool,
    },
    /// NetworkPolicies isolate the pod, and none of their rules allows the packet.
    NoRuleAllows(Vec<String>),
    /// A pod always reaches itself.
    Itself,
    /// Isolation never applies between a pod and its node.
    OwnNode,
    /// No policy selects the pod, or no rule of the selecting policies decides.
    NoPolicy,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Rule { origin, failed_closed: true, .. } => {
                write!(f, "{origin} is invalid, so it denies everything")
            }
            Reason::Rule { origin, action, .. } => write!(f, "{origin} says {action}"),
            Reason::NoRuleAllows(policies) => {
                write!(f, "the pod is isolated and no rule allows it: {}", policies.join(", "))
            }
            Reason::Itself => f.write_str("a pod always reaches itself"),
            Reason::OwnNode => f.write_str("a pod and the node where it runs always reach each other"),
            Reason::NoPolicy => f.write_str("no policy applies"),
        }
    }
}

/// The verdict for the first packet of a connection.
pub fn evaluate(snapshot: &Snapshot, packet: &Packet) -> Evaluation {
    evaluate_with(snapshot, packet, || None)
}

/// The same, with the policies and rules that do not match.
pub fn explain(snapshot: &Snapshot, packet: &Packet) -> Evaluation {
    evaluate_with(snapshot, packet, || Some(Vec::new()))
}

fn evaluate_with(
    snapshot: &Snapshot,
    packet: &Packet,
    skipped: impl Fn() -> Option<Vec<Skipped>>,
) -> Evaluation {
    let (sender, receiver) =
        (snapshot.pod_with_address(packet.source), snapshot.pod_with_address(packet.destination));
    let itself = matches!((sender, receiver), (Some(a), Some(b)) if a.full_name() == b.full_name());
    let ends = [(sender, Direction::Egress), (receiver, Direction::Ingress)];
    let decide = |(pod, direction): (Option<&Pod>, Direction)| {
        let (pod, mut trace) = (pod?, Trace { passed: Vec::new(), skipped: skipped() });
        let (verdict, reason) = if itself {
            (Verdict::Allow, Reason::Itself)
        } else {
            decide(snapshot, pod, direction, packet, &mut trace)
        };
        let Trace { passed, skipped } = trace;
        Some(Decision {
            pod: pod.full_name(),
            direction,
            verdict,
            reason,
            passed,
            skipped: skipped.unwrap_or_default(),
        })
    };
    let decisions: Vec<Decision> = ends.into_iter().filter_map(decide).collect();
    let verdict = decisions.iter().fold(Verdict::Allow, |all, decision| all.and(decision.verdict));
    Evaluation { verdict, decisions }
}

fn decide(
    snapshot: &Snapshot,
    pod: &Pod,
    direction: Direction,
    packet: &Packet,
    trace: &mut Trace,
) -> (Verdict, Reason) {
    let peer = match direction {
        Direction::Ingress => packet.source,
        Direction::Egress => packet.destination,
    };
    let own_node = snapshot.node_addresses_of(pod).contains(&peer);
    if own_node && direction == Direction::Ingress {
        return (Verdict::Allow, Reason::OwnNode);
    }
    let traffic = Traffic { snapshot, peer, packet };
    if let Some(decided) = cluster_tier(CnpTier::Admin, pod, direction, &traffic, trace) {
        return decided;
    }
    let mut isolating: Vec<&NetworkPolicy> = Vec::new();
    for policy in snapshot.network_policies.iter().filter(|policy| is_of_namespace(policy, pod)) {
        if !selects_pod(policy, pod) {
            trace.skip(|| {
                let why = Mismatch::not_selected(&policy.spec.pod_selector, pod);
                Skipped { policy: name_of(policy), rule: None, why }
            });
        } else if !isolates_in(policy, direction) {
            trace.skip(|| Skipped { policy: name_of(policy), rule: None, why: Mismatch::OtherDirection });
        } else {
            isolating.push(policy);
        }
    }
    if !isolating.is_empty() {
        if own_node {
            return (Verdict::Allow, Reason::OwnNode);
        }
        return network_policies(&isolating, direction, &traffic, trace);
    }
    let decided = cluster_tier(CnpTier::Baseline, pod, direction, &traffic, trace);
    decided.unwrap_or((Verdict::Allow, Reason::NoPolicy))
}

fn is_of_namespace(policy: &NetworkPolicy, pod: &Pod) -> bool {
    pod.metadata.namespace == policy.metadata.namespace
}

fn selects_pod(policy: &NetworkPolicy, pod: &Pod) -> bool {
    matching::selects(&policy.spec.pod_selector, &pod.metadata.labels) == Some(true)
}

/// Whether the policy isolates the pods that it selects in this direction.
fn isolates_in(policy: &NetworkPolicy, direction: Direction) -> bool {
    let spec = &policy.spec;
    if spec.policy_types.is_empty() {
        return direction == Direction::Ingress || !spec.egress.is_empty();
    }
    let name = match direction {
        Direction::Ingress => "Ingress",
        Direction::Egress => "Egress",
    };
    spec.policy_types.iter().any(|listed| listed == name)
}

fn name_of(policy: &NetworkPolicy) -> String {
    format!("NetworkPolicy {}/{}", policy.metadata.namespace, policy.metadata.name)
}

fn network_policies(
    policies: &[&NetworkPolicy],
    direction: Direction,
    traffic: &Traffic<'_>,
    trace: &mut Trace,
) -> (Verdict, Reason) {
    for policy in policies {
        let rules: Vec<_> = match direction {
            Direction::Ingress => policy.spec.ingress.iter().map(|rule| (&rule.from, &rule.ports)).collect(),
            Direction::Egress => policy.spec.egress.iter().map(|rule| (&rule.to, &rule.ports)).collect(),
        };
        for (index, (peers, ports)) in rules.into_iter().enumerate() {
            let namespace = &policy.metadata.namespace;
            let peer_matches =
                peers.is_empty() || peers.iter().any(|peer| traffic.matches_peer(peer, namespace));
            let port_matches = ports.is_empty() || ports.iter().any(|port| traffic.matches_port(port));
            let origin = || Origin { policy: name_of(policy), direction, index, name: String::new() };
            if peer_matches && port_matches {
                let reason = Reason::Rule { origin: origin(), action: Action::Accept, failed_closed: false };
                return (Verdict::Allow, reason);
            }
            trace.skip(|| {
                let peers = (!peer_matches).then(|| description::peers(peers, namespace));
                let ports = (!port_matches).then(|| description::ports(ports));
                let why = Mismatch::of_rule(traffic, peers, ports);
                Skipped { policy: name_of(policy), rule: Some(origin()), why }
            });
        }
    }
    let names =
        policies.iter().map(|policy| format!("{}/{}", policy.metadata.namespace, policy.metadata.name));
    (Verdict::Deny, Reason::NoRuleAllows(names.collect()))
}

/// The decision of a tier of ClusterNetworkPolicies, if it decides.
fn cluster_tier(
    tier: CnpTier,
    pod: &Pod,
    direction: Direction,
    traffic: &Traffic<'_>,
    trace: &mut Trace,
) -> Option<(Verdict, Reason)> {
    let mut policies: Vec<&ClusterNetworkPolicy> =
        traffic.snapshot.cluster_network_policies.iter().filter(|policy| policy.spec.tier == tier).collect();
    policies.sort_by(|a, b| (a.spec.priority, &a.metadata.name).cmp(&(b.spec.priority, &b.metadata.name)));
    for policy in policies {
        let object = || format!("ClusterNetworkPolicy {}", policy.metadata.name);
        if !traffic.is_subject(pod, &policy.spec.subject) {
            trace.skip(|| {
                let why = Mismatch::not_subject(&policy.spec.subject, pod);
                Skipped { policy: object(), rule: None, why }
            });
            continue;
        }
        for (index, rule) in cluster_rules(policy, direction).into_iter().enumerate() {
            let valid = traffic.is_valid(&rule, direction);
            let origin = || Origin { policy: object(), direction, index, name: rule.name.to_owned() };
            let action = match (rule.action, valid) {
                (CnpAction::Accept, true) => Action::Accept,
                (CnpAction::Accept, false) => {
                    let why = Mismatch::Invalid;
                    trace.skip(|| Skipped { policy: object(), rule: Some(origin()), why });
                    continue;
                }
                (CnpAction::Pass, true) => Action::Pass,
                (CnpAction::Deny, true) | (CnpAction::Deny | CnpAction::Pass, false) => Action::Deny,
            };
            let (peer_matches, port_matches) = traffic.matches_rule(&rule);
            if valid && !(peer_matches && port_matches) {
                trace.skip(|| {
                    let peers = (!peer_matches).then(|| description::cluster_peers(rule.peers));
                    let protocols = rule.protocols.unwrap_or_default();
                    let ports = (!port_matches).then(|| description::protocols(protocols));
                    let why = Mismatch::of_rule(traffic, peers, ports);
                    Skipped { policy: object(), rule: Some(origin()), why }
                });
                continue;
            }
            let origin = origin();
            let reason = |origin| Reason::Rule { origin, action, failed_closed: !valid };
            match action {
                Action::Accept => return Some((Verdict::Allow, reason(origin))),
                Action::Deny => return Some((Verdict::Deny, reason(origin))),
                Action::Pass => {
                    trace.passed.push(origin);
                    return None;
                }
            }
        }
    }
    None
}
