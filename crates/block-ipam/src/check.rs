//! Compares all records with each other, and repairs differences. No lock is needed: each record is repaired by
//! compare-and-swap, and operations in progress are left alone or fail safely.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::{Affinity, AffinityOwner, Allocator, Block, Error, Handle, Problem, Rules, State, StoreSnapshot};

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The number of blocks.
    pub blocks: usize,
    /// The number of addresses in use.
    pub addresses: usize,
    /// The number of handles.
    pub handles: usize,
    /// The inconsistencies.
    pub problems: Vec<Problem>,
}

impl Allocator<'_> {
    /// Compares blocks, handles, affinities and pools. An operation in progress may look like a problem: check twice.
    pub fn check(&self, rules: &Rules) -> Result<CheckReport, Error> {
        let snapshot = self.snapshot()?;
        Ok(CheckReport {
            blocks: snapshot.blocks.len(),
            addresses: snapshot.blocks().map(|block| block.allocations().count()).sum(),
            handles: snapshot.handles.len(),
            problems: snapshot.problems(rules),
        })
    }

    /// Repairs a problem if the records have all information. Returns whether it was repaired.
    pub fn repair(&self, problem: &Problem) -> Result<bool, Error> {
        match problem {
            // A count that is too high does no harm, so concurrent changes cannot make this wrong.
            Problem::Uncounted { handle, block, counted, held } => {
                self.increase_count(handle, *block, held.saturating_sub(*counted)).map(|_| true)
            }
            Problem::Overcounted { handle, block, .. } => match block.parse() {
                Ok(block) => self.correct_count(handle, block).map(|()| true),
                Err(_) => Ok(false),
            },
            Problem::EmptyHandle { handle } => self.delete_empty_handle(handle),
            Problem::StaleAffinity { owner, block, .. } => self.delete_stale_affinity(owner, *block),
            Problem::MissingAffinity { block, owner } => match self.claim(owner, *block) {
                Err(Error::NotOwner { .. }) => Ok(false),
                done => done.map(|()| true),
            },
            _ => Ok(false),
        }
    }
}

impl StoreSnapshot {
    /// All inconsistencies.
    pub(super) fn problems(&self, rules: &Rules) -> Vec<Problem> {
        let mut problems = self.malformed.clone();
        problems.extend(check_handles(&self.handles, &self.blocks));
        problems.extend(check_affinities(&self.affinities, &self.blocks));
        problems.extend(self.blocks().filter_map(|block| check_pool(block, rules)));
        problems
    }
}

fn check_handles(handles: &BTreeMap<String, Handle>, blocks: &BTreeMap<IpNet, Block>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut held: BTreeMap<(&str, IpNet), usize> = BTreeMap::new();
    for block in blocks.values() {
        for handle in block
            .allocations()
            .filter(|one| !one.attribute.is_reserved())
            .filter_map(|one| one.attribute.handle())
        {
            *held.entry((handle, block.cidr())).or_default() += 1;
        }
    }
    for ((handle, block), held) in &held {
        let counted = handles.get(*handle).map_or(0, |handle| handle.count(*block));
        if counted < *held {
            let handle = (*handle).to_owned();
            problems.push(Problem::Uncounted { handle, block: *block, counted, held: *held });
        }
    }
    for (id, handle) in handles {
        if handle.is_empty() {
            problems.push(Problem::EmptyHandle { handle: id.clone() });
        }
        for (block, counted) in handle.blocks() {
            let cidr = block.parse().ok();
            let held = cidr.and_then(|cidr| held.get(&(id.as_str(), cidr))).copied().unwrap_or(0);
            if counted > held {
                let (handle, block) = (id.clone(), block.to_owned());
                problems.push(Problem::Overcounted { handle, block, counted, held });
            }
        }
    }
    problems
}

fn check_affinities(
    affinities: &[(AffinityOwner, IpNet, Affinity)],
    blocks: &BTreeMap<IpNet, Block>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (owner, cidr, affinity) in affinities {
        let holder = blocks.get(cidr).and_then(Block::owner);
        let (owner, block, state) = (owner.clone(), *cidr, affinity.state);
        match holder {
            Some(holder) if holder == owner && state == State::Confirmed => {}
            Some(holder) if holder == owner => {
                problems.push(Problem::UnfinishedAffinity { owner, block, state })
            }
            holder => problems.push(Problem::StaleAffinity { owner, block, state, holder }),
        }
    }
    for block in blocks.values() {
        let cidr = block.cidr();
        if let Some(owner) = block.owner() {
            if !affinities.iter().any(|(other, claimed, _)| *other == owner && *claimed == cidr) {
                problems.push(Problem::MissingAffinity { block: cidr, owner });
            }
        }
    }
    problems
}

fn check_pool(block: &Block, rules: &Rules) -> Option<Problem> {
    let (cidr, in_use) = (block.cidr(), block.allocations().count());
    match rules.pools.iter().find(|pool| pool.cidr().contains(&cidr)) {
        None => Some(Problem::OutsidePools { block: cidr, in_use }),
        Some(pool) if pool.block_size() != cidr.prefix_len() => {
            Some(Problem::WrongSize { block: cidr, wanted: pool.block_size() })
        }
        Some(_) => None,
    }
}
