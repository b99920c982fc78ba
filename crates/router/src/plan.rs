//! From what the store says to what the kernel, the store and BIRD are to be told. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_block_ipam::{BlockIndex, Encapsulation, IpFamily, Node, Pool, Tunnel, Use};
use podwire_kernel::Mac;
use podwire_overlay::{Around, Blocks, Cluster, Fabric, Own, OwnSide, Stretch, Uplink};

use crate::registrar::{Ground, Wish};

/// What is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) cluster: Cluster,
    pub(crate) blocks: Blocks,
    /// The MTU of pods: with room for the tunnels that are needed, also as long as their ends have no address yet.
    pub(crate) mtu: u32,
    /// What the store should know of this node.
    pub(crate) wish: Wish,
    /// Whether it knows that already.
    pub(crate) is_known: bool,
    /// Who has no road, and why.
    pub(crate) refused: Vec<(String, String)>,
}

/// Where this node is met, and the length of the wire's prefix.
pub(crate) type Place = (Uplink, u8);

/// Who makes the plan.
pub(crate) struct Planner<'a> {
    pub(crate) node: &'a str,
    /// Whether it is a node of Kubernetes.
    pub(crate) is_member: bool,
    pub(crate) mtu: Option<u32>,
    /// Whether BGP brings the roads to pools without a tunnel.
    pub(crate) has_bgp: bool,
    pub(crate) places: &'a [Place],
}

/// The families that pools have.
pub(crate) fn families(atlas: &BlockIndex) -> BTreeSet<IpFamily> {
    roads(atlas).map(Pool::family).collect()
}

/// The pools whose addresses are at the end of roads: not those of services.
fn roads(atlas: &BlockIndex) -> impl Iterator<Item = &Pool> {
    atlas.pools.values().filter(|pool| pool.allows(Use::Workload) || pool.allows(Use::Tunnel))
}

