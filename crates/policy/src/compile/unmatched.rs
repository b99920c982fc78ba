//! A word about each selector to which nobody fits.

use std::collections::BTreeSet;

use super::population::Population;
use super::sets::served;
use crate::program::{Id, Peer, Port, Program};
use crate::rule::{Peers, Policy, Ports};
use crate::warning::Warner;
use crate::{Direction, Kind, Warning};

const ABOUT_NOBODY: &str = "the policy is about no pod at this moment";

/// As far as it is known without looking at pods: these policies are about nobody, and the program has sets that are empty.
pub(super) fn known<'a>(lonely: impl Iterator<Item = &'a str>, program: &Program) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for policy in lonely {
        Warner::about(policy, &mut warnings).say("spec", Kind::Nothing, ABOUT_NOBODY);
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
            let meaning = program.meanings.get(id).map_or("", String::as_str);
            let place = format!("spec.{}[{}]", origin.direction, origin.index);
            let text = format!("{meaning}: there are none at this moment");
            Warner::about(&origin.policy, &mut warnings).say(place, Kind::Nothing, text);
        }
    }
    warnings.sort();
    warnings.dedup();
    warnings
}

/// As far as it is known only by looking at all pods.
pub(super) fn warnings<'a>(
    policies: impl Iterator<Item = &'a Policy>,
    population: &Population,
) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for policy in policies {
        let mut warner = Warner::about(&policy.object, &mut warnings);
        let nobody = |subject| population.selected(subject).next().is_none();
        if policy.subject.as_ref().is_some_and(nobody) {
            warner.say("spec", Kind::Nothing, ABOUT_NOBODY);
        }
        for direction in [Direction::Ingress, Direction::Egress] {
            for rule in policy.rules(direction).unwrap_or_default() {
                let place = format!("spec.{direction}[{}]", rule.origin.index);
                if let Peers::These { pods, .. } = &rule.peers {
                    for selection in pods.iter().filter(|selection| nobody(selection)) {
                        let text = format!("{selection}: there are none at this moment");
                        warner.say(&place, Kind::Nothing, text);
                    }
                }
                if let Ports::These { names, .. } = &rule.ports {
                    for port in names.iter().filter(|port| served(port, population).is_empty()) {
                        let text = format!("no container has a port named {:?} at this moment", port.name);
                        warner.say(&place, Kind::Nothing, text);
                    }
                }
            }
        }
    }
    warnings
}
