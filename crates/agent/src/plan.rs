//! From what the source knows to what the roads are made from, and from the roads to what this node tells the others.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use podwire_kernel::Mac;
use podwire_overlay::{Cluster, Own, OwnSide, Peer, PeerSide, Preference, PublicKey, Road, Uplink, VtepMac};
use podwire_subnets::{NetConf, Node, PodCidrs, Registration, SkippedNode, Underlay, Vtep, WireguardPeer};

use crate::backend::Backend;
use crate::extension::Neighbour;
use crate::Settings;

/// All that the thread of the roads has to know.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub backend: Backend,
    pub conf: NetConf,
    /// Which interface the others are met at.
    pub preference: Preference,
    /// This node, as the source knows it.
    pub own: Node,
    /// All nodes, once the source has told them.
    pub nodes: Option<Arc<Vec<Node>>>,
    /// Nodes that the source could not understand.
    pub refused: Arc<Vec<SkippedNode>>,
    /// Those from before some of them claimed the same range, while they do.
    pub elders: Option<Arc<Vec<Node>>>,
}

/// Which families pods have.
pub(crate) fn families(conf: &NetConf) -> Vec<bool> {
    let v4 = conf.enable_ipv4.then_some(true);
    v4.into_iter().chain(conf.enable_ipv6.then_some(false)).collect()
}

/// The networks of all pods.
fn networks(conf: &NetConf) -> Vec<IpNet> {
    let v4 = conf.network.filter(|_| conf.enable_ipv4).map(IpNet::V4);
    let v6 = conf.ipv6_network.filter(|_| conf.enable_ipv6).map(IpNet::V6);
    v4.into_iter().chain(v6).collect()
}

impl Plan {
    /// The cluster as the fabric wants it. Nodes that cannot be understood, or that contradict this one, are left out.
    pub fn cluster(&self, uplinks: &[Uplink]) -> (Cluster, Vec<SkippedNode>) {
        let mut refused = self.refused.to_vec();
        let side = |pods: IpNet| {
            let uplink = uplinks.iter().find(|uplink| uplink.address.is_ipv4() == pods.addr().is_ipv4())?;
            Some(OwnSide { pods, uplink: uplink.clone() })
        };
        let own =
            Own { name: self.own.name.clone(), sides: self.own.pod_cidrs.iter().filter_map(side).collect() };
        let others =
            self.nodes.iter().flat_map(|nodes| nodes.iter()).filter(|node| node.name != self.own.name);
        let mut peers = Vec::new();
        for node in others {
            match self.refusal(node) {
                Some(why) => refused.push(SkippedNode { name: node.name.clone(), reason: why }),
                None => peers.push(peer(node)),
            }
        }
        (Cluster { networks: networks(&self.conf), own, peers }, refused)
    }

    /// The nodes that commands of the backend `extension` are run for.
    pub fn neighbours(&self) -> Vec<Neighbour> {
        let others =
            self.nodes.iter().flat_map(|nodes| nodes.iter()).filter(|node| node.name != self.own.name);
        others.filter(|node| self.refusal(node).is_none()).map(Neighbour::of).collect()
    }

    /// Why a node gets no road, if it gets none.
    fn refusal(&self, node: &Node) -> Option<String> {
        let kind = &node.backend.kind;
        let own = &self.own.backend.kind;
        if kind != own {
            return Some(format!("its roads are of kind {kind:?}, this node's of kind {own:?}"));
        }
        if node.pod_cidrs.overlap(&self.own.pod_cidrs) {
            let ranges: Vec<String> = node.pod_cidrs.iter().map(|range| range.to_string()).collect();
            return Some(format!(
                "its range {} is this node's own, too: one of both must get another",
                ranges.join(", ")
            ));
        }
        let elder = self.elders.as_ref().and_then(|elders| robbed(node, elders));
        elder.map(|elder| format!("its range is that of {}, which had it before", elder.name))
    }
}

/// Whose range a node claims that another had before anybody quarrelled: who comes and claims what another has cuts nobody off.
fn robbed<'e>(node: &Node, elders: &'e [Node]) -> Option<&'e Node> {
    let is_elder = elders.iter().any(|elder| elder.name == node.name && elder.pod_cidrs == node.pod_cidrs);
    let robbed = |elder: &&Node| elder.name != node.name && elder.pod_cidrs.overlap(&node.pod_cidrs);
    elders.iter().find(robbed).filter(|_| !is_elder)
}

