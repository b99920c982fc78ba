//! The Services of a node in nftables: the table `inet podwire_services`.
//!
//! [`Nftables::apply`] takes the whole [`Desired`](crate::Desired) state and the [`Changes`](crate::Changes) since the last
//! one, and commits the difference to the kernel. A Service, port or endpoint is an element of a set or map, never a rule
//! or chain. So a packet takes the same time whatever the number of Services, and so does a change, except that the
//! kernel validates all verdicts after one of them changed.
//!
//! ```text
//! prerouting, output (nat)
//!   restricted, allowed_sources ─▶ drop
//!   daddr . protocol . dport ─ frontends ─▶ ip4_random_3 ─ daddr . protocol . dport . 0..2 ─ endpoints ─▶ dnat
//!                                       ─▶ ip4_sticky_3 ─ saddr . daddr . protocol . dport ─ affinity ─▶ dnat
//!                                            └─ not found ─▶ ip4_random_3
//!                            local_policy ─▶ ip4_local_policy ─ client on this node ─ frontends_for_node ─▶ as above
//!                                            └─ other client ─ frontends_for_others ─▶ ip4_local_2 …
//! input, forward, output (filter)
//!   affinity_timeouts ─▶ ip4_affinity_10800 ─▶ update affinity
//!   rejected, dropped, cluster_ips, service_cidrs ─▶ reject or drop
//! postrouting (nat)
//!   hairpin, masquerade, local_policy, cluster_ips ─▶ masquerade
//! ```
//!
//! [`installed`] reads it back, for people and tests. [`explain`](crate::explain) says in words what these chains do.
//!
//! [`StaleFlows`] ends UDP flows to endpoints that are gone, and of clients that source ranges no longer admit.
//!
//! There is one chain for each number of endpoints that occurs, one more for those numbers with session affinity, and one
//! for each affinity timeout. They stay when they are no longer used.

mod affinity;
mod chains;
mod counted_chains;
mod elements;
mod family;
mod found;
mod installed;
mod kernel;
mod nftables;
mod order;
mod sets;
mod stale_flows;
mod transactions;

pub use installed::{difference, installed};
pub use nftables::{remove, Change, Nftables};
pub use sets::TABLE;
pub use stale_flows::StaleFlows;
