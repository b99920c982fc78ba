//! ipvlan: the pod has its own addresses on the master's network, and shares the master's hardware address.
//!
//! For networks that allow one hardware address per port: clouds, wireless networks, switches with port security. In a
//! chain it can take master and addresses from the previous plugin.

use podwire_cni_plugin::{Command, Keys, Request, Result};
use podwire_cni_spec::{Attachment, Dns};
use podwire_kernel::child::Driver;
use podwire_kernel::ipvlan::{self, Isolation, Mode};
use serde::Deserialize;

use crate::subinterface::{self, Kind, Master, Subinterface};

/// The plugin.
pub const PLUGIN: Kind = Kind {
    name: ipvlan::Ipvlan::KIND,
    about: "ipvlan: connects a pod to the node's network, with the node's hardware address",
    keys: Keys::new(&[CONFIG_KEYS, crate::keys::DNS, crate::keys::IPAM]),
    read,
    given,
};

/// The keys of the config.
const CONFIG_KEYS: &[&str] = &["master", "linkInContainer", "mode", "flag", "mtu"];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    master: String,
    link_in_container: bool,
    mode: String,
    flag: String,
    mtu: u32,
    dns: Dns,
}

fn read(req: &Request<'_>) -> Result<Subinterface> {
    let conf: Conf = req.config()?;
    let master = match (Master::read(&conf.master, conf.link_in_container)?, req.command) {
        (Master::DefaultRoute, Command::Add) => chained_master(req)?,
        // Only ADD gets the result of the previous plugin.
        (Master::DefaultRoute, _) => Master::FromChain,
        (configured, _) => configured,
    };
    Ok(Subinterface {
        driver: Driver::Ipvlan(ipvlan::Ipvlan { mode: mode(&conf.mode)?, isolation: isolation(&conf.flag)? }),
        master,
        mtu: conf.mtu.into(),
        mac: None,
        dns: conf.dns,
    })
}

/// The master if the config names none: the only interface of the previous plugin, else that of the default route.
fn chained_master(req: &Request<'_>) -> Result<Master> {
    let Some(prev) = &req.prev else { return Ok(Master::DefaultRoute) };
    match &prev.interfaces[..] {
        [only] if !only.name.is_empty() => Master::read(&only.name, false),
        _ => {
            let text = "chained master failure. PrevResult lacks a single named interface";
            Err(podwire_cni_spec::Error::invalid_config(text)
                .with_hint("name the interface in `master`")
                .into())
        }
    }
}

/// The addresses of the previous plugin, if the config has no IPAM plugin.
fn given(req: &Request<'_>) -> Result<Attachment> {
    if subinterface::has_ipam(req)? {
        return Ok(Attachment::default());
    }
    let with_addresses = req.prev.iter().find(|prev| !prev.ips.is_empty());
    with_addresses.cloned().ok_or_else(|| {
        let text = "ipam.type: an IPAM plugin is required, such as host-local";
        let hint = "or put ipvlan after a plugin that has addresses";
        podwire_cni_spec::Error::invalid_config(text).with_details(hint).into()
    })
}

fn mode(name: &str) -> Result<Mode> {
    if name.is_empty() {
        return Ok(Mode::L2);
    }
    let unknown = || {
        let text = format!("unknown ipvlan mode: {name:?}");
        podwire_cni_spec::Error::invalid_config(text).with_hint("set mode to l2, l3 or l3s").into()
    };
    Mode::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(unknown)
}

fn isolation(name: &str) -> Result<Isolation> {
    if name.is_empty() {
        return Ok(Isolation::default());
    }
    let unknown = || {
        let text = format!("flag: unknown ipvlan flag: {name:?}");
        podwire_cni_spec::Error::invalid_config(text).with_details("choose bridge, private or vepa").into()
    };
    Isolation::ALL.into_iter().find(|isolation| isolation.name() == name).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_flags_equal_the_kernels() {
        assert_eq!((mode("").unwrap(), isolation("").unwrap()), (Mode::L2, Isolation::Bridge));
        assert!(Mode::ALL.iter().all(|one| mode(one.name()).unwrap() == *one));
        assert!(Isolation::ALL.iter().all(|one| isolation(one.name()).unwrap() == *one));
        assert_eq!(mode("L3").unwrap_err().to_cni().code, 7);
        assert_eq!(isolation("open").unwrap_err().to_cni().msg, "flag: unknown ipvlan flag: \"open\"");
    }
}