impl Planner<'_> {
    pub(crate) fn plan(&self, atlas: &BlockIndex) -> Plan {
        let wish = self.wish(atlas);
        let record = atlas.nodes.get(self.node);
        let own = Own { name: self.node.into(), sides: Vec::new() };
        let promised = self.devices(&wish, |tunnel| Some(tunnel.family().unspecified()));
        let mut plan = Plan {
            mtu: promised.mtu(&own),
            cluster: Cluster { networks: roads(atlas).map(Pool::cidr).collect(), own, peers: Vec::new() },
            blocks: Blocks {
                hidden: roads(atlas).filter(|pool| pool.nat_outgoing()).map(Pool::cidr).collect(),
                ..self.devices(&wish, |tunnel| record?.tunnel(*tunnel))
            },
            is_known: record.is_some_and(|node| is_fulfilled(&wish, node, atlas)),
            wish,
            refused: Vec::new(),
        };
        for (to, node) in atlas.routes() {
            if node == self.node {
                let uplink = self.uplink(IpFamily::of(to.addr())).cloned();
                plan.cluster.own.sides.extend(uplink.map(|uplink| OwnSide { pods: to, uplink }));
                continue;
            }
            match self.stretch(atlas, to, node) {
                Ok(stretch) => plan.blocks.stretches.push(stretch),
                Err(why) => plan.refused.push((node.to_owned(), format!("{to}: {why}"))),
            }
        }
        plan
    }

    /// The devices of the tunnels that are needed and whose ends are known.
    fn devices(&self, wish: &Wish, end: impl Fn(&Tunnel) -> Option<IpAddr>) -> Blocks {
        let needed = wish.tunnels.iter().filter(|(_, ground)| ground.is_there()).map(|(tunnel, _)| tunnel);
        let (vxlan, ipip): (Vec<_>, Vec<_>) = needed.partition(|tunnel| matches!(tunnel, Tunnel::Vxlan(_)));
        Blocks {
            uplinks: self.places.iter().map(|(uplink, _)| uplink.clone()).collect(),
            vxlan: vxlan.into_iter().filter_map(&end).collect(),
            ipip: ipip.into_iter().find_map(&end),
            mtu: self.mtu,
            ..Blocks::default()
        }
    }

    fn uplink(&self, family: IpFamily) -> Option<&Uplink> {
        self.places.iter().map(|(uplink, _)| uplink).find(|uplink| IpFamily::of(uplink.address) == family)
    }

    fn wish(&self, atlas: &BlockIndex) -> Wish {
        let labels = atlas.nodes.get(self.node).map(Node::labels).unwrap_or_default();
        let is_for_us = |pool: &&Pool| pool.selects_node(&labels).unwrap_or(false);
        let mut tunnels: BTreeMap<Tunnel, Ground> = BTreeMap::new();
        for tunnel in Tunnel::ALL {
            let is_needed = |pool: &&Pool| {
                pool.encapsulation().and_then(|(kind, _)| tunnel_of(kind, pool.family())) == Some(tunnel)
            };
            let all: Vec<&Pool> =
                roads(atlas).filter(is_needed).filter(|pool| pool.allows(Use::Tunnel)).collect();
            if !all.is_empty() && self.uplink(tunnel.family()).is_none() {
                // The wire is away for a moment: what there is in the store stays as it is.
                continue;
            }
            let given: Vec<&Pool> = all.iter().copied().filter(|pool| pool.is_enabled()).collect();
            // Those that are for this node. One for which there is none still has to reach the others.
            let own: Vec<&Pool> = given.iter().copied().filter(is_for_us).collect();
            let giving = if own.is_empty() { given } else { own };
            let gives = giving.into_iter().map(|pool| pool.name().to_owned()).collect();
            tunnels.insert(tunnel, Ground { gives, keeps: all.into_iter().map(Pool::cidr).collect() });
        }
        let address = |(uplink, length): &Place| IpNet::new(uplink.address, *length).ok();
        Wish {
            is_member: self.is_member,
            addresses: self.places.iter().filter_map(address).collect(),
            tunnels,
        }
    }

    /// How addresses of another node are reached.
    fn stretch(&self, atlas: &BlockIndex, to: IpNet, name: &str) -> Result<Stretch, String> {
        let family = IpFamily::of(to.addr());
        let pool = atlas.pool_of(&to).ok_or("it is in no pool")?;
        let node = atlas.nodes.get(name).ok_or("the store has no object of this node")?;
        let address = node.address(family).map(|net| net.addr());
        let address = address.ok_or_else(|| format!("it has not told an {} address", family.name()))?;
        let (around, cross_subnet) = match pool.encapsulation() {
            None if self.has_bgp => (Around::Elsewhere, false),
            None => (Around::Nothing, false),
            Some((Encapsulation::Ipip, cross)) => (Around::Ipip, cross),
            Some((Encapsulation::Vxlan, cross)) => match vtep(node, family) {
                Some((ip, mac)) => (Around::Vxlan(ip, mac), cross),
                // On the wire nothing else is needed.
                None if cross => (Around::Nothing, false),
                None => return Err("it has no address for the end of its VXLAN tunnel yet".into()),
            },
        };
        Ok(Stretch { to, node: name.into(), address, around, cross_subnet })
    }
}

fn tunnel_of(kind: Encapsulation, family: IpFamily) -> Option<Tunnel> {
    match (kind, family) {
        (Encapsulation::Vxlan, family) => Some(Tunnel::Vxlan(family)),
        (Encapsulation::Ipip, IpFamily::V4) => Some(Tunnel::Ipip),
        (Encapsulation::Ipip, IpFamily::V6) => None,
    }
}

