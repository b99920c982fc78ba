//! The desired state of this node: from the block index to routes, tunnels, the registration and the MTU. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_agent_ipc::status::UnreachableNode;
use podwire_block_ipam::{BlockIndex, Encapsulation, IpFamily, Node, Pool, Tunnel, Use};
use podwire_kernel::Mac;
use podwire_overlay::{
    Backend as _, BlockBackend, BlockRoute, Cluster, LocalNode, LocalSubnet, RouteEncapsulation, Uplink,
};

use crate::calico::registration::{DesiredRegistration, TunnelPools};

/// The desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DesiredState {
    pub(crate) cluster: Cluster,
    pub(crate) blocks: BlockBackend,
    /// The MTU of pods, with room for every tunnel that is needed, even while it has no address yet.
    pub(crate) mtu: u32,
    pub(crate) registration: DesiredRegistration,
    /// Whether the store shows the registration.
    pub(crate) is_registered: bool,
    pub(crate) unreachable: Vec<UnreachableNode>,
}

/// An uplink, and the prefix length of its address.
#[derive(Clone, Debug)]
pub(crate) struct UplinkAddress {
    pub(crate) uplink: Uplink,
    pub(crate) prefix_len: u8,
}

/// What the desired state depends on besides the index.
pub(crate) struct NodeContext<'a> {
    pub(crate) node: &'a str,
    /// Whether it is a Kubernetes node.
    pub(crate) is_member: bool,
    pub(crate) mtu: Option<u32>,
    /// Whether BIRD writes the routes to pools without a tunnel.
    pub(crate) has_bgp: bool,
    pub(crate) uplinks: &'a [UplinkAddress],
}

/// The families that pools have.
pub(crate) fn families(index: &BlockIndex) -> BTreeSet<IpFamily> {
    routed_pools(index).map(Pool::family).collect()
}

/// The pools that need routes: those of pods and tunnels, not those of Services.
fn routed_pools(index: &BlockIndex) -> impl Iterator<Item = &Pool> {
    index.pools.values().filter(|pool| pool.allows(Use::Workload) || pool.allows(Use::Tunnel))
}

