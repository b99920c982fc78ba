//! dummy: an interface that leads nowhere, to hold addresses that a pod is to have.

use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::Dns;
use podwire_kernel::child::Driver;
use serde::Deserialize;

use crate::cable;
use crate::subinterface::{self, nothing, Kind, Master, Subinterface};

/// The plugin.
pub const PLUGIN: Kind = Kind {
    name: "dummy",
    about: "dummy: gives a pod an interface that leads nowhere, for its addresses",
    read,
    given: nothing,
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    mtu: u32,
    mac: String,
    dns: Dns,
}

/// An interface that leads nowhere is there for its addresses.
fn read(req: &Request<'_>) -> Result<Subinterface> {
    let conf: Conf = req.config()?;
    if !subinterface::has_ipam(req)? {
        let text = "dummy interface requires an IPAM configuration: ipam.type";
        return Err(podwire_cni_spec::Error::invalid_config(text).into());
    }
    cable::check_mtu(conf.mtu)?;
    Ok(Subinterface {
        driver: Driver::Dummy,
        master: Master::Nothing,
        mtu: conf.mtu,
        mac: subinterface::hardware_address(req, &conf.mac)?,
        dns: conf.dns,
    })
}
