//! The desired routes: from the nodes of the source to the input of the overlay.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_kernel::Mac;
use podwire_overlay::{
    Cluster, LocalNode, LocalSubnet, Peer, PeerSubnet, Uplink, UplinkPreference, WireguardEndpoint,
};
use podwire_subnets::{NetConf, Node, SkippedNode, Vtep, WireguardPeer};

use crate::flannel::backend::Backend;
use crate::flannel::extension::ExtensionNode;

/// What the routes of this node follow from.
#[derive(Clone, Debug)]
pub(crate) struct DesiredRoutes {
    pub backend: Backend,
    pub conf: NetConf,
    /// How the uplinks are chosen.
    pub preference: UplinkPreference,
    /// This node, as the source knows it.
    pub own: Node,
    /// All nodes; none before the source has listed them.
    pub nodes: Option<Arc<Vec<Node>>>,
    /// Nodes whose records cannot be read.
    pub skipped: Arc<Vec<SkippedNode>>,
    /// The last conflict-free node list, while two nodes have overlapping pod CIDRs.
    pub previous_owners: Option<Arc<Vec<Node>>>,
}

/// The families that pods have.
pub(crate) fn families(conf: &NetConf) -> Vec<IpFamily> {
    let v4 = conf.enable_ipv4.then_some(IpFamily::V4);
    v4.into_iter().chain(conf.enable_ipv6.then_some(IpFamily::V6)).collect()
}

/// The networks of all pods.
fn networks(conf: &NetConf) -> Vec<IpNet> {
    let v4 = conf.network.filter(|_| conf.enable_ipv4).map(IpNet::V4);
    let v6 = conf.ipv6_network.filter(|_| conf.enable_ipv6).map(IpNet::V6);
    v4.into_iter().chain(v6).collect()
}

/// The nodes that may have their pod CIDRs, by [`Source::check_node`](podwire_subnets::Source::check_node), and the
/// skipped ones with the others.
pub(crate) fn allowed_nodes(
    check: impl Fn(&Node) -> podwire_subnets::Result<()>,
    nodes: &Arc<Vec<Node>>,
    skipped: &Arc<Vec<SkippedNode>>,
) -> (Arc<Vec<Node>>, Arc<Vec<SkippedNode>>) {
    let refused: Vec<SkippedNode> = nodes
        .iter()
        .filter_map(|node| {
            let reason = check(node).err()?.to_string();
            Some(SkippedNode { name: node.name.clone(), reason })
        })
        .collect();
    if refused.is_empty() {
        return (nodes.clone(), skipped.clone());
    }
    let allowed = nodes.iter().filter(|node| check(node).is_ok()).cloned().collect();
    (Arc::new(allowed), Arc::new([skipped.as_slice(), &refused].concat()))
}

impl DesiredRoutes {
    /// The cluster as the overlay needs it, and the nodes that are left out.
    pub(crate) fn cluster(&self, uplinks: &[Uplink]) -> (Cluster, Vec<SkippedNode>) {
        let mut ignored = self.skipped.to_vec();
        let subnet = |pod_cidr: IpNet| {
            let family = IpFamily::of_net(pod_cidr);
            let uplink = uplinks.iter().find(|uplink| IpFamily::of(uplink.address) == family)?;
            Some(LocalSubnet { pod_cidr, uplink: uplink.clone() })
        };
        let subnets = self.own.pod_cidrs.iter().filter_map(subnet).collect();
        let local = LocalNode { name: self.own.name.clone(), subnets };
        let mut peers = Vec::new();
        for node in self.others() {
            match self.refusal(node) {
                Some(reason) => ignored.push(SkippedNode { name: node.name.clone(), reason }),
                None => peers.push(peer(node)),
            }
        }
        (Cluster { networks: networks(&self.conf), local, peers }, ignored)
    }