impl NodeContext<'_> {
    /// The desired state for this index.
    pub(crate) fn desired(&self, index: &BlockIndex) -> DesiredState {
        let registration = self.registration(index);
        let record = index.nodes.get(self.node);
        let own = LocalNode { name: self.node.into(), subnets: Vec::new() };
        let with_all_tunnels = self.devices(&registration, |tunnel| Some(tunnel.family().unspecified()));
        let networks = routed_pools(index).map(Pool::cidr).collect();
        let mut desired = DesiredState {
            mtu: with_all_tunnels.mtu(&own),
            cluster: Cluster { networks, local: own, peers: Vec::new() },
            blocks: BlockBackend {
                nat_outgoing: routed_pools(index)
                    .filter(|pool| pool.nat_outgoing())
                    .map(Pool::cidr)
                    .collect(),
                ..self.devices(&registration, |tunnel| record?.tunnel(*tunnel))
            },
            is_registered: record.is_some_and(|node| is_registered(&registration, node, index)),
            registration,
            unreachable: Vec::new(),
        };
        for (to, node) in index.routes() {
            if node == self.node {
                let uplink = self.uplink(IpFamily::of_net(to)).cloned();
                desired
                    .cluster
                    .local
                    .subnets
                    .extend(uplink.map(|uplink| LocalSubnet { pod_cidr: to, uplink }));
                continue;
            }
            match self.route(index, to, node) {
                Ok(route) => desired.blocks.routes.push(route),
                Err(why) => {
                    let reason = format!("{to}: {why}");
                    desired.unreachable.push(UnreachableNode { node: node.to_owned(), reason });
                }
            }
        }
        desired
    }

    /// The tunnel devices that are needed and have an address.
    fn devices(
        &self,
        registration: &DesiredRegistration,
        address: impl Fn(&Tunnel) -> Option<IpAddr>,
    ) -> BlockBackend {
        let needed = registration.tunnels.iter().filter(|(_, pools)| pools.is_needed());
        let (vxlan, ipip): (Vec<_>, Vec<_>) =
            needed.map(|(tunnel, _)| tunnel).partition(|tunnel| matches!(tunnel, Tunnel::Vxlan(_)));
        BlockBackend {
            uplinks: self.uplinks.iter().map(|one| one.uplink.clone()).collect(),
            vxlan_addresses: vxlan.into_iter().filter_map(&address).collect(),
            ipip_address: ipip.into_iter().find_map(&address),
            mtu: self.mtu,
            ..BlockBackend::default()
        }
    }

    fn uplink(&self, family: IpFamily) -> Option<&Uplink> {
        self.uplinks.iter().map(|one| &one.uplink).find(|uplink| IpFamily::of(uplink.address) == family)
    }

    fn registration(&self, index: &BlockIndex) -> DesiredRegistration {
        let labels = index.nodes.get(self.node).map(Node::labels).unwrap_or_default();
        let selects_node = |pool: &&Pool| pool.selects_node(&labels).unwrap_or(false);
        let mut tunnels: BTreeMap<Tunnel, TunnelPools> = BTreeMap::new();
        for tunnel in Tunnel::ALL {
            let uses_tunnel = |pool: &&Pool| {
                pool.encapsulation().and_then(|(kind, _)| tunnel_of(kind, pool.family())) == Some(tunnel)
            };
            let all: Vec<&Pool> =
                routed_pools(index).filter(uses_tunnel).filter(|pool| pool.allows(Use::Tunnel)).collect();
            if !all.is_empty() && self.uplink(tunnel.family()).is_none() {
                // The uplink is down for the moment: the address in the store stays.
                continue;
            }
            let enabled: Vec<&Pool> = all.iter().copied().filter(|pool| pool.is_enabled()).collect();
            // Pools that select this node come first. A node that none selects still has to reach the others.
            let selected: Vec<&Pool> = enabled.iter().copied().filter(selects_node).collect();
            let pools = if selected.is_empty() { enabled } else { selected };
            let assign_from = pools.into_iter().map(|pool| pool.name().to_owned()).collect();
            let keep_in = all.into_iter().map(Pool::cidr).collect();
            tunnels.insert(tunnel, TunnelPools { assign_from, keep_in });
        }
        let address = |one: &UplinkAddress| IpNet::new(one.uplink.address, one.prefix_len).ok();
        DesiredRegistration {
            is_member: self.is_member,
            addresses: self.uplinks.iter().filter_map(address).collect(),
            tunnels,
        }
    }

    /// The route to a block of another node.
    fn route(&self, index: &BlockIndex, to: IpNet, name: &str) -> Result<BlockRoute, String> {
        let family = IpFamily::of_net(to);
        let pool = index.pool_of(&to).ok_or("it is in no pool")?;
        let node = index.nodes.get(name).ok_or("the store has no Node object for it")?;
        let address = node.address(family).map(|net| net.addr());
        let address = address.ok_or_else(|| format!("it has not registered an {} address", family.name()))?;
        let (encapsulation, cross_subnet) = match pool.encapsulation() {
            None if self.has_bgp => (RouteEncapsulation::ByBgp, false),
            None => (RouteEncapsulation::None, false),
            Some((Encapsulation::Ipip, cross)) => (RouteEncapsulation::Ipip, cross),
            Some((Encapsulation::Vxlan, cross)) => match vtep(node, family) {
                Some((vtep, mac)) => (RouteEncapsulation::Vxlan { vtep, mac }, cross),
                // Within the subnet no tunnel is needed.
                None if cross => (RouteEncapsulation::None, false),
                None => return Err("it has not registered a VXLAN tunnel address".into()),
            },
        };
        Ok(BlockRoute { to, node: name.into(), address, encapsulation, cross_subnet })
    }
}

fn tunnel_of(kind: Encapsulation, family: IpFamily) -> Option<Tunnel> {
    match (kind, family) {
        (Encapsulation::Vxlan, family) => Some(Tunnel::Vxlan(family)),
        (Encapsulation::Ipip, IpFamily::V4) => Some(Tunnel::Ipip),
        (Encapsulation::Ipip, IpFamily::V6) => None,
    }
}

/// The IP and MAC address of a node's VXLAN device.
fn vtep(node: &Node, family: IpFamily) -> Option<(IpAddr, Mac)> {
    let ip = node.tunnel(Tunnel::Vxlan(family))?;
    let registered = node.mac(family).and_then(|text| text.parse::<Mac>().ok()).filter(Mac::is_usable);
    Some((ip, registered.unwrap_or_else(|| podwire_overlay::vtep_mac(node.name(), family))))
}

