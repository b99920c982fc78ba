//! Why a policy or a rule does not match a packet.

use std::fmt;

use super::description;
use super::matching::Traffic;
use crate::api::{CnpSubject, LabelSelector, Pod};
use crate::Origin;

/// A policy or a rule that does not match.
#[derive(Clone, Debug, PartialEq)]
pub struct Skipped {
    /// Kind and name of the policy.
    pub policy: String,
    /// The rule; `None` if the policy does not apply to the pod.
    pub rule: Option<Origin>,
    /// Why.
    pub why: Mismatch,
}

/// The reason why a policy or a rule does not match.
#[derive(Clone, Debug, PartialEq)]
pub enum Mismatch {
    /// The policy does not select the pod.
    NotSelected {
        /// What it selects.
        wanted: String,
        /// The pod's labels.
        labels: String,
    },
    /// The policy selects the pod, but only for the other direction.
    OtherDirection,
    /// The rule is invalid, so it accepts nothing.
    Invalid,
    /// The other end or the port is not in the rule.
    Rule {
        /// The other end, and the peers of the rule, if they do not match.
        peer: Option<(String, String)>,
        /// The port of the packet, and the ports of the rule, if they do not match.
        port: Option<(String, String)>,
    },
}

impl Mismatch {
    pub(super) fn not_selected(selector: &LabelSelector, pod: &Pod) -> Mismatch {
        let wanted = format!("pods {}", description::selector(selector));
        Mismatch::NotSelected { wanted, labels: description::labels(pod) }
    }

    pub(super) fn not_subject(subject: &CnpSubject, pod: &Pod) -> Mismatch {
        Mismatch::NotSelected { wanted: description::subject(subject), labels: description::labels(pod) }
    }

    /// `peers` and `ports` describe the rule's, if they do not match.
    pub(super) fn of_rule(traffic: &Traffic<'_>, peers: Option<String>, ports: Option<String>) -> Mismatch {
        let end = || match traffic.peer_pod() {
            Some(pod) => format!("{} with {}", pod.full_name(), description::labels(pod)),
            None => format!("{}, which is no pod", traffic.peer),
        };
        let service = traffic.packet.service;
        let port =
            || service.map_or_else(|| "ping".to_owned(), |(protocol, port)| format!("{protocol} {port}"));
        Mismatch::Rule { peer: peers.map(|peers| (end(), peers)), port: ports.map(|ports| (port(), ports)) }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::NotSelected { wanted, labels } => {
                write!(f, "selects {wanted}, and the pod has {labels}")
            }
            Mismatch::OtherDirection => f.write_str("applies only to the other direction"),
            Mismatch::Invalid => f.write_str("is invalid, so it accepts nothing"),
            Mismatch::Rule { peer, port } => {
                let part = |part: &Option<(String, String)>, what| {
                    part.as_ref().map(|(is, wanted)| format!("{what} {is}, not {wanted}"))
                };
                let parts: Vec<String> = [part(peer, "the other end is"), part(port, "the port is")]
                    .into_iter()
                    .flatten()
                    .collect();
                f.write_str(&parts.join("; "))
            }
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            Some(origin) => write!(f, "{origin}: {}", self.why),
            None => write!(f, "{}: {}", self.policy, self.why),
        }
    }
}
