//! ipip: IPv4 packets between pods travel in IPv4 packets between their nodes. The overhead is 20 bytes instead of
//! VXLAN's
//! 50. Some networks do not carry the protocol, since it has no ports. IPv4 only, as in flannel.

use std::net::IpAddr;

use podwire_ip::IpFamily;
use podwire_kernel::ipip::Ipip as Settings;
use podwire_kernel::tunnel::{Driver, Tunnel};

use crate::backend::Backend;
use crate::cluster::{Cluster, LocalNode};
use crate::desired::{DesiredRoute, DesiredState, Device, Egress};
use crate::ownership::ALIAS;
use crate::route_lookup::RouteLookup;
use crate::{host_gw, peers};

/// The device name, as in flannel.
const DEVICE: &str = "flannel.ipip";

/// IPv4 in IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipip {
    /// The MTU of the network between the nodes; `None` is the uplink's MTU.
    pub mtu: Option<u32>,
    /// Use a direct route for peers on the same link (flannel's `DirectRouting`).
    pub direct: bool,
}

impl Backend for Ipip {
    fn name(&self) -> &'static str {
        "ipip"
    }

    fn mtu(&self, local: &LocalNode) -> u32 {
        let underlay = self.mtu.or(local.subnet(IpFamily::V4).map(|subnet| subnet.uplink.mtu));
        underlay.unwrap_or(0).saturating_sub(Settings::OVERHEAD)
    }

    fn desired(&self, cluster: &Cluster, lookup: &RouteLookup) -> DesiredState {
        let mut desired = DesiredState::default();
        let Some(local) = cluster.local.subnet(IpFamily::V4) else { return desired };
        let IpAddr::V4(address) = local.uplink.address else { return desired };
        let tunnel = Tunnel {
            name: DEVICE.into(),
            driver: Driver::Ipip(Settings { local: address }),
            mtu: self.mtu(&cluster.local),
            mac: None,
            alias: ALIAS,
        };
        desired.devices.push(Device::new(tunnel, vec![local.pod_cidr.network()]));
        for (_, subnet) in peers::without_conflicts(cluster, local, &mut desired.unreachable) {
            let direct = self.direct.then(|| host_gw::direct_route(local, subnet, lookup).ok()).flatten();
            desired.routes.push(direct.unwrap_or(DesiredRoute {
                to: subnet.pod_cidr.trunc(),
                via: Some(subnet.address),
                egress: Egress::Tunnel(0),
                onlink: true,
            }));
        }
        desired
    }
}