fn peer(node: &Node) -> Peer {
    let mac = |vtep: Option<Vtep>| vtep.and_then(|vtep| vtep.mac.parse::<Mac>().ok());
    let key = |end: Option<WireguardPeer>| {
        let end = end?;
        Some(PublicKey { key: podwire_overlay::wireguard::parse_key(&end.public_key)?, port: end.port })
    };
    let v4 = node.pod_cidrs.v4.zip(node.underlay.v4).map(|(pods, address)| PeerSide {
        vtep: mac(node.backend.vtep()),
        key: key(node.backend.wireguard_peer()),
        ..PeerSide::new(IpNet::V4(pods), IpAddr::V4(address))
    });
    // In wireguard's modes with one device, IPv6 pods may be reached by IPv4; flannel then has no data of IPv6.
    let address = node.underlay.v6.map(IpAddr::V6).or(node.underlay.v4.map(IpAddr::V4));
    let v6 = node.pod_cidrs.v6.zip(address).map(|(pods, address)| PeerSide {
        vtep: mac(node.backend.vtep_v6()),
        key: key(node.backend.wireguard_peer_v6()).or_else(|| key(node.backend.wireguard_peer())),
        ..PeerSide::new(IpNet::V6(pods), address)
    });
    Peer { name: node.name.clone(), sides: v4.into_iter().chain(v6).collect() }
}

/// What this node tells of itself: where it is reached, and what its end of the roads needs. The key of a WireGuard device is
/// known only when the kernel has made it: it is told then, by a second registration.
pub(crate) fn registration(
    settings: &Settings,
    backend: &Backend,
    uplinks: &[Uplink],
    roads: &[Road],
    (previous, told_by_command): (PodCidrs, &podwire_subnets::Backend),
) -> Registration {
    let address = |v4: bool| uplinks.iter().map(|uplink| uplink.address).find(|ip| ip.is_ipv4() == v4);
    let v4 = match address(true) {
        Some(IpAddr::V4(ip)) => Some(settings.public.0.unwrap_or(ip)),
        _ => None,
    };
    let v6 = match address(false) {
        Some(IpAddr::V6(ip)) => Some(settings.public.1.unwrap_or(ip)),
        _ => None,
    };
    let told = match backend {
        Backend::Vxlan(vxlan) => {
            let vtep = |v4: bool, mac: Option<Mac>| {
                let mac = mac.filter(|_| address(v4).is_some())?;
                Some(Vtep { vni: vxlan.vni, mac: mac.to_string() })
            };
            let (mac4, mac6) = match vxlan.mac {
                VtepMac::Told { v4, v6 } => (v4, v6),
                _ => (None, None),
            };
            podwire_subnets::Backend::vxlan(vtep(true, mac4), vtep(false, mac6))
        }
        Backend::Wireguard(wireguard) => {
            let end = |device: &str, port: u16| {
                let key = roads.iter().find(|road| road.device == device)?.public_key?;
                Some(WireguardPeer { public_key: podwire_overlay::wireguard::key_text(key), port })
            };
            let first = end("flannel-wg", wireguard.port);
            let second = end("flannel-wg-v6", wireguard.port_v6).or_else(|| first.clone());
            podwire_subnets::Backend::wireguard(
                first.filter(|_| v4.is_some()),
                second.filter(|_| v6.is_some()),
            )
        }
        Backend::HostGw => podwire_subnets::Backend::named("host-gw"),
        Backend::Ipip(_) => podwire_subnets::Backend::named("ipip"),
        Backend::Alloc => podwire_subnets::Backend::named("alloc"),
        Backend::Extension(_) => told_by_command.clone(),
    };
    Registration { name: settings.node_name.clone(), underlay: Underlay { v4, v6 }, backend: told, previous }
}

#[cfg(test)]
mod tests {
    use podwire_subnets::LeaseTerm;

    use super::*;

    fn node(name: &str, range: &str) -> Node {
        let ranges = PodCidrs { v4: range.parse().ok(), v6: None };
        let backend = podwire_subnets::Backend::named("host-gw");
        Node {
            name: name.into(),
            pod_cidrs: ranges,
            underlay: Underlay::default(),
            backend,
            lease_term: LeaseTerm::Permanent,
        }
    }

    #[test]
    fn who_claims_what_another_had_before_is_known() {
        let before = [node("b", "10.0.1.0/24"), node("c", "10.0.2.0/24")];
        assert_eq!(robbed(&node("a", "10.0.1.0/25"), &before).map(|elder| elder.name.as_str()), Some("b"));
        assert_eq!(robbed(&node("b", "10.0.1.0/24"), &before), None, "it has it");
        assert_eq!(robbed(&node("c", "10.0.1.0/24"), &before).map(|elder| elder.name.as_str()), Some("b"));
        assert_eq!(robbed(&node("a", "10.0.3.0/24"), &before), None);
        assert_eq!(robbed(&node("a", "10.0.1.0/25"), &[]), None);
    }
}
