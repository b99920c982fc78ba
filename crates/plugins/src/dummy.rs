//! dummy: an interface without a link, which holds addresses of a pod.

use podwire_cni_plugin::{Keys, Request, Result};
use podwire_cni_spec::Dns;
use podwire_kernel::child::Driver;
use serde::Deserialize;

use crate::subinterface::{self, nothing, Kind, Master, Subinterface};

/// The plugin.
pub const PLUGIN: Kind = Kind {
    name: "dummy",
    about: "dummy: adds a dummy interface that holds addresses",
    keys: Keys::new(&[CONFIG_KEYS, crate::keys::DNS, crate::keys::IPAM]),
    read,
    given: nothing,
};

/// The keys of the config.
const CONFIG_KEYS: &[&str] = &["mtu", "mac", "runtimeConfig.mac"];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    mtu: u32,
    mac: String,
    dns: Dns,
}

/// Reads the config. IPAM is required: a dummy interface without addresses has no use.
fn read(req: &Request<'_>) -> Result<Subinterface> {
    let conf: Conf = req.config()?;
    if !subinterface::has_ipam(req)? {
        let text = "dummy interface requires an IPAM configuration";
        return Err(podwire_cni_spec::Error::invalid_config(text).with_hint("set ipam.type").into());
    }
    Ok(Subinterface {
        driver: Driver::Dummy,
        master: Master::Nothing,
        mtu: conf.mtu.into(),
        mac: subinterface::hardware_address(req, &conf.mac)?,
        dns: conf.dns,
    })
}
