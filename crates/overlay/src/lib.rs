//! The roads between nodes.
//!
//! Every node of a cluster has a range of addresses for its pods. What a pod sends to a pod of another node must get
//! there, with the address that it was sent from: so each node has, for each other node, a road to its range. This crate
//! makes them. It is told who is there ([`Cluster`]: this node, its peers, the cluster's networks) and how roads are built
//! ([`Backend`]: [`Vxlan`], [`HostGw`], [`Ipip`], [`Wireguard`], or none, [`Alloc`]; [`BlockBackend`] where a node has many ranges), and makes the
//! kernel so.
//!
//! ```text
//! Cluster ──Backend::wanted──▶ DesiredState   (pure: devices, neighbours, forwarding entries, routes)
//!                               │
//! kernel ──read once──▶ found ──┴─▶ difference ──batches──▶ kernel, and a Report of what was changed
//! ```
//!
//! There are no events in it that could be missed: [`apply`] always compares the whole. A device that was deleted by hand,
//! a route that was flushed, a node that left while nobody looked, are all healed in the same way. [`Watch`] tells when
//! something of ours was touched, so that `apply` is called again.
//!
//! What is ours is known without records: our devices by their names (flannel's, so that one can follow the other), our
//! routes by their protocol number ([`PROTOCOL`]), our rules by their table. Nothing else is ever changed.
//!
//! It knows no etcd and no Kubernetes, and nothing here is asynchronous.

mod alloc;
mod apply;
mod blocks;
mod cluster;
mod desired;
mod error;
mod hand_over;
mod host_gw;
mod ipip;
mod report;
mod route_lookup;
mod routes;
mod sieve;
pub mod uplink;
mod vxlan;
mod watch;
pub mod wireguard;

pub use alloc::Alloc;
pub use apply::{apply, FirewallOptions};
pub use blocks::{vtep_mac, BlockBackend, BlockRoute, RouteEncapsulation};
pub use cluster::{Cluster, LocalNode, LocalSubnet, Peer, PeerSubnet, WireguardEndpoint};
pub use desired::{DesiredRoute, DesiredState, Device, Egress};
pub use error::{Error, Result};
pub use hand_over::hand_over;
pub use host_gw::HostGw;
pub use ipip::Ipip;
pub use report::{ObjectCounts, Report, TunnelDevice, UnreachablePeer};
pub use route_lookup::RouteLookup;
pub use uplink::{Uplink, UplinkPreference};
pub use vxlan::{VtepMac, Vxlan};
pub use watch::{Event, Watch};
pub use wireguard::Wireguard;

use podwire_kernel::firewall::cluster::Rules;

/// The number by which our routes are known (`ip route show proto 112`). No routing daemon has it in iproute2's list.
pub const PROTOCOL: u8 = 112;
/// What is noted on our devices.
pub(crate) const ALIAS: &str = "podwire overlay";

/// A way to build roads.
pub trait Backend {
    /// Its name, as in flannel's config: `vxlan`, `host-gw`…
    fn name(&self) -> &'static str;

    /// The largest packet that a pod of this node may send, so that it fits the roads.
    fn mtu(&self, own: &LocalNode) -> u32;

    /// What the kernel should have. Pure: the same for the same cluster on the same ground.
    fn desired(&self, cluster: &Cluster, ground: &RouteLookup) -> DesiredState;

    /// The firewall's rules.
    fn rules(&self, cluster: &Cluster, firewall: &FirewallOptions) -> Rules {
        apply::rules_for(cluster, firewall)
    }

    /// The protocol number of routes that another program may have left in the cluster's networks: ours take their place.
    fn predecessor(&self) -> Option<u8> {
        None
    }
}
