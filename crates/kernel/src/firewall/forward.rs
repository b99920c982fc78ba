//! Forwarding: pod packets pass the node regardless of its general FORWARD policy, and bridges can be isolated.
//!
//! In nf_tables `accept` ends only one base chain: a later table with policy drop (Docker and many administrators set
//! it on iptables' `FORWARD`) still drops the packet. So packets that may pass get a bit of their mark set before that
//! chain, one rule at the head of iptables' `FORWARD` accepts packets with the bit, and a later chain clears the bit,
//! so that no other rule sees it.
//!
//! Where iptables has no chain `FORWARD`, no packet is marked, and rules of isolation exist only if a bridge is isolated:
//! docs/decisions/0026-usual-packets-first.md. Each [`add`], [`prepare`] and [`absent`] looks at what the node needs now.

mod iptables;
mod skeleton;

use std::net::IpAddr;

use podwire_netlink::nft::{self, Element, Table, Value};
use podwire_netlink::Socket;

use super::elements::{self, is_owned_by, Entry, Insertion};
use crate::error::Result;
use crate::owner::Owner;

pub(super) use iptables::{ensure_accept_rule, is_filtered, missing_accept_rules, remove_accept_rule};
pub use skeleton::MAY_PASS;
pub(super) use skeleton::TABLE;
use skeleton::{BRIDGES, PODS, SAME};

/// The traffic that a pod accepts from other pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Everything.
    #[default]
    Open,
    /// Traffic from the pod's own bridge, and from outside the isolated bridges.
    SameBridge,
    /// Only traffic from outside the isolated bridges. Pods on one bridge are isolated only with `br_netfilter`.
    Isolated,
}

/// Settings for all pods of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The administrator's chain in table `inet podwire_firewall`. Every forwarded packet passes it first. It is
    /// created if it is missing and never changed.
    pub admin_chain: String,
    /// The traffic that the pods accept.
    pub policy: Policy,
    /// The bridge to which the policy applies.
    pub bridge: Option<String>,
}

fn set_of(addr: &IpAddr) -> &'static str {
    PODS[usize::from(addr.is_ipv6())]
}

/// Lets packets from and to these addresses pass, and isolates the bridge according to the rules.
pub fn add(nft: &mut Socket, owner: &Owner, addrs: &[IpAddr], rules: &Rules) -> Result<()> {
    add_if_free(nft, owner, addrs, rules, &|_| false)
}

/// [`add`], unless an address belongs to another owner that is running: then no address is added.
pub fn add_if_free(
    nft: &mut Socket,
    owner: &Owner,
    addrs: &[IpAddr],
    rules: &Rules,
    is_running: &dyn Fn(&str) -> bool,
) -> Result<()> {
    let entry =
        |addr: &IpAddr| Entry::own(set_of(addr), Element::key(Value::ip(*addr)).comment(owner.comment()));
    let mut entries: Vec<Entry> = addrs.iter().map(entry).collect();
    if let Some(bridge) = &rules.bridge {
        remove_old_isolation(nft, owner, bridge, rules.policy)?;
        entries.extend(isolation(owner, bridge, rules.policy));
    }
    let on_conflict = elements::replace_unless_running(owner, is_running);
    Insertion { table: &TABLE, entries, skeletons: &[&skeleton::sets], on_conflict: &on_conflict }
        .commit(nft)?;
    // After the elements: the chains depend on which bridges are isolated.
    skeleton::ensure(nft, Some(&rules.admin_chain))?;
    iptables::ensure_accept_rule(nft)
}

/// Isolates the bridge according to the rules, for a pod whose packets another firewall accepts. If no bridge is to be
/// isolated and the table does not exist, it is not created.
pub fn isolate(nft: &mut Socket, owner: &Owner, rules: &Rules) -> Result<()> {
    if rules.policy == Policy::Open && !nft::has_table(nft, &TABLE)? {
        return Ok(());
    }
    add(nft, owner, &[], rules)
}

/// The elements that isolate a bridge.
fn isolation(owner: &Owner, bridge: &str, policy: Policy) -> Vec<Entry> {
    // Shared by all pods of the network: it stays when one of them is deleted.
    let element = |key: Value| Element::key(key).comment(Owner::network_comment(&owner.network));
    let isolated = Entry::shared(BRIDGES, element(Value::ifname(bridge)));
    let same = Entry::shared(SAME, element(Value::ifname(bridge).and_ifname(bridge)));
    match policy {
        Policy::Open => vec![],
        Policy::SameBridge => vec![isolated, same],
        Policy::Isolated => vec![isolated],
    }
}