/// Whether the store shows the registration: in the node's object, and in the blocks, which decide who has an address.
fn is_registered(wanted: &DesiredRegistration, node: &Node, index: &BlockIndex) -> bool {
    let has_address = |address: &IpNet| node.address(IpFamily::of_net(*address)) == Some(*address);
    let has_tunnel = |(tunnel, pools): (&Tunnel, &TunnelPools)| match node.tunnel(*tunnel) {
        None => pools.assign_from.is_empty(),
        Some(address) => {
            pools.keeps(address) && index.is_tunnel_address(&tunnel.handle(node.name()), address)
        }
    };
    let is_member = !wanted.is_member || node.kubernetes_name().is_some();
    is_member && wanted.addresses.iter().all(has_address) && wanted.tunnels.iter().all(has_tunnel)
}

#[cfg(test)]
mod tests {
    use podwire_block_ipam::store::{Memory, Store};
    use podwire_block_ipam::timestamp::Timestamp;
    use podwire_block_ipam::{AffinityOwner, Allocator, Request, Rules};

    use super::*;

    fn uplink() -> UplinkAddress {
        let address = "192.168.0.1".parse().unwrap();
        let uplink = Uplink { index: 2, name: "eth0".into(), mtu: 1500, address };
        UplinkAddress { uplink, prefix_len: 24 }
    }

    fn pool(name: &str, cidr: &str) -> Pool {
        Pool::new(name, cidr.parse().unwrap())
    }

    /// Two nodes, each with a block of each pool. The second node is registered.
    fn index(pools: &[Pool]) -> BlockIndex {
        let store = Memory::new();
        let allocator = Allocator::new(&store, || Timestamp::from_unix_nanos(1));
        pools.iter().for_each(|pool| allocator.add_pool(pool).unwrap());
        let rules = Rules::load(&store).unwrap();
        for node in ["node1", "node2"] {
            for pool in pools {
                let mut request = Request::new(AffinityOwner::host(node), format!("{node}-{}", pool.name()));
                (request.pools, request.family) = (vec![pool.name().into()], pool.family());
                allocator.assign(&rules, &request).unwrap();
            }
        }
        Node::update(&store, "node2", |node| {
            node.set_address("192.168.0.2/24".parse().unwrap());
            node.set_tunnel(Tunnel::Vxlan(IpFamily::V4), "10.1.9.9".parse().ok());
        })
        .unwrap();
        let mut index = BlockIndex::default();
        let entries = BlockIndex::prefixes(true).into_iter().flat_map(|prefix| store.list(prefix).unwrap());
        index.apply(entries.map(podwire_block_ipam::store::Change::Put).collect());
        index
    }

    fn desired(index: &BlockIndex, has_bgp: bool) -> DesiredState {
        let uplinks = &[uplink()];
        NodeContext { node: "node1", is_member: false, mtu: None, has_bgp, uplinks }.desired(index)
    }

    #[test]
    fn each_pool_has_its_own_encapsulation() {
        let index = index(&[
            pool("bare", "10.3.0.0/24"),
            pool("ipip", "10.2.0.0/24").with_encapsulation(Encapsulation::Ipip, false).with_nat_outgoing(),
            pool("vxlan", "10.1.0.0/24").with_encapsulation(Encapsulation::Vxlan, true),
        ]);
        let state = desired(&index, false);
        assert_eq!(state.unreachable, []);
        let kinds: BTreeMap<String, (RouteEncapsulation, bool)> = state
            .blocks
            .routes
            .iter()
            .map(|one| (one.to.to_string(), (one.encapsulation.clone(), one.cross_subnet)))
            .collect();
        let mac = podwire_overlay::vtep_mac("node2", IpFamily::V4);
        assert_eq!(
            kinds["10.1.0.64/26"],
            (RouteEncapsulation::Vxlan { vtep: "10.1.9.9".parse().unwrap(), mac }, true)
        );
        assert_eq!(kinds["10.2.0.64/26"], (RouteEncapsulation::Ipip, false));
        assert_eq!(kinds["10.3.0.64/26"], (RouteEncapsulation::None, false));
        assert_eq!(state.cluster.local.subnets.len(), 3);
        assert_eq!(state.blocks.nat_outgoing, ["10.2.0.0/24".parse().unwrap()]);
        let by_bgp = desired(&index, true);
        assert!(by_bgp.blocks.routes.iter().any(|one| one.encapsulation == RouteEncapsulation::ByBgp));
    }

