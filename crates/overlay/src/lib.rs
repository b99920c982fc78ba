//! Routes and tunnels between nodes.
//!
//! Every node has one or more pod CIDRs. A pod must reach the pods of other nodes without NAT, so each node needs a
//! route or a tunnel to the pod CIDRs of every other node. This crate creates them. Its input is the [`Cluster`] (this
//! node, its peers, the cluster's networks) and a [`Backend`]: [`Vxlan`], [`HostGw`], [`Ipip`], [`Wireguard`],
//! [`Alloc`] (no routes), or [`BlockBackend`] for nodes with many address blocks.
//!
//! ```text
//! Cluster ──Backend::desired──▶ DesiredState   (pure: devices, neighbours, FDB entries, routes)
//!                                    │
//! kernel ──read once──▶ found ───────┴─▶ difference ──batches──▶ kernel, and a Report of the changes
//! ```
//!
//! [`apply`] always compares the complete state and processes no events. A device deleted by hand, flushed routes and a
//! node that left while the agent was down are all repaired in the same way. [`Watch`] reports when owned objects
//! change, so that the agent calls `apply` again.
//!
//! The crate keeps no records of what it owns. Devices are found by name (flannel's names, so that either program can
//! replace the other), routes by protocol number ([`PROTOCOL`]), firewall rules by table. It never changes anything
//! else.
//!
//! The crate knows neither etcd nor Kubernetes and contains no asynchronous code.

mod alloc;
mod apply;
mod backend;
mod blocks;
mod cluster;
mod desired;
mod error;
mod firewall;
mod hand_over;
mod host_gw;
mod ipip;
mod ownership;
mod peers;
mod pod_mtu;
mod report;
mod route_lookup;
mod routes;
mod tunnel_guard;
pub mod uplink;
mod vxlan;
mod watch;
pub mod wireguard;

pub use alloc::Alloc;
pub use apply::apply;
pub use backend::Backend;
pub use blocks::{vtep_mac, BlockBackend, BlockRoute, RouteEncapsulation};
pub use cluster::{Cluster, LocalNode, LocalSubnet, Peer, PeerSubnet, WireguardEndpoint};
pub use desired::{DesiredRoute, DesiredState, Device, Egress};
pub use error::{Error, Result};
pub use firewall::FirewallOptions;
pub use hand_over::hand_over;
pub use host_gw::HostGw;
pub use ipip::Ipip;
pub use ownership::PROTOCOL;
pub use pod_mtu::{oversized_ports, OversizedPort};
pub use report::{ObjectCounts, Report, TunnelDevice, UnreachablePeer};
pub use route_lookup::RouteLookup;
pub use uplink::{Uplink, UplinkPreference};
pub use vxlan::{VtepMac, Vxlan};
pub use watch::{Event, Watch};
pub use wireguard::Wireguard;
