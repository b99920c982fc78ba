//! host-gw: each node is the gateway of its pods. The fastest road, since nothing is put around a packet; but all nodes
//! must be on one wire.

use crate::route_lookup::Reach;
use crate::{
    sieve, Backend, Cluster, DesiredRoute, DesiredState, Egress, LocalNode, LocalSubnet, PeerSubnet,
    RouteLookup, UnreachablePeer,
};

/// A route through the peer itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostGw;

impl Backend for HostGw {
    fn name(&self) -> &'static str {
        "host-gw"
    }

    fn mtu(&self, own: &LocalNode) -> u32 {
        own.subnets.iter().map(|side| side.uplink.mtu).min().unwrap_or(0)
    }

    fn desired(&self, cluster: &Cluster, ground: &RouteLookup) -> DesiredState {
        let mut wanted = DesiredState::default();
        for own in &cluster.local.subnets {
            for (peer, side) in sieve::accepted(cluster, own, &mut wanted.unreachable) {
                match direct(own, side, ground) {
                    Ok(way) => wanted.routes.push(way),
                    Err(why) => wanted.unreachable.push(UnreachablePeer::new(&peer.name, why)),
                }
            }
        }
        wanted
    }
}

/// The road that leads to a peer on the wire, if it is on one.
pub(crate) fn direct(
    own: &LocalSubnet,
    side: &PeerSubnet,
    ground: &RouteLookup,
) -> Result<DesiredRoute, String> {
    let PeerSubnet { pod_cidr, address, .. } = side;
    let name = &own.uplink.name;
    match ground.reach(*address) {
        Reach::OnLink(link) => Ok(DesiredRoute {
            to: pod_cidr.trunc(),
            via: Some(*address),
            egress: Egress::Link(link),
            onlink: false,
        }),
        Reach::Via(router) => Err(format!(
            "{address} is not on the wire of {name} but behind {router}: host-gw cannot go there, \
             vxlan with DirectRouting can"
        )),
        Reach::NoRoute => Err(format!("this node knows no way to {address}")),
    }
}
