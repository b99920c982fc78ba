//! What kube-proxy left on a node is found and removed, nothing else is touched, and no connection breaks. Needs root, `ip`,
//! `nft`, `iptables-nft`, `iptables-legacy` and `sysctl`. kube-proxy itself is the real one, where it is built.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../packets/cluster.rs"]
mod cluster;
mod connection;
mod found;
mod ipvs;
mod proxy;
mod real;
mod removed;
mod running;
mod takeover;
#[allow(dead_code)]
#[path = "../packets/testbed.rs"]
mod testbed;
