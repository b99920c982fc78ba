//! The cluster controller: it assigns every node its pod CIDRs.
//!
//! It replaces the NodeIpamController of kube-controller-manager. A Node object without `spec.podCIDRs` gets one CIDR
//! of each cluster network. One controller is active at a time; a [`Lease`] elects it.
//!
//! ```text
//! Lease ──held──▶ assigner ◀──node changes── Node objects
//!                  │ ▲
//!      assignments ▼ │ outcomes
//!                 patches, at most sixteen at a time ──▶ spec.podCIDR, spec.podCIDRs
//!                  │
//!                  └──▶ events, /healthz /readyz /status /metrics
//! ```
//!
//! The node table makes the decisions and does no I/O. Invariants:
//!
//! - Nothing is assigned before all nodes are listed.
//! - The API server never lets a pod CIDR change once it is set. A CIDR whose write has an unknown outcome stays
//!   reserved for its node until the node has another one or is deleted.
//! - A node with an invalid or duplicate pod CIDR is reported, does not block other nodes, and keeps its CIDR to
//!   itself.
//!
//! With a block store (docs/ipam.md), the leader also releases addresses of deleted pods and nodes.
//!
//! [`Lease`]: k8s_openapi::api::coordination::v1::Lease

#![forbid(unsafe_code)]

mod assigner;
mod cluster_cidrs;
mod election;
mod error;
mod events;
mod http;
mod inventory;
mod leak_collection;
mod lease_deadline;
mod metrics;
mod node_object;
mod node_table;
mod patch;
mod run;
mod settings;
mod status;

pub use cluster_cidrs::{ClusterCidrs, NodeCidrMasks};
pub use error::{Error, Result};
pub use leak_collection::{LeakCollection, StoreOpener};
pub use run::run;
pub use settings::{LeaderElection, Settings};
