//! Warnings about selectors that select nothing.

use std::collections::BTreeSet;

use super::pod_index::PodIndex;
use super::sets::targets;
use crate::program::{Id, Peer, Port, Program};
use crate::rule::{Peers, Policy, Ports};
use crate::warning::WarningSink;
use crate::{Direction, Warning, WarningKind};

const SELECTS_NO_POD: &str = "the policy selects no pod now";

/// Without visiting pods: `without_pods` names the policies that select no pod, and empty sets of the program are
/// known.
pub(super) fn of_program<'a>(without_pods: impl Iterator<Item = &'a str>, program: &Program) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for policy in without_pods {
        WarningSink::new(policy, &mut warnings).add("spec", WarningKind::Unmatched, SELECTS_NO_POD);
    }
    let addresses = program.addresses.iter().filter(|(_, set)| set.is_empty()).map(|(id, _)| id);
    let ports = program.named_ports.iter().filter(|(_, set)| set.is_empty()).map(|(id, _)| id);
    let empty: BTreeSet<&Id> = addresses.chain(ports).collect();
    if empty.is_empty() {
        return warnings;
    }
    for rule in program.stages.values().flat_map(|stage| &stage.rules) {
        let Some(origin) = &rule.origin else { continue };
        let peer = match &rule.peer {
            Peer::Addresses(id) => Some(id),
            Peer::Anyone | Peer::Networks(_) | Peer::OwnNode => None,
        };
        let port = match &rule.port {
            Port::Named(id) => Some(id),
            Port::Any | Port::Numbers(_) => None,
        };
        for id in peer.into_iter().chain(port).filter(|id| empty.contains(id)) {
            let description = program.descriptions.get(id).map_or("", String::as_str);
            let field = format!("spec.{}[{}]", origin.direction, origin.index);
            let text = format!("{description}: there are none now");
            WarningSink::new(&origin.policy, &mut warnings).add(field, WarningKind::Unmatched, text);
        }
    }
    warnings.sort();
    warnings.dedup();
    warnings
}

/// For all selectors of all policies. Visits all pods.
pub(super) fn of_policies<'a>(policies: impl Iterator<Item = &'a Policy>, index: &PodIndex) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for policy in policies {
        let mut sink = WarningSink::new(&policy.object, &mut warnings);
        let selects_none = |selection| index.selected(selection).next().is_none();
        if policy.subject.as_ref().is_some_and(selects_none) {
            sink.add("spec", WarningKind::Unmatched, SELECTS_NO_POD);
        }
        for direction in [Direction::Ingress, Direction::Egress] {
            for rule in policy.rules(direction).unwrap_or_default() {
                let field = format!("spec.{direction}[{}]", rule.origin.index);
                if let Peers::These { pods, .. } = &rule.peers {
                    for selection in pods.iter().filter(|selection| selects_none(selection)) {
                        let text = format!("{selection}: there are none now");
                        sink.add(&field, WarningKind::Unmatched, text);
                    }
                }
                if let Ports::These { names, .. } = &rule.ports {
                    for port in names.iter().filter(|port| targets(port, index).is_empty()) {
                        let text = format!("no container has a port named {:?} now", port.name);
                        sink.add(&field, WarningKind::Unmatched, text);
                    }
                }
            }
        }
    }
    warnings
}
