//! Whether the kernel can create the devices of the backend. Without this check, the agents report that it cannot, and the
//! lab waits for them in vain.

use std::net::Ipv4Addr;

use podwire_kernel::ipip::Ipip;
use podwire_kernel::tunnel::{Driver, Tunnel};
use podwire_kernel::vxlan::{Df, Vxlan, DEFAULT_PORT};

use crate::spec::ROUTER;
use crate::{Error, Lab, LabSpec, Result};

/// A name that no device of the router has.
const PROBE: &str = "probe";

impl Lab {
    /// Creates a device of the backend on the router, and removes it.
    pub(crate) fn check_backend(&self) -> Result<()> {
        let Some(driver) = self.state.spec.driver() else { return Ok(()) };
        let mut router = self.host(ROUTER)?;
        let device = Tunnel { name: PROBE.into(), driver, mtu: 1280, mac: None, alias: "podwire-lab" };
        let created = device.ensure(&mut router, None).map_err(|error| match error {
            podwire_kernel::Error::Netlink(source) if source.is_unsupported() => {
                Error::Backend { backend: self.state.spec.backend.clone(), module: driver.kind(), source }
            }
            other => other.into(),
        })?;
        Ok(router.route.request(podwire_kernel::rt::link::delete(&created.link))?)
    }
}

impl LabSpec {
    /// The driver of the backend's devices, if it has any.
    fn driver(&self) -> Option<Driver> {
        match self.backend.as_str() {
            "vxlan" | "direct-or-vxlan" => Some(Driver::Vxlan(Vxlan {
                vni: 1,
                port: DEFAULT_PORT,
                local: Ipv4Addr::LOCALHOST.into(),
                link: 0,
                learning: false,
                gbp: false,
                df: Df::Unset,
            })),
            "ipip" => Some(Driver::Ipip(Ipip { local: Ipv4Addr::LOCALHOST })),
            "wireguard" => Some(Driver::Wireguard),
            _ => None,
        }
    }
}
