//! Blocks: how the nodes of a cluster share address pools, in Calico's own records.
//!
//! An administrator makes [`Pool`]s. A pool is cut into [`Block`]s of equal size (64 addresses, usually). A node that needs
//! addresses claims a block for itself, in two phases, and then gives its pods addresses of it without asking anybody.
//!
//! ```text
//!  pool 10.244.0.0/16 ── cut into ──▶ block 10.244.1.0/26 ── addresses ──▶ pods
//!                                       │  ▲                                 ▲
//!        affinity node1 ↔ 10.244.1.0/26 ┘  └── handle: which blocks hold addresses of this container
//! ```
//!
//! - A [`Block`] says who has which of its addresses. It is the only truth about that, and it is written by
//!   compare-and-swap, so that no address has two owners.
//! - An [`Affinity`] says that a node wants a block (`pending`), has it (`confirmed`) or gives it up (`pendingDeletion`).
//!   A route to a block follows from a confirmed affinity only, so a confirmed affinity never lies: its block is there
//!   and names the same node.
//! - A [`Handle`] is the way back from a container to its blocks. It is counted up before a block is written and down
//!   after, so that it may promise too much, but no address is ever out of its sight.
//!
//! [`Allocator`] is the logic over a [`Store`](crate::store::Store). docs/ipam.md tells the whole story.

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
mod pool;
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
    AdoptOutcome, Allocator, CollectReport, Release, SweepReport, Transfer, TransferOutcome,
};
pub use attribute::Attribute;
pub use block::{Allocation, Block};
pub use block_index::BlockIndex;
pub use check::{CheckReport, Problem};
pub use config::Config;
pub use error::Error;
pub use garbage::{Collector, Garbage, Holder, Inventory, Leak, Pod};
pub use handle::Handle;
pub use json::encode as encode_as_go;
pub use key::Key;
pub use node::{parse_asn, Node, Tunnel};
pub use podwire_ip::IpFamily;
pub use pool::{AssignmentMode, Encapsulation, Pool, Use};
use record::Record;
pub use request::{Assigned, Request};
pub use reservation::Reservations;
pub use rules::Rules;
pub use snapshot::StoreSnapshot;
pub use utilization::{BlockUse, PoolUse, Utilization};
