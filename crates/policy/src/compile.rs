//! Compiling: from policies and pods to a [`Program`].
//!
//! A [`Compiler`] remembers what its program was made from. When a pod or a policy changes, it makes anew what that touches
//! (the chains of pods, the sets of selectors that select it), so a change costs the same among ten policies and among ten thousand.

mod nothing;
mod population;
mod sets;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::api::{ClusterNetworkPolicy, NetworkPolicy, Pod};
use crate::program::{Chain, Endpoint, Id, Outcome, Peer, Program, Rule, Stage};
use crate::rule::{Action, Policy, Tier};
use crate::{read, Direction, Snapshot, Warning};
use population::Population;
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
    let mut compiler = Compiler::of(snapshot, node);
    compiler.settle();
    let mut warnings: Vec<Warning> = compiler.warnings().cloned().collect();
    warnings.extend(nothing::warnings(
        compiler.policies.values().map(|known| &known.policy),
        &compiler.population,
    ));
    warnings.sort();
    warnings.dedup();
    Compiled { program: compiler.program, warnings }
}

/// Where a policy stands among all: tier, priority, and kind and name. Which of two policies with one priority comes first is
/// nobody's promise; by name it is at least always the same.
type Place = (Tier, i64, String);

/// A policy that was read.
#[derive(Clone, Debug)]
struct Known {
    policy: Policy,
    warnings: Vec<Warning>,
    /// No two that were ever read have the same: a changed policy is another one.
    serial: u64,
    /// How many pods it is about, on whatever node.
    pods: usize,
}

/// A program that follows what it was made from.
#[derive(Clone, Debug, Default)]
pub struct Compiler {
    /// Whose pods the program is for; everybody's if none is named.
    node: Option<String>,
    population: Population,
    policies: BTreeMap<Place, Known>,
    /// Where each policy stands, by kind and name.
    places: HashMap<String, Place>,
    serials: u64,
    /// The program's pods, and which policies are about them.
    about: BTreeMap<String, BTreeSet<Place>>,
    /// Pods whose chains are perhaps others now.
    changed: BTreeSet<String>,
    /// Stages by direction and by the policies that they are made of.
    stages: HashMap<(Direction, Vec<u64>), Id>,
    sets: Sets,
    program: Program,
}

impl Compiler {
    /// Begins with everything of one moment, for the pods of one node or for all.
    pub fn of(snapshot: &Snapshot, node: Option<&str>) -> Compiler {
        let population = Population::around(snapshot);
        let mut compiler = Compiler { node: node.map(String::from), population, ..Compiler::default() };
        // Pods first: a policy finds its pods faster than a pod its policies.
        for pod in &snapshot.pods {
            compiler.change_pod(&pod.full_name(), Some(pod.clone()));
        }
        for policy in &snapshot.network_policies {
            let name = format!("{}/{}", policy.metadata.namespace, policy.metadata.name);
            compiler.change_network_policy(&name, Some(policy));
        }
        for policy in &snapshot.cluster_network_policies {
            compiler.change_cluster_network_policy(&policy.metadata.name, Some(policy));
        }
        compiler
    }

    /// The pod `namespace/name` is now like this, or gone.
    pub fn change_pod(&mut self, name: &str, pod: Option<Pod>) {
        let pod = pod.filter(Pod::is_wired);
        if self.population.pod(name) == pod.as_ref() {
            return;
        }
        let before = self.population.put(name, pod);
        let now = self.population.pod(name);
        for pod in before.iter().chain(now) {
            self.sets.touch(pod, &self.population);
        }
        let mut about = BTreeSet::new();
        for (place, known) in &mut self.policies {
            let Some(subject) = &known.policy.subject else { continue };
            let speaks = |pod: &Pod| self.population.selects(subject, pod);
            known.pods -= usize::from(before.as_ref().is_some_and(speaks));
            if now.is_some_and(speaks) {
                known.pods += 1;
                about.insert(place.clone());
            }
        }
        let mine = |pod: &Pod| self.node.as_ref().is_none_or(|node| pod.spec.node_name == *node);
        match now.is_some_and(mine) {
            true => drop(self.about.insert(name.to_owned(), about)),
            false => drop(self.about.remove(name)),
        }
        self.changed.insert(name.to_owned());
    }

    /// The NetworkPolicy `namespace/name` is now like this, or gone.
    pub fn change_network_policy(&mut self, name: &str, policy: Option<&NetworkPolicy>) {
        let mut warnings = Vec::new();
        let policy = policy.map(|policy| read::network_policy(policy, &mut warnings));
        self.change_policy(&format!("NetworkPolicy {name}"), policy, warnings);
    }

    /// The ClusterNetworkPolicy of this name is now like this, or gone.
    pub fn change_cluster_network_policy(&mut self, name: &str, policy: Option<&ClusterNetworkPolicy>) {
        let mut warnings = Vec::new();
        let policy = policy.map(|policy| read::cluster_network_policy(policy, &mut warnings));
        self.change_policy(&format!("ClusterNetworkPolicy {name}"), policy, warnings);
    }

