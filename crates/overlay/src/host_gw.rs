//! host-gw: each node is the gateway of its pods. It is the fastest backend, because packets are not encapsulated, but
//! all nodes must be on one L2 segment.

use crate::backend::Backend;
use crate::cluster::{Cluster, LocalNode, LocalSubnet, PeerSubnet};
use crate::desired::{DesiredRoute, DesiredState, Egress};
use crate::peers;
use crate::report::UnreachablePeer;
use crate::route_lookup::{Reach, RouteLookup};

/// A route via the peer's own address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostGw;

impl Backend for HostGw {
    fn name(&self) -> &'static str {
        "host-gw"
    }

    fn mtu(&self, local: &LocalNode) -> u32 {
        local.subnets.iter().map(|subnet| subnet.uplink.mtu).min().unwrap_or(0)
    }

    fn desired(&self, cluster: &Cluster, lookup: &RouteLookup) -> DesiredState {
        let mut desired = DesiredState::default();
        for local in &cluster.local.subnets {
            for (peer, subnet) in peers::without_conflicts(cluster, local, &mut desired.unreachable) {
                match direct_route(local, subnet, lookup) {
                    Ok(route) => desired.routes.push(route),
                    Err(reason) => desired.unreachable.push(UnreachablePeer::new(&peer.name, reason)),
                }
            }
        }
        desired
    }
}

/// The route via the peer's own address, if the peer is on a link of this node.
pub(crate) fn direct_route(
    local: &LocalSubnet,
    subnet: &PeerSubnet,
    lookup: &RouteLookup,
) -> Result<DesiredRoute, String> {
    let PeerSubnet { pod_cidr, address, .. } = subnet;
    let name = &local.uplink.name;
    match lookup.reach(*address) {
        Reach::OnLink(link) => Ok(DesiredRoute {
            to: pod_cidr.trunc(),
            via: Some(*address),
            egress: Egress::Link(link),
            onlink: false,
        }),
        Reach::Via(router) => Err(format!(
            "{address} is not on the link of {name} but behind router {router}: \
             host-gw needs all nodes on one L2 segment; use vxlan with DirectRouting"
        )),
        Reach::NoRoute => Err(format!("this node has no route to {address}")),
    }
}
