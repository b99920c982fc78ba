//! Releases garbage.

use std::collections::BTreeMap;

use super::{AffinityOwner, Allocator, Error, Release};
use crate::{Block, Garbage, Leak, Node, Ownership, Problem, Rules};

/// What was released and repaired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// Released addresses.
    pub leaks: Vec<Leak>,
    /// Deleted nodes that have no block any more.
    pub nodes: Vec<String>,
    /// Deleted nodes whose object was deleted.
    pub orphans: Vec<String>,
    /// Repaired records.
    pub repaired: Vec<Problem>,
    /// Errors about single records.
    pub errors: Vec<Error>,
}

impl Allocator<'_> {
    /// Releases confirmed garbage. `is_gone` checks each holder again before its addresses are released. Errors about
    /// single records are collected; an unavailable store ends the run.
    pub fn collect(
        &self,
        rules: &Rules,
        garbage: &Garbage,
        is_gone: impl Fn(&Leak) -> bool,
        may_continue: impl Fn() -> bool,
    ) -> Result<CollectReport, Error> {
        let mut collected = CollectReport::default();
        let mut by_handle: BTreeMap<&str, Vec<&Leak>> = BTreeMap::new();
        for leak in &garbage.leaks {
            by_handle.entry(&leak.handle).or_default().push(leak);
        }
        for leaks in by_handle.into_values() {
            if !may_continue() {
                return Ok(collected);
            }
            if leaks.iter().all(|leak| is_gone(leak)) {
                let releases: Vec<Release> = leaks.iter().map(|leak| release(leak)).collect();
                if collected.collect_error(self.release(rules, &releases))?.is_some() {
                    collected.leaks.extend(leaks.into_iter().cloned());
                }
            }
        }
        for node in &garbage.nodes {
            if !may_continue() {
                return Ok(collected);
            }
            if let Some(true) = collected.collect_error(self.release_blocks(node))? {
                collected.collect_error(Ownership::delete(self.store, node))?;
                collected.nodes.push(node.clone());
            }
        }
        for problem in garbage.problems.iter().filter(|problem| !matches!(problem, Problem::Malformed { .. }))
        {
            if !may_continue() {
                return Ok(collected);
            }
            if let Some(true) = collected.collect_error(self.repair(problem))? {
                collected.repaired.push(problem.clone());
            }
        }
        Ok(collected)
    }

    /// Deletes the object of a node that does not exist in Kubernetes, if no address names the node any more:
    /// containers that are not pods may still run. Otherwise it removes the tunnel addresses, which were released.
    /// Returns whether the object was deleted.
    pub fn delete_node_object(&self, name: &str, kubernetes_name: &str) -> Result<bool, Error> {
        let names_node = |block: Block| {
            let mut nodes = block.allocations().filter_map(|one| one.attribute.secondary.get("node"));
            nodes.any(|node| node == name)
        };
        let is_used = !self.affinities(Some(&AffinityOwner::host(name)))?.is_empty()
            || self.blocks()?.into_iter().flatten().any(names_node);
        if is_used {
            return Node::remove_tunnels(self.store, name).map(|()| false);
        }
        Node::delete(self.store, name, kubernetes_name)
    }

    /// Releases everything of a node that will not return: its pods' addresses, its own addresses, and its blocks.
    pub fn release_node(&self, rules: &Rules, node: &str) -> Result<CollectReport, Error> {
        let leaks = Leak::of_node(&self.snapshot()?, node);
        let garbage = Garbage { leaks, nodes: vec![node.to_owned()], ..Garbage::default() };
        let mut collected = self.collect(rules, &garbage, |_| true, || true)?;
        // If it returns nevertheless, it must not use its old tunnel addresses: a pod may have them.
        collected.collect_error(Node::remove_tunnels(self.store, node))?;
        Ok(collected)
    }

    /// Releases a node's empty blocks. Returns whether it has no affinity left.
    fn release_blocks(&self, node: &str) -> Result<bool, Error> {
        let owner = AffinityOwner::host(node);
        self.release_all_affinities(&owner, true)?;
        Ok(self.affinities(Some(&owner))?.is_empty())
    }
}

impl CollectReport {
    /// Collects an error about a single record. Errors of the store are returned.
    fn collect_error<T>(&mut self, done: Result<T, Error>) -> Result<Option<T>, Error> {
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

/// The release of a leak, which fails if the address was assigned again since then.
fn release(leak: &Leak) -> Release {
    let sequence = Some(leak.sequence).filter(|sequence| *sequence > 0);
    Release { ip: leak.ip, handle: Some(leak.handle.clone()), sequence }
}