/// The end of a node's VXLAN tunnel.
fn vtep(node: &Node, family: IpFamily) -> Option<(IpAddr, Mac)> {
    let ip = node.tunnel(Tunnel::Vxlan(family))?;
    let chosen = node.mac(family).and_then(|text| text.parse::<Mac>().ok()).filter(Mac::is_usable);
    Some((ip, chosen.unwrap_or_else(|| podwire_overlay::vtep_mac(node.name(), family == IpFamily::V4))))
}

/// Whether the store knows it: the node's own object, and the blocks, which say whose an address really is.
fn is_fulfilled(wish: &Wish, node: &Node, atlas: &BlockIndex) -> bool {
    let is_told = |address: &IpNet| node.address(IpFamily::of(address.addr())) == Some(*address);
    let is_right = |(tunnel, ground): (&Tunnel, &Ground)| match node.tunnel(*tunnel) {
        None => ground.gives.is_empty(),
        Some(end) => ground.keeps(end) && atlas.is_tunnel_address(&tunnel.handle(node.name()), end),
    };
    let is_named = !wish.is_member || node.kubernetes_name().is_some();
    is_named && wish.addresses.iter().all(is_told) && wish.tunnels.iter().all(is_right)
}

#[cfg(test)]
mod tests {
    use podwire_block_ipam::store::{Memory, Store};
    use podwire_block_ipam::timestamp::Timestamp;
    use podwire_block_ipam::{AffinityOwner, Allocator, Request, Rules};

    use super::*;

    fn place() -> Place {
        let address = "192.168.0.1".parse().unwrap();
        (Uplink { index: 2, name: "eth0".into(), mtu: 1500, address }, 24)
    }

    fn pool(name: &str, cidr: &str) -> Pool {
        Pool::new(name, cidr.parse().unwrap())
    }

    /// Two nodes, each with a block of each pool; of the second all is known.
    fn atlas(pools: &[Pool]) -> BlockIndex {
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
        let mut atlas = BlockIndex::default();
        let entries = BlockIndex::prefixes(true).into_iter().flat_map(|prefix| store.list(prefix).unwrap());
        atlas.apply(entries.map(podwire_block_ipam::store::Change::Put).collect());
        atlas
    }

    fn planned(atlas: &BlockIndex, has_bgp: bool) -> Plan {
        Planner { node: "node1", is_member: false, mtu: None, has_bgp, places: &[place()] }.plan(atlas)
    }

    #[test]
    fn each_pool_has_its_own_kind_of_road() {
        let atlas = atlas(&[
            pool("bare", "10.3.0.0/24"),
            pool("ipip", "10.2.0.0/24").with_encapsulation(Encapsulation::Ipip, false).with_nat_outgoing(),
            pool("vxlan", "10.1.0.0/24").with_encapsulation(Encapsulation::Vxlan, true),
        ]);
        let plan = planned(&atlas, false);
        assert_eq!(plan.refused, []);
        let kinds: BTreeMap<String, (Around, bool)> = plan
            .blocks
            .stretches
            .iter()
            .map(|one| (one.to.to_string(), (one.around.clone(), one.cross_subnet)))
            .collect();
        let mac = podwire_overlay::vtep_mac("node2", true);
        assert_eq!(kinds["10.1.0.64/26"], (Around::Vxlan("10.1.9.9".parse().unwrap(), mac), true));
        assert_eq!(kinds["10.2.0.64/26"], (Around::Ipip, false));
        assert_eq!(kinds["10.3.0.64/26"], (Around::Nothing, false));
        assert_eq!(plan.cluster.own.sides.len(), 3);
        assert_eq!(plan.blocks.hidden, ["10.2.0.0/24".parse().unwrap()]);
        let by_bgp = planned(&atlas, true);
        assert!(by_bgp.blocks.stretches.iter().any(|one| one.around == Around::Elsewhere));
    }

