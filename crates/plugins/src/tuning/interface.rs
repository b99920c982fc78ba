//! Changes the pod's interface, and compares it with the settings.

use podwire_cni_plugin::{Context, Result};
use podwire_kernel::rt::link::{self, attribute as a};
use podwire_kernel::rt::{address, route};
use podwire_kernel::{sysctl, Host, Link, Mac};
use podwire_netlink::Batch;

use super::settings::LinkSettings;

const EBUSY: i32 = 16;

/// Applies the settings that the interface `name` does not have yet.
pub fn change(pod: &mut Host, name: &str, wanted: &LinkSettings) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let link = pod.get_link(name).doing(|| "interface in the pod".into())?;
    if let Some(mac) = wanted.mac.filter(|mac| mac.0[..] != link.mac[..]) {
        with_announcement(pod, name, |pod| change_mac(pod, &link, mac))?;
    }
    let mut batch = Batch::new();
    let mut flag = |on: Option<bool>, mask: u32, what: &str| {
        if let Some(on) = on.filter(|on| *on != (link.flags & mask != 0)) {
            let doing = format!("switch {what} of {name} {}", if on { "on" } else { "off" });
            batch.push(link::set_flags(link.index, if on { mask } else { 0 }, mask, doing));
        }
    };
    flag(wanted.promisc, link::PROMISC, "promiscuous mode");
    flag(wanted.allmulti, link::ALLMULTI, "all-multicast mode");
    if let Some(mtu) = wanted.mtu.filter(|mtu| *mtu != link.mtu) {
        batch.push(link::change(link.index, format!("set MTU of {name} to {mtu}")).u32(a::MTU, mtu));
    }
    if let Some(length) = wanted.tx_queue.filter(|length| *length != link.tx_queue) {
        let doing = format!("set transmit queue length of {name} to {length}");
        batch.push(link::change(link.index, doing).u32(a::TXQLEN, length));
    }
    if batch.is_empty() {
        return Ok(());
    }
    Ok(pod.route.batch(batch)?)
}

/// Runs `change` with `arp_notify` set, so that the kernel announces the new hardware address to neighbours.
fn with_announcement(pod: &mut Host, name: &str, change: impl FnOnce(&mut Host) -> Result<()>) -> Result<()> {
    let knob = format!("net/ipv4/conf/{name}/arp_notify");
    let is_off = pod.run(|| sysctl::read(&knob))?.is_ok_and(|value| value == "0");
    if !is_off {
        return change(pod);
    }
    // A failed announcement is no reason to fail.
    let _ = pod.run(|| sysctl::write(&knob, "1"))?;
    let changed = change(pod);
    let _ = pod.run(|| sysctl::write(&knob, "0"))?;
    changed
}

/// Sets the hardware address. Most drivers, such as veth, allow that while the link is up. If the driver answers EBUSY,
/// the link is taken down for the change; the routes and IPv6 addresses that are lost thereby are restored.
fn change_mac(pod: &mut Host, link: &Link, mac: Mac) -> Result<()> {
    let set =
        || link::change(link.index, format!("set MAC of {} to {mac}", link.name)).bytes(a::ADDRESS, &mac.0);
    match pod.route.request(set()) {
        Err(error) if error.errno() == Some(EBUSY) && link.is_up() => {}
        other => return Ok(other?),
    }
    let on_link = |all: Vec<route::Route>| all.into_iter().filter(|route| route.link == Some(link.index));
    let addresses = address::list(&mut pod.route, link.index)?;
    let routes: Vec<_> = on_link(route::list(&mut pod.route)?).collect();
    pod.route.request(link::down(link))?;
    let result = pod.route.request(set());
    pod.route.request(link::up(link))?;
    let left = address::list(&mut pod.route, link.index)?;
    let mut batch = Batch::new();
    // The kernel restores the link-local address itself, derived from the new hardware address.
    let is_lost =
        |old: &&address::Address| old.scope != route::LINK && !left.iter().any(|one| one.ip == old.ip);
    batch.extend(
        addresses.iter().filter(is_lost).map(|old| address::add(link.index, old.ip, old.prefix, false)),
    );
    pod.route.batch(batch)?;
    let left: Vec<_> = on_link(route::list(&mut pod.route)?).collect();
    let mut batch = Batch::new();
    batch.extend(routes.iter().filter(|old| !left.contains(old)).map(route::Route::replace));
    pod.route.batch(batch)?;
    Ok(result?)
}

/// The differences: a text that follows "configured", and the setting to apply again.
pub fn differences(wanted: &LinkSettings, found: &Link) -> Vec<(String, LinkSettings)> {
    let name = &found.name;
    let mut all = Vec::new();
    let mut compare = |what: &str, wanted: Option<String>, found: String, again: LinkSettings| {
        if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
            all.push((format!("{what} of {name} is {wanted}, current value is {found}"), again));
        }
    };
    let LinkSettings { mac, mtu, promisc, allmulti, tx_queue } = *wanted;
    let none = LinkSettings::default;
    let has = |mask: u32| (found.flags & mask != 0).to_string();
    let on = |flag: Option<bool>| flag.map(|on| on.to_string());
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    let own = found.mac_text();
    compare("Ethernet", mac.map(|mac| mac.to_string()), own, LinkSettings { mac, ..none() });
    compare("promisc", on(promisc), has(link::PROMISC), LinkSettings { promisc, ..none() });
    compare("MTU", number(mtu), found.mtu.to_string(), LinkSettings { mtu, ..none() });
    let multicast = LinkSettings { allmulti, ..none() };
    compare("all-multicast mode", on(allmulti), has(link::ALLMULTI), multicast);
    let queue = LinkSettings { tx_queue, ..none() };
    compare("TxQLen", number(tx_queue), found.tx_queue.to_string(), queue);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_configured_settings_are_compared() {
        let found = Link { name: "eth0".into(), mtu: 1500, mac: vec![2, 0, 0, 0, 0, 1], ..Link::default() };
        assert!(differences(&LinkSettings::default(), &found).is_empty());
        let wanted = LinkSettings {
            mtu: Some(1400),
            promisc: Some(true),
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
            ..LinkSettings::default()
        };
        let texts: Vec<_> = differences(&wanted, &found).into_iter().map(|(text, _)| text).collect();
        assert_eq!(
            texts,
            ["promisc of eth0 is true, current value is false", "MTU of eth0 is 1400, current value is 1500"]
        );
    }
}
