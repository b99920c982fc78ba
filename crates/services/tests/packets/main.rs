//! Services in the running kernel, with real namespaces and packets. Needs root, and `ip`, `nft` and `sysctl`.

#![allow(clippy::unwrap_used)]

mod affinity;
mod agent;
mod cases;
mod changing;
mod cluster;
mod health;
mod stale_flows;
mod testbed;
