//! The compiler from policies and pods to a [`Program`].
//!
//! A [`Compiler`] remembers what its program was compiled from. When a pod or a policy changes, it recompiles only what
//! the change concerns: the chains of pods, and the sets of the selectors that select the pod. So a change costs the
//! same with ten policies as with ten thousand.

mod pod_index;
mod sets;
mod unmatched;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::api::{ClusterNetworkPolicy, NetworkPolicy, Pod};
use crate::program::{Chain, Endpoint, Id, Outcome, Peer, Port, Program, Rule, Stage};
use crate::rule::{Action, Policy, Tier};
use crate::{parse, Direction, Snapshot, Warning};
use pod_index::PodIndex;
use sets::Sets;

/// A program, and the warnings about its policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compiled {
    /// The program.
    pub program: Program,
    /// The warnings, sorted by object and field.
    pub warnings: Vec<Warning>,
}

/// Compiles the policies for all pods, or for the pods of one node. Sets contain the addresses of all nodes' pods.
pub fn compile(snapshot: &Snapshot, node: Option<&str>) -> Compiled {
    let mut compiler = Compiler::new(snapshot, node);
    compiler.settle();
    let mut warnings: Vec<Warning> = compiler.warnings().cloned().collect();
    let policies = compiler.policies.values().map(|entry| &entry.policy);
    warnings.extend(unmatched::of_policies(policies, &compiler.index));
    warnings.sort();
    warnings.dedup();
    Compiled { program: compiler.program, warnings }
}

/// The order of a policy: tier, priority, and kind and name. The API does not define the order of two policies with the
/// same priority; the name makes it stable.
type PolicyKey = (Tier, i64, String);

/// A parsed policy.
#[derive(Clone, Debug)]
struct PolicyEntry {
    policy: Policy,
    warnings: Vec<Warning>,
    /// Unique for each version of each policy.
    serial: u64,
    /// The number of pods that it selects, on all nodes.
    pods: usize,
}

/// A program that is updated with the objects it is compiled from.
#[derive(Clone, Debug, Default)]
pub struct Compiler {
    /// The node whose pods the program contains; `None` means all nodes.
    node: Option<String>,
    index: PodIndex,
    policies: BTreeMap<PolicyKey, PolicyEntry>,
    /// The keys of the policies by kind and name.
    keys: HashMap<String, PolicyKey>,
    last_serial: u64,
    /// The program's pods, with the policies that select them.
    pod_policies: BTreeMap<String, BTreeSet<PolicyKey>>,
    /// Pods whose chains may have changed.
    changed: BTreeSet<String>,
    /// Stages by direction and by the serials of their policies.
    stages: HashMap<(Direction, Vec<u64>), Id>,
    sets: Sets,
    program: Program,
}

impl Compiler {
    /// Starts with the objects of a snapshot, for the pods of one node or for all.
    pub fn new(snapshot: &Snapshot, node: Option<&str>) -> Compiler {
        let index = PodIndex::new(snapshot);
        let mut compiler = Compiler { node: node.map(String::from), index, ..Compiler::default() };
        // Pods first: finding the pods of a policy is faster than finding the policies of a pod.
        for pod in &snapshot.pods {
            compiler.set_pod(&pod.full_name(), Some(pod.clone()));
        }
        for policy in &snapshot.network_policies {
            let name = format!("{}/{}", policy.metadata.namespace, policy.metadata.name);
            compiler.set_network_policy(&name, Some(policy));
        }
        for policy in &snapshot.cluster_network_policies {
            compiler.set_cluster_network_policy(&policy.metadata.name, Some(policy));
        }
        compiler
    }

