//! The policy program in the kernel.
//!
//! [`Nftables::apply`] takes the whole [`Program`](podwire_policy::Program) each time, compares it with the kernel and
//! changes what differs. A change is atomic for packets: at no moment does a packet pass that both the old and the new
//! program deny, and no packet is dropped that both allow.
//!
//! The rules are in one table, `inet podwire_policy`:
//!
//! ```text
//! forward ─┬─ egress  (priority -10) ─ reply? itself? ─ saddr in map `egress`  ─► pod's chain ─► stages ─► accept/drop
//! input  ──┘
//! forward ─── ingress (priority -9)  ─ reply? itself? ─ daddr in map `ingress` ─► pod's chain ─► stages ─► accept/drop
//! ```
//!
//! Packets with a source address that is not the pod's own are dropped before these chains, at prerouting: for routed
//! pods in the same table, for bridge ports in the table `bridge podwire_policy`.
//!
//! There are two base chains because `accept` ends only one of them: what the sender's policies accept, the receiver's
//! policies still check. Dropped packets end in one chain for each direction. It [counts](DropCounters) them and
//! [logs](DropSamples) some; accepted packets never reach it. No chain uses the output hook: what a node sends to its
//! own pods passes whatever their policies say.

mod change;
mod drop_counts;
mod drop_samples;
mod nftables;
mod node_input;

pub use change::{Change, TableSize};
pub use drop_counts::{DropCounters, DropCounts};
pub use drop_samples::{DropSample, DropSamples};
pub use nftables::{Nftables, POLICY_TABLE};
pub use node_input::{NodeInput, PodPort};
