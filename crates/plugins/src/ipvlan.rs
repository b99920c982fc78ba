//! ipvlan: the pod is on the node's wire with addresses of its own, behind the hardware address of the node's card.
//!
//! For wires on which a card may have one hardware address only: clouds, wireless networks, switches that guard their
//! ports. In a chain it may take master and addresses from the plugin before it.

use podwire_cni_plugin::{Command, Request, Result};
use podwire_cni_spec::{Attachment, Dns};
use podwire_kernel::child::Driver;
use podwire_kernel::ipvlan::{self, Isolation, Mode};
use serde::Deserialize;

use crate::subinterface::{self, Kind, Master, Subinterface};
use crate::veth_pair;

/// The plugin.
pub const PLUGIN: Kind = Kind {
    name: ipvlan::Ipvlan::KIND,
    about: "ipvlan: puts a pod on the node's wire, behind the node's hardware address",
    read,
    given,
};

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
    veth_pair::check_mtu(conf.mtu)?;
    let master = match (Master::read(&conf.master, conf.link_in_container)?, req.command) {
        (Master::DefaultRoute, Command::Add) => chained_master(req)?,
        // Only ADD gets the result of the plugin before.
        (Master::DefaultRoute, _) => Master::FromChain,
        (told, _) => told,
    };
    Ok(Subinterface {
        driver: Driver::Ipvlan(ipvlan::Ipvlan { mode: mode(&conf.mode)?, isolation: isolation(&conf.flag)? }),
        master,
        mtu: conf.mtu,
        mac: None,
        dns: conf.dns,
    })
}

/// Where the config names no master: the only interface of the plugin before, or else the default route's.
fn chained_master(req: &Request<'_>) -> Result<Master> {
    let Some(prev) = &req.prev else { return Ok(Master::DefaultRoute) };
    match &prev.interfaces[..] {
        [only] if !only.name.is_empty() => Master::read(&only.name, false),
        _ => {
            let text = "chained master failure. PrevResult lacks a single named interface: master";
            Err(podwire_cni_spec::Error::invalid_config(text)
                .with_details("name the interface in `master`")
                .into())
        }
    }
}

/// The addresses of the plugin before, where the config has no IPAM plugin of its own.
fn given(req: &Request<'_>) -> Result<Attachment> {
    let before = req.prev.iter().find(|prev| !prev.ips.is_empty());
    match (subinterface::has_ipam(req)?, before) {
        (true, _) => Ok(Attachment::default()),
        (false, Some(before)) => Ok(before.clone()),
        (false, None) => {
            let text = "ipam.type: an IPAM plugin is required, such as host-local";
            let hint = "or chain ipvlan behind a plugin that has addresses";
            Err(podwire_cni_spec::Error::invalid_config(text).with_details(hint).into())
        }
    }
}

fn mode(name: &str) -> Result<Mode> {
    if name.is_empty() {
        return Ok(Mode::L2);
    }
    let unknown = || {
        let text = format!("mode: unknown ipvlan mode: {name:?}");
        podwire_cni_spec::Error::invalid_config(text).with_details("choose l2, l3 or l3s").into()
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
    fn modes_and_flags_are_those_of_the_kernel() {
        assert_eq!((mode("").unwrap(), isolation("").unwrap()), (Mode::L2, Isolation::Bridge));
        assert!(Mode::ALL.iter().all(|one| mode(one.name()).unwrap() == *one));
        assert!(Isolation::ALL.iter().all(|one| isolation(one.name()).unwrap() == *one));
        assert_eq!(mode("L3").unwrap_err().to_cni().code, 7);
        assert_eq!(isolation("open").unwrap_err().to_cni().msg, "flag: unknown ipvlan flag: \"open\"");
    }
}
