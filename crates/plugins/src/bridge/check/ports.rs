//! CHECK of the pod's port: on its bridge, up, with its flags, VLANs and spoof check.

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

/// Compares the port with the config. Flags that the config does not set may be set by other programs, and stay.
pub(super) fn inspect<'p>(
    req: &Request<'p>,
    conf: &Conf,
    node: &mut Host,
    end: &Link,
    bridge: Option<&Link>,
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
        // Go plugins keep the default VLAN that the kernel adds to a port.
        let exact = !conf.preserve_default_vlan && inspection::is_ours(req, end);
        findings.extend(vlans(node, end, wanted, exact)?);
    }
    // A Go plugin has its own rules for its pods.
    if conf.macspoofchk && inspection::is_ours(req, end) {
        findings.extend(spoof_check(req, conf, node, end)?);
    }
    Ok(findings)
}

/// A repair that makes `end` a port of the bridge. The bridge may be a new one by then, so it is looked up by name.
pub(super) fn plug_in<'p>(bridge: &str, end: &Link) -> impl FnOnce() -> Result<()> + 'p {
    let (bridge, end) = (bridge.to_owned(), end.clone());
    on_node(move |node| {
        let bridge = node.get_link(&bridge)?;
        let doing = format!("make {} a port of bridge {}", end.name, bridge.name);
        node.route.request(link::change(end.index, doing).u32(attribute::MASTER, bridge.index))?;
        // A pair with an end that is down forwards later, when that end comes up.
        let now = node.get_link(&end.name)?;
        if now.is_up() && now.operstate == link::OPER_UP {
            port::wait_until_forwarding(node, &end.name)?;
        }
        Ok(())
    })
}

/// The port is in the wanted VLANs. If `exact`, it is in no other.
pub(super) fn vlans<'p>(
    node: &mut Host,
    port: &Link,
    wanted: Vec<Vlans>,
    exact: bool,
) -> Result<Option<Finding<'p>>> {
    let (missing, unwanted) = compare(&bridge::vlans(node, port.index)?, &wanted, exact);
    let mut texts = Vec::new();
    if let Some(first) = missing.first() {
        texts.push(format!("is not in VLAN {} as configured", shown(first)));
    }
    if let Some(first) = unwanted.first() {
        texts.push(format!("is in VLAN {}, which is not configured", shown(first)));
    }
    if texts.is_empty() {
        return Ok(None);
    }
    let port = port.clone();
    let text = format!("bridge port {} {}", port.name, texts.join(" and "));
    // The repair compares again: a port that was just added to its bridge is in the bridge's default VLAN.
    Ok(Some(Finding::new(text).repaired_by(on_node(move |node| {
        let (missing, unwanted) = compare(&bridge::vlans(node, port.index)?, &wanted, exact);
        let mut batch = Batch::new();
        batch.extend(unwanted.iter().map(|vlans| delete_vlans(&port, *vlans)));
        batch.extend(missing.iter().map(|vlans| add_vlans(&port, *vlans)));
        Ok(node.route.batch(batch)?)
    }))))
}

fn shown(vlans: &Vlans) -> String {
    if vlans.first == vlans.last {
        return vlans.first.to_string();
    }
    format!("{}-{}", vlans.first, vlans.last)
}

/// The missing VLANs, and the unwanted ones. An id may be wanted twice, in a trunk and as native: native takes
/// precedence.
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

/// Groups consecutive ids into ranges.
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

/// The spoof check lets only the recorded hardware address pass.
pub(super) fn spoof_check<'p>(
    req: &Request<'p>,
    conf: &Conf,
    node: &mut Host,
    end: &Link,
) -> Result<Vec<Finding<'p>>> {
    let nft = node.nft()?;
    let mut findings = Vec::new();
    findings.extend(inspection::rules("macspoofchk", &spoof::absent(nft)?, |node| {
        Ok(spoof::prepare(node.nft()?)?)
    }));
    let inside = recorded_interface(req.recorded()?, &req.ifname);
    let Some(mac) = inside.and_then(|one| one.mac.parse::<Mac>().ok()) else { return Ok(findings) };
    let (owner, is_trunk) = (req.owner(), conf.is_trunk());
    if !spoof::is_present(nft, &owner, &end.name, mac, is_trunk)? {
        let name = end.name.clone();
        let text = format!("bridge port {name} lost its spoof check (macspoofchk)");
        findings.push(Finding::new(text).repaired_by(on_node(move |node| {
            // A remaining element may allow another address.
            spoof::remove_all(node.nft()?, &owner)?;
            Ok(spoof::add(node.nft()?, &owner, &name, mac, is_trunk)?)
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
        // A port that was removed from its bridge has no VLANs.
        assert_eq!(compare(&[], &[vlans(7, 7, true)], true), (vec![vlans(7, 7, true)], vec![]));
    }
}
