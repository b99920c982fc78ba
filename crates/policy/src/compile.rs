//! Compiling: from policies and pods to a [`Program`].

mod sets;

use std::collections::BTreeMap;

use crate::program::{Chain, Endpoint, Id, Outcome, Peer, Program, Rule, Stage};
use crate::rule::{Action, Policy, Tier};
use crate::warning::Warner;
use crate::{api::Pod, read, Direction, Kind, Snapshot, Warning};
use sets::Sets;

/// A program, and what users should hear about their policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compiled {
    /// The program.
    pub program: Program,
    /// What users should hear, by object and place.
    pub warnings: Vec<Warning>,
}

/// Compiles the policies for all pods, or for those of one node: others' addresses still stand in sets.
pub fn compile(snapshot: &Snapshot, node: Option<&str>) -> Compiled {
    let mut warnings = Vec::new();
    let policies = read::policies(snapshot, &mut warnings);
    let mut compiler =
        Compiler { sets: Sets::new(snapshot), program: Program::default(), stages: BTreeMap::new() };
    for policy in &policies {
        let nobody = policy.subject.as_ref().is_some_and(|subject| compiler.sets.selects_nothing(subject));
        if nobody {
            let mut warner = Warner::about(&policy.object, &mut warnings);
            warner.say("spec", Kind::Nothing, "the policy is about no pod at this moment");
        }
    }
    for pod in snapshot.pods.iter().filter(|pod| pod.is_wired()) {
        if node.is_some_and(|node| pod.spec.node_name != node) {
            continue;
        }
        let mine: Vec<(usize, &Policy)> = policies
            .iter()
            .enumerate()
            .filter(|(_, policy)| {
                policy.subject.as_ref().is_some_and(|subject| compiler.sets.is_in(pod, subject))
            })
            .collect();
        let endpoint = Endpoint {
            addresses: pod.addresses(),
            node: snapshot.own_node(pod),
            ingress: compiler.chain(&mine, Direction::Ingress),
            egress: compiler.chain(&mine, Direction::Egress),
        };
        compiler.program.endpoints.insert(Pod::full_name(pod), endpoint);
    }
    warnings.extend(compiler.sets.empty_selectors(&policies));
    warnings.sort();
    warnings.dedup();
    let program = compiler.sets.fill(compiler.program);
    Compiled { program, warnings }
}

struct Compiler<'a> {
    sets: Sets<'a>,
    program: Program,
    /// Stages by direction and by the policies that they are made of.
    stages: BTreeMap<(Direction, Vec<usize>), Id>,
}

impl Compiler<'_> {
    /// The chain for pods that these policies are about; none if they say nothing about the direction.
    fn chain(&mut self, policies: &[(usize, &Policy)], direction: Direction) -> Option<Id> {
        let mut stages = Vec::new();
        for tier in Tier::ALL {
            let speaking = |policy: &Policy| policy.tier == tier && policy.rules(direction).is_some();
            let of_tier: Vec<_> = policies.iter().copied().filter(|(_, policy)| speaking(policy)).collect();
            if of_tier.is_empty() {
                continue;
            }
            stages.push(self.stage(&of_tier, tier, direction));
            // A NetworkPolicy always decides: nobody gets behind it.
            if tier == Tier::NetworkPolicy {
                break;
            }
        }
        if stages.is_empty() {
            return None;
        }
        let id = Id::of('c', &format!("{direction} {stages:?}"));
        self.program.chains.entry(id.clone()).or_insert(Chain { direction, stages });
        Some(id)
    }

    fn stage(&mut self, policies: &[(usize, &Policy)], tier: Tier, direction: Direction) -> Id {
        let key = (direction, policies.iter().map(|(number, _)| *number).collect::<Vec<_>>());
        if let Some(id) = self.stages.get(&key) {
            return id.clone();
        }
        let mut rules = Vec::new();
        if tier == Tier::NetworkPolicy && direction == Direction::Egress {
            // No NetworkPolicy keeps a pod from the node where it runs.
            rules.push(Rule {
                peer: Peer::OwnNode,
                port: crate::program::Port::Any,
                outcome: Outcome::Accept,
                origin: None,
            });
        }
        for rule in policies.iter().flat_map(|(_, policy)| policy.rules(direction).unwrap_or_default()) {
            let outcome = match rule.action {
                Action::Accept => Outcome::Accept,
                Action::Deny => Outcome::Drop,
                Action::Pass => Outcome::Next,
            };
            // Any peer at any port: the rule is as many rules as there are pairs.
            for peer in self.sets.peers(&rule.peers) {
                for port in self.sets.ports(&rule.ports) {
                    let (peer, origin) = (peer.clone(), Some(rule.origin.clone()));
                    rules.push(Rule { peer, port, outcome, origin });
                }
            }
        }
        let otherwise = if tier == Tier::NetworkPolicy { Outcome::Drop } else { Outcome::Next };
        let stage = Stage { rules, otherwise };
        let id = Id::of('t', &format!("{direction} {stage:?}"));
        self.program.stages.insert(id.clone(), stage);
        self.stages.insert(key, id.clone());
        id
    }
}
