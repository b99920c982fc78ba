//! Carrying out what was found about those who are gone.

use std::collections::BTreeMap;

use super::{AffinityOwner, Allocator, Error, Release};
use crate::{Block, Garbage, Leak, Node, Problem, Rules};

/// What was given back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// Addresses.
    pub leaks: Vec<Leak>,
    /// Nodes that are gone and have no block any more.
    pub nodes: Vec<String>,
    /// Nodes that are gone and have no object in the store any more.
    pub orphans: Vec<String>,
    /// Records that were repaired.
    pub repaired: Vec<Problem>,
    /// What could not be done, and why.
    pub errors: Vec<Error>,
}

impl Allocator<'_> {
    /// Carries a garbage out. Before a handle's addresses go, `is_gone` is asked about each: the answer may be another by now. It goes on
    /// past errors, but for a store that does not answer.
    pub fn collect(
        &self,
        rules: &Rules,
        garbage: &Garbage,
        is_gone: impl Fn(&Leak) -> bool,
        may_go_on: impl Fn() -> bool,
    ) -> Result<CollectReport, Error> {
        let mut collected = CollectReport::default();
        let mut by_handle: BTreeMap<&str, Vec<&Leak>> = BTreeMap::new();
        for leak in &garbage.leaks {
            by_handle.entry(&leak.handle).or_default().push(leak);
        }
        for leaks in by_handle.into_values() {
            if !may_go_on() {
                return Ok(collected);
            }
            if leaks.iter().all(|leak| is_gone(leak)) {
                let releases: Vec<Release> = leaks.iter().map(|leak| release(leak)).collect();
                if collected.pass_over(self.release(rules, &releases))?.is_some() {
                    collected.leaks.extend(leaks.into_iter().cloned());
                }
            }
        }
        for node in &garbage.nodes {
            if !may_go_on() {
                return Ok(collected);
            }
            if let Some(true) = collected.pass_over(self.leave_to_others(node))? {
                collected.nodes.push(node.clone());
            }
        }
        for problem in garbage.problems.iter().filter(|problem| !matches!(problem, Problem::Malformed { .. }))
        {
            if !may_go_on() {
                return Ok(collected);
            }
            if let Some(true) = collected.pass_over(self.repair(problem))? {
                collected.repaired.push(problem.clone());
            }
        }
        Ok(collected)
    }

    /// Deletes the object of a node that is gone from Kubernetes, if nobody there has an address any more: of containers that are no pods
    /// nobody can tell whether they live. Else it says no longer where its tunnels end, since those addresses were released. Whether it was deleted.
    pub fn delete_node_object(&self, name: &str, kubernetes_name: &str) -> Result<bool, Error> {
        let is_there = |block: Block| {
            let mut nodes = block.allocations().filter_map(|one| one.attribute.secondary.get("node"));
            nodes.any(|node| node == name)
        };
        let has_something = !self.affinities(Some(&AffinityOwner::host(name)))?.is_empty()
            || self.blocks()?.into_iter().flatten().any(is_there);
        match has_something {
            false => Node::delete(self.store, name, kubernetes_name),
            true => Node::forget_tunnels(self.store, name).map(|()| false),
        }
    }

    /// Gives back all that a node had, which is gone for ever: its pods' addresses, its own, and its blocks.
    pub fn release_node(&self, rules: &Rules, node: &str) -> Result<CollectReport, Error> {
        let leaks = Leak::of_node(&self.snapshot()?, node);
        let garbage = Garbage { leaks, nodes: vec![node.to_owned()], ..Garbage::default() };
        let mut collected = self.collect(rules, &garbage, |_| true, || true)?;
        // If it comes back it must not believe that the ends of its tunnels are still its own: a pod may have them.
        collected.pass_over(Node::forget_tunnels(self.store, node))?;
        Ok(collected)
    }

    /// Gives up a node's empty blocks and its claims. Whether it has none left.
    fn leave_to_others(&self, node: &str) -> Result<bool, Error> {
        let owner = AffinityOwner::host(node);
        self.release_all_affinities(&owner, true)?;
        Ok(self.affinities(Some(&owner))?.is_empty())
    }
}

impl CollectReport {
    /// Notes what concerns one record alone; a store that does not answer ends it all.
    fn pass_over<T>(&mut self, done: Result<T, Error>) -> Result<Option<T>, Error> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(error @ Error::Store(_)) => Err(error),
            Err(error) => {
                self.errors.push(error);
                Ok(None)
            }
        }
    }
}

/// As it was when it was looked at: an address that was given again since then is another's.
fn release(leak: &Leak) -> Release {
    let sequence = Some(leak.sequence).filter(|sequence| *sequence > 0);
    Release { ip: leak.ip, handle: Some(leak.handle.clone()), sequence }
}
