//! The backend for Calico's IPAM: a node has many address blocks and single addresses, and the encapsulation depends on
//! their IP pool. Device names, numbers and hardware addresses are Calico's, so that Calico nodes and ours reach each
//! other.
//!
//! - VXLAN pools: the device `vxlan.calico` (`vxlan-v6.calico`) with an address from a pool, and a route for each block
//!   via the address of the other node's device.
//! - IPIP pools: one device, and a route for each block via the other node's own address.
//! - Pools without encapsulation: a route via the other node, which must be on the same link; no route if BGP
//!   distributes them.
//! - CrossSubnet: a direct route to nodes on the same link, else the pool's encapsulation.
//!
//! This node's own blocks get a blackhole route ([`FirewallOptions::blackhole`]); pod routes (/32) take precedence.

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

use crate::backend::Backend;
use crate::cluster::{Cluster, LocalNode};
use crate::desired::{DesiredRoute, DesiredState, Device, Egress};
use crate::firewall::FirewallOptions;
use crate::ownership::ALIAS;
use crate::report::UnreachablePeer;
use crate::route_lookup::{Reach, RouteLookup};
use crate::uplink::Uplink;

const VNI: u32 = 4096;
const PORT: u16 = 4789;
/// Calico uses the kernel's `tunl0`, which cannot be bound to an address. The packets between nodes are the same.
const IPIP: &str = "podwire.ipip";
/// The protocol number of Calico's routes, which become owned routes.
const FELIX: u8 = 80;

/// Routes to address blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockBackend {
    /// The interfaces to the other nodes, one for each family.
    pub uplinks: Vec<Uplink>,
    /// The addresses of the VXLAN devices, one for each family that has a VXLAN pool.
    pub vxlan_addresses: Vec<IpAddr>,
    /// The address of the IPIP device.
    pub ipip_address: Option<IpAddr>,
    /// The MTU of the network between the nodes; `None` is the uplink's MTU.
    pub mtu: Option<u32>,
    /// The routes to blocks of other nodes.
    pub routes: Vec<BlockRoute>,
    /// The pools whose pods are masqueraded outside the cluster (`natOutgoing`).
    pub nat_outgoing: Vec<IpNet>,
}

/// A route to a block, or a single address, of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRoute {
    /// The block or address.
    pub to: IpNet,
    /// The name of the node.
    pub node: String,
    /// The address that other nodes use to reach the node.
    pub address: IpAddr,
    /// The encapsulation of the block's pool.
    pub encapsulation: RouteEncapsulation,
    /// Encapsulate only if the node is not on the same link.
    pub cross_subnet: bool,
}

/// The encapsulation of packets on a [`BlockRoute`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteEncapsulation {
    /// None: the node itself is the next hop.
    None,
    /// VXLAN.
    Vxlan {
        /// The address of the other node's VXLAN device: the next hop.
        vtep: IpAddr,
        /// The hardware address of that device.
        mac: Mac,
    },
    /// IPv4 in IPv4.
    Ipip,
    /// A BGP daemon installs the route.
    ByBgp,
}

/// The hardware address that Calico gives to a node's VXLAN device.
pub fn vtep_mac(node: &str, family: IpFamily) -> Mac {
    let hash = match family {
        IpFamily::V4 => Sha1::digest(node),
        IpFamily::V6 => Sha1::digest(format!("{node}-v6")),
    };
    Mac([0x66, hash[0], hash[1], hash[2], hash[3], hash[4]])
}

impl BlockBackend {
    /// The names of all devices that this backend may create.
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

    fn mtu(&self, local: &LocalNode) -> u32 {
        let tunnels = self.tunnels(&local.name);
        let uplinks = self.uplinks.iter().map(|uplink| self.mtu.unwrap_or(uplink.mtu));
        tunnels.iter().map(|(tunnel, _)| tunnel.mtu).chain(uplinks).min().unwrap_or(0)
    }

    fn desired(&self, cluster: &Cluster, lookup: &RouteLookup) -> DesiredState {
        let mut builder = Builder { desired: DesiredState::default(), macs: HashMap::new(), lookup };
        let tunnels = self.tunnels(&cluster.local.name);
        builder.desired.devices =
            tunnels.into_iter().map(|(tunnel, ip)| Device::new(tunnel, vec![ip])).collect();
        for route in &self.routes {
            match builder.route(route) {
                Ok(desired) => builder.desired.routes.extend(desired),
                Err(reason) => {
                    let reason = format!("{}: {reason}", route.to);
                    builder.desired.unreachable.push(UnreachablePeer::new(&route.node, reason));
                }
            }
        }
        builder.desired
    }

