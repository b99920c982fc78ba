//! Network policy: who may talk to whom, from what users wrote to what a data plane does.
//!
//! Kubernetes knows two kinds of policies. A `NetworkPolicy` lives in a namespace and only ever allows: a pod that
//! one selects may do what some policy lists and nothing else. A `ClusterNetworkPolicy` is the administrator's: its
//! rules accept, deny or pass, in the order of priorities, in a tier before the NetworkPolicies (Admin) or behind
//! them (Baseline).
//!
//! ```text
//! objects (JSON) ── Snapshot ──┬── compile ── Program ── judge   what a data plane does
//!                              └── oracle ───────────── judge    what the API's text says
//! ```
//!
//! A [`Snapshot`] holds pods, namespaces, nodes and policies of one moment. [`compile`] turns it into a [`Program`]:
//! chains that pods with the same policies share, sets of addresses that rules share. A [`Compiler`] keeps a program up to date
//! while pods and policies change. [`oracle::judge`] decides about one packet straight from the objects, slowly and plainly,
//! and says why. That both agree on any policies, pods and packets is what the property tests of this crate are for.
//!
//! This crate does no I/O: it knows neither nftables nor a Kubernetes client.

#![forbid(unsafe_code)]

pub mod api;
mod compile;
mod error;
mod interpret;
mod narrowed;
pub mod oracle;
mod packet;
pub mod program;
mod read;
mod rule;
mod selector;
mod snapshot;
mod subtract;
mod warning;

pub use compile::{compile, Compiled, Compiler};
pub use error::{Error, Result};
pub use packet::{Direction, Packet, Protocol, Verdict};
pub use program::Program;
pub use rule::{Action, Origin, Tier};
pub use snapshot::Snapshot;
pub use warning::{Kind, Warning};
