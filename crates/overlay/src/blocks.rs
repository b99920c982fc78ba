//! blocks: a node has not one range but many small ones, and single addresses, and what is put around a packet depends on the pool that they are of.
//! The forms are Calico's (its names, numbers and hardware addresses), so that its nodes and ours reach each other.
//!
//! - A pool with VXLAN: the device `vxlan.calico` (`vxlan-v6.calico`), with an address of a pool; a route for each block through the
//!   address of the other node's device.
//! - A pool with IPIP: a device too; a route for each block through the other node itself.
//! - A pool with neither: a route through the other node, which must be on the wire then; or none at all, if BGP brings them.
//! - Across subnets only: as with neither to nodes on the wire, else as the pool says.
//!
//! A node's own blocks lead nowhere by themselves: more is known of a pod that is there.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_kernel::firewall::cluster::{MasqueradeScope, Rules};
use podwire_kernel::ipip::Ipip;
use podwire_kernel::tunnel::{Driver, Tunnel};
use podwire_kernel::vxlan::{Df, Vxlan};
use podwire_kernel::Mac;
use sha1::{Digest, Sha1};

use crate::desired::Device;
use crate::route_lookup::Reach;
use crate::{
    Backend, Cluster, DesiredRoute, DesiredState, Egress, FirewallOptions, LocalNode, RouteLookup,
    UnreachablePeer, Uplink, ALIAS,
};

const VNI: u32 = 4096;
const PORT: u16 = 4789;
/// Calico takes the kernel's own `tunl0`, which cannot be bound to an address; packets on the wire are the same.
const IPIP: &str = "podwire.ipip";
/// The protocol number of Calico's own routes: ours take their place.
const FELIX: u8 = 80;

/// Roads to blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockBackend {
    /// Where this node meets the others.
    pub uplinks: Vec<Uplink>,
    /// The addresses of its VXLAN devices: one for each family that has such a pool.
    pub vxlan_addresses: Vec<IpAddr>,
    /// The address of its IPIP device.
    pub ipip_address: Option<IpAddr>,
    /// The MTU of the network between the nodes, if it is not that of the uplink.
    pub mtu: Option<u32>,
    /// The roads to be.
    pub routes: Vec<BlockRoute>,
    /// The pools whose pods reach the world with the node's address.
    pub nat_outgoing: Vec<IpNet>,
}

/// Addresses that another node has, and how they are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRoute {
    /// The addresses.
    pub to: IpNet,
    /// The node.
    pub node: String,
    /// Where the node is met.
    pub address: IpAddr,
    /// What is put around a packet.
    pub encapsulation: RouteEncapsulation,
    /// Not between nodes on one wire.
    pub cross_subnet: bool,
}

/// What is put around a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteEncapsulation {
    /// Nothing.
    None,
    /// UDP: the address of the other node's device, and its hardware address.
    Vxlan {
        /// The address of the other node's VXLAN device: the gateway of the route.
        vtep: IpAddr,
        /// Its hardware address.
        mac: Mac,
    },
    /// Another IPv4 header.
    Ipip,
    /// Whatever it is, somebody else sees to it: a BGP daemon.
    ByBgp,
}

/// The hardware address that Calico gives a node's VXLAN device.
pub fn vtep_mac(node: &str, family: IpFamily) -> Mac {
    let hash = match family {
        IpFamily::V4 => Sha1::digest(node),
        IpFamily::V6 => Sha1::digest(format!("{node}-v6")),
    };
    Mac([0x66, hash[0], hash[1], hash[2], hash[3], hash[4]])
}

impl BlockBackend {
    /// The names of its devices, whether they are there or not.
    pub fn devices() -> [&'static str; 3] {
        ["vxlan.calico", "vxlan-v6.calico", IPIP]
    }

    fn uplink(&self, family: IpFamily) -> Option<&Uplink> {
        self.uplinks.iter().find(|uplink| IpFamily::of(uplink.address) == family)
    }

