//! host-gw: each node is the gateway of its pods. The fastest road, since nothing is put around a packet; but all nodes
//! must be on one wire.

use crate::ground::Reach;
use crate::{sieve, Cluster, Fabric, Ground, Over, Own, OwnSide, PeerSide, Refusal, Wanted, Way};

/// A route through the peer itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostGw;

impl Fabric for HostGw {
    fn name(&self) -> &'static str {
        "host-gw"
    }

    fn mtu(&self, own: &Own) -> u32 {
        own.sides.iter().map(|side| side.uplink.mtu).min().unwrap_or(0)
    }

    fn wanted(&self, cluster: &Cluster, ground: &Ground) -> Wanted {
        let mut wanted = Wanted::default();
        for own in &cluster.own.sides {
            for (peer, side) in sieve::accepted(cluster, own, &mut wanted.refused) {
                match direct(own, side, ground) {
                    Ok(way) => wanted.ways.push(way),
                    Err(why) => wanted.refused.push(Refusal::new(&peer.name, why)),
                }
            }
        }
        wanted
    }
}

/// The road that leads to a peer on the wire, if it is on one.
pub(crate) fn direct(own: &OwnSide, side: &PeerSide, ground: &Ground) -> Result<Way, String> {
    let PeerSide { pods, address, .. } = side;
    let name = &own.uplink.name;
    match ground.reach(*address) {
        Reach::OnLink(link) => {
            Ok(Way { to: pods.trunc(), via: Some(*address), over: Over::Link(link), onlink: false })
        }
        Reach::Through(router) => Err(format!(
            "{address} is not on the wire of {name} but behind {router}: host-gw cannot go there, \
             vxlan with DirectRouting can"
        )),
        Reach::Nowhere => Err(format!("this node knows no way to {address}")),
    }
}
