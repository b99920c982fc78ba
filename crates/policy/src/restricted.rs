//! Whom a new program may forbid what the one before allowed.
//!
//! It is found by comparing names, which are made from what they name, and the sets that differ: no packet is tried. So it may
//! name a pod that has lost nothing, but never leaves out one that has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::program::{Endpoint, Id, Outcome, Peer, Port, Rule, Stage};
use crate::{Direction, Program};

/// What has become of the sets of addresses and of named ports that are others than before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Became {
    Larger,
    /// Smaller, or with others in it.
    Other,
}

impl Program {
    /// The addresses of those of its pods to which, or from which, perhaps less is allowed than by the program `before`.
    pub fn narrowed_since(&self, before: &Program) -> BTreeSet<IpAddr> {
        let comparison = Comparison { before, now: self, sets: changed_sets(before, self) };
        let holders = before.holders();
        let mut known = BTreeMap::new();
        let lost = self.endpoints.iter().filter(|(name, now)| {
            // Who held an address that another pod seemed to hold as well is judged by its own policies from now on.
            let another = |address| holders.get(address).is_some_and(|holder| holder != name);
            let was = before.endpoints.get(*name).filter(|_| !now.addresses.iter().any(another));
            [Direction::Ingress, Direction::Egress]
                .into_iter()
                .any(|direction| comparison.may_be_less(was, now, direction, &mut known))
        });
        lost.flat_map(|(_, endpoint)| endpoint.addresses.iter().copied()).collect()
    }

    /// Whose each address is: the first one's, where two pods have it.
    fn holders(&self) -> BTreeMap<&IpAddr, &String> {
        let held = self.endpoints.iter().rev();
        held.flat_map(|(name, endpoint)| endpoint.addresses.iter().map(move |address| (address, name)))
            .collect()
    }
}

/// Two programs.
struct Comparison<'a> {
    before: &'a Program,
    now: &'a Program,
    /// The sets that are in both and are not the same.
    sets: BTreeMap<&'a Id, Became>,
}

impl<'a> Comparison<'a> {
    fn may_be_less(
        &self,
        was: Option<&'a Endpoint>,
        now: &'a Endpoint,
        direction: Direction,
        known: &mut BTreeMap<(&'a Id, &'a Id), bool>,
    ) -> bool {
        // Without a chain everything is allowed.
        let Some(chain) = now.chain(direction) else { return false };
        let Some(was) = was.filter(|was| was.addresses == now.addresses && was.node == now.node) else {
            return true;
        };
        let Some(old) = was.chain(direction) else { return true };
        *known.entry((old, chain)).or_insert_with(|| self.chain_may_be_less(old, chain))
    }

    fn chain_may_be_less(&self, old: &Id, new: &Id) -> bool {
        let (Some(old), Some(new)) = (self.before.chains.get(old), self.now.chains.get(new)) else {
            return true;
        };
        let pair = |(old, new): (&Id, &Id)| match (self.before.stages.get(old), self.now.stages.get(new)) {
            (Some(old), Some(new)) => self.stage_may_be_less(old, new),
            _ => true,
        };
        old.stages.len() != new.stages.len() || old.stages.iter().zip(&new.stages).any(pair)
    }

    fn stage_may_be_less(&self, old: &Arc<Stage>, new: &Arc<Stage>) -> bool {
        let same_rules = old.rules == new.rules;
        let same_end = old.otherwise == new.otherwise;
        // Where all rules accept, more of them only allow more.
        let accepts = |stage: &Stage| stage.rules.iter().all(|rule| rule.outcome == Outcome::Accept);
        let more_accepted = || {
            let those: Vec<_> = new.rules.iter().map(|rule| (&rule.peer, &rule.port)).collect();
            accepts(old)
                && accepts(new)
                && old.rules.iter().all(|rule| those.contains(&(&rule.peer, &rule.port)))
        };
        !same_end || !(same_rules || more_accepted()) || new.rules.iter().any(|rule| self.rule_lost(rule))
    }

    /// Whether a rule's sets are such that it may accept less, or keep others from being accepted.
    fn rule_lost(&self, rule: &Rule) -> bool {
        let peer = match &rule.peer {
            Peer::Addresses(id) => self.sets.get(id),
            Peer::Networks(_) | Peer::Anyone | Peer::OwnNode => None,
        };
        let port = match &rule.port {
            Port::Named(id) => self.sets.get(id),
            Port::Numbers(_) | Port::Any => None,
        };
        peer.into_iter().chain(port).any(|became| match rule.outcome {
            Outcome::Accept => *became == Became::Other,
            Outcome::Drop | Outcome::Next => true,
        })
    }
}

/// Sets of networks and of numbers are named after what is in them: they never change.
fn changed_sets<'a>(before: &'a Program, now: &'a Program) -> BTreeMap<&'a Id, Became> {
    let mut changed = BTreeMap::new();
    let became = |grew: bool| if grew { Became::Larger } else { Became::Other };
    for (id, set) in &now.addresses {
        match before.addresses.get(id) {
            Some(was) if Arc::ptr_eq(was, set) || was == set => {}
            Some(was) => drop(changed.insert(id, became(was.is_subset(set)))),
            None => {}
        }
    }
    for (id, set) in &now.named_ports {
        match before.named_ports.get(id) {
            Some(was) if was != set => drop(changed.insert(id, became(was.is_subset(set)))),
            _ => {}
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use serde_json::{json, Value};

    use crate::{compile, Program, Snapshot};

    /// The pods `web` and `db`, and perhaps `ops`; the database takes only from those with these labels.
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

    fn narrowed(before: &Program, now: &Program) -> Vec<String> {
        now.narrowed_since(before).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_a_pod_that_lost_something_is_named() {
        let (open, web) = (program("ops", None), program("ops", from(&["web"])));
        assert_eq!(narrowed(&open, &web), ["10.0.0.2"]);
        assert!(narrowed(&web, &open).is_empty(), "a policy that is gone takes nothing away");
        assert!(narrowed(&web, &web).is_empty());
        let both = program("ops", from(&["web", "ops"]));
        assert!(narrowed(&web, &both).is_empty(), "one more who is allowed");
        assert_eq!(narrowed(&both, &web), ["10.0.0.2"]);
    }

    #[test]
    fn a_label_that_is_taken_away_is_noticed_and_one_that_is_given_is_not() {
        let (with, without) = (program("web", from(&["web"])), program("ops", from(&["web"])));
        assert_eq!(narrowed(&with, &without), ["10.0.0.2"]);
        assert!(narrowed(&without, &with).is_empty());
    }

    #[test]
    fn whoever_is_left_with_an_address_that_two_pods_had_is_named() {
        let isolated = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "none" },
            "spec": { "podSelector": { "matchLabels": { "app": "new" } } } });
        let of = |pods: &[&str]| {
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
        let (both, left) = (of(&["before", "new"]), of(&["new"]));
        assert_eq!(narrowed(&both, &left), ["10.0.0.1"]);
        assert!(narrowed(&left, &left).is_empty());
    }
}