/// Removes the elements of an earlier policy of the network that the current policy does not need. Elements of another
/// network on the same bridge stay.
fn remove_old_isolation(nft: &mut Socket, owner: &Owner, bridge: &str, policy: Policy) -> Result<()> {
    let isolated = (BRIDGES, Value::ifname(bridge));
    let same = (SAME, Value::ifname(bridge).and_ifname(bridge));
    let unwanted = match policy {
        Policy::Open => vec![isolated, same],
        Policy::SameBridge => return Ok(()),
        Policy::Isolated => vec![same],
    };
    let own = Owner::network_comment(&owner.network);
    elements::remove(nft, &TABLE, &unwanted, &|element| element.comment.as_ref() == Some(&own)).map(drop)
}

/// Reverts [`add`] for these addresses, if they belong to the owner; returns whether there was anything.
pub fn remove(nft: &mut Socket, owner: &Owner, addrs: &[IpAddr]) -> Result<bool> {
    let keys: Vec<_> = addrs.iter().map(|addr| (set_of(addr), Value::ip(*addr))).collect();
    elements::remove(nft, &TABLE, &keys, &|element| is_owned_by(element, owner))
}

/// Reverts all calls of [`add`] for this owner, for any address.
pub fn remove_all(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    Ok(elements::remove_matching(nft, &TABLE, &PODS, &|comment| owner.matches(comment))? > 0)
}

/// Deletes the addresses of owners in this network that are not in `keep`; returns their number. With no owner left,
/// the network's bridges are no longer isolated.
pub fn collect(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    let collected = elements::remove_matching(nft, &TABLE, &PODS, &elements::orphans(network, keep))?;
    if !keep.iter().any(|owner| owner.network == network) {
        let all = Owner::network_comment(network);
        if elements::remove_matching(nft, &TABLE, &[BRIDGES, SAME], &|comment| comment == all)? > 0 {
            skeleton::ensure(nft, None)?;
        }
    }
    Ok(collected)
}

/// Whether packets of this owner's address pass.
pub fn is_present(nft: &mut Socket, owner: &Owner, addr: IpAddr) -> Result<bool> {
    let element = nft::get_element(nft, &TABLE, set_of(&addr), &Value::ip(addr))?;
    Ok(element.is_some_and(|element| is_owned_by(&element, owner)))
}

/// The owner of the element for this address.
pub fn holder(nft: &mut Socket, addr: IpAddr) -> Result<Option<String>> {
    let element = nft::get_element(nft, &TABLE, set_of(&addr), &Value::ip(addr))?;
    Ok(element.and_then(|element| element.comment))
}

/// The missing parts for all pods of the network, as texts: the rules that [`add`] needs, the administrator's chain,
/// the iptables rule, and the isolation of the bridge.
pub fn absent(nft: &mut Socket, owner: &Owner, rules: &Rules) -> Result<Vec<String>> {
    let mut absent = skeleton::absent(nft, &rules.admin_chain)?;
    absent.extend(missing_accept_rules(nft)?);
    absent.extend(missing_isolation(nft, owner, rules)?);
    Ok(absent)
}

/// The missing elements of the bridge's isolation, as texts.
fn missing_isolation(nft: &mut Socket, owner: &Owner, rules: &Rules) -> Result<Vec<String>> {
    let Some(bridge) = &rules.bridge else { return Ok(Vec::new()) };
    let mut absent = Vec::new();
    for Entry { set, element, .. } in isolation(owner, bridge, rules.policy) {
        if nft::get_element(nft, &TABLE, &set, &element.key)?.is_none() {
            absent.push(format!("bridge {bridge} is not in set {set} of table {TABLE}"));
        }
    }
    Ok(absent)
}

/// Creates all of these parts again.
pub fn prepare(nft: &mut Socket, owner: &Owner, rules: &Rules) -> Result<()> {
    skeleton::restore(nft, &rules.admin_chain)?;
    add(nft, owner, &[], rules)
}

/// Whether there is no pod, no isolated bridge, and no rule of the administrator.
pub(super) fn is_unused(nft: &mut Socket) -> Result<bool> {
    for set in PODS.into_iter().chain([BRIDGES]) {
        if !nft::list_elements(nft, &TABLE, set)?.is_empty() {
            return Ok(false);
        }
    }
    skeleton::admin_chains_are_empty(nft)
}

/// Whether the administrator has rules for forwarded packets.
pub fn has_administrator_rules(nft: &mut Socket) -> Result<bool> {
    Ok(nft::has_table(nft, &TABLE)? && !skeleton::admin_chains_are_empty(nft)?)
}

/// Whether a notice about this chain may be about the administrator's rules.
pub fn is_administrators(table: &Table, chain: Option<&str>) -> bool {
    *table == TABLE && chain.is_some()
}
