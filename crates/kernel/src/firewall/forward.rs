//! Forwarding: pods' packets pass through the node, whatever its firewall says of forwarding in general; and
//! bridges are kept apart.
//!
//! In nf_tables an `accept` ends a base chain but not the packet's way: another table whose policy is to drop
//! (Docker and many administrators set one on `FORWARD` of iptables) still drops it. So a packet that may
//! pass gets a bit of its mark set before such a chain, one rule at the head of iptables' `FORWARD` lets
//! packets with the bit pass, and after it the bit is cleared, so that nobody else ever sees it.

mod iptables;
mod skeleton;

use std::net::IpAddr;

use podwire_netlink::nft::{self, Element, Family, Table, Transaction, Value};
use podwire_netlink::Socket;

use super::elements::{self, is_of, Entry, Plan};
use crate::owner::Owner;
use crate::Result;

pub(super) use iptables::{absent as lacks_pass, ensure_pass, withdraw};

pub(super) const TABLE: Table = Table::named(Family::Inet, "podwire_firewall");
const PODS: [&str; 2] = ["pods4", "pods6"];
/// Bridges that are kept apart from each other.
const BRIDGES: &str = "bridges";
/// Pairs of them between which packets may pass all the same: a bridge and itself.
const SAME: &str = "same";
/// The bit of the mark that means "may pass", between our two chains only.
pub const MAY_PASS: u32 = 0x0100_0000;

/// What may reach a pod from other pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Everything.
    #[default]
    Open,
    /// What comes over the pod's own bridge, or from no such bridge at all.
    SameBridge,
    /// What comes from no such bridge. (The pods of one bridge are kept apart only where the node looks into
    /// bridged packets, by `br_netfilter`.)
    Isolated,
}

/// What holds for all pods of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The chain, in table `inet podwire_firewall`, that the administrator fills: every forwarded packet goes
    /// through it first. It is made if it is missing and never changed.
    pub admin_chain: String,
    /// What may reach the pods.
    pub policy: Policy,
    /// The bridge that the policy is about.
    pub bridge: Option<String>,
}

fn set_of(addr: &IpAddr) -> &'static str {
    PODS[usize::from(addr.is_ipv6())]
}

/// Lets the packets of these addresses pass, both ways, and keeps the bridge apart as the rules say.
pub fn add(nft: &mut Socket, owner: &Owner, addrs: &[IpAddr], rules: &Rules) -> Result<()> {
    let entry =
        |addr: &IpAddr| Entry::own(set_of(addr), Element::key(Value::ip(*addr)).comment(owner.comment()));
    let mut entries: Vec<Entry> = addrs.iter().map(entry).collect();
    if let Some(bridge) = &rules.bridge {
        loosen(nft, owner, bridge, rules.policy)?;
        entries.extend(isolation(owner, bridge, rules.policy));
    }
    let whole = |change: &mut Transaction| skeleton::whole(change);
    let plan = Plan { table: &TABLE, entries, skeletons: &[&whole], rival: &elements::replace };
    plan.carry_out(nft)?;
    skeleton::ensure_admin_chain(nft, &rules.admin_chain)?;
    iptables::ensure_pass(nft)
}

/// What a bridge that is kept apart needs, besides what its pods need.
fn isolation(owner: &Owner, bridge: &str, policy: Policy) -> Vec<Entry> {
    // Of all pods of the network: it stays when one of them goes.
    let element = |key: Value| Element::key(key).comment(Owner::network_comment(&owner.network));
    let apart = Entry::shared(BRIDGES, element(Value::ifname(bridge)));
    let same = Entry::shared(SAME, element(Value::ifname(bridge).and_ifname(bridge)));
    match policy {
        Policy::Open => vec![],
        Policy::SameBridge => vec![apart, same],
        Policy::Isolated => vec![apart],
    }
}