    fn change_policy(&mut self, object: &str, policy: Option<Policy>, warnings: Vec<Warning>) {
        if let Some(place) = self.places.remove(object) {
            if let Some(known) = self.policies.remove(&place) {
                self.concern(&known.policy, |about| {
                    about.remove(&place);
                });
            }
        }
        let Some(policy) = policy else { return };
        let place = (policy.tier, policy.priority, object.to_owned());
        let pods = self.concern(&policy, |about| {
            about.insert(place.clone());
        });
        self.serials += 1;
        self.policies.insert(place.clone(), Known { policy, warnings, serial: self.serials, pods });
        self.places.insert(object.to_owned(), place);
    }

    /// Does something to what is known of each of the program's pods that the policy is about. Returns about how many it is,
    /// the others' included.
    fn concern(&mut self, policy: &Policy, change: impl Fn(&mut BTreeSet<Place>)) -> usize {
        let mut pods = 0;
        for (name, _) in policy.subject.iter().flat_map(|subject| self.population.selected(subject)) {
            pods += 1;
            if let Some(about) = self.about.get_mut(name) {
                change(about);
                self.changed.insert(name.clone());
            }
        }
        pods
    }

    /// The program for what is known now.
    pub fn program(&mut self) -> &Program {
        self.settle();
        &self.program
    }

    /// What users should hear of how their policies were read.
    pub fn warnings(&self) -> impl Iterator<Item = &Warning> {
        self.policies.values().flat_map(|known| &known.warnings)
    }

    /// A word about each selector to which nobody fits: those of whom policies are about, and of the rules of the program, whom
    /// they name. It is known at any time: no pod is looked at for it.
    pub fn unmatched(&mut self) -> Vec<Warning> {
        self.settle();
        let lonely = self.policies.values().filter(|known| known.pods == 0 && known.policy.subject.is_some());
        nothing::known(lonely.map(|known| known.policy.object.as_str()), &self.program)
    }

    /// Makes anew what is not as it should be any more.
    fn settle(&mut self) {
        self.sets.refresh(&self.population, &mut self.program);
        if self.changed.is_empty() {
            return;
        }
        for name in std::mem::take(&mut self.changed) {
            let Some((pod, about)) = self.population.pod(&name).zip(self.about.get(&name)) else {
                self.program.endpoints.remove(&name);
                continue;
            };
            let (addresses, node) = (pod.addresses(), self.population.own_node(pod));
            let about = about.clone();
            let ingress = self.chain(&about, Direction::Ingress);
            let egress = self.chain(&about, Direction::Egress);
            self.program.endpoints.insert(name, Endpoint { addresses, node, ingress, egress });
        }
        self.sweep();
    }

    /// The chain for pods that these policies are about; none if they say nothing about the direction.
    fn chain(&mut self, about: &BTreeSet<Place>, direction: Direction) -> Option<Id> {
        let mut stages = Vec::new();
        for tier in Tier::ALL {
            let of_tier = about.iter().filter(|(its, _, _)| *its == tier);
            let speaks = |place: &&Place| {
                self.policies.get(*place).is_some_and(|known| known.policy.rules(direction).is_some())
            };
            let speaking: Vec<&Place> = of_tier.filter(speaks).collect();
            if speaking.is_empty() {
                continue;
            }
            stages.push(self.stage(&speaking, tier, direction));
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

    fn stage(&mut self, places: &[&Place], tier: Tier, direction: Direction) -> Id {
        let policies: Vec<&Known> = places.iter().filter_map(|place| self.policies.get(*place)).collect();
        let key = (direction, policies.iter().map(|known| known.serial).collect::<Vec<_>>());
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
        for rule in policies.iter().flat_map(|known| known.policy.rules(direction).unwrap_or_default()) {
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
        let (otherwise, isolating) = match tier {
            Tier::NetworkPolicy => {
                (Outcome::Drop, policies.iter().map(|known| known.policy.object.clone()).collect())
            }
            Tier::Admin | Tier::Baseline => (Outcome::Next, Vec::new()),
        };
        let stage = Stage { rules, otherwise, isolating };
        let id = Id::of('t', &format!("{direction} {stage:?}"));
        if !self.program.stages.contains_key(&id) {
            self.sets.hold(&stage, &self.population, &mut self.program);
            self.program.stages.insert(id.clone(), Arc::new(stage));
        }
        self.stages.insert(key, id.clone());
        id
    }

    /// Lets go of chains that no pod has, of stages that no chain leads to, and of sets that no stage names.
    fn sweep(&mut self) {
        let Program { endpoints, chains, stages, .. } = &mut self.program;
        let had: BTreeSet<&Id> =
            endpoints.values().flat_map(|pod| [&pod.ingress, &pod.egress]).flatten().collect();
        chains.retain(|id, _| had.contains(id));
        let walked: BTreeSet<&Id> = chains.values().flat_map(|chain| &chain.stages).collect();
        let left: Vec<Id> = stages.keys().filter(|id| !walked.contains(id)).cloned().collect();
        for id in left {
            if let Some(stage) = self.program.stages.remove(&id) {
                self.sets.release(&stage, &mut self.program);
            }
        }
        self.stages.retain(|_, id| self.program.stages.contains_key(id));
        self.sets.forget_unused();
    }
}