    /// Sets the pod `namespace/name`; `None` removes it.
    pub fn set_pod(&mut self, name: &str, pod: Option<Pod>) {
        let pod = pod.filter(Pod::has_pod_network);
        if self.index.pod(name) == pod.as_ref() {
            return;
        }
        let previous = self.index.set(name, pod);
        let current = self.index.pod(name);
        for pod in previous.iter().chain(current) {
            self.sets.mark_stale(pod, &self.index);
        }
        let mut selecting = BTreeSet::new();
        for (key, entry) in &mut self.policies {
            let Some(subject) = &entry.policy.subject else { continue };
            let selects = |pod: &Pod| self.index.selects(subject, pod);
            entry.pods -= usize::from(previous.as_ref().is_some_and(selects));
            if current.is_some_and(selects) {
                entry.pods += 1;
                selecting.insert(key.clone());
            }
        }
        let in_program = |pod: &Pod| self.node.as_ref().is_none_or(|node| pod.spec.node_name == *node);
        if current.is_some_and(in_program) {
            self.pod_policies.insert(name.to_owned(), selecting);
        } else {
            self.pod_policies.remove(name);
        }
        self.changed.insert(name.to_owned());
    }

    /// Sets the NetworkPolicy `namespace/name`; `None` removes it.
    pub fn set_network_policy(&mut self, name: &str, policy: Option<&NetworkPolicy>) {
        let mut warnings = Vec::new();
        let policy = policy.map(|policy| parse::network_policy(policy, &mut warnings));
        self.set_policy(&format!("NetworkPolicy {name}"), policy, warnings);
    }

    /// Sets the ClusterNetworkPolicy of this name; `None` removes it.
    pub fn set_cluster_network_policy(&mut self, name: &str, policy: Option<&ClusterNetworkPolicy>) {
        let mut warnings = Vec::new();
        let policy = policy.map(|policy| parse::cluster_network_policy(policy, &mut warnings));
        self.set_policy(&format!("ClusterNetworkPolicy {name}"), policy, warnings);
    }

    fn set_policy(&mut self, object: &str, policy: Option<Policy>, warnings: Vec<Warning>) {
        if let Some(key) = self.keys.remove(object) {
            if let Some(entry) = self.policies.remove(&key) {
                self.update_selected(&entry.policy, |policies| {
                    policies.remove(&key);
                });
            }
        }
        let Some(policy) = policy else { return };
        let key = (policy.tier, policy.priority, object.to_owned());
        let pods = self.update_selected(&policy, |policies| {
            policies.insert(key.clone());
        });
        self.last_serial += 1;
        let entry = PolicyEntry { policy, warnings, serial: self.last_serial, pods };
        self.policies.insert(key.clone(), entry);
        self.keys.insert(object.to_owned(), key);
    }

    /// Updates the policies of each of the program's pods that the policy selects. Returns the number of selected pods,
    /// those of other nodes included.
    fn update_selected(&mut self, policy: &Policy, update: impl Fn(&mut BTreeSet<PolicyKey>)) -> usize {
        let mut pods = 0;
        for (name, _) in policy.subject.iter().flat_map(|subject| self.index.selected(subject)) {
            pods += 1;
            if let Some(policies) = self.pod_policies.get_mut(name) {
                update(policies);
                self.changed.insert(name.clone());
            }
        }
        pods
    }

    /// The program for the current objects.
    pub fn program(&mut self) -> &Program {
        self.settle();
        &self.program
    }

    /// The warnings of parsing the policies.
    pub fn warnings(&self) -> impl Iterator<Item = &Warning> {
        self.policies.values().flat_map(|entry| &entry.warnings)
    }

    /// Warnings about selectors that select nothing: the subjects of all policies, and the peers and named ports of the
    /// program's rules. The counts are kept up to date, so this visits no pod.
    pub fn unmatched(&mut self) -> Vec<Warning> {
        self.settle();
        let without_pods =
            self.policies.values().filter(|entry| entry.pods == 0 && entry.policy.subject.is_some());
        unmatched::of_program(without_pods.map(|entry| entry.policy.object.as_str()), &self.program)
    }

    /// Recompiles what has changed.
    fn settle(&mut self) {
        self.sets.refill_stale(&self.index, &mut self.program);
        if self.changed.is_empty() {
            return;
        }
        for name in std::mem::take(&mut self.changed) {
            let Some((pod, policies)) = self.index.pod(&name).zip(self.pod_policies.get(&name)) else {
                self.program.endpoints.remove(&name);
                continue;
            };
            let (addresses, node) = (pod.addresses(), self.index.node_addresses_of(pod));
            let policies = policies.clone();
            let ingress = self.chain(&policies, Direction::Ingress);
            let egress = self.chain(&policies, Direction::Egress);
            self.program.endpoints.insert(name, Endpoint { addresses, node, ingress, egress });
        }
        self.remove_unused();
    }

