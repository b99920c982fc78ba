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

mod affinity;
mod allocator;
mod attribute;
mod block;
mod check;
mod config;
mod error;
mod handle;
mod json;
mod key;
mod owner;
mod pool;
mod record;
mod request;
mod reservation;
mod rules;
mod split;
mod utilization;
mod walk;

pub use affinity::{Affinity, State};
pub use allocator::{Allocator, Release, Swept};
pub use attribute::Attribute;
pub use block::{Allocation, Block};
pub use check::{Problem, Report};
pub use config::Config;
pub use error::Error;
pub use handle::Handle;
pub use key::Family;
pub use owner::Owner;
pub use pool::{AssignmentMode, Pool, Use};
use record::Record;
pub use request::{Assigned, Request};
pub use reservation::Reservations;
pub use rules::Rules;
pub use utilization::{BlockUse, PoolUse, Utilization};
