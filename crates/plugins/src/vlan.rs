//! vlan: the pod gets the frames of one VLAN of the master, untagged.
//!
//! The kernel allows one interface for each VLAN of a master, so the pod has the VLAN for itself.

use podwire_cni_plugin::{Keys, Request, Result};
use podwire_cni_spec::Dns;
use podwire_kernel::child::Driver;
use podwire_kernel::vlan;
use serde::Deserialize;

use crate::subinterface::{self, nothing, Kind, Master, Subinterface};

/// The largest VLAN id; 4095 is reserved.
const MAX_VLAN: i64 = 4094;

/// The plugin. Without an IPAM plugin the interface has no addresses.
pub const PLUGIN: Kind = Kind {
    name: vlan::Vlan::KIND,
    about: "vlan: connects a pod to a VLAN of the node's network",
    keys: Keys::new(&[CONFIG_KEYS, crate::keys::DNS, crate::keys::IPAM]),
    read,
    given: nothing,
};

/// The keys of the config.
const CONFIG_KEYS: &[&str] = &["master", "linkInContainer", "vlanId", "mtu"];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    master: String,
    link_in_container: bool,
    vlan_id: i64,
    mtu: i64,
    dns: Dns,
}

fn read(req: &Request<'_>) -> Result<Subinterface> {
    let conf: Conf = req.config()?;
    if conf.master.is_empty() {
        let text =
            "\"master\" field is required. It specifies the host interface name to create the VLAN for";
        return Err(podwire_cni_spec::Error::invalid_config(text).into());
    }
    if !(0..=MAX_VLAN).contains(&conf.vlan_id) {
        // Go's text; its plugin refuses 4095 too.
        let text = format!("invalid VLAN ID {} (must be between 0 and 4095 inclusive)", conf.vlan_id);
        let hint = format!("vlanId: use 0 to {MAX_VLAN}; 4095 is reserved");
        return Err(podwire_cni_spec::Error::invalid_config(text).with_hint(hint).into());
    }
    subinterface::has_ipam(req)?;
    Ok(Subinterface {
        driver: Driver::Vlan(vlan::Vlan { id: conf.vlan_id as u16 }),
        master: Master::read(&conf.master, conf.link_in_container)?,
        mtu: conf.mtu,
        mac: None,
        dns: conf.dns,
    })
}
