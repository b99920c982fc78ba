//! Calico's block IPAM: how the nodes of a cluster share address pools, in Calico's own records.
//!
//! An administrator creates [`Pool`]s. A pool is divided into [`Block`]s of equal size (64 addresses by default). A
//! node that needs addresses claims a block, in two phases, and then assigns its addresses to pods without
//! coordination.
//!
//! ```text
//!  pool 10.244.0.0/16 ── blocks ──▶ block 10.244.1.0/26 ── addresses ──▶ pods
//!                                       │  ▲                                 ▲
//!        affinity node1 ↔ 10.244.1.0/26 ┘  └── handle: which blocks hold addresses of this container
//! ```
//!
//! - A [`Block`] records which handle has which of its addresses. It is the only authority about that, and is written
//!   by compare-and-swap, so that no address has two holders.
//! - An [`Affinity`] records that a node claims a block (`pending`), owns it (`confirmed`) or releases it
//!   (`pendingDeletion`). Nodes install routes only for confirmed affinities. So the block of a confirmed affinity
//!   always exists and names the same node.
//! - A [`Handle`] maps a container to its blocks. Its count is increased before a block is written and decreased after,
//!   so it may be too high, but it never misses an address.
//!
//! [`Allocator`] implements the operations over a [`Store`](crate::store::Store). docs/ipam.md has the details.

#![forbid(unsafe_code)]

mod affinity;
mod affinity_owner;
mod allocator;
mod attribute;
mod block;
mod block_index;
mod check;
mod config;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod error;
mod garbage;
mod handle;
mod json;
pub mod key;
mod node;
mod node_owner;
mod pool;
mod problem;
mod record;
mod request;
mod reservation;
mod rules;
pub mod selector;
mod snapshot;
mod split;
pub mod store;
pub mod timestamp;
mod utilization;
mod walk;

pub use affinity::{Affinity, State};
pub use affinity_owner::AffinityOwner;
pub use allocator::{
    AdoptOutcome, Allocator, CollectReport, Refill, Release, SweepReport, Transfer, TransferOutcome,
};
pub use attribute::Attribute;
pub use block::{Allocation, Block};
pub use block_index::BlockIndex;
pub use check::CheckReport;
pub use config::Config;
pub use error::Error;
pub use garbage::{Collector, Garbage, Holder, Inventory, Leak, Pod};
pub use handle::Handle;
pub use json::encode as encode_as_go;
pub use key::Key;
pub use node::{parse_asn, Node, Tunnel};
pub use node_owner::{NodeOwner, Ownership};
pub use podwire_ip::IpFamily;
pub use pool::{AssignmentMode, Encapsulation, Pool, Use};
pub use problem::Problem;
use record::Record;
pub use request::{Assigned, Request};
pub use reservation::Reservations;
pub use rules::Rules;
pub use snapshot::StoreSnapshot;
pub use utilization::{BlockUse, PoolUse, Utilization};
