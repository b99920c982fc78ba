//! Health checks of load balancers, with kube-proxy's answers: the port `healthCheckNodePort` of a Service says whether
//! this node has ready endpoints of it, and `/healthz` and `/livez` say whether the Services are up to date.
//!
//! The reconciler opens and closes the sockets and writes the [`HealthState`]. A thread of its own answers, so that
//! clients delay no change, and the answers are right also while the reconciler waits for the kernel.

mod check;
mod listeners;
mod responses;
mod server_thread;
mod servers;
mod state;
mod sync;

pub use check::HealthCheck;
pub(crate) use servers::{HealthServers, ALL_ADDRESSES};
pub(crate) use state::HealthHandle;
pub use state::{HealthReport, ResponseCounts};
pub(crate) use sync::Now;
