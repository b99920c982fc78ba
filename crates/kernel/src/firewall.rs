//! Firewall features in nf_tables: masquerading, host ports, forwarding, spoof guards.
//!
//! Each feature has its own table. Its skeleton (chains, rules, empty sets and maps) is created once, in one
//! transaction. After that a pod only adds elements: an address in a set, a port in a map. So the cost of a packet, and
//! of an ADD, does not grow with the number of pods. No element jumps to a chain, because the kernel then walks the
//! whole table, with all its elements, to look for loops. What differs between networks is one set and one chain for
//! each network; pods with a single-address network share one.
//!
//! The comment of every element names its [`Owner`](crate::Owner): network/container/interface. The elements of a pod
//! are deleted by key if the keys are known ([`remove`](masquerade::remove)), otherwise by comment (`remove_all`).
//! `collect` deletes the elements of pods that no longer exist. `nft list ruleset` shows everything.
//!
//! | table | purpose |
//! |---|---|
//! | `inet podwire_masq` | pods reach external addresses with the node's address |
//! | `inet podwire_ports` | ports of the node lead to pods |
//! | `inet podwire_firewall` | pod packets pass FORWARD, and bridges are isolated |
//! | `inet podwire_overlay` | traffic of the cluster's pods ([`cluster`]: networks, not pods) |
//! | `inet podwire_tunnel` | tunnels accept packets only from other nodes ([`tunnel`]) |
//! | `bridge podwire_spoof` | a pod sends only with its own hardware address |

pub mod cluster;
mod elements;
pub mod forward;
pub mod hostports;
pub mod inventory;
pub mod legacy;
pub mod masquerade;
mod naming;
mod ranges;
pub mod spoof;
mod tables;
pub mod tunnel;

pub use tables::{drop_empty_tables, drop_unneeded_tables};