    fn vxlan_tunnel(&self, node: &str, family: IpFamily) -> Option<Tunnel> {
        let uplink = self.uplink(family)?;
        let settings = Vxlan {
            vni: VNI,
            port: PORT,
            local: uplink.address,
            link: uplink.index,
            learning: false,
            gbp: false,
            df: Df::Unset,
        };
        Some(Tunnel {
            name: if family.is_v4() { "vxlan.calico" } else { "vxlan-v6.calico" }.into(),
            driver: Driver::Vxlan(settings),
            mtu: self.mtu.unwrap_or(uplink.mtu).saturating_sub(settings.overhead()),
            mac: Some(vtep_mac(node, family)),
            alias: ALIAS,
        })
    }

    fn ipip_tunnel(&self) -> Option<Tunnel> {
        let uplink = self.uplink(IpFamily::V4)?;
        let IpAddr::V4(local) = uplink.address else { return None };
        Some(Tunnel {
            name: IPIP.into(),
            driver: Driver::Ipip(Ipip { local }),
            mtu: self.mtu.unwrap_or(uplink.mtu).saturating_sub(Ipip::OVERHEAD),
            mac: None,
            alias: ALIAS,
        })
    }

    fn tunnels(&self, node: &str) -> Vec<(Tunnel, IpAddr)> {
        let vxlan = self
            .vxlan_addresses
            .iter()
            .filter_map(|ip| Some((self.vxlan_tunnel(node, IpFamily::of(*ip))?, *ip)));
        let ipip = self.ipip_address.and_then(|ip| Some((self.ipip_tunnel()?, ip)));
        vxlan.chain(ipip).collect()
    }
}

impl Backend for BlockBackend {
    fn name(&self) -> &'static str {
        "blocks"
    }

    fn mtu(&self, own: &LocalNode) -> u32 {
        let tunnels = self.tunnels(&own.name);
        let wires = self.uplinks.iter().map(|uplink| self.mtu.unwrap_or(uplink.mtu));
        tunnels.iter().map(|(tunnel, _)| tunnel.mtu).chain(wires).min().unwrap_or(0)
    }

    fn desired(&self, cluster: &Cluster, ground: &RouteLookup) -> DesiredState {
        let mut site = Site { wanted: DesiredState::default(), macs: HashMap::new(), ground };
        let tunnels = self.tunnels(&cluster.local.name);
        site.wanted.devices = tunnels.into_iter().map(|(tunnel, ip)| Device::new(tunnel, vec![ip])).collect();
        for stretch in &self.routes {
            match site.way(stretch) {
                Ok(way) => site.wanted.routes.extend(way),
                Err(why) => site
                    .wanted
                    .unreachable
                    .push(UnreachablePeer::new(&stretch.node, format!("{}: {why}", stretch.to))),
            }
        }
        site.wanted
    }

    fn rules(&self, cluster: &Cluster, firewall: &FirewallOptions) -> Rules {
        let tunnels = self.tunnels(&cluster.local.name).into_iter().map(|(tunnel, _)| tunnel.name).collect();
        Rules {
            cluster: cluster.networks.clone(),
            own: self.nat_outgoing.clone(),
            masquerade: true,
            random_ports: firewall.random_ports,
            forward: firewall.forward,
            scope: MasqueradeScope::Pools { tunnels },
        }
    }

    fn predecessor(&self) -> Option<u8> {
        Some(FELIX)
    }
}

struct Site<'a> {
    wanted: DesiredState,
    /// Who is behind a hardware address.
    macs: HashMap<Mac, (IpAddr, &'a str)>,
    ground: &'a RouteLookup,
}

