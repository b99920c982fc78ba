//! ipip: IPv4 packets between pods travel in IPv4 packets between their nodes. Twenty bytes instead of VXLAN's fifty, and
//! no ports: some networks do not carry it. IPv4 only, as in flannel.

use std::net::IpAddr;

use podwire_kernel::ipip::Ipip as Settings;
use podwire_kernel::tunnel::{Driver, Tunnel};

use crate::wanted::Device;
use crate::{host_gw, sieve, Cluster, Fabric, Ground, Over, Own, Wanted, Way, ALIAS};

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

impl Fabric for Ipip {
    fn name(&self) -> &'static str {
        "ipip"
    }

    fn mtu(&self, own: &Own) -> u32 {
        let underlay = self.mtu.or(own.side(true).map(|side| side.uplink.mtu));
        underlay.unwrap_or(0).saturating_sub(Settings::OVERHEAD)
    }

    fn wanted(&self, cluster: &Cluster, ground: &Ground) -> Wanted {
        let mut wanted = Wanted::default();
        let Some(own) = cluster.own.side(true) else { return wanted };
        let IpAddr::V4(local) = own.uplink.address else { return wanted };
        let tunnel = Tunnel {
            name: DEVICE.into(),
            driver: Driver::Ipip(Settings { local }),
            mtu: self.mtu(&cluster.own),
            mac: None,
            alias: ALIAS,
        };
        wanted.devices.push(Device::new(tunnel, vec![own.pods.network()]));
        for (_, side) in sieve::accepted(cluster, own, &mut wanted.refused) {
            let direct = self.direct.then(|| host_gw::direct(own, side, ground).ok()).flatten();
            wanted.ways.push(direct.unwrap_or(Way {
                to: side.pods.trunc(),
                via: Some(side.address),
                over: Over::Device(0),
                onlink: true,
            }));
        }
        wanted
    }
}
