//! vxlan: packets between pods travel in UDP between their nodes, over any network that carries UDP.
//!
//! IPv4 pods use the device `flannel.<VNI>` over the nodes' IPv4 addresses, IPv6 pods `flannel-v6.<VNI>` over their
//! IPv6 addresses. For each peer a node has one route via the first address of the peer's pod CIDR, one neighbour entry
//! that maps this address to the peer's device, and one forwarding entry that maps the device to the peer's address.
//! The kernel never resolves or floods anything.
//!
//! With `direct`, a peer on the same link gets a direct route instead, as with host-gw. Each reconcile decides again: a
//! peer that moved behind a router gets its tunnel.

use std::collections::HashMap;

use podwire_ip::IpFamily;
use podwire_kernel::tunnel::{Driver, Tunnel};
use podwire_kernel::vxlan::{Df, Vxlan as Settings, DEFAULT_PORT};
use podwire_kernel::Mac;

use crate::backend::Backend;
use crate::cluster::{Cluster, LocalNode, LocalSubnet, Peer, PeerSubnet};
use crate::desired::{DesiredRoute, DesiredState, Device, Egress};
use crate::ownership::ALIAS;
use crate::report::UnreachablePeer;
use crate::route_lookup::RouteLookup;
use crate::{host_gw, peers};

/// Ethernet frames in UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// The VXLAN network identifier.
    pub vni: u32,
    /// The UDP port; 0 is the kernel's default, 8472.
    pub port: u16,
    /// The MTU of the network between the nodes; `None` is the uplink's MTU.
    pub mtu: Option<u32>,
    /// Carry packet marks through the tunnel (Group Based Policy).
    pub gbp: bool,
    /// Let the device learn forwarding entries. This backend does not need it.
    pub learning: bool,
    /// Use a direct route for peers on the same link (flannel's `DirectRouting`).
    pub direct: bool,
    /// The Don't Fragment bit of outer packets.
    pub df: Df,
    /// The device's hardware address.
    pub mac: VtepMac,
}

/// The source of a VXLAN device's hardware address. Peers identify the device by it, so it should not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VtepMac {
    /// The address that the device has; a new device gets a random one.
    #[default]
    Keep,
    /// The addresses that this node has already published; as `Keep` for a family without one.
    Registered {
        /// The address of the device for IPv4 pods.
        v4: Option<Mac>,
        /// The address of the device for IPv6 pods.
        v6: Option<Mac>,
    },
    /// Derived from the node's name: stays the same after a reboot.
    Derived,
}

impl Default for Vxlan {
    fn default() -> Vxlan {
        Vxlan {
            vni: 1,
            port: 0,
            mtu: None,
            gbp: false,
            learning: false,
            direct: false,
            df: Df::Unset,
            mac: VtepMac::Keep,
        }
    }
}

impl Vxlan {
    /// The name of the device for one family.
    pub fn device(&self, family: IpFamily) -> String {
        match family {
            IpFamily::V4 => format!("flannel.{}", self.vni),
            IpFamily::V6 => format!("flannel-v6.{}", self.vni),
        }
    }

    fn settings(&self, local: &LocalSubnet) -> Settings {
        Settings {
            vni: self.vni,
            port: if self.port == 0 { DEFAULT_PORT } else { self.port },
            // The address on the interface, not a public address that a router translates.
            local: local.uplink.address,
            link: local.uplink.index,
            learning: self.learning,
            gbp: self.gbp,
            df: self.df,
        }
    }

    fn tunnel(&self, node: &str, local: &LocalSubnet) -> Tunnel {
        let family = IpFamily::of_net(local.pod_cidr);
        let mac = match (self.mac, family) {
            (VtepMac::Keep, _) => None,
            (VtepMac::Registered { v4, .. }, IpFamily::V4) => v4,
            (VtepMac::Registered { v6, .. }, IpFamily::V6) => v6,
            (VtepMac::Derived, _) => Some(Mac::of(&format!("{} on {node}", self.device(family)))),
        };
        let settings = self.settings(local);
        let mtu = self.mtu.unwrap_or(local.uplink.mtu).saturating_sub(settings.overhead());
        Tunnel { name: self.device(family), driver: Driver::Vxlan(settings), mtu, mac, alias: ALIAS }
    }
}

impl Backend for Vxlan {
    fn name(&self) -> &'static str {
        "vxlan"
    }

    fn mtu(&self, local: &LocalNode) -> u32 {
        local.subnets.iter().map(|subnet| self.tunnel(&local.name, subnet).mtu).min().unwrap_or(0)
    }

    fn desired(&self, cluster: &Cluster, lookup: &RouteLookup) -> DesiredState {
        let (mut desired, mtu) = (DesiredState::default(), self.mtu(&cluster.local));
        for local in &cluster.local.subnets {
            // Pods have one MTU for both families. A larger device MTU would let the node send packets that pods cannot
            // receive.
            let tunnel = Tunnel { mtu, ..self.tunnel(&cluster.local.name, local) };
            let mut entries = TunnelEntries {
                position: desired.devices.len(),
                device: Device::new(tunnel, vec![local.pod_cidr.network()]),
                macs: HashMap::new(),
            };
            for (peer, subnet) in peers::without_conflicts(cluster, local, &mut desired.unreachable) {
                let direct = self.direct.then(|| host_gw::direct_route(local, subnet, lookup).ok()).flatten();
                match direct.map_or_else(|| entries.add(peer, subnet), Ok) {
                    Ok(route) => desired.routes.push(route),
                    Err(reason) => desired.unreachable.push(UnreachablePeer::new(&peer.name, reason)),
                }
            }
            desired.devices.push(entries.device);
        }
        desired
    }
}

/// One device and the peers behind it.
struct TunnelEntries<'a> {
    position: usize,
    device: Device,
    /// The nodes by the hardware addresses of their devices.
    macs: HashMap<Mac, &'a str>,
}

impl<'a> TunnelEntries<'a> {
    /// Adds the entries for a peer; returns the route through the device.
    fn add(&mut self, peer: &'a Peer, subnet: &PeerSubnet) -> Result<DesiredRoute, String> {
        let Some(mac) = subnet.vtep_mac else {
            return Err("it has not published the hardware address of its VXLAN device".into());
        };
        if !mac.is_usable() {
            return Err(format!("{mac} is not a valid hardware address of a device"));
        }
        if let Some(holder) = self.macs.insert(mac, &peer.name) {
            self.macs.insert(mac, holder);
            return Err(format!("its VXLAN device has the same hardware address as that of {holder}, {mac}"));
        }
        let gateway = subnet.pod_cidr.network();
        self.device.neighbours.push((gateway, mac));
        self.device.forwarding.push((mac, subnet.address));
        Ok(DesiredRoute {
            to: subnet.pod_cidr.trunc(),
            via: Some(gateway),
            egress: Egress::Tunnel(self.position),
            onlink: true,
        })
    }
}
