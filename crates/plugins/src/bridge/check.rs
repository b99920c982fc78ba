//! CHECK of a bridged pod: the cable, its port and the bridge, and everything that the config asked of them.

use cni_plugin::{Context, Request, Result};
use kernel::bridge;
use kernel::firewall::spoof;
use kernel::rt::{address, link};
use kernel::{Host, Link, Mac};

use super::config::Conf;
use super::port;
use crate::{masquerade, plumbing};

/// Compares the whole wanted state with the kernel's, and says what differs.
pub(super) fn check(req: &Request<'_>, conf: &Conf) -> Result<()> {
    let mut node = Host::here()?;
    let mut pod = req.pod()?;
    let bridge = node.get_link(&conf.bridge).doing(|| "bridge".into())?;
    if bridge.kind != "bridge" {
        return Err(plumbing::differs(format!("{:?} is not a bridge but a {}", bridge.name, bridge.kind)));
    }
    if conf.promisc_mode && bridge.promiscuity == 0 {
        return Err(plumbing::differs(format!("bridge {:?} is not promiscuous", bridge.name)));
    }
    let end = check_cable(req, conf, (&mut node, &mut pod), &bridge)?;
    check_port(req, conf, &mut node, &end)?;
    if !conf.has_ipam() {
        return Ok(());
    }
    let inside = plumbing::check_interface(req, &mut pod)?;
    plumbing::check(req, &mut pod, &inside)?;
    check_gateway(req, conf, &mut node, &bridge)?;
    if conf.ip_masq {
        masquerade::check(req, &mut node)?;
    }
    Ok(())
}

/// The cable: from the pod's interface to a port of the bridge.
fn check_cable(
    req: &Request<'_>,
    conf: &Conf,
    (node, pod): (&mut Host, &mut Host),
    bridge: &Link,
) -> Result<Link> {
    let inside = pod.get_link(&req.ifname).doing(|| "interface in the pod".into())?;
    if inside.kind != "veth" {
        return Err(plumbing::differs(format!(
            "interface {} is not a veth but a {}",
            inside.name, inside.kind
        )));
    }
    if conf.mtu != 0 && inside.mtu != conf.mtu {
        return Err(plumbing::differs(format!(
            "interface {} has MTU {}, not {}",
            inside.name, inside.mtu, conf.mtu
        )));
    }
    let end = link::find_index(&mut node.route, inside.link.unwrap_or(0))?
        .ok_or_else(|| plumbing::differs(format!("the other end of {} is not on this node", inside.name)))?;
    if end.master != Some(bridge.index) {
        return Err(plumbing::differs(format!("{} is not a port of bridge {:?}", end.name, bridge.name)));
    }
    if !end.is_up() {
        return Err(plumbing::differs(format!("bridge port {} is down", end.name)));
    }
    Ok(end)
}

/// The port's flags, VLANs and guard.
fn check_port(req: &Request<'_>, conf: &Conf, node: &mut Host, end: &Link) -> Result<()> {
    for (name, wanted, is) in [
        ("hairpinMode", conf.hairpin_mode, end.hairpin),
        ("portIsolation", conf.port_isolation, end.isolated),
    ] {
        if wanted && !is {
            return Err(plumbing::differs(format!("bridge port {} lost {name}", end.name)));
        }
    }
    if conf.uses_vlans() {
        let found = bridge::vlans(node, end.index)?;
        for wanted in port::wanted_vlans(conf) {
            let missing = (wanted.first..=wanted.last).find(|id| {
                !found.iter().any(|vlans| vlans.contains(*id) && (vlans.native || !wanted.native))
            });
            if let Some(id) = missing {
                return Err(plumbing::differs(format!(
                    "bridge port {} is not in VLAN {id} as configured",
                    end.name
                )));
            }
        }
    }
    // A pod that a Go plugin attached has that plugin's own rules.
    if conf.macspoofchk && !end.alias.is_empty() && !is_guarded(req, node, end)? {
        return Err(plumbing::differs(format!("bridge port {} lost its guard (macspoofchk)", end.name)));
    }
    Ok(())
}

/// Whether the port lets only the recorded hardware address pass.
fn is_guarded(req: &Request<'_>, node: &mut Host, end: &Link) -> Result<bool> {
    let inside =
        req.recorded()?.interfaces.iter().find(|one| one.name == req.ifname && !one.sandbox.is_empty());
    let Some(mac) = inside.and_then(|one| one.mac.parse::<Mac>().ok()) else { return Ok(true) };
    Ok(spoof::is_present(node.nft()?, &req.owner(), &end.name, mac)?)
}

/// The gateway's addresses.
fn check_gateway(req: &Request<'_>, conf: &Conf, node: &mut Host, bridge: &Link) -> Result<()> {
    if !conf.is_gateway {
        return Ok(());
    }
    let leg = match conf.leg_name() {
        Some(name) => node.get_link(&name).doing(|| "the gateway's leg".into())?,
        None => bridge.clone(),
    };
    let found = address::list(&mut node.route, leg.index)?;
    for gateway in req.recorded()?.ips.iter().filter_map(|ip| ip.gateway) {
        if !found.iter().any(|address| address.ip == gateway) {
            return Err(plumbing::differs(format!("{:?} lost the gateway's address {gateway}", leg.name)));
        }
    }
    Ok(())
}