    /// The chain for pods that these policies select; `None` if no policy has rules for the direction.
    fn chain(&mut self, policies: &BTreeSet<PolicyKey>, direction: Direction) -> Option<Id> {
        let mut stages = Vec::new();
        for tier in Tier::ALL {
            let of_tier = policies.iter().filter(|(of, _, _)| *of == tier);
            let has_rules = |key: &&PolicyKey| {
                self.policies.get(*key).is_some_and(|entry| entry.policy.rules(direction).is_some())
            };
            let with_rules: Vec<&PolicyKey> = of_tier.filter(has_rules).collect();
            if with_rules.is_empty() {
                continue;
            }
            stages.push(self.stage(&with_rules, tier, direction));
            // NetworkPolicies always decide, so no packet reaches the Baseline tier.
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

    fn stage(&mut self, keys: &[&PolicyKey], tier: Tier, direction: Direction) -> Id {
        let policies: Vec<&PolicyEntry> = keys.iter().filter_map(|key| self.policies.get(*key)).collect();
        let cache_key = (direction, policies.iter().map(|entry| entry.serial).collect::<Vec<_>>());
        if let Some(id) = self.stages.get(&cache_key) {
            return id.clone();
        }
        let mut rules = Vec::new();
        if tier == Tier::NetworkPolicy && direction == Direction::Egress {
            // No NetworkPolicy blocks traffic from a pod to its own node.
            let (peer, port) = (Peer::OwnNode, Port::Any);
            rules.push(Rule { peer, port, outcome: Outcome::Accept, origin: None });
        }
        for rule in policies.iter().flat_map(|entry| entry.policy.rules(direction).unwrap_or_default()) {
            let outcome = match rule.action {
                Action::Accept => Outcome::Accept,
                Action::Deny => Outcome::Drop,
                Action::Pass => Outcome::Next,
            };
            // Any peer at any port: one rule for each pair.
            for peer in self.sets.peers(&rule.peers) {
                for port in self.sets.ports(&rule.ports) {
                    let (peer, origin) = (peer.clone(), Some(rule.origin.clone()));
                    rules.push(Rule { peer, port, outcome, origin });
                }
            }
        }
        let (default_outcome, isolating_policies) = match tier {
            Tier::NetworkPolicy => {
                (Outcome::Drop, policies.iter().map(|entry| entry.policy.object.clone()).collect())
            }
            Tier::Admin | Tier::Baseline => (Outcome::Next, Vec::new()),
        };
        let stage = Stage { rules, default_outcome, isolating_policies };
        let id = Id::of('t', &format!("{direction} {stage:?}"));
        if !self.program.stages.contains_key(&id) {
            self.sets.hold(&stage, &self.index, &mut self.program);
            self.program.stages.insert(id.clone(), Arc::new(stage));
        }
        self.stages.insert(cache_key, id.clone());
        id
    }

    /// Removes chains without pods, stages without chains, and sets without stages.
    fn remove_unused(&mut self) {
        let Program { endpoints, chains, stages, .. } = &mut self.program;
        let used_chains: BTreeSet<&Id> =
            endpoints.values().flat_map(|pod| [&pod.ingress, &pod.egress]).flatten().collect();
        chains.retain(|id, _| used_chains.contains(id));
        let used_stages: BTreeSet<&Id> = chains.values().flat_map(|chain| &chain.stages).collect();
        let unused: Vec<Id> = stages.keys().filter(|id| !used_stages.contains(id)).cloned().collect();
        for id in unused {
            if let Some(stage) = self.program.stages.remove(&id) {
                self.sets.release(&stage, &mut self.program);
            }
        }
        self.stages.retain(|_, id| self.program.stages.contains_key(id));
        self.sets.remove_unused();
    }
}
