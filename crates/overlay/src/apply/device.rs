//! The addresses, neighbours and forwarding entries of a device.

use std::collections::HashMap;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_kernel::tunnel::Driver;
use podwire_kernel::{Host, Link};
use podwire_netlink::rt::address;
use podwire_netlink::rt::neighbour::{self, Neighbour, Table};
use podwire_netlink::Message;

use crate::desired::Device;
use crate::error::Result;

/// The messages for one device.
#[derive(Default)]
pub(super) struct Difference {
    /// Entries that are missing or wrong.
    pub needed: Vec<Message>,
    /// Entries that are no longer needed.
    pub obsolete: Vec<Message>,
}

/// The messages that make the entries of a device as desired. All permanent entries on an owned device are owned;
/// entries that the kernel learned expire.
pub(super) fn difference(
    host: &mut Host,
    device: &Device,
    link: &Link,
    networks: &[IpNet],
) -> Result<Difference> {
    let mut difference = Difference::default();
    addresses(host, device, link, networks, &mut difference)?;
    if !matches!(device.tunnel.driver, Driver::Vxlan(_)) {
        return Ok(difference);
    }
    if let Some(ip) = device.addresses.first() {
        let found = neighbour::list(&mut host.route, link.index, IpFamily::of(*ip))?;
        let desired = device.neighbours.iter().map(|(ip, mac)| Neighbour::permanent(link.index, *ip, mac.0));
        compare(desired, &found, Table::Addresses, |one| one.ip, &mut difference);
    }
    let found = neighbour::forwarding(&mut host.route, link.index)?;
    let desired = device.forwarding.iter().map(|(mac, ip)| Neighbour::permanent(link.index, *ip, mac.0));
    compare(desired, &found, Table::Forwarding, |one| one.mac, &mut difference);
    Ok(difference)
}

fn addresses(
    host: &mut Host,
    device: &Device,
    link: &Link,
    networks: &[IpNet],
    difference: &mut Difference,
) -> Result<()> {
    let found = address::list(&mut host.route, link.index)?;
    for ip in &device.addresses {
        let bits = IpFamily::of(*ip).bits();
        if !found.iter().any(|one| one.ip == *ip && one.prefix == bits) {
            difference.needed.push(address::add(link.index, *ip, bits, false));
        }
    }
    // Addresses of an earlier pod CIDR, or with a wrong prefix.
    for one in found.iter().filter(|one| networks.iter().any(|net| net.contains(&one.ip))) {
        if !device.addresses.contains(&one.ip) || one.prefix != IpFamily::of(one.ip).bits() {
            difference.obsolete.push(address::delete(link.index, one.ip, one.prefix));
        }
    }
    Ok(())
}

/// Compares the entries of one table by their key.
fn compare<K: std::hash::Hash + Eq>(
    desired: impl Iterator<Item = Neighbour>,
    found: &[Neighbour],
    table: Table,
    key: impl Fn(&Neighbour) -> K,
    difference: &mut Difference,
) {
    let mut present: HashMap<K, Vec<&Neighbour>> = HashMap::with_capacity(found.len());
    for one in found {
        present.entry(key(one)).or_default().push(one);
    }
    for one in desired {
        match present.remove(&key(&one)).as_deref() {
            Some([found]) if **found == one => {}
            _ => difference.needed.push(one.replace(table)),
        }
    }
    let mut left: Vec<&Neighbour> = present.into_values().flatten().filter(|one| one.permanent).collect();
    left.sort_by_key(|one| (one.ip, one.mac));
    difference.obsolete.extend(left.into_iter().map(|one| one.delete(table)));
}