impl<'a> Site<'a> {
    /// The route to a stretch, if one is needed here.
    fn way(&mut self, stretch: &'a BlockRoute) -> Result<Option<DesiredRoute>, String> {
        let on_wire = match self.ground.reach(stretch.address) {
            Reach::OnLink(link) => Some(DesiredRoute {
                to: stretch.to,
                via: Some(stretch.address),
                egress: Egress::Link(link),
                onlink: false,
            }),
            _ => None,
        };
        match (&stretch.encapsulation, on_wire) {
            (RouteEncapsulation::ByBgp, _) => Ok(None),
            (RouteEncapsulation::None, Some(way)) => Ok(Some(way)),
            (RouteEncapsulation::None, None) => Err(format!(
                "its node at {} is not on a wire with this one: let the pool have VXLAN or IPIP, or use BGP",
                stretch.address
            )),
            (_, Some(way)) if stretch.cross_subnet => Ok(Some(way)),
            (RouteEncapsulation::Vxlan { vtep, mac }, _) => self.tunnelled(stretch, *vtep, *mac).map(Some),
            (RouteEncapsulation::Ipip, _) => {
                let device = self.device(|driver| matches!(driver, Driver::Ipip(_)))?;
                Ok(Some(DesiredRoute {
                    to: stretch.to,
                    via: Some(stretch.address),
                    egress: Egress::Tunnel(device),
                    onlink: true,
                }))
            }
        }
    }

    fn tunnelled(
        &mut self,
        stretch: &'a BlockRoute,
        stand_in: IpAddr,
        mac: Mac,
    ) -> Result<DesiredRoute, String> {
        let is_meant = |driver: &Driver| match driver {
            Driver::Vxlan(settings) => settings.local.is_ipv4() == stand_in.is_ipv4(),
            _ => false,
        };
        let number = self.device(is_meant)?;
        match self.macs.get(&mac) {
            Some((ip, node)) if (*ip, *node) != (stand_in, stretch.node.as_str()) => {
                return Err(format!("its VXLAN device has the hardware address of {node}'s, {mac}"));
            }
            Some(_) => {}
            None => {
                self.macs.insert(mac, (stand_in, &stretch.node));
                let device = &mut self.wanted.devices[number];
                device.neighbours.push((stand_in, mac));
                device.forwarding.push((mac, stretch.address));
            }
        }
        Ok(DesiredRoute { to: stretch.to, via: Some(stand_in), egress: Egress::Tunnel(number), onlink: true })
    }

