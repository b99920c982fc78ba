//! The agent of a node, in two modes.
//!
//! - [`flannel`] takes the place of flanneld: it gets a pod CIDR for the node, sets up routes and tunnels to the other
//!   nodes ([`podwire_overlay`]), and writes `subnet.env` and a CNI conflist when the node can carry pod traffic.
//! - [`calico`] takes the place of calico-node: it owns the node's address blocks, sets up routes to the blocks of the
//!   other nodes, runs BIRD ([`podwire_bgp`]), and registers the node in Calico's datastore.
//!
//! Both modes share the reconcile loop ([`podwire_reconcile`]), the [status](podwire_agent_ipc::status), `/healthz`,
//! `/readyz`, `/status` and `/metrics`, the policy agent and the Services ([`podwire_services`]).
//!
//! No packet passes through the agent. When it ends, routes, rules and leases stay; when it starts, it compares the
//! whole desired state with the kernel and applies the difference.

#![forbid(unsafe_code)]

pub mod calico;
mod error;
mod fast_path;
pub mod flannel;
mod http;
mod kernel_watch;
mod metrics;
mod plugin_calls;
mod pod_mtu;
mod policies;
mod services;
mod shutdown;
mod status;

pub use error::{Error, Result};
pub use fast_path::FastPathMode;
pub use services::{service_objects, ServicesSettings};
