//! Why blocks cannot be had, or not be given back.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::selector::SelectorError;
use crate::store::StoreError;

/// What went wrong with blocks. Where Calico has a well-known text, ours begins with the same words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store said no.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record that makes no sense.
    #[error("{key} makes no sense: {why}")]
    Malformed {
        /// Its key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// A selector of a pool that makes no sense.
    #[error("IP pool {pool}: {why}")]
    Selector {
        /// The pool.
        pool: String,
        /// What is wrong.
        why: SelectorError,
    },
    /// No pool is there for this node.
    #[error("no configured Calico pools for node {node}: none of {pools} enabled {family} pools {why}")]
    NoPool {
        /// The node.
        node: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// How many pools there are.
        pools: usize,
        /// What they lack.
        why: String,
    },
    /// A pool that was asked for is not there.
    #[error("the given pool ({pool}) does not exist, is disabled, or is not {family}")]
    UnknownPool {
        /// Its name or CIDR, as it was asked for.
        pool: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// Blocks are there, but not for this node.
    #[error("limit of {limit} blocks reached for this node")]
    BlockLimit {
        /// maxBlocksPerHost.
        limit: usize,
    },
    /// Nothing is left of the node's own blocks and no other may be used.
    #[error("No more free affine blocks and strict affinity enabled")]
    StrictAffinity,
    /// Every block is taken and full.
    #[error("No Free Blocks: every address of {pools} is in use, cooling down or reserved")]
    Full {
        /// The pools that were looked at.
        pools: String,
    },
    /// Somebody has this address.
    #[error("Address already assigned in block: {ip} belongs to {holder}")]
    Taken {
        /// The address.
        ip: IpAddr,
        /// Its handle.
        holder: String,
    },
    /// The address is in no pool that may give it.
    #[error("{ip} is not in an enabled IP pool that allows {allowed}")]
    OutsideOfPools {
        /// The address.
        ip: IpAddr,
        /// What it is wanted for.
        allowed: &'static str,
    },
    /// The address changed hands since the caller looked.
    #[error("{ip} is not released: {why}")]
    Stale {
        /// The address.
        ip: IpAddr,
        /// What differs.
        why: String,
    },
    /// The block belongs to somebody else.
    #[error("block {block} belongs to {holder}")]
    NotOwner {
        /// The block.
        block: IpNet,
        /// Whose it is.
        holder: String,
    },
    /// The block cannot be given up.
    #[error("block {block} is not empty")]
    NotEmpty {
        /// The block.
        block: IpNet,
    },
    /// Blocks of another size are there already.
    #[error("block {block} overlaps with {other}, which has another size")]
    Overlap {
        /// The block that was wanted.
        block: IpNet,
        /// The one that is there.
        other: IpNet,
    },
    /// A setting that makes no sense.
    #[error("these settings make no sense: {why}")]
    Settings {
        /// Why.
        why: String,
    },
    /// Others were always faster.
    #[error("Max retries hit - excessive concurrent IPAM requests ({what})")]
    Busy {
        /// What was tried.
        what: String,
    },
}

impl Error {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Store(error) => error.hint(),
            Error::Malformed { .. } => {
                "look at the record with the store's own tool, and repair or remove it"
            }
            Error::Selector { .. } => "correct nodeSelector or namespaceSelector of the pool",
            Error::NoPool { .. } => {
                "enable a pool, or look at its nodeSelector, namespaceSelector and allowedUses"
            }
            Error::UnknownPool { .. } => "name an enabled pool of the right family, by name or CIDR",
            Error::BlockLimit { .. } => {
                "raise maxBlocksPerHost (podwire ipam configure), or make blocks larger"
            }
            Error::StrictAffinity => "add a pool, or allow borrowing (podwire ipam configure)",
            Error::Full { .. } => "add a pool; podwire ipam check finds addresses that nobody uses",
            Error::Taken { .. } => "choose another address",
            Error::OutsideOfPools { .. } => "choose an address of an enabled pool",
            Error::Stale { .. } => "look again: the address was given to somebody else meanwhile",
            Error::NotOwner { .. } | Error::NotEmpty { .. } => "release its addresses first",
            Error::Overlap { .. } => "a pool's block size was changed: drain the old blocks first",
            Error::Settings { .. } => {
                "borrowing or new blocks must be allowed; a block limit needs strict affinity"
            }
            Error::Busy { .. } => "try again",
        }
    }

    /// Whether it says that somebody else was faster: read again and think again.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Error::Store(error) if error.is_conflict())
    }
}
