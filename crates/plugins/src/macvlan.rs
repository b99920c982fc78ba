//! macvlan: the pod is on the node's wire with a hardware address of its own, as if it had a card.
//!
//! The node itself cannot talk to such a pod, nor the pod to the node: what leaves a child goes to the wire or to its
//! siblings, never to its master.

use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::Dns;
use podwire_kernel::child::Driver;
use podwire_kernel::macvlan::{self, Mode};
use serde::Deserialize;

use crate::subinterface::{self, nothing, Kind, Master, Subinterface};
use crate::veth_pair;

/// The plugin. Without an IPAM plugin the pod has the wire and nothing else.
pub const PLUGIN: Kind = Kind {
    name: macvlan::Macvlan::KIND,
    about: "macvlan: puts a pod on the node's wire, with a hardware address of its own",
    read,
    given: nothing,
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    master: String,
    link_in_container: bool,
    mode: String,
    mtu: u32,
    mac: String,
    bcqueuelen: u32,
    dns: Dns,
}

fn read(req: &Request<'_>) -> Result<Subinterface> {
    let conf: Conf = req.config()?;
    veth_pair::check_mtu(conf.mtu)?;
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
        let text = format!("mode: unknown macvlan mode: {name:?}");
        podwire_cni_spec::Error::invalid_config(text)
            .with_details("choose bridge, private, vepa or passthru")
            .into()
    };
    Mode::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_the_kernel() {
        assert_eq!(mode("").unwrap(), Mode::Bridge);
        for one in Mode::ALL {
            assert_eq!(mode(one.name()).unwrap(), one);
        }
        assert_eq!(mode("source").unwrap_err().to_cni().msg, "mode: unknown macvlan mode: \"source\"");
    }
}
