//! The pods for which a new program may deny what the previous one allowed.
//!
//! The comparison uses ids, which are hashes of content, and the sets that differ. It evaluates no packet. So the
//! result may contain a pod that lost nothing, but it never misses one that did.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::program::{Endpoint, Id, Outcome, Peer, Port, Rule, Stage};
use crate::{Direction, Program};

/// How a set of addresses or named ports differs from the previous one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SetChange {
    /// It contains the previous set.
    Grown,
    /// It lacks elements of the previous set.
    Shrunk,
}

impl Program {
    /// The addresses of pods that may receive or send less than with the program `before`.
    pub fn restricted_since(&self, before: &Program) -> BTreeSet<IpAddr> {
        let comparison = Comparison { before, now: self, sets: changed_sets(before, self) };
        let owners = before.pods_by_address();
        let mut compared = BTreeMap::new();
        let lost = self.endpoints.iter().filter(|(name, now)| {
            // If two pods had the address, the other pod's policies may have applied to it until now.
            let of_another = |address| owners.get(address).is_some_and(|owner| owner != name);
            let was = before.endpoints.get(*name).filter(|_| !now.addresses.iter().any(of_another));
            [Direction::Ingress, Direction::Egress]
                .into_iter()
                .any(|direction| comparison.may_allow_less(was, now, direction, &mut compared))
        });
        lost.flat_map(|(_, endpoint)| endpoint.addresses.iter().copied()).collect()
    }

    /// The pod of each address: the first one if two pods have it.
    fn pods_by_address(&self) -> BTreeMap<&IpAddr, &String> {
        let reversed = self.endpoints.iter().rev();
        reversed
            .flat_map(|(name, endpoint)| endpoint.addresses.iter().map(move |address| (address, name)))
            .collect()
    }
}

/// Two programs, and the sets in which they differ.
struct Comparison<'a> {
    before: &'a Program,
    now: &'a Program,
    /// The sets that are in both and differ.
    sets: BTreeMap<&'a Id, SetChange>,
}

impl<'a> Comparison<'a> {
    fn may_allow_less(
        &self,
        was: Option<&'a Endpoint>,
        now: &'a Endpoint,
        direction: Direction,
        compared: &mut BTreeMap<(&'a Id, &'a Id), bool>,
    ) -> bool {
        // Without a chain everything is accepted.
        let Some(chain) = now.chain(direction) else { return false };
        let Some(was) = was.filter(|was| was.addresses == now.addresses && was.node == now.node) else {
            return true;
        };
        let Some(old) = was.chain(direction) else { return true };
        *compared.entry((old, chain)).or_insert_with(|| self.chain_may_allow_less(old, chain))
    }

    fn chain_may_allow_less(&self, old: &Id, new: &Id) -> bool {
        let (Some(old), Some(new)) = (self.before.chains.get(old), self.now.chains.get(new)) else {
            return true;
        };
        let pair = |(old, new): (&Id, &Id)| match (self.before.stages.get(old), self.now.stages.get(new)) {
            (Some(old), Some(new)) => self.stage_may_allow_less(old, new),
            _ => true,
        };
        old.stages.len() != new.stages.len() || old.stages.iter().zip(&new.stages).any(pair)
    }

    fn stage_may_allow_less(&self, old: &Arc<Stage>, new: &Arc<Stage>) -> bool {
        let same_rules = old.rules == new.rules;
        let same_default = old.default_outcome == new.default_outcome;
        // If all rules accept, additional rules only allow more.
        let accepts = |stage: &Stage| stage.rules.iter().all(|rule| rule.outcome == Outcome::Accept);
        let more_accepted = || {
            let current: Vec<_> = new.rules.iter().map(|rule| (&rule.peer, &rule.port)).collect();
            accepts(old)
                && accepts(new)
                && old.rules.iter().all(|rule| current.contains(&(&rule.peer, &rule.port)))
        };
        !same_default
            || !(same_rules || more_accepted())
            || new.rules.iter().any(|rule| self.rule_may_match_less(rule))
    }

