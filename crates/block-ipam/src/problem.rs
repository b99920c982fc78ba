//! Inconsistencies between records.

use std::fmt;

use ipnet::IpNet;

use super::{AffinityOwner, State};

/// An inconsistency.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// A record is malformed.
    Malformed {
        /// Its key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// A handle counts too few addresses of a block.
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
    /// A handle counts too many addresses of a block.
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
    /// A handle counts no address.
    EmptyHandle {
        /// The handle.
        handle: String,
    },
    /// The block of an affinity does not exist or belongs to another owner.
    StaleAffinity {
        /// The owner of the affinity.
        owner: AffinityOwner,
        /// The block.
        block: IpNet,
        /// The state of the affinity.
        state: State,
        /// The owner of the block.
        holder: Option<AffinityOwner>,
    },
    /// A claim or release that is not finished. It is not an error while its node is still at work.
    UnfinishedAffinity {
        /// The owner of the affinity.
        owner: AffinityOwner,
        /// The block.
        block: IpNet,
        /// The state of the affinity.
        state: State,
    },
    /// The owner of a block has no affinity with it.
    MissingAffinity {
        /// The block.
        block: IpNet,
        /// Its owner.
        owner: AffinityOwner,
    },
    /// A block is in no pool.
    OutsidePools {
        /// The block.
        block: IpNet,
        /// The number of its addresses in use.
        in_use: usize,
    },
    /// A block does not have the block size of its pool, so it may overlap others.
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
            Problem::Malformed { key, why } => write!(f, "{key} is malformed: {why}"),
            Problem::Uncounted { handle, block, counted, held } => {
                write!(f, "handle {handle} counts {counted} addresses of {block}, but has {held}")
            }
            Problem::Overcounted { handle, block, counted, held } => {
                write!(f, "handle {handle} counts {counted} addresses of {block}, but has only {held}")
            }
            Problem::EmptyHandle { handle } => write!(f, "handle {handle} counts no address"),
            Problem::StaleAffinity { owner, block, state, holder } => match holder {
                None => write!(
                    f,
                    "{owner} has an affinity ({}) with {block}, which does not exist or has no owner",
                    name(*state)
                ),
                Some(holder) => {
                    write!(
                        f,
                        "{owner} has an affinity ({}) with {block}, which belongs to {holder}",
                        name(*state)
                    )
                }
            },
            Problem::UnfinishedAffinity { owner, block, state } => {
                write!(f, "the affinity of {owner} with {block} is unfinished ({})", name(*state))
            }
            Problem::MissingAffinity { block, owner } => {
                write!(f, "{block} belongs to {owner}, which has no affinity with it")
            }
            Problem::OutsidePools { block, in_use } => {
                write!(f, "{block} is in no pool; {in_use} addresses are in use")
            }
            Problem::WrongSize { block, wanted } => {
                write!(f, "{block} does not have its pool's block size, /{wanted}")
            }
        }
    }
}

impl Problem {
    /// The affected owner, if there is one.
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
