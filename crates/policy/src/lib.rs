//! Network policy: from the API's objects to a program for the data plane.
//!
//! Kubernetes has two kinds of policies. A `NetworkPolicy` belongs to a namespace and only allows: a pod that it
//! selects may do what one of its policies lists, and nothing else. A `ClusterNetworkPolicy` is for administrators: its
//! rules accept, deny or pass, in the order of priority, in a tier before the NetworkPolicies (Admin) or after them
//! (Baseline).
//!
//! ```text
//! objects (JSON) ── Snapshot ──┬── compile ── Program ── evaluate   what the data plane does
//!                              └── oracle ───────────── evaluate   what the API specifies
//! ```
//!
//! A [`Snapshot`] contains the pods, namespaces, nodes and policies of one point in time. [`compile`] turns it into a
//! [`Program`]: chains that pods with the same policies share, and sets of addresses that rules share. A [`Compiler`]
//! updates a program while pods and policies change. [`oracle::evaluate`] decides about one packet directly from the
//! objects, slowly and simply, and gives the reason. The property tests of this crate check that both agree for random
//! policies, pods and packets.
//!
//! This crate does no I/O: it uses neither nftables nor a Kubernetes client.

#![forbid(unsafe_code)]

pub mod api;
mod compile;
mod error;
mod evaluate;
mod networks;
pub mod oracle;
mod packet;
mod parse;
pub mod program;
mod restricted;
mod rule;
mod selector;
mod snapshot;
mod warning;

pub use compile::{compile, Compiled, Compiler};
pub use error::{Error, Result};
pub use packet::{Direction, Packet, Protocol, Verdict};
pub use program::Program;
pub use rule::{Action, Origin, Tier};
pub use snapshot::{read_object, without_nulls, Snapshot};
pub use warning::{Warning, WarningKind};