/// Takes away what an earlier policy of the network left on the bridge and this one does not want. What another network of the same bridge
/// asked for first stays.
fn loosen(nft: &mut Socket, owner: &Owner, bridge: &str, policy: Policy) -> Result<()> {
    let apart = (BRIDGES, Value::ifname(bridge));
    let same = (SAME, Value::ifname(bridge).and_ifname(bridge));
    let unwanted = match policy {
        Policy::Open => vec![apart, same],
        Policy::SameBridge => return Ok(()),
        Policy::Isolated => vec![same],
    };
    let own = Owner::network_comment(&owner.network);
    elements::remove(nft, &TABLE, &unwanted, &|element| element.comment.as_ref() == Some(&own)).map(drop)
}

/// Takes back what [`add`] did for these addresses, if it is this owner's; says whether there was anything.
pub fn remove(nft: &mut Socket, owner: &Owner, addrs: &[IpAddr]) -> Result<bool> {
    let keys: Vec<_> = addrs.iter().map(|addr| (set_of(addr), Value::ip(*addr))).collect();
    elements::remove(nft, &TABLE, &keys, &|element| is_of(element, owner))
}

/// Takes back all that [`add`] did for this owner, whatever its addresses were.
pub fn remove_all(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    Ok(elements::sweep(nft, &TABLE, &PODS, &|comment| owner.matches(comment))? > 0)
}

/// Takes back what was done for owners in this network that are not among those to `keep`; says how many
/// addresses that were. When nobody is left, the network's bridges are no longer kept apart.
pub fn collect(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    let collected = elements::sweep(nft, &TABLE, &PODS, &elements::strays(network, keep))?;
    if !keep.iter().any(|owner| owner.network == network) {
        let all = Owner::network_comment(network);
        elements::sweep(nft, &TABLE, &[BRIDGES, SAME], &|comment| comment == all)?;
    }
    Ok(collected)
}

/// Whether this owner's address may pass.
pub fn is_present(nft: &mut Socket, owner: &Owner, addr: IpAddr) -> Result<bool> {
    let element = nft::get_element(nft, &TABLE, set_of(&addr), &Value::ip(addr))?;
    Ok(element.is_some_and(|element| is_of(&element, owner)))
}

/// What is missing of what holds for all pods of the network, in words: the rules that [`add`] relies on, the
/// administrator's chain, the pass through iptables, and the bridge's place among those that are kept apart.
pub fn absent(nft: &mut Socket, owner: &Owner, rules: &Rules) -> Result<Vec<String>> {
    let mut absent = elements::absent(nft, &skeleton::whole)?;
    if absent.is_empty() && !skeleton::leads_to(nft, &rules.admin_chain)? {
        absent.push(format!("nothing leads to the chain {} of table {TABLE}", rules.admin_chain));
    }
    absent.extend(iptables::absent(nft)?);
    absent.extend(not_apart(nft, owner, rules)?);
    Ok(absent)
}

/// What is missing to keep the bridge apart, in words.
fn not_apart(nft: &mut Socket, owner: &Owner, rules: &Rules) -> Result<Vec<String>> {
    let Some(bridge) = &rules.bridge else { return Ok(Vec::new()) };
    let mut absent = Vec::new();
    for Entry { set, element, .. } in isolation(owner, bridge, rules.policy) {
        if nft::get_element(nft, &TABLE, &set, &element.key)?.is_none() {
            absent.push(format!("bridge {bridge} is not in set {set} of table {TABLE}"));
        }
    }
    Ok(absent)
}

/// Makes all of that again.
pub fn prepare(nft: &mut Socket, owner: &Owner, rules: &Rules) -> Result<()> {
    elements::prepare(nft, &skeleton::whole)?;
    add(nft, owner, &[], rules)
}

/// Whether no pod is left, no bridge is kept apart, and the administrator has written nothing.
pub(super) fn is_unused(nft: &mut Socket) -> Result<bool> {
    for set in PODS.into_iter().chain([BRIDGES]) {
        if !nft::list_elements(nft, &TABLE, set)?.is_empty() {
            return Ok(false);
        }
    }
    skeleton::admin_chains_are_empty(nft)
}
