//! flannel mode: the agent in place of flanneld.
//!
//! The agent reads the other nodes from a [`podwire_subnets::Source`], acquires a pod CIDR for this node, sets up the
//! routes and tunnels, and announces the network last: `subnet.env`, then a conflist in the runtime's directory.
//!
//! ```text
//! source ──node lists──▶ daemon ──desired routes──▶ routes (a thread) ──▶ kernel
//!                         ▲                            │  ▲
//!                         └───────── events ───────────┘  └── kernel notifications
//!                         │
//!                         ├──▶ subnet.env, conflist (or the plugins' STATUS)
//!                         └──▶ status, metrics, Kubernetes events
//! ```
//!
//! The agent and the source may be down: routes stay. A restarted agent compares the whole desired state with the
//! kernel.

mod backend;
mod conflist;
mod conflist_watch;
mod daemon;
mod desired;
mod extension;
mod registration;
mod routes;
mod settings;

pub use conflist::{Chain, Conflist, NotReady};
pub use daemon::{retire, run};
pub use settings::Settings;
