//! Spoof guards: a pod on a bridge sends with its own hardware address and no other.
//!
//! Whoever sends with a neighbour's address teaches the bridge to deliver the neighbour's frames to him.

use podwire_netlink::nft::{
    self, Base, ChainKind, Data, Element, Family, Field, Hook, Rule, Set, Table, Transaction, Type, Value,
};
use podwire_netlink::Socket;

use super::elements::{self, is_of, Entry, Plan};
use crate::owner::Owner;
use crate::{Mac, Result};

pub(super) const TABLE: Table = Table::named(Family::Bridge, "podwire_spoof");
/// Bridge ports that are watched.
const GUARDED: &str = "guarded";
/// What they may send with.
const ALLOWED: &str = "allowed";
/// The same as a map, in which a port's address is found when the port goes; no rule uses it.
const ADDRESSES: &str = "addresses";
const SETS: [&str; 3] = [GUARDED, ALLOWED, ADDRESSES];
const PREROUTING: Base = Base::new(ChainKind::Filter, Hook::Prerouting, -300);

/// Lets frames that enter the bridge by its port `ifname` pass only if they come from `mac`.
pub fn add(nft: &mut Socket, owner: &Owner, ifname: &str, mac: Mac) -> Result<()> {
    let element = |key: Value| Element::key(key).comment(owner.comment());
    let entries = vec![
        Entry::own(GUARDED, element(Value::ifname(ifname))),
        Entry::own(ALLOWED, element(Value::ifname(ifname).and_mac(mac.0))),
        Entry::own(ADDRESSES, element(Value::ifname(ifname)).to(Value::mac(mac.0))),
    ];
    Plan { table: &TABLE, entries, skeletons: &[&skeleton], rival: &elements::replace }.carry_out(nft)
}

/// Takes back what [`add`] did for this port, if it is this owner's; says whether there was anything.
pub fn remove(nft: &mut Socket, owner: &Owner, ifname: &str) -> Result<bool> {
    let port = Value::ifname(ifname);
    let mut keys = vec![(GUARDED, port.clone()), (ADDRESSES, port.clone())];
    keys.extend(address(nft, ifname)?.map(|mac| (ALLOWED, port.and_mac(mac))));
    elements::remove(nft, &TABLE, &keys, &|element| is_of(element, owner))
}

/// Takes back all that [`add`] did for this owner.
pub fn remove_all(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    Ok(elements::sweep(nft, &TABLE, &SETS, &|comment| owner.matches(comment))? > 0)
}

/// Takes back what was done for owners in this network that are not among those to `keep`; says how many
/// elements that were.
pub fn collect(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    elements::sweep(nft, &TABLE, &SETS, &elements::strays(network, keep))
}

/// Whether this owner's port is held to this address.
pub fn is_present(nft: &mut Socket, owner: &Owner, ifname: &str, mac: Mac) -> Result<bool> {
    for (set, key) in [(GUARDED, Value::ifname(ifname)), (ALLOWED, Value::ifname(ifname).and_mac(mac.0))] {
        if !nft::get_element(nft, &TABLE, set, &key)?.is_some_and(|element| is_of(&element, owner)) {
            return Ok(false);
        }
    }
    Ok(address(nft, ifname)? == Some(mac.0))
}

/// What is missing of the rules that [`add`] relies on, in words.
pub fn absent(nft: &mut Socket) -> Result<Vec<String>> {
    elements::absent(nft, &skeleton)
}

/// Makes those rules again.
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
    change.add_set(&TABLE, &Set::map(ADDRESSES, &[Type::IfName], &[Type::Mac]));
    change.add_base_chain(&TABLE, "prerouting", &PREROUTING);
    change.flush_chain(&TABLE, "prerouting");
    let liar = Rule::new()
        .in_set(&[Field::InterfaceIn], GUARDED)
        .not_in_set(&[Field::InterfaceIn, Field::MacSource], ALLOWED)
        .drop();
    change.add_rule(&TABLE, "prerouting", &liar);
}
