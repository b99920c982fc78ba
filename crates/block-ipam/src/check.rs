//! Comparing all records with each other, and mending what differs. Nothing has to be locked for it: each record is repaired by
//! compare-and-swap, and what is at work right now is left alone or turned back safely.

use std::collections::BTreeMap;
use std::fmt;

use ipnet::IpNet;

use super::{Affinity, AffinityOwner, Allocator, Block, Error, Handle, Rules, State, StoreSnapshot};

/// Something that does not fit together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// A record that cannot be read.
    Malformed {
        /// Its key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// A handle that does not count an address that a block gives to it.
    Uncounted {
        /// The handle.
        handle: String,
        /// The block.
        block: IpNet,
        /// The handle's count for the block.
        counted: usize,
        /// The number of addresses that the block assigns to the handle.
        held: usize,
    },
    /// A handle that counts addresses which its block does not give to it.
    Overcounted {
        /// The handle.
        handle: String,
        /// The block.
        block: String,
        /// The handle's count for the block.
        counted: usize,
        /// The number of addresses that the block assigns to the handle.
        held: usize,
    },
    /// A handle that counts nothing at all.
    EmptyHandle {
        /// The handle.
        handle: String,
    },
    /// A claim whose block is not there or is somebody else's.
    StaleAffinity {
        /// Whose claim.
        owner: AffinityOwner,
        /// To which block.
        block: IpNet,
        /// How far it has come.
        state: State,
        /// Whose the block is.
        holder: Option<AffinityOwner>,
    },
    /// A claim that somebody began to make or to give up. It is no error while that somebody is at work.
    UnfinishedAffinity {
        /// Whose claim.
        owner: AffinityOwner,
        /// To which block.
        block: IpNet,
        /// How far it has come.
        state: State,
    },
    /// A block whose owner has no claim to it.
    MissingAffinity {
        /// The block.
        block: IpNet,
        /// Its owner.
        owner: AffinityOwner,
    },
    /// A block that lies in no pool.
    OutsidePools {
        /// The block.
        block: IpNet,
        /// How many addresses of it are in use.
        in_use: usize,
    },
    /// A block whose size is not its pool's: it may overlap with others.
    WrongSize {
        /// The block.
        block: IpNet,
        /// The prefix length of the pool's blocks.
        wanted: u8,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Malformed { key, why } => write!(f, "{key} makes no sense: {why}"),
            Problem::Uncounted { handle, block, counted, held } => {
                write!(f, "handle {handle} counts {counted} addresses of {block}, which gives it {held}")
            }
            Problem::Overcounted { handle, block, counted, held } => {
                write!(f, "handle {handle} counts {counted} addresses of {block}, which gives it only {held}")
            }
            Problem::EmptyHandle { handle } => write!(f, "handle {handle} counts no address"),
            Problem::StaleAffinity { owner, block, state, holder } => match holder {
                None => write!(
                    f,
                    "{owner} has a claim ({}) to {block}, which is not there or nobody's",
                    name(*state)
                ),
                Some(holder) => {
                    write!(f, "{owner} has a claim ({}) to {block}, which belongs to {holder}", name(*state))
                }
            },
            Problem::UnfinishedAffinity { owner, block, state } => {
                write!(f, "the claim of {owner} to {block} is unfinished ({})", name(*state))
            }
            Problem::MissingAffinity { block, owner } => {
                write!(f, "{block} belongs to {owner}, who has no claim to it")
            }
            Problem::OutsidePools { block, in_use } => {
                write!(f, "{block} is in no pool; {in_use} addresses are in use")
            }
            Problem::WrongSize { block, wanted } => write!(f, "{block} is not of its pool's size, /{wanted}"),
        }
    }
}

impl Problem {
    /// Whose claim or block it is about, if it is about one.
    pub(super) fn owner(&self) -> Option<&AffinityOwner> {
        match self {
            Problem::StaleAffinity { owner, .. }
            | Problem::UnfinishedAffinity { owner, .. }
            | Problem::MissingAffinity { owner, .. } => Some(owner),
            _ => None,
        }
    }
}

fn name(state: State) -> &'static str {
    match state {
        State::Pending => "pending",
        State::Confirmed => "confirmed",
        State::PendingDeletion => "pendingDeletion",
    }
}

/// What a look at everything found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// How many blocks there are.
    pub blocks: usize,
    /// How many addresses are in use.
    pub addresses: usize,
    /// How many handles there are.
    pub handles: usize,
    /// What does not fit together.
    pub problems: Vec<Problem>,
}

impl Allocator<'_> {
    /// Compares blocks, handles, claims and pools. What is at work at the same moment may look like a problem: ask twice.
    pub fn check(&self, rules: &Rules) -> Result<CheckReport, Error> {
        let snapshot = self.snapshot()?;
        Ok(CheckReport {
            blocks: snapshot.blocks.len(),
            addresses: snapshot.blocks().map(|block| block.allocations().count()).sum(),
            handles: snapshot.handles.len(),
            problems: snapshot.problems(rules),
        })
    }

    /// Mends what can be repaired from the records alone. Whether it was.
    pub fn repair(&self, problem: &Problem) -> Result<bool, Error> {
        match problem {
            // To promise too much does no harm, so that nothing that happens meanwhile can make this wrong.
            Problem::Uncounted { handle, block, counted, held } => {
                self.count_up(handle, *block, held.saturating_sub(*counted)).map(|_| true)
            }
            Problem::Overcounted { handle, block, .. } => match block.parse() {
                Ok(block) => self.settle_anew(handle, block).map(|()| true),
                Err(_) => Ok(false),
            },
            Problem::EmptyHandle { handle } => self.forget_idle_handle(handle),
            Problem::StaleAffinity { owner, block, .. } => self.forget_stale_affinity(owner, *block),
            Problem::MissingAffinity { block, owner } => match self.claim(owner, *block) {
                Err(Error::NotOwner { .. }) => Ok(false),
                done => done.map(|()| true),
            },
            _ => Ok(false),
        }
    }
}

impl StoreSnapshot {
    /// What does not fit together.
    pub(super) fn problems(&self, rules: &Rules) -> Vec<Problem> {
        let mut problems = self.malformed.clone();
        problems.extend(compare_handles(&self.handles, &self.blocks));
        problems.extend(compare_affinities(&self.affinities, &self.blocks));
        problems.extend(self.blocks().filter_map(|block| compare_pool(block, rules)));
        problems
    }
}

fn compare_handles(handles: &BTreeMap<String, Handle>, blocks: &BTreeMap<IpNet, Block>) -> Vec<Problem> {
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

fn compare_affinities(
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
            if !affinities.iter().any(|(claimant, claimed, _)| *claimant == owner && *claimed == cidr) {
                problems.push(Problem::MissingAffinity { block: cidr, owner });
            }
        }
    }
    problems
}

fn compare_pool(block: &Block, rules: &Rules) -> Option<Problem> {
    let (cidr, in_use) = (block.cidr(), block.allocations().count());
    match rules.pools.iter().find(|pool| pool.cidr().contains(&cidr)) {
        None => Some(Problem::OutsidePools { block: cidr, in_use }),
        Some(pool) if pool.block_size() != cidr.prefix_len() => {
            Some(Problem::WrongSize { block: cidr, wanted: pool.block_size() })
        }
        Some(_) => None,
    }
}