    /// Whether the sets of a rule changed so that it may accept less, or may drop or pass on more.
    fn rule_may_match_less(&self, rule: &Rule) -> bool {
        let peer = match &rule.peer {
            Peer::Addresses(id) => self.sets.get(id),
            Peer::Networks(_) | Peer::Anyone | Peer::OwnNode => None,
        };
        let port = match &rule.port {
            Port::Named(id) => self.sets.get(id),
            Port::Numbers(_) | Port::Any => None,
        };
        peer.into_iter().chain(port).any(|change| match rule.outcome {
            Outcome::Accept => *change == SetChange::Shrunk,
            Outcome::Drop | Outcome::Next => true,
        })
    }
}

/// The ids of sets of networks and port numbers are hashes of their elements, so these never change.
fn changed_sets<'a>(before: &'a Program, now: &'a Program) -> BTreeMap<&'a Id, SetChange> {
    let mut changed = BTreeMap::new();
    let change = |grown: bool| if grown { SetChange::Grown } else { SetChange::Shrunk };
    for (id, set) in &now.addresses {
        match before.addresses.get(id) {
            Some(was) if Arc::ptr_eq(was, set) || was == set => {}
            Some(was) => drop(changed.insert(id, change(was.is_subset(set)))),
            None => {}
        }
    }
    for (id, set) in &now.named_ports {
        match before.named_ports.get(id) {
            Some(was) if was != set => drop(changed.insert(id, change(was.is_subset(set)))),
            _ => {}
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use serde_json::{json, Value};

    use crate::{compile, Program, Snapshot};

    /// The pods `web`, `db` and one with the label `ops`. With `from`, a policy lists the peers that may reach `db`.
    fn program(ops: &str, from: Option<Value>) -> Program {
        let mut snapshot = Snapshot::new();
        for (pod, label, ip) in
            [("web", "web", "10.0.0.1"), ("db", "db", "10.0.0.2"), ("ops", ops, "10.0.0.3")]
        {
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": pod, "labels": { "app": label } },
                "status": { "podIPs": [{ "ip": ip }] } });
            snapshot.add(pod).unwrap();
        }
        if let Some(from) = from {
            let spec = json!({ "podSelector": { "matchLabels": { "app": "db" } }, "ingress": from });
            let policy = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "db" }, "spec": spec });
            snapshot.add(policy).unwrap();
        }
        compile(&snapshot, None).program
    }

    fn from(labels: &[&str]) -> Option<Value> {
        let peer = |label: &&str| json!({ "from": [{ "podSelector": { "matchLabels": { "app": label } } }] });
        Some(labels.iter().map(peer).collect())
    }

    fn restricted(before: &Program, now: &Program) -> Vec<String> {
        now.restricted_since(before).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_pods_that_lost_something_are_returned() {
        let (open, web) = (program("ops", None), program("ops", from(&["web"])));
        assert_eq!(restricted(&open, &web), ["10.0.0.2"]);
        assert!(restricted(&web, &open).is_empty(), "a deleted policy denies nothing");
        assert!(restricted(&web, &web).is_empty());
        let both = program("ops", from(&["web", "ops"]));
        assert!(restricted(&web, &both).is_empty(), "one more allowed peer");
        assert_eq!(restricted(&both, &web), ["10.0.0.2"]);
    }

    #[test]
    fn a_removed_label_restricts_and_an_added_one_does_not() {
        let (with, without) = (program("web", from(&["web"])), program("ops", from(&["web"])));
        assert_eq!(restricted(&with, &without), ["10.0.0.2"]);
        assert!(restricted(&without, &with).is_empty());
    }

    #[test]
    fn the_remaining_owner_of_a_shared_address_is_returned() {
        let isolated = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "none" },
            "spec": { "podSelector": { "matchLabels": { "app": "new" } } } });
        let program_of = |pods: &[&str]| {
            let mut snapshot = Snapshot::new();
            snapshot.add(isolated.clone()).unwrap();
            for name in pods {
                let metadata = json!({ "name": name, "labels": { "app": name } });
                let status = json!({ "podIPs": [{ "ip": "10.0.0.1" }] });
                let pod =
                    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status });
                snapshot.add(pod).unwrap();
            }
            compile(&snapshot, None).program
        };
        let (both, left) = (program_of(&["before", "new"]), program_of(&["new"]));
        assert_eq!(restricted(&both, &left), ["10.0.0.1"]);
        assert!(restricted(&left, &left).is_empty());
    }
}
