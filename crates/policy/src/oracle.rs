//! The oracle: decides about one packet straight from the objects, and says why.
//!
//! It is written for clarity, from the text of the two APIs, and shares no code with the compiler beyond the objects
//! themselves: it reads selectors, networks and ports on its own. It is slow, and it is the judge.
//!
//! A packet between two pods is judged twice: as the sender's egress and as the receiver's ingress; both must allow it.
//! For each, the tiers are asked in turn:
//!
//! 1. *Admin*: rules of ClusterNetworkPolicies by priority, then in the order in which they are written. Accept and Deny end
//!    the matter, Pass goes on to the next tier.
//! 2. *NetworkPolicy*: if any is about the pod in this direction, the packet passes if one of them allows it, and does
//!    not if none does.
//! 3. *Baseline*: like Admin, for pods that no NetworkPolicy is about.
//! 4. Whatever nobody decided about passes.

mod matching;

use std::fmt;
use std::net::IpAddr;

use crate::api::{ClusterNetworkPolicy, CnpAction, CnpPeer, CnpProtocol, CnpTier, NetworkPolicy, Pod};
use crate::{Action, Direction, Origin, Packet, Snapshot, Verdict};
use matching::Traffic;

/// What becomes of a packet, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// What becomes of it.
    pub verdict: Verdict,
    /// What each pod's policies say: the sender's egress, the receiver's ingress.
    pub decisions: Vec<Decision>,
}

/// What one pod's policies say.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The pod, `namespace/name`.
    pub pod: String,
    /// Whether it sends or receives.
    pub direction: Direction,
    /// What they say.
    pub verdict: Verdict,
    /// Because of what.
    pub reason: Reason,
    /// Rules that passed the packet on to the next tier before.
    pub passed: Vec<Origin>,
}

/// Because of what.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// A rule says so.
    Rule {
        /// Which one.
        origin: Origin,
        /// What it does.
        action: Action,
        /// Whether it cannot be understood and therefore denies everything.
        failed_closed: bool,
    },
    /// NetworkPolicies are about the pod, and none of their rules allows the packet.
    NoneAllows(Vec<String>),
    /// A pod cannot be kept from itself.
    Itself,
    /// A pod cannot be kept from, or from the reach of, the node where it runs by what isolates it.
    OwnNode,
    /// No rule of any policy is about it.
    Nobody,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Rule { origin, failed_closed: true, .. } => {
                write!(f, "{origin} cannot be understood, so it denies everything")
            }
            Reason::Rule { origin, action, .. } => write!(f, "{origin} says {action}"),
            Reason::NoneAllows(policies) => {
                write!(f, "the pod is isolated and no rule allows it: {}", policies.join(", "))
            }
            Reason::Itself => f.write_str("a pod always reaches itself"),
            Reason::OwnNode => f.write_str("a pod and the node where it runs always reach each other"),
            Reason::Nobody => f.write_str("no policy decides about it"),
        }
    }
}

/// What becomes of the first packet of a connection.
pub fn judge(snapshot: &Snapshot, packet: &Packet) -> Judgement {
    let (sender, receiver) = (snapshot.pod_at(packet.source), snapshot.pod_at(packet.destination));
    let itself = matches!((sender, receiver), (Some(a), Some(b)) if a.full_name() == b.full_name());
    let sides = [(sender, Direction::Egress), (receiver, Direction::Ingress)];
    let decide = |(pod, direction): (Option<&Pod>, Direction)| {
        let (pod, mut passed) = (pod?, Vec::new());
        let (verdict, reason) = match itself {
            true => (Verdict::Allow, Reason::Itself),
            false => decide(snapshot, pod, direction, packet, &mut passed),
        };
        Some(Decision { pod: pod.full_name(), direction, verdict, reason, passed })
    };
    let decisions: Vec<Decision> = sides.into_iter().filter_map(decide).collect();
    let verdict = decisions.iter().fold(Verdict::Allow, |all, decision| all.and(decision.verdict));
    Judgement { verdict, decisions }
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
    let own_node = snapshot.own_node(pod).contains(&peer);
    if own_node && direction == Direction::Ingress {
        return (Verdict::Allow, Reason::OwnNode);
    }
    let traffic = Traffic { snapshot, peer, packet };
    if let Some(decided) = cluster_tier(CnpTier::Admin, pod, direction, &traffic, passed) {
        return decided;
    }
    let mine: Vec<&NetworkPolicy> =
        snapshot.network_policies.iter().filter(|policy| is_isolated_by(pod, policy, direction)).collect();
    if !mine.is_empty() {
        if own_node {
            return (Verdict::Allow, Reason::OwnNode);
        }
        return network_policies(&mine, direction, &traffic);
    }
    let decided = cluster_tier(CnpTier::Baseline, pod, direction, &traffic, passed);
    decided.unwrap_or((Verdict::Allow, Reason::Nobody))
}

/// Whether the policy is about the pod in this direction.
fn is_isolated_by(pod: &Pod, policy: &NetworkPolicy, direction: Direction) -> bool {
    let spec = &policy.spec;
    let about_direction = match (direction, spec.policy_types.is_empty()) {
        (Direction::Ingress, true) => true,
        (Direction::Egress, true) => !spec.egress.is_empty(),
        (Direction::Ingress, false) => spec.policy_types.iter().any(|name| name == "Ingress"),
        (Direction::Egress, false) => spec.policy_types.iter().any(|name| name == "Egress"),
    };
    about_direction
        && pod.metadata.namespace == policy.metadata.namespace
        && matching::selects(&spec.pod_selector, &pod.metadata.labels) == Some(true)
}

