//! What hangs on a device: addresses, neighbours, forwarding entries.

use std::collections::HashMap;

use ipnet::IpNet;
use podwire_kernel::{Host, Link};
use podwire_netlink::rt::address;
use podwire_netlink::rt::neighbour::{self, Neighbour, Table};

use super::{forwards, full, Change};
use crate::desired::Device;
use crate::Result;

/// What makes the things on a device those that are wanted. The device is ours, and so is all that was made to stay on it;
/// what the kernel learned by itself goes by itself.
pub(super) fn difference(
    host: &mut Host,
    device: &Device,
    link: &Link,
    networks: &[IpNet],
) -> Result<Change> {
    let mut change = Change::default();
    addresses(host, device, link, networks, &mut change)?;
    if !forwards(device) {
        return Ok(change);
    }
    if let Some(like) = device.addresses.first() {
        let found = neighbour::list(&mut host.route, link.index, *like)?;
        let wanted = device.neighbours.iter().map(|(ip, mac)| Neighbour::permanent(link.index, *ip, mac.0));
        compare(wanted, &found, Table::Addresses, |one| one.ip, &mut change);
    }
    let found = neighbour::forwarding(&mut host.route, link.index)?;
    let wanted = device.forwarding.iter().map(|(mac, ip)| Neighbour::permanent(link.index, *ip, mac.0));
    compare(wanted, &found, Table::Forwarding, |one| one.mac, &mut change);
    Ok(change)
}

fn addresses(
    host: &mut Host,
    device: &Device,
    link: &Link,
    networks: &[IpNet],
    change: &mut Change,
) -> Result<()> {
    let found = address::list(&mut host.route, link.index)?;
    for ip in &device.addresses {
        if !found.iter().any(|one| one.ip == *ip && one.prefix == full(ip)) {
            change.needed.push(address::add(link.index, *ip, full(ip), false));
        }
    }
    // Of a range that the node had before, or of a network that it was put into by mistake.
    for one in found.iter().filter(|one| networks.iter().any(|net| net.contains(&one.ip))) {
        if !device.addresses.contains(&one.ip) || one.prefix != full(&one.ip) {
            change.obsolete.push(address::delete(link.index, one.ip, one.prefix));
        }
    }
    Ok(())
}

/// Compares the entries of one table by their key.
fn compare<K: std::hash::Hash + Eq>(
    wanted: impl Iterator<Item = Neighbour>,
    found: &[Neighbour],
    table: Table,
    key: impl Fn(&Neighbour) -> K,
    change: &mut Change,
) {
    let mut there: HashMap<K, Vec<&Neighbour>> = HashMap::with_capacity(found.len());
    for one in found {
        there.entry(key(one)).or_default().push(one);
    }
    for one in wanted {
        match there.remove(&key(&one)).as_deref() {
            Some([found]) if **found == one => {}
            _ => change.needed.push(one.replace(table)),
        }
    }
    let mut left: Vec<&Neighbour> = there.into_values().flatten().filter(|one| one.permanent).collect();
    left.sort_by_key(|one| (one.ip, one.mac));
    change.obsolete.extend(left.into_iter().map(|one| one.delete(table)));
}
