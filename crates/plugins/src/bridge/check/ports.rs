//! The pod's port: on its bridge, up, with its flags, VLANs and guard.

use podwire_cni_plugin::{Finding, Request, Result};
use podwire_kernel::bridge::{self, add_vlans, delete_vlans, Vlans};
use podwire_kernel::firewall::spoof;
use podwire_kernel::rt::link::{self, attribute};
use podwire_kernel::veth;
use podwire_kernel::{Host, Link, Mac};
use podwire_netlink::Batch;

use crate::bridge::config::Conf;
use crate::bridge::port;
use crate::inspection::{self, change_node, on_node, recorded_interface};

/// Flags that are on although the config does not ask for them are somebody else's wish, and stay.
pub(super) fn inspect<'p>(
    req: &Request<'p>,
    conf: &Conf,
    node: &mut Host,
    (end, bridge): (&Link, Option<&Link>),
) -> Result<Vec<Finding<'p>>> {
    let mut findings = Vec::new();
    let on_bridge = bridge.is_some_and(|bridge| end.master == Some(bridge.index));
    if !on_bridge {
        let text = format!("{} is not a port of bridge {:?}", end.name, conf.bridge);
        findings.push(Finding::new(text).repaired_by(plug_in(&conf.bridge, end)));
    }
    findings.extend(inspection::is_up(end, "bridge port"));
    for (name, wanted, is) in [
        ("hairpinMode", conf.hairpin_mode, end.hairpin && on_bridge),
        ("portIsolation", conf.port_isolation, end.isolated && on_bridge),
    ] {
        if wanted && !is {
            let (hairpin, isolated) = (name == "hairpinMode", name == "portIsolation");
            let port = veth::Port { hairpin, isolated, ..veth::Port::default() };
            let again = change_node(veth::port_flags(&end.name, port));
            findings.push(Finding::new(format!("bridge port {} lost {name}", end.name)).repaired_by(again));
        }
    }
    if conf.uses_vlans() {
        let wanted: Vec<Vlans> = port::wanted_vlans(conf).collect();
        // Go's plugins keep the VLAN that the kernel gives a port.
        let exact = !conf.preserve_default_vlan && inspection::is_ours(req, end);
        findings.extend(vlans(node, end, wanted, exact)?);
    }
    // A pod that a Go plugin attached has that plugin's own rules.
    if conf.macspoofchk && inspection::is_ours(req, end) {
        findings.extend(guard(req, node, end)?);
    }
    Ok(findings)
}

/// Makes `end` a port of the bridge that has this name by then.
pub(super) fn plug_in<'p>(bridge: &str, end: &Link) -> impl FnOnce() -> Result<()> + 'p {
    let (bridge, end) = (bridge.to_owned(), end.clone());
    on_node(move |node| {
        let bridge = node.get_link(&bridge)?;
        let doing = format!("make {} a port of bridge {}", end.name, bridge.name);
        node.route.request(link::change(end.index, doing).u32(attribute::MASTER, bridge.index))?;
        // One that is down, here or in the pod, forwards when it is up.
        let now = node.get_link(&end.name)?;
        match now.is_up() && now.operstate == link::OPER_UP {
            true => port::wait_until_it_forwards(node, &end.name),
            false => Ok(()),
        }
    })
}

/// The port is in the VLANs that it should be in, and if it is to be `exact`, in no other.
pub(super) fn vlans<'p>(
    node: &mut Host,
    port: &Link,
    wanted: Vec<Vlans>,
    exact: bool,
) -> Result<Option<Finding<'p>>> {
    let (missing, unwanted) = compare(&bridge::vlans(node, port.index)?, &wanted, exact);
    let mut texts = Vec::new();
    if let Some(first) = missing.first() {
        texts.push(format!("is not in VLAN {} as configured", told(first)));
    }
    if let Some(first) = unwanted.first() {
        texts.push(format!("is in VLAN {}, which is not configured", told(first)));
    }
    if texts.is_empty() {
        return Ok(None);
    }
    let port = port.clone();
    let text = format!("bridge port {} {}", port.name, texts.join(" and "));
    // Compared again by then: a port that has just come to its bridge is in the bridge's default VLAN.
    Ok(Some(Finding::new(text).repaired_by(on_node(move |node| {
        let (missing, unwanted) = compare(&bridge::vlans(node, port.index)?, &wanted, exact);
        let mut batch = Batch::new();
        batch.extend(unwanted.iter().map(|vlans| delete_vlans(&port, *vlans)));
        batch.extend(missing.iter().map(|vlans| add_vlans(&port, *vlans)));
        Ok(node.route.batch(batch)?)
    }))))
}

