//! alloc: no roads. The node gets its range, and somebody else (a cloud's router) brings packets there.

use crate::{Cluster, Fabric, Ground, Own, Wanted};

/// No roads at all; those that another fabric left are taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alloc;

impl Fabric for Alloc {
    fn name(&self) -> &'static str {
        "alloc"
    }

    fn mtu(&self, own: &Own) -> u32 {
        own.sides.iter().map(|side| side.uplink.mtu).min().unwrap_or(0)
    }

    fn wanted(&self, _: &Cluster, _: &Ground) -> Wanted {
        Wanted::default()
    }
}
