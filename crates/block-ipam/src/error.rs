//! Errors of block IPAM.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::node_owner::NodeOwner;
use crate::selector::SelectorError;
use crate::store::StoreError;

/// Why an operation failed. Where Calico has a well-known text, this one begins with the same words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record is malformed.
    #[error("{key} is malformed: {why}")]
    Malformed {
        /// Its key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// A selector of a pool is invalid.
    #[error("IP pool {pool}: {why}")]
    Selector {
        /// The pool.
        pool: String,
        /// What is wrong.
        why: SelectorError,
    },
    /// No pool is available for this node.
    #[error("no configured Calico pools for node {node}: none of {pools} enabled {family} pools {why}")]
    NoPool {
        /// The node.
        node: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The number of enabled pools.
        pools: usize,
        /// The condition that none of them meets.
        why: String,
    },
    /// A requested pool does not exist.
    #[error("the given pool ({pool}) does not exist, is disabled, or is not {family}")]
    UnknownPool {
        /// Its name or CIDR, as requested.
        pool: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// The node has as many blocks as it may have.
    #[error("limit of {limit} blocks reached for this node")]
    BlockLimit {
        /// maxBlocksPerHost.
        limit: usize,
    },
    /// The node's own blocks are full, and no other may be used.
    #[error("No more free affine blocks and strict affinity enabled")]
    StrictAffinity,
    /// All blocks are taken and full.
    #[error("No Free Blocks: every address of {pools} is in use, cooling down or reserved")]
    Full {
        /// The pools.
        pools: String,
    },
    /// The address is in use.
    #[error("Address already assigned in block: {ip} belongs to {holder}")]
    Taken {
        /// The address.
        ip: IpAddr,
        /// Its handle.
        holder: String,
    },
    /// The address is in no pool that allows its use.
    #[error("{ip} is not in an enabled IP pool that allows {allowed}")]
    OutsideOfPools {
        /// The address.
        ip: IpAddr,
        /// The use.
        allowed: &'static str,
    },
    /// The address has another holder than the caller expects.
    #[error("{ip} is not released: {why}")]
    Stale {
        /// The address.
        ip: IpAddr,
        /// What differs.
        why: String,
    },
    /// The block belongs to another owner.
    #[error("block {block} belongs to {holder}")]
    NotOwner {
        /// The block.
        block: IpNet,
        /// The owner.
        holder: String,
    },
    /// The block has addresses in use.
    #[error("block {block} is not empty")]
    NotEmpty {
        /// The block.
        block: IpNet,
    },
    /// An existing block of another size overlaps.
    #[error("block {block} overlaps with {other}, which has another size")]
    Overlap {
        /// The requested block.
        block: IpNet,
        /// The existing block.
        other: IpNet,
    },
    /// Invalid settings.
    #[error("invalid settings: {why}")]
    Settings {
        /// Why.
        why: String,
    },
    /// Another process owns the node's blocks.
    #[error("the addresses of node {node} belong to another agent: {owner}")]
    NodeOwned {
        /// The node.
        node: String,
        /// The other process.
        owner: Box<NodeOwner>,
    },
    /// Other clients were faster in every attempt.
    #[error("Max retries hit - excessive concurrent IPAM requests ({what})")]
    Busy {
        /// The operation.
        what: String,
    },
}

impl Error {
    /// A hint for the administrator.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Store(error) => error.hint(),
            Error::Malformed { .. } => {
                "inspect the record with the store's own tool, and repair or delete it"
            }
            Error::Selector { .. } => "correct nodeSelector or namespaceSelector of the pool",
            Error::NoPool { .. } => {
                "enable a pool, or check its nodeSelector, namespaceSelector and allowedUses"
            }
            Error::UnknownPool { .. } => "name an enabled pool of the right family, by name or CIDR",
            Error::BlockLimit { .. } => {
                "raise maxBlocksPerHost (podwire ipam configure), or make blocks larger"
            }
            Error::StrictAffinity => "add a pool, or allow borrowing (podwire ipam configure)",
            Error::Full { .. } => "add a pool; podwire ipam check finds leaked addresses",
            Error::Taken { .. } => "choose another address",
            Error::OutsideOfPools { .. } => "choose an address of an enabled pool",
            Error::Stale { .. } => "check again: the address was assigned to another holder meanwhile",
            Error::NotOwner { .. } | Error::NotEmpty { .. } => "release its addresses first",
            Error::Overlap { .. } => "a pool's block size was changed: drain the old blocks first",
            Error::Settings { .. } => {
                "borrowing or new blocks must be allowed; a block limit needs strict affinity"
            }
            Error::NodeOwned { .. } => {
                "give each machine its own node name (--node); if the other one is gone, its claim ends within a minute"
            }
            Error::Busy { .. } => "try again",
        }
    }

    /// Whether another client was faster. The caller must read again.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Error::Store(error) if error.is_conflict())
    }
}
