//! Masquerading: a pod reaches the world outside its network with the node's address.
//!
//! Pod addresses mean nothing beyond the cluster, so what a pod sends there leaves with the address of the
//! device it leaves by. Inside its own network, and to groups, a pod shows its own address.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink::nft::{
    self, Base, ChainKind, Element, Family, Field, Hook, Rule, Set, Table, Transaction, Type, Value, Verdict,
};
use netlink::Socket;

use super::elements::{self, is_of, Entry, Plan};
use super::owner::Owner;
use super::{chain_of, family};
use crate::Result;

pub(super) const TABLE: Table = Table::named(Family::Inet, "podwire_masq");
const SOURCES: [&str; 2] = ["sources4", "sources6"];
const POSTROUTING: Base = Base::new(ChainKind::Nat, Hook::Postrouting, 100); // srcnat

fn set_of(addr: &IpAddr) -> &'static str {
    SOURCES[usize::from(addr.is_ipv6())]
}

/// Lets what these addresses send outside their networks leave with the node's address. An address that is
/// there already was left by a pod that has gone, for no two pods have the same: it changes hands.
pub fn add(nft: &mut Socket, owner: &Owner, addrs: &[IpNet]) -> Result<()> {
    let entry = |net: &IpNet| {
        let element = Element::key(Value::ip(net.addr())).verdict(Verdict::Jump(chain_of("net", net)));
        Entry::own(set_of(&net.addr()), element.comment(owner.comment()))
    };
    let plan = Plan {
        table: &TABLE,
        entries: addrs.iter().map(entry).collect(),
        skeletons: &[&|change| networks(change, addrs), &|change| skeleton(change, addrs)],
        rival: &elements::replace,
    };
    plan.carry_out(nft)
}

/// Takes back what [`add`] did for these addresses, if it is this owner's; says whether there was anything.
pub fn remove(nft: &mut Socket, owner: &Owner, addrs: &[IpAddr]) -> Result<bool> {
    let keys: Vec<_> = addrs.iter().map(|addr| (set_of(addr), Value::ip(*addr))).collect();
    elements::remove(nft, &TABLE, &keys, &|element| is_of(element, owner))
}

/// Takes back all that [`add`] did for this owner, whatever its addresses were.
pub fn remove_all(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    Ok(elements::sweep(nft, &TABLE, &SOURCES, &|comment| owner.matches(comment))? > 0)
}

/// Takes back what was done for owners in this network that are not among those to `keep`; says how many
/// addresses that were.
pub fn collect(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    elements::sweep(nft, &TABLE, &SOURCES, &elements::strays(network, keep))
}

/// Whether this owner's address is masqueraded.
pub fn is_present(nft: &mut Socket, owner: &Owner, addr: IpAddr) -> Result<bool> {
    let element = nft::get_element(nft, &TABLE, set_of(&addr), &Value::ip(addr))?;
    Ok(element.is_some_and(|element| is_of(&element, owner)))
}

/// The chains of the pods' networks.
fn networks(change: &mut Transaction, addrs: &[IpNet]) {
    let mut nets: Vec<IpNet> = addrs.iter().map(IpNet::trunc).collect();
    nets.sort();
    nets.dedup();
    for net in nets {
        let chain = chain_of("net", &net);
        let groups: IpNet = match net {
            IpNet::V4(_) => IpNet::new_assert([224, 0, 0, 0].into(), 4),
            IpNet::V6(_) => IpNet::new_assert([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8),
        };
        change.add_chain(&TABLE, &chain);
        change.flush_chain(&TABLE, &chain);
        for inside in [net, groups] {
            let to = Field::destination(&inside.addr());
            let rule = Rule::new().family(family(&net)).prefix(to, inside.addr(), inside.prefix_len(), true);
            change.add_rule(&TABLE, &chain, &rule.leave());
        }
        change.add_rule(&TABLE, &chain, &Rule::new().masquerade());
    }
}

fn skeleton(change: &mut Transaction, addrs: &[IpNet]) {
    change.add_table(&TABLE);
    change.add_set(&TABLE, &Set::verdicts(SOURCES[0], &[Type::Ipv4]));
    change.add_set(&TABLE, &Set::verdicts(SOURCES[1], &[Type::Ipv6]));
    change.add_base_chain(&TABLE, "postrouting", &POSTROUTING);
    change.flush_chain(&TABLE, "postrouting");
    for (family, source, set) in
        [(Family::Ip, Field::Ip4Source, SOURCES[0]), (Family::Ip6, Field::Ip6Source, SOURCES[1])]
    {
        let rule = Rule::new().family(family).verdict_map(&[source], set);
        change.add_rule(&TABLE, "postrouting", &rule);
    }
    networks(change, addrs);
}