fn told(vlans: &Vlans) -> String {
    match vlans.first == vlans.last {
        true => vlans.first.to_string(),
        false => format!("{}-{}", vlans.first, vlans.last),
    }
}

/// Which VLANs are missing, and which are there and should not be. One id may be wanted twice, as one of a trunk and
/// as the native one: the native one counts.
fn compare(found: &[Vlans], wanted: &[Vlans], exact: bool) -> (Vec<Vlans>, Vec<Vlans>) {
    let native = |all: &[Vlans], id: u16| all.iter().any(|vlans| vlans.native && vlans.contains(id));
    let has = |all: &[Vlans], id: u16| all.iter().any(|vlans| vlans.contains(id));
    let ids = 1..=4094u16;
    let lacks =
        |id: &u16| has(wanted, *id) && (!has(found, *id) || (native(wanted, *id) && !native(found, *id)));
    let spare = |id: &u16| exact && has(found, *id) && !has(wanted, *id);
    let (tagged, untagged): (Vec<u16>, Vec<u16>) =
        ids.clone().filter(lacks).partition(|id| !native(wanted, *id));
    let mut missing = ranges(&tagged, false);
    missing.extend(ranges(&untagged, true));
    (missing, ranges(&ids.filter(spare).collect::<Vec<_>>(), false))
}

/// Neighbouring ids together.
fn ranges(ids: &[u16], native: bool) -> Vec<Vlans> {
    let mut all: Vec<Vlans> = Vec::new();
    for id in ids {
        match all.last_mut() {
            Some(last) if last.last + 1 == *id && !native => last.last = *id,
            _ => all.push(Vlans { first: *id, last: *id, native }),
        }
    }
    all
}

/// The port lets only the recorded hardware address pass.
pub(super) fn guard<'p>(req: &Request<'p>, node: &mut Host, end: &Link) -> Result<Vec<Finding<'p>>> {
    let nft = node.nft()?;
    let mut findings = Vec::new();
    findings.extend(inspection::rules("macspoofchk", &spoof::absent(nft)?, |node| {
        Ok(spoof::prepare(node.nft()?)?)
    }));
    let inside = recorded_interface(req.recorded()?, &req.ifname);
    let Some(mac) = inside.and_then(|one| one.mac.parse::<Mac>().ok()) else { return Ok(findings) };
    let owner = req.owner();
    if !spoof::is_present(nft, &owner, &end.name, mac)? {
        let name = end.name.clone();
        let text = format!("bridge port {name} lost its guard (macspoofchk)");
        findings.push(Finding::new(text).repaired_by(on_node(move |node| {
            // What is left of it may let another address pass.
            spoof::remove_all(node.nft()?, &owner)?;
            Ok(spoof::add(node.nft()?, &owner, &name, mac)?)
        })));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlans(first: u16, last: u16, native: bool) -> Vlans {
        Vlans { first, last, native }
    }

    #[test]
    fn missing_and_unwanted_vlans_are_told_apart() {
        let wanted = [vlans(10, 20, false), vlans(15, 15, true)];
        let all = [vlans(10, 14, false), vlans(15, 15, true), vlans(16, 20, false)];
        assert_eq!(compare(&all, &wanted, true), (vec![], vec![]));
        let found = [vlans(1, 1, true), vlans(10, 12, false), vlans(15, 15, false), vlans(40, 41, false)];
        let missing = vec![vlans(13, 14, false), vlans(16, 20, false), vlans(15, 15, true)];
        let spare = vec![vlans(1, 1, false), vlans(40, 41, false)];
        assert_eq!(compare(&found, &wanted, true), (missing.clone(), spare));
        assert_eq!(compare(&found, &wanted, false), (missing, vec![]));
        // A port that lost its place has none at all.
        assert_eq!(compare(&[], &[vlans(7, 7, true)], true), (vec![vlans(7, 7, true)], vec![]));
    }
}
