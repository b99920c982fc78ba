//! ipip: IPv4 packets between pods travel in IPv4 packets between their nodes. Twenty bytes instead of VXLAN's fifty, and
//! no ports: some networks do not carry it. IPv4 only, as in flannel.

use std::net::IpAddr;

use podwire_kernel::ipip::Ipip as Settings;
use podwire_kernel::tunnel::{Driver, Tunnel};

use podwire_ip::IpFamily;

use crate::desired::Device;
use crate::{
    host_gw, sieve, Backend, Cluster, DesiredRoute, DesiredState, Egress, LocalNode, RouteLookup, ALIAS,
};

/// The device's name, as in flannel.
const DEVICE: &str = "flannel.ipip";

/// IPv4 in IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipip {
    /// The MTU of the network between the nodes, if it is not that of the uplink.
    pub mtu: Option<u32>,
    /// Whether peers on the wire get a plain route (flannel's `DirectRouting`).
    pub direct: bool,
}

impl Backend for Ipip {
    fn name(&self) -> &'static str {
        "ipip"
    }

    fn mtu(&self, own: &LocalNode) -> u32 {
        let underlay = self.mtu.or(own.subnet(IpFamily::V4).map(|side| side.uplink.mtu));
        underlay.unwrap_or(0).saturating_sub(Settings::OVERHEAD)
    }

    fn desired(&self, cluster: &Cluster, ground: &RouteLookup) -> DesiredState {
        let mut wanted = DesiredState::default();
        let Some(own) = cluster.local.subnet(IpFamily::V4) else { return wanted };
        let IpAddr::V4(local) = own.uplink.address else { return wanted };
        let tunnel = Tunnel {
            name: DEVICE.into(),
            driver: Driver::Ipip(Settings { local }),
            mtu: self.mtu(&cluster.local),
            mac: None,
            alias: ALIAS,
        };
        wanted.devices.push(Device::new(tunnel, vec![own.pod_cidr.network()]));
        for (_, side) in sieve::accepted(cluster, own, &mut wanted.unreachable) {
            let direct = self.direct.then(|| host_gw::direct(own, side, ground).ok()).flatten();
            wanted.routes.push(direct.unwrap_or(DesiredRoute {
                to: side.pod_cidr.trunc(),
                via: Some(side.address),
                egress: Egress::Tunnel(0),
                onlink: true,
            }));
        }
        wanted
    }
}
