//! vxlan: packets between pods travel in UDP between their nodes, over any network that carries UDP.
//!
//! IPv4 pods have the device `flannel.<VNI>` over the nodes' IPv4 addresses, IPv6 pods `flannel-v6.<VNI>` over their IPv6
//! addresses. A node has one route for each peer, through an address that stands for the peer (the first of its range); one
//! neighbour entry, that the peer's device has that address; one forwarding entry, that this device is behind the peer.
//! Nothing is asked and nothing is flooded.
//!
//! With `direct`, a peer on the wire gets a plain route through itself instead, as with host-gw. That is decided anew each
//! time: a peer that moved behind a router gets its tunnel.

use std::collections::HashMap;

use podwire_ip::IpFamily;
use podwire_kernel::tunnel::{Driver, Tunnel};
use podwire_kernel::vxlan::{Df, Vxlan as Settings, DEFAULT_PORT};
use podwire_kernel::Mac;

use crate::desired::Device;
use crate::{
    host_gw, sieve, Backend, Cluster, Egress, LocalNode, LocalSubnet, Peer, PeerSubnet, RouteLookup,
};
use crate::{DesiredRoute, DesiredState, UnreachablePeer, ALIAS};

/// Packets in UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// The network's number.
    pub vni: u32,
    /// UDP port; 0 is the kernel's, 8472.
    pub port: u16,
    /// The MTU of the network between the nodes, if it is not that of the uplink.
    pub mtu: Option<u32>,
    /// Whether a packet's mark travels with it.
    pub gbp: bool,
    /// Whether the device learns who is where. Nothing here needs it.
    pub learning: bool,
    /// Whether peers on the wire get a plain route (flannel's `DirectRouting`).
    pub direct: bool,
    /// Whether outer packets may be cut.
    pub df: Df,
    /// The device's hardware address.
    pub mac: VtepMac,
}

/// Where the hardware address of a VXLAN device comes from. Peers know the device by it: it should not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VtepMac {
    /// The one that the device has; a new device gets a random one.
    #[default]
    Keep,
    /// The ones that this node has told its peers before, of each family's device; where it told none, as `Kept`.
    Registered {
        /// That of the device for IPv4 pods.
        v4: Option<Mac>,
        /// That of the device for IPv6 pods.
        v6: Option<Mac>,
    },
    /// One that follows from the node's name: the same after a reboot, too.
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

    fn settings(&self, own: &LocalSubnet) -> Settings {
        Settings {
            vni: self.vni,
            port: if self.port == 0 { DEFAULT_PORT } else { self.port },
            // The address that the node has, not one that a router outside translates to it.
            local: own.uplink.address,
            link: own.uplink.index,
            learning: self.learning,
            gbp: self.gbp,
            df: self.df,
        }
    }

    fn tunnel(&self, name: &str, own: &LocalSubnet) -> Tunnel {
        let family = IpFamily::of_net(own.pod_cidr);
        let mac = match self.mac {
            VtepMac::Keep => None,
            VtepMac::Registered { v4, v6 } => {
                if family.is_v4() {
                    v4
                } else {
                    v6
                }
            }
            VtepMac::Derived => Some(Mac::of(&format!("{} on {name}", self.device(family)))),
        };
        let settings = self.settings(own);
        let mtu = self.mtu.unwrap_or(own.uplink.mtu).saturating_sub(settings.overhead());
        Tunnel { name: self.device(family), driver: Driver::Vxlan(settings), mtu, mac, alias: ALIAS }
    }
}

impl Backend for Vxlan {
    fn name(&self) -> &'static str {
        "vxlan"
    }

    fn mtu(&self, own: &LocalNode) -> u32 {
        own.subnets.iter().map(|side| self.tunnel(&own.name, side).mtu).min().unwrap_or(0)
    }

    fn desired(&self, cluster: &Cluster, ground: &RouteLookup) -> DesiredState {
        let (mut wanted, mtu) = (DesiredState::default(), self.mtu(&cluster.local));
        for own in &cluster.local.subnets {
            // Pods have one MTU for both families. A wider device would promise the node itself what pods cannot receive.
            let tunnel = Tunnel { mtu, ..self.tunnel(&cluster.local.name, own) };
            let mut lane = Lane {
                number: wanted.devices.len(),
                device: Device::new(tunnel, vec![own.pod_cidr.network()]),
                macs: HashMap::new(),
            };
            for (peer, side) in sieve::accepted(cluster, own, &mut wanted.unreachable) {
                let direct = self.direct.then(|| host_gw::direct(own, side, ground).ok()).flatten();
                match direct.map_or_else(|| lane.tunnelled(peer, side), Ok) {
                    Ok(way) => wanted.routes.push(way),
                    Err(why) => wanted.unreachable.push(UnreachablePeer::new(&peer.name, why)),
                }
            }
            wanted.devices.push(lane.device);
        }
        wanted
    }
}

/// One device and who is behind it.
struct Lane<'a> {
    number: usize,
    device: Device,
    macs: HashMap<Mac, &'a str>,
}

impl<'a> Lane<'a> {
    /// The road to a peer through the device.
    fn tunnelled(&mut self, peer: &'a Peer, side: &PeerSubnet) -> Result<DesiredRoute, String> {
        let Some(mac) = side.vtep_mac else {
            return Err("it has not told the hardware address of its VXLAN device".into());
        };
        if !mac.is_usable() {
            return Err(format!("{mac} can be no device's hardware address"));
        }
        if let Some(holder) = self.macs.insert(mac, &peer.name) {
            self.macs.insert(mac, holder);
            return Err(format!("its VXLAN device has the hardware address of {holder}'s, {mac}"));
        }
        let stand_in = side.pod_cidr.network();
        self.device.neighbours.push((stand_in, mac));
        self.device.forwarding.push((mac, side.address));
        Ok(DesiredRoute {
            to: side.pod_cidr.trunc(),
            via: Some(stand_in),
            egress: Egress::Tunnel(self.number),
            onlink: true,
        })
    }
}