fn network_policies(
    mine: &[&NetworkPolicy],
    direction: Direction,
    traffic: &Traffic<'_>,
) -> (Verdict, Reason) {
    for policy in mine {
        let object = format!("NetworkPolicy {}/{}", policy.metadata.namespace, policy.metadata.name);
        let rules: Vec<_> = match direction {
            Direction::Ingress => policy.spec.ingress.iter().map(|rule| (&rule.from, &rule.ports)).collect(),
            Direction::Egress => policy.spec.egress.iter().map(|rule| (&rule.to, &rule.ports)).collect(),
        };
        for (index, (peers, ports)) in rules.into_iter().enumerate() {
            let namespace = &policy.metadata.namespace;
            let peer_fits = peers.is_empty() || peers.iter().any(|peer| traffic.fits_peer(peer, namespace));
            let port_fits = ports.is_empty() || ports.iter().any(|port| traffic.fits_port(port));
            if peer_fits && port_fits {
                let origin = Origin { policy: object, direction, index, name: String::new() };
                let reason = Reason::Rule { origin, action: Action::Accept, failed_closed: false };
                return (Verdict::Allow, reason);
            }
        }
    }
    let names = mine.iter().map(|policy| format!("{}/{}", policy.metadata.namespace, policy.metadata.name));
    (Verdict::Deny, Reason::NoneAllows(names.collect()))
}

/// What a tier of ClusterNetworkPolicies says, if it decides.
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
        for (index, rule) in rules(policy, direction).into_iter().enumerate() {
            let understood = traffic.understands(&rule, direction);
            let action = match (rule.action, understood) {
                (CnpAction::Accept, true) => Action::Accept,
                (CnpAction::Accept, false) => continue,
                (CnpAction::Pass, true) => Action::Pass,
                (CnpAction::Deny, true) | (CnpAction::Deny | CnpAction::Pass, false) => Action::Deny,
            };
            if understood && !traffic.fits_rule(&rule) {
                continue;
            }
            let policy = format!("ClusterNetworkPolicy {}", policy.metadata.name);
            let origin = Origin { policy, direction, index, name: rule.name.to_owned() };
            let reason = |origin| Reason::Rule { origin, action, failed_closed: !understood };
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

/// A rule of either direction.
struct ClusterRule<'a> {
    name: &'a str,
    action: CnpAction,
    peers: &'a [CnpPeer],
    protocols: Option<&'a [CnpProtocol]>,
}

fn rules(policy: &ClusterNetworkPolicy, direction: Direction) -> Vec<ClusterRule<'_>> {
    let ingress = policy.spec.ingress.iter().map(|rule| {
        let (peers, protocols) = (rule.from.as_slice(), rule.protocols.as_deref());
        ClusterRule { name: &rule.name, action: rule.action, peers, protocols }
    });
    let egress = policy.spec.egress.iter().map(|rule| {
        let (peers, protocols) = (rule.to.as_slice(), rule.protocols.as_deref());
        ClusterRule { name: &rule.name, action: rule.action, peers, protocols }
    });
    match direction {
        Direction::Ingress => ingress.collect(),
        Direction::Egress => egress.collect(),
    }
}

/// Whether a network written as text contains the address; `None` if it is no network.
fn contains(network: &str, address: IpAddr) -> Option<bool> {
    let (start, length) = network.split_once('/')?;
    if !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (start, length): (IpAddr, u32) = (start.parse().ok()?, length.parse().ok()?);
    let (bits, start, address, same) = match (start, address) {
        (IpAddr::V4(start), IpAddr::V4(address)) => {
            (32, u128::from(start.to_bits()), u128::from(address.to_bits()), true)
        }
        (IpAddr::V6(start), IpAddr::V6(address)) => (128, start.to_bits(), address.to_bits(), true),
        (IpAddr::V4(_), IpAddr::V6(_)) => (32, 0, 0, false),
        (IpAddr::V6(_), IpAddr::V4(_)) => (128, 0, 0, false),
    };
    if length > bits {
        return None;
    }
    // Bits behind the prefix do not count, on either side.
    let prefix = |address: u128| address.checked_shr(bits - length).unwrap_or(0);
    Some(same && prefix(start) == prefix(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_as_the_api_does() {
        let fits = |network: &str, address: &str| contains(network, address.parse().unwrap());
        assert_eq!(fits("10.0.0.0/8", "10.255.0.1"), Some(true));
        assert_eq!(fits("10.1.2.3/8", "10.255.0.1"), Some(true));
        assert_eq!(fits("10.0.0.0/8", "11.0.0.1"), Some(false));
        assert_eq!(fits("0.0.0.0/0", "11.0.0.1"), Some(true));
        assert_eq!(fits("0.0.0.0/0", "fd00::1"), Some(false));
        assert_eq!(fits("::/0", "fd00::1"), Some(true));
        assert_eq!(fits("fd00::1/128", "fd00::1"), Some(true));
        assert_eq!(fits("10.0.0.0/33", "10.0.0.0"), None);
        assert_eq!(fits("10.0.0.0", "10.0.0.0"), None);
    }
}
