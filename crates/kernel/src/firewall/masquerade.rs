//! Masquerading: a pod reaches the world outside its network with the node's address.
//!
//! Pod addresses mean nothing beyond the cluster, so what a pod sends there leaves with the address of the
//! device it leaves by. Inside its own network, and to groups, a pod shows its own address.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_netlink::nft::{
    self, Base, ChainKind, Element, Family, Field, Hook, Rule, Set, Table, Transaction, Type, Value,
};
use podwire_netlink::Socket;

use super::elements::{self, is_of, Entry, Plan};
use super::{family, is_alone, named_for};
use crate::owner::Owner;
use crate::Result;

pub(super) const TABLE: Table = Table::named(Family::Inet, "podwire_masq");
const POSTROUTING: Base = Base::new(ChainKind::Nat, Hook::Postrouting, 100); // srcnat

/// Lets what these addresses send outside their networks leave with the node's address. An address that is
/// there already was left by a pod that has gone, for no two pods have the same: it changes hands.
pub fn add(nft: &mut Socket, owner: &Owner, addrs: &[IpNet]) -> Result<()> {
    let entry = |net: &IpNet| {
        Entry::own(named_for("net", net), Element::key(Value::ip(net.addr())).comment(owner.comment()))
    };
    let plan = Plan {
        table: &TABLE,
        entries: addrs.iter().map(entry).collect(),
        skeletons: &[&|change| skeleton(change, addrs)],
        rival: &elements::replace,
    };
    plan.carry_out(nft)
}

/// Takes back what [`add`] did for these addresses, if it is this owner's; says whether there was anything.
pub fn remove(nft: &mut Socket, owner: &Owner, addrs: &[IpAddr]) -> Result<bool> {
    let keys = keys(nft, addrs)?;
    elements::remove(nft, &TABLE, &keys, &|element| is_of(element, owner))
}

/// Takes back all that [`add`] did for this owner, whatever its addresses were.
pub fn remove_all(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    let sets = nft::list_sets(nft, &TABLE)?;
    Ok(elements::sweep(nft, &TABLE, &sets, &|comment| owner.matches(comment))? > 0)
}

/// Takes back what was done for owners in this network that are not among those to `keep`; says how many
/// addresses that were.
pub fn collect(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    let sets = nft::list_sets(nft, &TABLE)?;
    elements::sweep(nft, &TABLE, &sets, &elements::strays(network, keep))
}

/// Whether this owner's address is masqueraded.
pub fn is_present(nft: &mut Socket, owner: &Owner, addr: IpAddr) -> Result<bool> {
    for (set, key) in keys(nft, &[addr])? {
        if nft::get_element(nft, &TABLE, &set, &key)?.is_some_and(|element| is_of(&element, owner)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What is missing of the rules that [`add`] relies on, in words.
pub fn absent(nft: &mut Socket, addrs: &[IpNet]) -> Result<Vec<String>> {
    elements::absent(nft, &|change| skeleton(change, addrs))
}

/// Makes those rules again.
pub fn prepare(nft: &mut Socket, addrs: &[IpNet]) -> Result<()> {
    elements::prepare(nft, &|change| skeleton(change, addrs))
}

/// Where the addresses can be. An address does not tell its network, but a node has few of them.
fn keys(nft: &mut Socket, addrs: &[IpAddr]) -> Result<Vec<(String, Value)>> {
    let sets = nft::list_sets(nft, &TABLE)?;
    let of = |addr: &IpAddr| if addr.is_ipv4() { "net4_" } else { "net6_" };
    let places = |addr: &IpAddr| {
        let (kind, key) = (of(addr), Value::ip(*addr));
        sets.iter().filter(move |set| set.starts_with(kind)).map(move |set| (set.clone(), key.clone()))
    };
    Ok(addrs.iter().flat_map(places).collect())
}

/// A set and a chain for each of the pods' networks: the same whether or not parts of it are there.
fn skeleton(change: &mut Transaction, addrs: &[IpNet]) {
    change.add_table(&TABLE);
    let mut nets: Vec<(String, IpNet)> =
        addrs.iter().map(|addr| (named_for("net", addr), addr.trunc())).collect();
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
        let mut leaves = Rule::new().family(family(net)).in_set(&[Field::source(&net.addr())], name);
        if !is_alone(net) {
            leaves = leaves.prefix(to, net.addr(), net.prefix_len(), false);
        }
        let leaves = leaves.prefix(to, groups.addr(), groups.prefix_len(), false);
        change.add_rule(&TABLE, name, &leaves.masquerade());
    }
}