    /// The nodes for which commands of the backend `extension` are run.
    pub(crate) fn extension_nodes(&self) -> Vec<ExtensionNode> {
        self.others().filter(|node| self.refusal(node).is_none()).map(ExtensionNode::of).collect()
    }

    fn others(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flat_map(|nodes| nodes.iter()).filter(|node| node.name != self.own.name)
    }

    /// Why a node gets no route.
    fn refusal(&self, node: &Node) -> Option<String> {
        let (kind, own) = (&node.backend.kind, &self.own.backend.kind);
        if kind != own {
            return Some(format!("its backend is {kind:?}, this node's is {own:?}"));
        }
        if node.pod_cidrs.overlap(&self.own.pod_cidrs) {
            let cidrs: Vec<String> = node.pod_cidrs.iter().map(|cidr| cidr.to_string()).collect();
            return Some(format!(
                "its pod CIDR {} overlaps this node's: assign another one to either node",
                cidrs.join(", ")
            ));
        }
        let previous = self.previous_owners.as_ref().and_then(|nodes| previous_owner(node, nodes));
        previous
            .map(|previous| format!("its pod CIDR overlaps that of {}, which had it first", previous.name))
    }
}

/// The node that had this node's pod CIDR before both claimed it. It keeps its route: a newcomer that claims the
/// CIDR of another node does not disconnect that node.
fn previous_owner<'n>(node: &Node, previous: &'n [Node]) -> Option<&'n Node> {
    let had_it = previous.iter().any(|one| one.name == node.name && one.pod_cidrs == node.pod_cidrs);
    let overlaps = |one: &&Node| one.name != node.name && one.pod_cidrs.overlap(&node.pod_cidrs);
    previous.iter().find(overlaps).filter(|_| !had_it)
}

fn peer(node: &Node) -> Peer {
    let mac = |vtep: Option<Vtep>| vtep.and_then(|vtep| vtep.mac.parse::<Mac>().ok());
    let key = |peer: Option<WireguardPeer>| {
        let peer = peer?;
        let public_key = podwire_overlay::wireguard::parse_key(&peer.public_key)?;
        Some(WireguardEndpoint { public_key, port: peer.port })
    };
    let v4 = node.pod_cidrs.v4.zip(node.underlay.v4).map(|(cidr, address)| PeerSubnet {
        vtep_mac: mac(node.backend.vtep()),
        wireguard: key(node.backend.wireguard_peer()),
        ..PeerSubnet::new(IpNet::V4(cidr), IpAddr::V4(address))
    });
    // In WireGuard's modes with one device, IPv6 pods can be reached over IPv4; flannel then has no IPv6 data.
    let address = node.underlay.v6.map(IpAddr::V6).or(node.underlay.v4.map(IpAddr::V4));
    let v6 = node.pod_cidrs.v6.zip(address).map(|(cidr, address)| PeerSubnet {
        vtep_mac: mac(node.backend.vtep_v6()),
        wireguard: key(node.backend.wireguard_peer_v6()).or_else(|| key(node.backend.wireguard_peer())),
        ..PeerSubnet::new(IpNet::V6(cidr), address)
    });
    Peer { name: node.name.clone(), subnets: v4.into_iter().chain(v6).collect() }
}

#[cfg(test)]
mod tests {
    use podwire_subnets::{Etcd, EtcdOptions, LeaseTerm, PodCidrs, Source, StaticList, Underlay};

    use super::*;

    fn node(name: &str, cidr: &str) -> Node {
        let pod_cidrs = PodCidrs { v4: cidr.parse().ok(), v6: None };
        let backend = podwire_subnets::Backend::named("host-gw");
        Node {
            name: name.into(),
            pod_cidrs,
            underlay: Underlay::default(),
            backend,
            lease_term: LeaseTerm::Permanent,
        }
    }

