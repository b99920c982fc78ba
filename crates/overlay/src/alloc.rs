//! alloc: no routes. The node gets a pod CIDR, and something else, such as a cloud router, delivers the packets.

use crate::backend::Backend;
use crate::cluster::{Cluster, LocalNode};
use crate::desired::DesiredState;
use crate::route_lookup::RouteLookup;

/// No routes and no devices; those that another backend left are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alloc;

impl Backend for Alloc {
    fn name(&self) -> &'static str {
        "alloc"
    }

    fn mtu(&self, local: &LocalNode) -> u32 {
        local.subnets.iter().map(|subnet| subnet.uplink.mtu).min().unwrap_or(0)
    }

    fn desired(&self, _: &Cluster, _: &RouteLookup) -> DesiredState {
        DesiredState::default()
    }
}
