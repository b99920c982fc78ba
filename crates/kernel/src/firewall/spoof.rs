//! Spoof guards: a pod on a bridge can send only with its own hardware address. A pod that sends with another pod's
//! address would make the bridge deliver the other pod's frames to it.
//!
//! A guarded port sends untagged IP and ARP only, unless it is a trunk: rules for IP do not see frames with a VLAN tag or
//! of another protocol, so these would get around them.

use podwire_netlink::nft::{
    self, Base, ChainKind, Data, Element, Family, Field, Hook, Rule, Set, Table, Transaction, Type, Value,
};
use podwire_netlink::Socket;

use super::elements::{self, is_owned_by, Entry, Insertion};
use crate::error::Result;
use crate::mac::Mac;
use crate::owner::Owner;

pub(super) const TABLE: Table = Table::named(Family::Bridge, "podwire_spoof");
/// Bridge ports that are guarded.
const GUARDED: &str = "guarded";
/// The hardware addresses that they may use.
const ALLOWED: &str = "allowed";
/// The same as a map, to find the address of a port when it is removed. No rule uses it.
const ADDRESSES: &str = "addresses";
/// Bridge ports that send untagged IP and ARP only.
const UNTAGGED: &str = "untagged";
const SETS: [&str; 4] = [GUARDED, ALLOWED, ADDRESSES, UNTAGGED];
/// IPv4, IPv6 and ARP (linux/if_ether.h).
const ETHER_TYPES: [[u8; 2]; 3] = [[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06]];
const PREROUTING: Base = Base::new(ChainKind::Filter, Hook::Prerouting, -300);

/// Drops frames that enter the bridge at port `ifname` with another source address than `mac`, and, unless the port is a
/// trunk, those that [`require_untagged`] drops.
pub fn add(nft: &mut Socket, owner: &Owner, ifname: &str, mac: Mac, is_trunk: bool) -> Result<()> {
    let element = |key: Value| Element::key(key).comment(owner.comment());
    let mut entries = vec![
        Entry::own(GUARDED, element(Value::ifname(ifname))),
        Entry::own(ALLOWED, element(Value::ifname(ifname).and_mac(mac.0))),
        Entry::own(ADDRESSES, element(Value::ifname(ifname)).to(Value::mac(mac.0))),
    ];
    entries.extend((!is_trunk).then(|| untagged(owner, ifname)));
    Insertion { table: &TABLE, entries, skeletons: &[&skeleton], on_conflict: &elements::replace }.commit(nft)
}

/// Drops frames that enter the bridge at port `ifname` and are not IP or ARP, or have a VLAN tag.
pub fn require_untagged(nft: &mut Socket, owner: &Owner, ifname: &str) -> Result<()> {
    let entries = vec![untagged(owner, ifname)];
    Insertion { table: &TABLE, entries, skeletons: &[&skeleton], on_conflict: &elements::replace }.commit(nft)
}

fn untagged(owner: &Owner, ifname: &str) -> Entry {
    Entry::own(UNTAGGED, Element::key(Value::ifname(ifname)).comment(owner.comment()))
}

/// Whether [`require_untagged`] is in force for this owner's port.
pub fn requires_untagged(nft: &mut Socket, owner: &Owner, ifname: &str) -> Result<bool> {
    let element = nft::get_element(nft, &TABLE, UNTAGGED, &Value::ifname(ifname))?;
    Ok(element.is_some_and(|element| is_owned_by(&element, owner)))
}

/// Reverts [`require_untagged`] for these ports, unless [`add`] guards them too.
pub fn permit_tagged(nft: &mut Socket, owner: &Owner, ifnames: &[&str]) -> Result<()> {
    for ifname in ifnames {
        let port = Value::ifname(ifname);
        if nft::get_element(nft, &TABLE, GUARDED, &port)?.is_none() {
            elements::remove(nft, &TABLE, &[(UNTAGGED, port)], &|element| is_owned_by(element, owner))?;
        }
    }
    Ok(())
}

/// Reverts [`add`] and [`require_untagged`] for this port, if it belongs to the owner; returns whether there was anything.
pub fn remove(nft: &mut Socket, owner: &Owner, ifname: &str) -> Result<bool> {
    let port = Value::ifname(ifname);
    let mut keys = vec![(GUARDED, port.clone()), (ADDRESSES, port.clone()), (UNTAGGED, port.clone())];
    keys.extend(address(nft, ifname)?.map(|mac| (ALLOWED, port.and_mac(mac))));
    elements::remove(nft, &TABLE, &keys, &|element| is_owned_by(element, owner))
}

/// Reverts all calls of [`add`] and [`require_untagged`] for this owner.
pub fn remove_all(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    Ok(elements::remove_matching(nft, &TABLE, &SETS, &|comment| owner.matches(comment))? > 0)
}

/// Deletes the elements of owners in this network that are not in `keep`; returns their number.
pub fn collect(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    elements::remove_matching(nft, &TABLE, &SETS, &elements::orphans(network, keep))
}

/// Whether this owner's port is restricted to this address, and to untagged frames unless it is a trunk.
pub fn is_present(nft: &mut Socket, owner: &Owner, ifname: &str, mac: Mac, is_trunk: bool) -> Result<bool> {
    if !is_trunk && !requires_untagged(nft, owner, ifname)? {
        return Ok(false);
    }
    for (set, key) in [(GUARDED, Value::ifname(ifname)), (ALLOWED, Value::ifname(ifname).and_mac(mac.0))] {
        if !nft::get_element(nft, &TABLE, set, &key)?.is_some_and(|element| is_owned_by(&element, owner)) {
            return Ok(false);
        }
    }
    Ok(address(nft, ifname)? == Some(mac.0))
}

/// The missing parts of the rules that [`add`] needs, as texts.
pub fn absent(nft: &mut Socket) -> Result<Vec<String>> {
    elements::absent(nft, &skeleton)
}

/// Creates these rules again.
pub fn prepare(nft: &mut Socket) -> Result<()> {
    elements::prepare(nft, &skeleton)
}

fn address(nft: &mut Socket, ifname: &str) -> Result<Option<[u8; 6]>> {
    Ok(match nft::get_element(nft, &TABLE, ADDRESSES, &Value::ifname(ifname))?.map(|element| element.data) {
        Some(Data::Value(mac)) => mac.bytes().try_into().ok(),
        _ => None,
    })
}

fn skeleton(change: &mut Transaction) {
    change.add_table(&TABLE);
    change.add_set(&TABLE, &Set::of(GUARDED, &[Type::IfName]));
    change.add_set(&TABLE, &Set::of(ALLOWED, &[Type::IfName, Type::Mac]));
    change.add_set(&TABLE, &Set::of(UNTAGGED, &[Type::IfName]));
    change.add_set(&TABLE, &Set::map(ADDRESSES, &[Type::IfName], &[Type::Mac]));
    change.add_base_chain(&TABLE, "prerouting", &PREROUTING);
    change.flush_chain(&TABLE, "prerouting");
    let spoofed = Rule::new()
        .in_set(&[Field::InterfaceIn], GUARDED)
        .not_in_set(&[Field::InterfaceIn, Field::MacSource], ALLOWED)
        .drop();
    change.add_rule(&TABLE, "prerouting", &spoofed);
    let other = Rule::new().in_set(&[Field::InterfaceIn], UNTAGGED);
    let other =
        ETHER_TYPES.iter().fold(other, |rule, ether_type| rule.is_not(Field::EtherTypeOnWire, ether_type));
    change.add_rule(&TABLE, "prerouting", &other.drop());
}
