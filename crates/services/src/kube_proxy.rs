//! kube-proxy on this node: whether it runs, what it left in the kernel, and the removal of that.
//!
//! Two proxies on one node would both rewrite and masquerade connections, and one would go on to reject what the other
//! serves. So the agent does not start beside a [running](refuse_running) kube-proxy. What kube-proxy left disturbs little
//! until Services change, so it is only reported, until [`remove`] is asked for. The Services must be in the kernel before:
//! then no new connection is without an endpoint. Established ones keep theirs in conntrack.
//!
//! All of it is about the network namespace of the calling thread, and starts no program.

mod iptables_legacy;
mod iptables_nft;
mod ipvs;
mod leftovers;
mod names;
mod removal;
mod running;
mod thread;

pub use leftovers::{find, Leftover};
pub use removal::{remove, Removal};
pub use running::{find_running, refuse_running, Sign};
pub(crate) use thread::{Applied, KubeProxyStatus, KubeProxyThread};