    fn rules(&self, cluster: &Cluster, options: &FirewallOptions) -> Rules {
        let tunnels = self.tunnels(&cluster.local.name).into_iter().map(|(tunnel, _)| tunnel.name).collect();
        Rules {
            cluster: cluster.networks.clone(),
            local: self.nat_outgoing.clone(),
            masquerade: true,
            random_ports: options.random_ports,
            forward: options.forward,
            scope: MasqueradeScope::Pools { tunnels },
        }
    }

    fn peer_networks(&self, _: &DesiredState) -> Vec<(IpAddr, IpNet)> {
        let mut networks = Vec::new();
        for route in &self.routes {
            networks.push((route.address, route.to));
            if let RouteEncapsulation::Vxlan { vtep, .. } = route.encapsulation {
                networks.push((route.address, IpNet::from(vtep)));
            }
        }
        networks
    }

    fn predecessor_protocol(&self) -> Option<u8> {
        Some(FELIX)
    }
}

struct Builder<'a> {
    desired: DesiredState,
    /// The address and the node of each VXLAN device, by its hardware address.
    macs: HashMap<Mac, (IpAddr, &'a str)>,
    lookup: &'a RouteLookup,
}

impl<'a> Builder<'a> {
    /// The kernel route for a block; `None` if a BGP daemon installs it.
    fn route(&mut self, route: &'a BlockRoute) -> Result<Option<DesiredRoute>, String> {
        let direct = match self.lookup.reach(route.address) {
            Reach::OnLink(link) => Some(DesiredRoute {
                to: route.to,
                via: Some(route.address),
                egress: Egress::Link(link),
                onlink: false,
            }),
            _ => None,
        };
        match (&route.encapsulation, direct) {
            (RouteEncapsulation::ByBgp, _) => Ok(None),
            (RouteEncapsulation::None, Some(direct)) => Ok(Some(direct)),
            (RouteEncapsulation::None, None) => Err(format!(
                "its node at {} is not on the same link: enable VXLAN or IPIP for the pool, or use BGP",
                route.address
            )),
            (_, Some(direct)) if route.cross_subnet => Ok(Some(direct)),
            (RouteEncapsulation::Vxlan { vtep, mac }, _) => self.vxlan_route(route, *vtep, *mac).map(Some),
            (RouteEncapsulation::Ipip, _) => {
                let device = self.device(|driver| matches!(driver, Driver::Ipip(_)))?;
                Ok(Some(DesiredRoute {
                    to: route.to,
                    via: Some(route.address),
                    egress: Egress::Tunnel(device),
                    onlink: true,
                }))
            }
        }
    }

    fn vxlan_route(&mut self, route: &'a BlockRoute, vtep: IpAddr, mac: Mac) -> Result<DesiredRoute, String> {
        let has_family = |driver: &Driver| match driver {
            Driver::Vxlan(settings) => settings.local.is_ipv4() == vtep.is_ipv4(),
            _ => false,
        };
        let position = self.device(has_family)?;
        match self.macs.get(&mac) {
            Some((ip, node)) if (*ip, *node) != (vtep, route.node.as_str()) => {
                return Err(format!(
                    "its VXLAN device has the same hardware address as that of {node}, {mac}"
                ));
            }
            Some(_) => {}
            None => {
                self.macs.insert(mac, (vtep, &route.node));
                let device = &mut self.desired.devices[position];
                device.neighbours.push((vtep, mac));
                device.forwarding.push((mac, route.address));
            }
        }
        Ok(DesiredRoute { to: route.to, via: Some(vtep), egress: Egress::Tunnel(position), onlink: true })
    }

    /// The position of the device with this driver.
    fn device(&self, is_it: impl Fn(&Driver) -> bool) -> Result<usize, String> {
        let position = self.desired.devices.iter().position(|device| is_it(&device.tunnel.driver));
        position.ok_or_else(|| "this node has no device of that encapsulation yet".into())
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
        let local = LocalNode { name: "node1".into(), subnets: Vec::new() };
        Cluster { networks: vec![CLUSTER.parse().unwrap()], local, peers: Vec::new() }
    }

    /// 192.168.0.0/24 is on the link.
    fn lookup() -> RouteLookup {
        let on_link = podwire_netlink::rt::route::Route {
            link: Some(2),
            ..podwire_netlink::rt::route::Route::to("192.168.0.0".parse().unwrap(), 24)
        };
        RouteLookup::new(&[on_link], &cluster().networks)
    }