    #[test]
    fn the_previous_owner_of_a_pod_cidr_is_found() {
        let before = [node("b", "10.0.1.0/24"), node("c", "10.0.2.0/24")];
        let owner_of = |name: &str, cidr: &str, before: &[Node]| {
            previous_owner(&node(name, cidr), before).map(|owner| owner.name.clone())
        };
        assert_eq!(owner_of("a", "10.0.1.0/25", &before).as_deref(), Some("b"));
        assert_eq!(owner_of("b", "10.0.1.0/24", &before), None, "it is the owner");
        assert_eq!(owner_of("c", "10.0.1.0/24", &before).as_deref(), Some("b"));
        assert_eq!(owner_of("a", "10.0.3.0/24", &before), None);
        assert_eq!(owner_of("a", "10.0.1.0/25", &[]), None);
    }

    /// A record like `0.0.0.0-0` in etcd must not redirect the node's traffic, and overlaps no node's pod CIDR.
    #[test]
    fn nodes_outside_of_the_network_are_skipped() {
        let conf =
            NetConf::parse("x", r#"{"Network": "10.0.0.0/16", "Backend": {"Type": "host-gw"}}"#).unwrap();
        let source = etcd();
        let v6 = PodCidrs { v4: "10.0.4.0/24".parse().ok(), v6: "2000::/3".parse().ok() };
        let nodes = vec![
            node("inside", "10.0.2.0/24"),
            node("everything", "0.0.0.0/0"),
            node("elsewhere", "192.168.0.0/24"),
            node("larger", "10.0.0.0/15"),
            Node { pod_cidrs: v6, ..node("other family", "") },
        ];
        let before = SkippedNode { name: "junk".into(), reason: "the key is not a subnet".into() };
        let check = |node: &Node| source.check_node(&conf, node);
        let (inside, skipped) = allowed_nodes(check, &Arc::new(nodes), &Arc::new(vec![before]));
        let names: Vec<&str> = inside.iter().map(|node| node.name.as_str()).collect();
        assert_eq!((names, skipped.len()), (vec!["inside"], 5));
        let reason = &skipped.iter().find(|node| node.name == "everything").unwrap().reason;
        assert!(reason.contains("10.0.0.0/16") && reason.contains("0.0.0.0/0"), "{reason}");
    }

    fn etcd() -> Source {
        Source::Etcd(Etcd::new(EtcdOptions::default()).unwrap())
    }

    /// A record like `10.0.128.0-17` in etcd would get the traffic to all subnets that no node has yet.
    #[test]
    fn nodes_with_more_than_a_subnet_are_skipped_if_they_are_from_etcd() {
        let conf =
            r#"{"Network": "10.0.0.0/16", "SubnetLen": 24, "EnableIPv6": true, "IPv6Network": "fd00::/48"}"#;
        let conf = NetConf::parse("x", conf).unwrap();
        let v6 = PodCidrs { v4: "10.0.4.0/24".parse().ok(), v6: "fd00::/56".parse().ok() };
        let nodes = Arc::new(vec![
            node("a subnet", "10.0.2.0/24"),
            node("half a subnet", "10.0.3.0/25"),
            node("two subnets", "10.0.6.0/23"),
            node("half the network", "10.0.128.0/17"),
            Node { pod_cidrs: v6, ..node("other family", "") },
        ]);
        let (allowed, skipped) =
            allowed_nodes(|node| etcd().check_node(&conf, node), &nodes, &Arc::default());
        let names: Vec<&str> = allowed.iter().map(|node| node.name.as_str()).collect();
        assert_eq!((names, skipped.len()), (vec!["a subnet", "half a subnet"], 3));
        let reason = &skipped[2].reason;
        assert!(
            reason.starts_with("subnet fd00::/56 of node \"other family\" is larger than /64"),
            "{reason}"
        );
        let list = Source::Static(StaticList::new("/nodes.json"));
        let (allowed, _) = allowed_nodes(|node| list.check_node(&conf, node), &nodes, &Arc::default());
        assert_eq!(allowed.len(), 5);
    }
}
