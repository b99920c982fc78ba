//! The controller of a cluster: it gives every node a range of addresses that no other node has.
//!
//! It does what the NodeIpamController of kube-controller-manager does: a Node object without `spec.podCIDRs` gets some, cut
//! from the cluster's networks. One controller works at a time; others stand by (a [`Lease`] decides who).
//!
//! ```text
//! Lease ──held──▶ work ◀──sightings── Node objects
//!                  │ ▲
//!          orders  ▼ │ what became of them
//!                 writes, at most sixteen at a time ──▶ spec.podCIDR, spec.podCIDRs
//!                  │
//!                  └──▶ events, /healthz /readyz /status /metrics
//! ```
//!
//! The decisions are in the register, which does no I/O: it knows all nodes and what they have, and says what to write next.
//! Nothing is given before all nodes are known. A range once written never changes (the API server sees to that), and a
//! range that was perhaps written stays the node's until the node has another or is gone. A node with a range that makes no
//! sense, or that others have too, stops nobody: it is told, and nobody else gets any of it.
//!
//! Where the cluster has blocks (docs/ipam.md), the leader also releases addresses of pods and nodes that are gone.
//!
//! [`Lease`]: k8s_openapi::api::coordination::v1::Lease

#![forbid(unsafe_code)]

mod collection;
mod election;
mod error;
mod http;
mod inventory;
mod life;
mod metrics;
mod networks;
mod object;
mod register;
mod settings;
mod status;
mod tellings;
mod tenure;
mod work;
mod write;

pub use collection::{LeakCollection, Opener};
pub use error::{Error, Result};
pub use life::run;
pub use networks::{ClusterCidrs, NodeCidrMasks};
pub use settings::{LeaderElection, Settings};
