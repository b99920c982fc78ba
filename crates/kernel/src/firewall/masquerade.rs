//! Masquerading: packets of a pod to addresses outside its network leave with the node's address, because pod addresses
//! are not routable outside the cluster. Inside its network, and to multicast groups, a pod keeps its own address.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_netlink::nft::{
    self, Base, ChainKind, Element, Family, Field, Hook, Rule, Set, Table, Transaction, Type, Value,
};
use podwire_netlink::Socket;

use super::elements::{self, is_owned_by, Entry, Insertion};
use super::naming::{is_single_address, nft_family, set_name};
use crate::error::Result;
use crate::owner::Owner;

pub(super) const TABLE: Table = Table::named(Family::Inet, "podwire_masq");
const POSTROUTING: Base = Base::new(ChainKind::Nat, Hook::Postrouting, 100); // srcnat

/// Masquerades packets from these addresses to destinations outside their networks. An element that exists already
/// belongs to a deleted pod; it is replaced.
pub fn add(nft: &mut Socket, owner: &Owner, addrs: &[IpNet]) -> Result<()> {
    add_if_free(nft, owner, addrs, &|_| false)
}

/// [`add`], unless an address belongs to another owner that is running: then nothing changes.
pub fn add_if_free(
    nft: &mut Socket,
    owner: &Owner,
    addrs: &[IpNet],
    is_running: &dyn Fn(&str) -> bool,
) -> Result<()> {
    let entry = |net: &IpNet| {
        Entry::own(set_name("net", net), Element::key(Value::ip(net.addr())).comment(owner.comment()))
    };
    let insertion = Insertion {
        table: &TABLE,
        entries: addrs.iter().map(entry).collect(),
        skeletons: &[&|change| skeleton(change, addrs)],
        on_conflict: &elements::replace_unless_running(owner, is_running),
    };
    insertion.commit(nft)
}

/// Reverts [`add`] for these addresses, if they belong to the owner; returns whether there was anything.
pub fn remove(nft: &mut Socket, owner: &Owner, addrs: &[IpAddr]) -> Result<bool> {
    let keys = keys(nft, addrs)?;
    elements::remove(nft, &TABLE, &keys, &|element| is_owned_by(element, owner))
}

/// Reverts all calls of [`add`] for this owner, for any address.
pub fn remove_all(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    let sets = nft::list_sets(nft, &TABLE)?;
    Ok(elements::remove_matching(nft, &TABLE, &sets, &|comment| owner.matches(comment))? > 0)
}

/// Deletes the addresses of owners in this network that are not in `keep`; returns their number.
pub fn collect(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    let sets = nft::list_sets(nft, &TABLE)?;
    elements::remove_matching(nft, &TABLE, &sets, &elements::orphans(network, keep))
}

/// Whether this owner's address is masqueraded.
pub fn is_present(nft: &mut Socket, owner: &Owner, addr: IpAddr) -> Result<bool> {
    for (set, key) in keys(nft, &[addr])? {
        if nft::get_element(nft, &TABLE, &set, &key)?.is_some_and(|element| is_owned_by(&element, owner)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The owners of the elements for this address: several if networks overlap.
pub fn holders(nft: &mut Socket, addr: IpAddr) -> Result<Vec<String>> {
    let mut holders = Vec::new();
    for (set, key) in keys(nft, &[addr])? {
        holders.extend(nft::get_element(nft, &TABLE, &set, &key)?.and_then(|element| element.comment));
    }
    Ok(holders)
}

/// The missing parts of the rules that [`add`] needs, as texts.
pub fn absent(nft: &mut Socket, addrs: &[IpNet]) -> Result<Vec<String>> {
    elements::absent(nft, &|change| skeleton(change, addrs))
}

/// Creates these rules again.
pub fn prepare(nft: &mut Socket, addrs: &[IpNet]) -> Result<()> {
    elements::prepare(nft, &|change| skeleton(change, addrs))
}

/// The possible keys of these addresses. The network of an address is unknown, but a node has few networks.
fn keys(nft: &mut Socket, addrs: &[IpAddr]) -> Result<Vec<(String, Value)>> {
    let sets = nft::list_sets(nft, &TABLE)?;
    let keys = |addr: &IpAddr| {
        let (prefix, key) = (if addr.is_ipv4() { "net4_" } else { "net6_" }, Value::ip(*addr));
        sets.iter().filter(move |set| set.starts_with(prefix)).map(move |set| (set.clone(), key.clone()))
    };
    Ok(addrs.iter().flat_map(keys).collect())
}

/// A set and a chain for each pod network. The result is the same whether or not parts exist.
fn skeleton(change: &mut Transaction, addrs: &[IpNet]) {
    change.add_table(&TABLE);
    let mut nets: Vec<(String, IpNet)> =
        addrs.iter().map(|addr| (set_name("net", addr), addr.trunc())).collect();
    nets.sort();
    nets.dedup_by(|(one, _), (other, _)| one == other);
    for (name, net) in &nets {
        let (kind, groups): (Type, IpNet) = match net {
            IpNet::V4(_) => (Type::Ipv4, IpNet::new_assert([224, 0, 0, 0].into(), 4)),
            IpNet::V6(_) => (Type::Ipv6, IpNet::new_assert([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8)),
        };
        change.add_set(&TABLE, &Set::of(name, &[kind]));
        change.add_base_chain(&TABLE, name, &POSTROUTING);
        change.flush_chain(&TABLE, name);
        let to = Field::destination(&net.addr());
        let mut outgoing = Rule::new().family(nft_family(net)).in_set(&[Field::source(&net.addr())], name);
        if !is_single_address(net) {
            outgoing = outgoing.prefix(to, net.addr(), net.prefix_len(), false);
        }
        let outgoing = outgoing.prefix(to, groups.addr(), groups.prefix_len(), false);
        change.add_rule(&TABLE, name, &outgoing.masquerade());
    }
}
