//! The interface that every backend implements.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_kernel::firewall::cluster::Rules;

use crate::cluster::{Cluster, LocalNode};
use crate::desired::DesiredState;
use crate::firewall::{self, FirewallOptions};
use crate::route_lookup::RouteLookup;
use crate::tunnel_guard;

/// A way to connect nodes.
pub trait Backend {
    /// Its name in flannel's configuration: `vxlan`, `host-gw`…
    fn name(&self) -> &'static str;

    /// The MTU of pods on this node.
    fn mtu(&self, local: &LocalNode) -> u32;

    /// The desired kernel state. Pure: the same input gives the same result.
    fn desired(&self, cluster: &Cluster, lookup: &RouteLookup) -> DesiredState;

    /// The firewall rules.
    fn rules(&self, cluster: &Cluster, options: &FirewallOptions) -> Rules {
        firewall::rules(cluster, options)
    }

    /// The peers' addresses, each with a network of its pods. By default those with a route.
    fn peer_networks(&self, desired: &DesiredState) -> Vec<(IpAddr, IpNet)> {
        tunnel_guard::routed_networks(desired)
    }

    /// The protocol number of another program whose routes in the cluster's networks become owned routes.
    fn predecessor_protocol(&self) -> Option<u8> {
        None
    }
}
