//! Connection tracking: lists and deletes conntrack entries.
//!
//! The kernel decides about address translation on the first packet of a connection and keeps to it. A client that
//! keeps sending UDP to a port from before a pod mapped that port, or after the pod was deleted, would never reach the
//! new pod: the old entry exists as long as packets arrive. So entries are deleted when port mappings change
//! ([`delete`]), and before an address gets a new owner ([`delete_of_addresses`]).
//!
//! [`list`] and [`forget`] are for callers that decide about single connections. The numbers are from
//! `linux/netfilter/nfnetlink_conntrack.h`.

mod connection;
mod entry;
mod filter;
#[cfg(test)]
mod flows;

pub use connection::{forget, list, Connection};
pub use filter::{delete, delete_of_addresses, Filter};