    fn route(to: &str, address: &str, encapsulation: RouteEncapsulation, cross_subnet: bool) -> BlockRoute {
        let (to, address) = (to.parse().unwrap(), address.parse().unwrap());
        BlockRoute { to, node: "node2".into(), address, encapsulation, cross_subnet }
    }

    fn desired(routes: Vec<BlockRoute>) -> DesiredState {
        let vxlan_addresses = vec!["10.244.1.1".parse().unwrap()];
        let blocks =
            BlockBackend { uplinks: vec![uplink()], vxlan_addresses, routes, ..BlockBackend::default() };
        blocks.desired(&cluster(), &lookup())
    }

    #[test]
    fn hardware_addresses_are_calicos() {
        assert_eq!(vtep_mac("node1", IpFamily::V4).to_string(), "66:f9:37:c3:7e:94");
        assert_eq!(vtep_mac("node1", IpFamily::V6).to_string(), "66:0f:35:f2:60:df");
    }

    #[test]
    fn all_blocks_of_a_node_share_one_neighbour() {
        let vxlan = || RouteEncapsulation::Vxlan {
            vtep: "10.244.2.0".parse().unwrap(),
            mac: vtep_mac("node2", IpFamily::V4),
        };
        let desired = desired(vec![
            route("10.244.2.0/26", "172.16.0.2", vxlan(), false),
            route("10.244.2.64/26", "172.16.0.2", vxlan(), false),
            route("10.244.1.7/32", "172.16.0.2", vxlan(), false),
        ]);
        assert_eq!((desired.unreachable.len(), desired.routes.len()), (0, 3));
        let device = &desired.devices[0];
        assert_eq!((device.tunnel.name.as_str(), device.tunnel.mtu), ("vxlan.calico", 1450));
        assert_eq!((device.neighbours.len(), device.forwarding.len()), (1, 1));
        let via: Vec<_> =
            desired.routes.iter().map(|route| (route.via.unwrap().to_string(), route.onlink)).collect();
        assert_eq!(via, vec![("10.244.2.0".to_owned(), true); 3]);
    }

    #[test]
    fn cross_subnet_uses_a_direct_route_on_the_same_link() {
        let vxlan = || RouteEncapsulation::Vxlan {
            vtep: "10.244.2.0".parse().unwrap(),
            mac: vtep_mac("node2", IpFamily::V4),
        };
        let near = desired(vec![route("10.244.2.0/26", "192.168.0.2", vxlan(), true)]);
        assert_eq!(near.routes[0].egress, Egress::Link(2));
        let far = desired(vec![route("10.244.2.0/26", "172.16.0.2", vxlan(), true)]);
        assert_eq!(far.routes[0].egress, Egress::Tunnel(0));
        let always = desired(vec![route("10.244.2.0/26", "192.168.0.2", vxlan(), false)]);
        assert_eq!(always.routes[0].egress, Egress::Tunnel(0));
    }

    #[test]
    fn blocks_without_a_usable_path_are_reported() {
        let bare = desired(vec![route("10.244.2.0/26", "172.16.0.2", RouteEncapsulation::None, false)]);
        assert_eq!(bare.unreachable[0].peer, "node2");
        assert!(
            bare.unreachable[0].reason.contains("not on the same link"),
            "{}",
            bare.unreachable[0].reason
        );
        let ipip = desired(vec![route("10.244.2.0/26", "172.16.0.2", RouteEncapsulation::Ipip, false)]);
        assert!(ipip.unreachable[0].reason.contains("no device of that encapsulation"));
        let by_bgp = desired(vec![route("10.244.2.0/26", "172.16.0.2", RouteEncapsulation::ByBgp, false)]);
        assert_eq!((by_bgp.unreachable.len(), by_bgp.routes.len()), (0, 0));
    }

    #[test]
    fn a_second_node_with_the_same_hardware_address_is_unreachable() {
        let mac = vtep_mac("node2", IpFamily::V4);
        let vxlan = |ip: &str| RouteEncapsulation::Vxlan { vtep: ip.parse().unwrap(), mac };
        let mut other = route("10.244.3.0/26", "172.16.0.3", vxlan("10.244.3.0"), false);
        other.node = "node3".into();
        let desired = desired(vec![route("10.244.2.0/26", "172.16.0.2", vxlan("10.244.2.0"), false), other]);
        assert_eq!((desired.routes.len(), desired.unreachable.len()), (1, 1));
        assert!(desired.unreachable[0].reason.contains("node2"));
    }
}