    #[test]
    fn the_store_is_told_what_it_does_not_know() {
        let atlas = atlas(&[pool("vxlan", "10.1.0.0/24").with_encapsulation(Encapsulation::Vxlan, false)]);
        let plan = planned(&atlas, false);
        assert!(!plan.is_known && plan.blocks.vxlan.is_empty());
        assert_eq!(plan.mtu, 1450, "pods that come before the tunnel has its end must fit into it");
        assert_eq!(plan.wish.addresses, ["192.168.0.1/24".parse().unwrap()]);
        assert_eq!(plan.wish.tunnels[&Tunnel::Vxlan(IpFamily::V4)].gives, ["vxlan"]);
        assert!(!plan.wish.tunnels[&Tunnel::Ipip].is_there());
    }

    /// A node that has told where it is met and where its tunnel ends, and a block that gives that address to `handle`.
    fn atlas_with_end(pools: &[Pool], handle: &str) -> BlockIndex {
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
        let mut atlas = BlockIndex::default();
        let entries = BlockIndex::prefixes(false).into_iter().flat_map(|prefix| store.list(prefix).unwrap());
        atlas.apply(entries.map(podwire_block_ipam::store::Change::Put).collect());
        atlas
    }

    #[test]
    fn the_end_of_a_tunnel_is_known_if_its_block_says_so_too() {
        let vxlan = || {
            pool("vxlan", "10.1.0.0/24").with_block_size(26).with_encapsulation(Encapsulation::Vxlan, false)
        };
        let good = atlas_with_end(&[vxlan()], "vxlan-tunnel-addr-node1");
        let plan = planned(&good, false);
        assert!(plan.is_known && plan.blocks.vxlan.len() == 1);
        // As long as its object does not say which node of Kubernetes it is, and it is one, nobody would clean up behind it.
        let places = [place()];
        let member = Planner { node: "node1", is_member: true, mtu: None, has_bgp: false, places: &places };
        assert!(!member.plan(&good).is_known);
        let mut named = good.clone();
        named.nodes.get_mut("node1").unwrap().set_kubernetes_name();
        assert!(member.plan(&named).is_known && planned(&named, false).is_known);
        // Somebody has released it, and a pod has it now.
        let plan = planned(&atlas_with_end(&[vxlan()], "net.a-pod"), false);
        assert!(!plan.is_known && plan.blocks.vxlan.len() == 1);
        // A pool that is being cut into parts: for a moment all of them are disabled, and the end stays.
        let mut between = good.clone();
        between.pools = [("part".into(), vxlan().disabled())].into();
        let plan = planned(&between, false);
        assert!(plan.is_known && plan.blocks.vxlan.len() == 1);
        // The pool is another's by now: the end has to move.
        let mut moved = good.clone();
        let other = pool("other", "10.9.0.0/24").with_encapsulation(Encapsulation::Vxlan, false);
        moved.pools = [("other".into(), other)].into();
        assert!(!planned(&moved, false).is_known);
        // No wire: nothing is asked for, and nothing given back.
        let planner = Planner { node: "node1", is_member: false, mtu: None, has_bgp: false, places: &[] };
        assert!(!planner.plan(&good).wish.tunnels.contains_key(&Tunnel::Vxlan(IpFamily::V4)));
        // No pool: the end is given back, wire or not.
        let mut none = good;
        none.pools.clear();
        let plan = planner.plan(&none);
        assert!(!plan.is_known && !plan.wish.tunnels[&Tunnel::Vxlan(IpFamily::V4)].is_there());
    }

    #[test]
    fn who_is_not_known_has_no_road_and_that_is_told() {
        let mut atlas = atlas(&[pool("bare", "10.3.0.0/24")]);
        atlas.nodes.clear();
        let plan = planned(&atlas, false);
        assert_eq!(plan.refused.len(), 1);
        assert!(plan.refused[0].1.contains("no object of this node"), "{:?}", plan.refused);
        atlas.nodes.insert("node2".into(), Node::new("node2"));
        assert!(planned(&atlas, false).refused[0].1.contains("has not told an IPv4 address"));
    }
}