    #[test]
    fn what_the_store_does_not_show_is_registered() {
        let index = index(&[pool("vxlan", "10.1.0.0/24").with_encapsulation(Encapsulation::Vxlan, false)]);
        let state = desired(&index, false);
        assert!(!state.is_registered && state.blocks.vxlan_addresses.is_empty());
        assert_eq!(state.mtu, 1450, "pods that start before the tunnel has an address must fit into it");
        assert_eq!(state.registration.addresses, ["192.168.0.1/24".parse().unwrap()]);
        assert_eq!(state.registration.tunnels[&Tunnel::Vxlan(IpFamily::V4)].assign_from, ["vxlan"]);
        assert!(!state.registration.tunnels[&Tunnel::Ipip].is_needed());
    }

    /// A registered node with a tunnel address, and a block that assigns that address to `handle`.
    fn index_with_tunnel(pools: &[Pool], handle: &str) -> BlockIndex {
        let store = Memory::new();
        let allocator = Allocator::new(&store, || Timestamp::from_unix_nanos(1));
        pools.iter().for_each(|pool| allocator.add_pool(pool).unwrap());
        let rules = Rules::load(&store).unwrap();
        let mut request = Request::new(AffinityOwner::host("node1"), handle);
        request.intended_use = Use::Tunnel;
        let end = allocator.assign(&rules, &request).unwrap().addresses[0].addr();
        Node::update(&store, "node1", |node| {
            node.set_address("192.168.0.1/24".parse().unwrap());
            node.set_tunnel(Tunnel::Vxlan(IpFamily::V4), Some(end));
        })
        .unwrap();
        let mut index = BlockIndex::default();
        let entries = BlockIndex::prefixes(false).into_iter().flat_map(|prefix| store.list(prefix).unwrap());
        index.apply(entries.map(podwire_block_ipam::store::Change::Put).collect());
        index
    }

    #[test]
    fn a_tunnel_address_is_registered_if_its_block_shows_it_too() {
        let vxlan = || {
            pool("vxlan", "10.1.0.0/24").with_block_size(26).with_encapsulation(Encapsulation::Vxlan, false)
        };
        let good = index_with_tunnel(&[vxlan()], "vxlan-tunnel-addr-node1");
        let state = desired(&good, false);
        assert!(state.is_registered && state.blocks.vxlan_addresses.len() == 1);
        // A Kubernetes node whose object does not name it would never be garbage collected.
        let uplinks = [uplink()];
        let member =
            NodeContext { node: "node1", is_member: true, mtu: None, has_bgp: false, uplinks: &uplinks };
        assert!(!member.desired(&good).is_registered);
        let mut named = good.clone();
        named.nodes.get_mut("node1").unwrap().set_kubernetes_name();
        assert!(member.desired(&named).is_registered && desired(&named, false).is_registered);
        // Another client released the address, and a pod has it now.
        let state = desired(&index_with_tunnel(&[vxlan()], "net.a-pod"), false);
        assert!(!state.is_registered && state.blocks.vxlan_addresses.len() == 1);
        // A pool that is being split: for a moment all parts are disabled, and the address stays.
        let mut between = good.clone();
        between.pools = [("part".into(), vxlan().disabled())].into();
        let state = desired(&between, false);
        assert!(state.is_registered && state.blocks.vxlan_addresses.len() == 1);
        // Another pool needs the tunnel now: the address has to move.
        let mut moved = good.clone();
        let other = pool("other", "10.9.0.0/24").with_encapsulation(Encapsulation::Vxlan, false);
        moved.pools = [("other".into(), other)].into();
        assert!(!desired(&moved, false).is_registered);
        // No uplink: nothing is assigned and nothing released.
        let context =
            NodeContext { node: "node1", is_member: false, mtu: None, has_bgp: false, uplinks: &[] };
        assert!(!context.desired(&good).registration.tunnels.contains_key(&Tunnel::Vxlan(IpFamily::V4)));
        // No pool: the address is released, with or without an uplink.
        let mut none = good;
        none.pools.clear();
        let state = context.desired(&none);
        assert!(
            !state.is_registered && !state.registration.tunnels[&Tunnel::Vxlan(IpFamily::V4)].is_needed()
        );
    }

    #[test]
    fn a_node_without_a_record_or_address_is_unreachable() {
        let mut index = index(&[pool("bare", "10.3.0.0/24")]);
        index.nodes.clear();
        let state = desired(&index, false);
        assert_eq!(state.unreachable.len(), 1);
        assert!(state.unreachable[0].reason.contains("no Node object"), "{:?}", state.unreachable);
        index.nodes.insert("node2".into(), Node::new("node2"));
        assert!(desired(&index, false).unreachable[0].reason.contains("has not registered an IPv4 address"));
    }
}
