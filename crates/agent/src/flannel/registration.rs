//! What this node registers at the source, for the other nodes: its addresses, and its end of the tunnels.

use std::net::IpAddr;

use podwire_ip::IpFamily;
use podwire_kernel::Mac;
use podwire_overlay::{TunnelDevice, Uplink, VtepMac};
use podwire_subnets::{PodCidrs, Registration, Underlay, Vtep, WireguardPeer};

use crate::flannel::backend::Backend;
use crate::flannel::settings::Settings;

/// What a registration follows from.
pub(crate) struct Facts<'a> {
    pub settings: &'a Settings,
    pub backend: &'a Backend,
    pub uplinks: &'a [Uplink],
    /// The tunnel devices that exist. The key of a WireGuard device is known only then, so a second registration
    /// follows.
    pub devices: &'a [TunnelDevice],
    /// The pod CIDRs that the node had before.
    pub previous: PodCidrs,
    /// The data that the command of the backend `extension` printed.
    pub extension_data: &'a podwire_subnets::Backend,
}

impl Facts<'_> {
    /// The registration.
    pub(crate) fn registration(&self) -> Registration {
        Registration {
            name: self.settings.node_name.clone(),
            underlay: self.underlay(),
            backend: self.backend_data(),
            previous: self.previous,
        }
    }

    fn address(&self, family: IpFamily) -> Option<IpAddr> {
        self.uplinks.iter().map(|uplink| uplink.address).find(|ip| IpFamily::of(*ip) == family)
    }

    fn underlay(&self) -> Underlay {
        let v4 = match self.address(IpFamily::V4) {
            Some(IpAddr::V4(ip)) => Some(self.settings.public_ip.unwrap_or(ip)),
            _ => None,
        };
        let v6 = match self.address(IpFamily::V6) {
            Some(IpAddr::V6(ip)) => Some(self.settings.public_ipv6.unwrap_or(ip)),
            _ => None,
        };
        Underlay { v4, v6 }
    }

    fn backend_data(&self) -> podwire_subnets::Backend {
        match self.backend {
            Backend::Vxlan(vxlan) => {
                let vtep = |family: IpFamily, mac: Option<Mac>| {
                    let mac = mac.filter(|_| self.address(family).is_some())?;
                    Some(Vtep { vni: vxlan.vni, mac: mac.to_string() })
                };
                let (mac4, mac6) = match vxlan.mac {
                    VtepMac::Registered { v4, v6 } => (v4, v6),
                    _ => (None, None),
                };
                podwire_subnets::Backend::vxlan(vtep(IpFamily::V4, mac4), vtep(IpFamily::V6, mac6))
            }
            Backend::Wireguard(wireguard) => {
                let peer = |device: &str, port: u16| {
                    let key = self.devices.iter().find(|one| one.name == device)?.public_key?;
                    Some(WireguardPeer { public_key: podwire_overlay::wireguard::key_text(key), port })
                };
                let first = peer("flannel-wg", wireguard.port);
                let second = peer("flannel-wg-v6", wireguard.port_v6).or_else(|| first.clone());
                podwire_subnets::Backend::wireguard(
                    first.filter(|_| self.address(IpFamily::V4).is_some()),
                    second.filter(|_| self.address(IpFamily::V6).is_some()),
                )
            }
            Backend::HostGw => podwire_subnets::Backend::named("host-gw"),
            Backend::Ipip(_) => podwire_subnets::Backend::named("ipip"),
            Backend::Alloc => podwire_subnets::Backend::named("alloc"),
            Backend::Extension(_) => self.extension_data.clone(),
        }
    }
}
