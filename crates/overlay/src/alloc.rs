//! alloc: no roads. The node gets its range, and somebody else (a cloud's router) brings packets there.

use crate::{Backend, Cluster, DesiredState, LocalNode, RouteLookup};

/// No roads at all; those that another fabric left are taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alloc;

impl Backend for Alloc {
    fn name(&self) -> &'static str {
        "alloc"
    }

    fn mtu(&self, own: &LocalNode) -> u32 {
        own.subnets.iter().map(|side| side.uplink.mtu).min().unwrap_or(0)
    }

    fn desired(&self, _: &Cluster, _: &RouteLookup) -> DesiredState {
        DesiredState::default()
    }
}
