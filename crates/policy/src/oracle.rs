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

mod matching;

use std::fmt;

use crate::api::{ClusterNetworkPolicy, CnpAction, CnpTier, NetworkPolicy, Pod};
use crate::{Action, Direction, Origin, Packet, Snapshot, Verdict};
use matching::{cluster_rules, Traffic};

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
    let (sender, receiver) =
        (snapshot.pod_with_address(packet.source), snapshot.pod_with_address(packet.destination));
    let itself = matches!((sender, receiver), (Some(a), Some(b)) if a.full_name() == b.full_name());
    let ends = [(sender, Direction::Egress), (receiver, Direction::Ingress)];
    let decide = |(pod, direction): (Option<&Pod>, Direction)| {
        let (pod, mut passed) = (pod?, Vec::new());
        let (verdict, reason) = if itself {
            (Verdict::Allow, Reason::Itself)
        } else {
            decide(snapshot, pod, direction, packet, &mut passed)
        };
        Some(Decision { pod: pod.full_name(), direction, verdict, reason, passed })
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
    passed: &mut Vec<Origin>,
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
    if let Some(decided) = cluster_tier(CnpTier::Admin, pod, direction, &traffic, passed) {
        return decided;
    }
    let isolating: Vec<&NetworkPolicy> =
        snapshot.network_policies.iter().filter(|policy| is_isolated_by(pod, policy, direction)).collect();
    if !isolating.is_empty() {
        if own_node {
            return (Verdict::Allow, Reason::OwnNode);
        }
        return network_policies(&isolating, direction, &traffic);
    }
    let decided = cluster_tier(CnpTier::Baseline, pod, direction, &traffic, passed);
    decided.unwrap_or((Verdict::Allow, Reason::NoPolicy))
}

/// Whether the policy isolates the pod in this direction.
fn is_isolated_by(pod: &Pod, policy: &NetworkPolicy, direction: Direction) -> bool {
    let spec = &policy.spec;
    let in_direction = if spec.policy_types.is_empty() {
        direction == Direction::Ingress || !spec.egress.is_empty()
    } else {
        let name = match direction {
            Direction::Ingress => "Ingress",
            Direction::Egress => "Egress",
        };
        spec.policy_types.iter().any(|listed| listed == name)
    };
    in_direction
        && pod.metadata.namespace == policy.metadata.namespace
        && matching::selects(&spec.pod_selector, &pod.metadata.labels) == Some(true)
}

fn network_policies(
    policies: &[&NetworkPolicy],
    direction: Direction,
    traffic: &Traffic<'_>,
) -> (Verdict, Reason) {
    for policy in policies {
        let object = format!("NetworkPolicy {}/{}", policy.metadata.namespace, policy.metadata.name);
        let rules: Vec<_> = match direction {
            Direction::Ingress => policy.spec.ingress.iter().map(|rule| (&rule.from, &rule.ports)).collect(),
            Direction::Egress => policy.spec.egress.iter().map(|rule| (&rule.to, &rule.ports)).collect(),
        };
        for (index, (peers, ports)) in rules.into_iter().enumerate() {
            let namespace = &policy.metadata.namespace;
            let peer_matches =
                peers.is_empty() || peers.iter().any(|peer| traffic.matches_peer(peer, namespace));
            let port_matches = ports.is_empty() || ports.iter().any(|port| traffic.matches_port(port));
            if peer_matches && port_matches {
                let origin = Origin { policy: object, direction, index, name: String::new() };
                let reason = Reason::Rule { origin, action: Action::Accept, failed_closed: false };
                return (Verdict::Allow, reason);
            }
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
    passed: &mut Vec<Origin>,
) -> Option<(Verdict, Reason)> {
    let mut policies: Vec<&ClusterNetworkPolicy> = traffic
        .snapshot
        .cluster_network_policies
        .iter()
        .filter(|policy| policy.spec.tier == tier && traffic.is_subject(pod, &policy.spec.subject))
        .collect();
    policies.sort_by(|a, b| (a.spec.priority, &a.metadata.name).cmp(&(b.spec.priority, &b.metadata.name)));
    for policy in policies {
        for (index, rule) in cluster_rules(policy, direction).into_iter().enumerate() {
            let valid = traffic.is_valid(&rule, direction);
            let action = match (rule.action, valid) {
                (CnpAction::Accept, true) => Action::Accept,
                (CnpAction::Accept, false) => continue,
                (CnpAction::Pass, true) => Action::Pass,
                (CnpAction::Deny, true) | (CnpAction::Deny | CnpAction::Pass, false) => Action::Deny,
            };
            if valid && !traffic.matches_rule(&rule) {
                continue;
            }
            let policy = format!("ClusterNetworkPolicy {}", policy.metadata.name);
            let origin = Origin { policy, direction, index, name: rule.name.to_owned() };
            let reason = |origin| Reason::Rule { origin, action, failed_closed: !valid };
            match action {
                Action::Accept => return Some((Verdict::Allow, reason(origin))),
                Action::Deny => return Some((Verdict::Deny, reason(origin))),
                Action::Pass => {
                    passed.push(origin);
                    return None;
                }
            }
        }
    }
    None
}
