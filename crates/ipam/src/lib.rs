//! Address ranges for pods, the order in which addresses are assigned, and CIDRs for nodes. Pure: no I/O.
//!
//! A configuration lists subnets, with or without bounds and a gateway ([`RangeSpec`]). A [`Range`] is the checked
//! form: the first and the last address that a pod may get. A [`RangeSet`] is a list of ranges of one family; a pod
//! gets one address of each set. [`RangeSet::after`] walks a set round robin from the last assigned address, so that a
//! pod that crashes in a loop does not get the address of its predecessor, which neighbours may still have in their
//! caches. A range may exclude addresses, or reserve them for pods that request them explicitly.
//!
//! [`NodeCidrs`] divides the cluster networks into one CIDR for each node.
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

pub use error::{Error, NodeCidrsError};
pub use node_cidrs::{CidrProblem, NodeCidrs, Usage};
pub use order::{Candidate, Candidates};
pub use range::{Range, RangeSpec};
pub use set::{range_sets, RangeSet};
