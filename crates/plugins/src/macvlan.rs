//! macvlan: the pod is on the master's network with its own hardware address.
//!
//! Node and pod cannot reach each other: what leaves a macvlan interface goes to the network or to its siblings, never
//! to the master.

use podwire_cni_plugin::{Keys, Request, Result};
use podwire_cni_spec::Dns;
use podwire_kernel::child::Driver;
use podwire_kernel::macvlan::{self, Mode};
use serde::Deserialize;

use crate::subinterface::{self, nothing, Kind, Master, Subinterface};

/// The plugin. Without an IPAM plugin the interface has no addresses.
pub const PLUGIN: Kind = Kind {
    name: macvlan::Macvlan::KIND,
    about: "macvlan: connects a pod to the node's network, with its own hardware address",
    keys: Keys::new(&[CONFIG_KEYS, crate::keys::DNS, crate::keys::IPAM]),
    read,
    given: nothing,
};

/// The keys of the config.
const CONFIG_KEYS: &[&str] =
    &["master", "linkInContainer", "mode", "mtu", "mac", "runtimeConfig.mac", "bcqueuelen"];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    master: String,
    link_in_container: bool,
    mode: String,
    mtu: i64,
    mac: String,
    bcqueuelen: u32,
    dns: Dns,
}

fn read(req: &Request<'_>) -> Result<Subinterface> {
    let conf: Conf = req.config()?;
    subinterface::has_ipam(req)?;
    Ok(Subinterface {
        driver: Driver::Macvlan(macvlan::Macvlan {
            mode: mode(&conf.mode)?,
            broadcast_queue: conf.bcqueuelen,
        }),
        master: Master::read(&conf.master, conf.link_in_container)?,
        mtu: conf.mtu,
        mac: subinterface::hardware_address(req, &conf.mac)?,
        dns: conf.dns,
    })
}

fn mode(name: &str) -> Result<Mode> {
    if name.is_empty() {
        return Ok(Mode::Bridge);
    }
    let unknown = || {
        let text = format!("unknown macvlan mode: {name:?}");
        podwire_cni_spec::Error::invalid_config(text)
            .with_hint("set mode to bridge, private, vepa or passthru")
            .into()
    };
    Mode::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_equal_the_kernels() {
        assert_eq!(mode("").unwrap(), Mode::Bridge);
        for one in Mode::ALL {
            assert_eq!(mode(one.name()).unwrap(), one);
        }
        assert_eq!(mode("source").unwrap_err().to_cni().msg, "unknown macvlan mode: \"source\"");
    }
}
