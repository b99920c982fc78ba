//! Firewall idioms in nf_tables: masquerading, host ports, forwarding, spoof guards.
//!
//! Each feature has a table of its own. Its skeleton (chains, rules, empty sets and maps) is made once, in
//! one transaction; after that a pod is elements and nothing but elements: an address in a set, a port in a
//! map. So a packet's cost does not grow with the number of pods, and neither does an ADD's. (No element
//! jumps to a chain: for each such one the kernel walks the whole table, with all its elements, to see that
//! no jump leads in a circle. What differs from network to network is a set and a chain a network. Pods that are each alone in
//! theirs, as routed ones are, share one.)
//!
//! Every element says in its comment whose it is ([`Owner`]): network/container/interface. A pod's own
//! elements are deleted by their keys when these are known ([`remove`](masquerade::remove)), by their
//! comments when they are not (`remove_all`), and those of pods that no longer exist are collected
//! (`collect`). `nft list ruleset` shows it all.
//!
//! | table | what it does |
//! |---|---|
//! | `inet podwire_masq` | pods reach the world with the node's address |
//! | `inet podwire_ports` | ports of the node lead to pods |
//! | `inet podwire_firewall` | pods' packets pass, and bridges are kept apart |
//! | `inet podwire_overlay` | the cluster's pods among each other, and to the world ([`cluster`]: networks, not pods) |
//! | `bridge podwire_spoof` | a pod sends with its own hardware address only |

pub mod cluster;
mod elements;
pub mod forward;
pub mod hostports;
pub mod inventory;
pub mod legacy;
pub mod masquerade;
pub mod spoof;

use ipnet::IpNet;
use podwire_netlink::nft::{self, Family, Table, Transaction};
use podwire_netlink::rt::link::{self, Link};
use podwire_netlink::Socket;

pub use crate::owner::Owner;

use crate::{Host, Result};

/// What there is to say where nothing can be added.
pub(crate) const NO_NF_TABLES: &str =
    "this kernel has no nf_tables (CONFIG_NF_TABLES), or cannot load their module";

/// Deletes the tables of a living node that nobody needs. Those of host ports keep packets from elsewhere out of its loopback, which a
/// device is open for since the first port was mapped: they stay as long as one is.
pub fn drop_unneeded_tables() -> Result<usize> {
    let (mut node, mut links) = (Host::here()?, Host::here()?);
    let is_open = |link: &Link| link.route_localnet == Some(true);
    drop_empty(node.nft()?, |table| {
        Ok(!hostports::is_table(table) || !link::list(&mut links.route)?.iter().any(is_open))
    })
}

/// Deletes the tables of this module that hold no element any more; says how many. A table that anybody is
/// changing at this moment stays for the next time.
pub fn drop_empty_tables(nft: &mut Socket) -> Result<usize> {
    drop_empty(nft, |_| Ok(true))
}

fn drop_empty(nft: &mut Socket, mut may_go: impl FnMut(&Table) -> Result<bool>) -> Result<usize> {
    let mut dropped = 0;
    for table in nft::list_tables(nft, None)?.iter().filter(|table| is_ours(table)) {
        let mut change = Transaction::at_generation(nft::generation(nft)?);
        // Whoever comes from here on changes the generation first.
        if !is_empty(nft, table)? || !may_go(table)? {
            continue;
        }
        change.delete_table(table);
        // The fabric's table relies on the pass through iptables too.
        if *table == forward::TABLE && !nft::has_table(nft, &cluster::TABLE)? {
            forward::withdraw(nft, &mut change)?;
        }
        match change.commit(nft) {
            Ok(()) => dropped += 1,
            Err(error) if nft::changed_meanwhile(&error) || error.is_gone() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(dropped)
}

fn is_ours(table: &Table) -> bool {
    [masquerade::TABLE, forward::TABLE, spoof::TABLE].contains(table) || hostports::is_table(table)
}

fn is_empty(nft: &mut Socket, table: &Table) -> Result<bool> {
    if *table == forward::TABLE {
        return forward::is_unused(nft);
    }
    for set in nft::list_sets(nft, table)? {
        if !nft::list_elements(nft, table, &set)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The family of an address's packets.
fn family(net: &IpNet) -> Family {
    match net {
        IpNet::V4(_) => Family::Ip,
        IpNet::V6(_) => Family::Ip6,
    }
}

/// Whether a pod has no neighbour: its network is its own address.
fn is_alone(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

/// The name of the set, and of the chain, for one pod network: `net4_10.1.0.0_16`. Colons are not for such
/// names. Pods that are alone have one in common: `net4_alone`.
fn named_for(kind: &str, net: &IpNet) -> String {
    let version = if net.addr().is_ipv4() { 4 } else { 6 };
    if is_alone(net) {
        return format!("{kind}{version}_alone");
    }
    format!("{kind}{version}_{}_{}", net.network().to_string().replace(':', "_"), net.prefix_len())
}
