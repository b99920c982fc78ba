//! Which addresses pods may get, and in which order they are handed out. Pure: no I/O.
//!
//! An administrator writes subnets, with or without bounds and a gateway ([`RangeSpec`]). What they mean is a
//! [`Range`]: the first and the last address that a pod may get. Ranges of one family that stand in for each
//! other make a [`RangeSet`]; a pod gets one address from each set. A set is walked round robin from the
//! address that was given last ([`RangeSet::after`]), so that a pod that crashes in a loop does not get the
//! address of the one before it, which neighbours may still have in their caches. A range may keep addresses back: some
//! for good, some for those who ask for them by name.
//!
//! Before pods get addresses, nodes get ranges: [`NodeCidrs`] cuts a cluster's networks into one for each node.
//!
//! ```
//! use podwire_ipam::{range_sets, RangeSpec};
//!
//! let pods = RangeSpec::new("ipam.ranges[0][0]", "10.1.0.0/24".parse()?);
//! let sets = range_sets(vec![vec![pods]])?;
//! assert_eq!(sets[0].to_string(), "10.1.0.1-10.1.0.254");
//!
//! // 10.1.0.1 is the gateway.
//! let first = sets[0].after(None).next().map(|candidate| candidate.ip);
//! assert_eq!(first, Some("10.1.0.2".parse()?));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod node_cidrs;
mod node_pool;
mod order;
mod range;
mod set;
mod span;

pub use error::Error;
pub use node_cidrs::{CidrProblem, NodeCidrs, NodeCidrsError, Usage};
pub use order::{Candidate, Candidates};
pub use range::{Range, RangeSpec};
pub use set::{range_sets, RangeSet};