    fn device(&self, is_meant: impl Fn(&Driver) -> bool) -> Result<usize, String> {
        let place = self.wanted.devices.iter().position(|device| is_meant(&device.tunnel.driver));
        place.ok_or_else(|| "this node has no end of such a tunnel yet".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "10.244.0.0/16";

    fn uplink() -> Uplink {
        Uplink { index: 2, name: "eth0".into(), mtu: 1500, address: "192.168.0.1".parse().unwrap() }
    }

    fn cluster() -> Cluster {
        let own = LocalNode { name: "node1".into(), subnets: Vec::new() };
        Cluster { networks: vec![CLUSTER.parse().unwrap()], local: own, peers: Vec::new() }
    }

    /// 192.168.0.0/24 is on the wire.
    fn ground() -> RouteLookup {
        let on_wire = podwire_netlink::rt::route::Route {
            link: Some(2),
            ..podwire_netlink::rt::route::Route::to("192.168.0.0".parse().unwrap(), 24)
        };
        RouteLookup::new(&[on_wire], &cluster().networks)
    }

    fn stretch(to: &str, address: &str, around: RouteEncapsulation, cross_subnet: bool) -> BlockRoute {
        let (to, address) = (to.parse().unwrap(), address.parse().unwrap());
        BlockRoute { to, node: "node2".into(), address, encapsulation: around, cross_subnet }
    }

    fn wanted(stretches: Vec<BlockRoute>) -> DesiredState {
        let vxlan = vec!["10.244.1.1".parse().unwrap()];
        let blocks = BlockBackend {
            uplinks: vec![uplink()],
            vxlan_addresses: vxlan,
            routes: stretches,
            ..BlockBackend::default()
        };
        blocks.desired(&cluster(), &ground())
    }

    #[test]
    fn hardware_addresses_are_calicos() {
        assert_eq!(vtep_mac("node1", IpFamily::V4).to_string(), "66:f9:37:c3:7e:94");
        assert_eq!(vtep_mac("node1", IpFamily::V6).to_string(), "66:0f:35:f2:60:df");
    }

    #[test]
    fn a_node_behind_the_tunnel_is_one_neighbour_for_all_its_blocks() {
        let around = || RouteEncapsulation::Vxlan {
            vtep: "10.244.2.0".parse().unwrap(),
            mac: vtep_mac("node2", IpFamily::V4),
        };
        let wanted = wanted(vec![
            stretch("10.244.2.0/26", "172.16.0.2", around(), false),
            stretch("10.244.2.64/26", "172.16.0.2", around(), false),
            stretch("10.244.1.7/32", "172.16.0.2", around(), false),
        ]);
        assert_eq!((wanted.unreachable.len(), wanted.routes.len()), (0, 3));
        let device = &wanted.devices[0];
        assert_eq!((device.tunnel.name.as_str(), device.tunnel.mtu), ("vxlan.calico", 1450));
        assert_eq!((device.neighbours.len(), device.forwarding.len()), (1, 1));
        let via: Vec<_> =
            wanted.routes.iter().map(|way| (way.via.unwrap().to_string(), way.onlink)).collect();
        assert_eq!(via, vec![("10.244.2.0".to_owned(), true); 3]);
    }

    #[test]
    fn across_subnets_only_means_that_the_wire_is_used_where_there_is_one() {
        let around = || RouteEncapsulation::Vxlan {
            vtep: "10.244.2.0".parse().unwrap(),
            mac: vtep_mac("node2", IpFamily::V4),
        };
        let near = wanted(vec![stretch("10.244.2.0/26", "192.168.0.2", around(), true)]);
        assert_eq!(near.routes[0].egress, Egress::Link(2));
        let far = wanted(vec![stretch("10.244.2.0/26", "172.16.0.2", around(), true)]);
        assert_eq!(far.routes[0].egress, Egress::Tunnel(0));
        let always = wanted(vec![stretch("10.244.2.0/26", "192.168.0.2", around(), false)]);
        assert_eq!(always.routes[0].egress, Egress::Tunnel(0));
    }

    #[test]
    fn what_cannot_be_reached_is_told() {
        let bare = wanted(vec![stretch("10.244.2.0/26", "172.16.0.2", RouteEncapsulation::None, false)]);
        assert_eq!(bare.unreachable[0].peer, "node2");
        assert!(bare.unreachable[0].reason.contains("not on a wire"), "{}", bare.unreachable[0].reason);
        let ipip = wanted(vec![stretch("10.244.2.0/26", "172.16.0.2", RouteEncapsulation::Ipip, false)]);
        assert!(ipip.unreachable[0].reason.contains("no end of such a tunnel"));
        let elsewhere =
            wanted(vec![stretch("10.244.2.0/26", "172.16.0.2", RouteEncapsulation::ByBgp, false)]);
        assert_eq!((elsewhere.unreachable.len(), elsewhere.routes.len()), (0, 0));
    }

    #[test]
    fn two_nodes_with_one_hardware_address_are_not_mixed_up() {
        let mac = vtep_mac("node2", IpFamily::V4);
        let around = |ip: &str| RouteEncapsulation::Vxlan { vtep: ip.parse().unwrap(), mac };
        let mut other = stretch("10.244.3.0/26", "172.16.0.3", around("10.244.3.0"), false);
        other.node = "node3".into();
        let wanted = wanted(vec![stretch("10.244.2.0/26", "172.16.0.2", around("10.244.2.0"), false), other]);
        assert_eq!((wanted.routes.len(), wanted.unreachable.len()), (1, 1));
        assert!(wanted.unreachable[0].reason.contains("node2"));
    }
}
