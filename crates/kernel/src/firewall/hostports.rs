//! Host ports: a port of the node leads to a port of a pod.
//!
//! The destination of a connection to one of the node's addresses is looked up in a map by protocol and port (and by
//! address, for mappings of one address) and rewritten. Sets contain the connections whose source must be rewritten
//! too, so that the replies return through the node.

mod mapping;
mod options;
mod skeleton;

use std::borrow::Cow;
use std::cell::Cell;
use std::net::IpAddr;

use podwire_netlink::nft::{self, Element, Family, Table, Transaction, Value};
use podwire_netlink::{ct, Socket};

use super::elements::{self, is_owned_by, Entry, Existing, Insertion};
use super::naming::nft_family;
use crate::error::{Error, Result};
use crate::owner::Owner;
use mapping::{ANY, HOST};

pub use mapping::{PortMap, Protocol};
pub(super) use options::is_table;
pub use options::{Condition, Options, Part, Snat};

/// Maps the ports, all or none. A port of another pod is an error that names the pod. A port that leads to this pod's
/// address belongs to a deleted pod and is replaced. A port that leads to another interface of the same container
/// stays; returns whether there was one.
pub fn add(nft: &mut Socket, owner: &Owner, maps: &[PortMap], options: &Options) -> Result<bool> {
    add_if_free(nft, owner, maps, options, &|_| false)
}

/// [`add`], where a port that leads to this pod's address is taken if its owner is running: two networks overlap.
pub fn add_if_free(
    nft: &mut Socket,
    owner: &Owner,
    maps: &[PortMap],
    options: &Options,
    is_running: &dyn Fn(&str) -> bool,
) -> Result<bool> {
    options::check(options)?;
    let maps: Vec<PortMap> = maps.iter().copied().filter(PortMap::maps_something).collect();
    let (table, comment) = (options::table(options), owner.comment());
    let mut entries: Vec<Entry> = Vec::with_capacity(maps.len() * 2);
    for entry in maps.iter().flat_map(|map| map.entries(&comment, options.snat)) {
        // Two ports of the node may lead to the same port of the pod, and a mapping may be listed twice.
        if !entries.iter().any(|other| other.set == entry.set && other.element == entry.element) {
            entries.push(entry);
        }
    }
    // Before the ports, so that a failure leaves none. A table that does not exist yet gets it with everything else.
    let (needs_guard, has_table) = (needs_guard(&maps, options), nft::has_table(nft, &table)?);
    if needs_guard && has_table {
        ensure_guard(nft, &table)?;
    }
    let networks = |change: &mut Transaction| networks(change, &maps, options);
    let skeleton = |change: &mut Transaction| {
        whole(change, &maps, options);
        if needs_guard {
            skeleton::guard(change, &table);
        }
    };
    let kept_for_sibling = Cell::new(false);
    let on_conflict = |entry: &Entry, other: &Element| {
        let found = resolve_conflict(owner, entry, other, is_running)?;
        kept_for_sibling.set(kept_for_sibling.get() || found == Existing::Keep);
        Ok(found)
    };
    Insertion { table: &table, entries, skeletons: &[&networks, &skeleton], on_conflict: &on_conflict }
        .commit(nft)?;
    // Another process may have created the table meanwhile, for ports that need no guard.
    if needs_guard && !has_table {
        ensure_guard(nft, &table)?;
    }
    Ok(kept_for_sibling.get())
}

/// Whether the caller may set `route_localnet` for these mappings.
fn needs_guard(maps: &[PortMap], options: &Options) -> bool {
    options.snat != Snat::Off && maps.iter().any(|map| map.pod.addr().is_ipv4())
}

/// The table may exist without the guard: for networks that do not need it, or by an earlier version with other rules.
fn ensure_guard(nft: &mut Socket, table: &Table) -> Result<()> {
    let guard = |change: &mut Transaction| skeleton::guard(change, table);
    match elements::absent(nft, &guard)?.is_empty() {
        true => Ok(()),
        false => elements::prepare(nft, &guard),
    }
}

/// The rules for the pod networks.
fn networks(change: &mut Transaction, maps: &[PortMap], options: &Options) {
    if options.snat == Snat::Local {
        skeleton::networks(change, &options::table(options), maps);
    }
}

fn whole(change: &mut Transaction, maps: &[PortMap], options: &Options) {
    let table = options::table(options);
    skeleton::whole(change, &table, options);
    if needs_guard(maps, options) {
        skeleton::guard(change, &table);
    }
    networks(change, maps, options);
}

/// The missing parts of the rules that [`add`] needs, as texts.
pub fn absent(nft: &mut Socket, maps: &[PortMap], options: &Options) -> Result<Vec<String>> {
    elements::absent(nft, &|change| whole(change, maps, options))
}

/// Creates these rules again.
pub fn prepare(nft: &mut Socket, maps: &[PortMap], options: &Options) -> Result<()> {
    elements::prepare(nft, &|change| whole(change, maps, options))
}

/// Decides about an existing element with the same key.
fn resolve_conflict(
    owner: &Owner,
    entry: &Entry,
    other: &Element,
    is_running: &dyn Fn(&str) -> bool,
) -> Result<Existing> {
    let (Some(wanted), Some(held)) = (PortMap::from_element(&entry.element), PortMap::from_element(other))
    else {
        // The key is the pod's own address: the element belongs to a deleted pod.
        return Ok(Existing::Replace);
    };
    let is_other_running = || other.comment.as_deref().is_some_and(is_running);
    if is_owned_by(other, owner) || (held.pod == wanted.pod && !is_other_running()) {
        return Ok(Existing::Replace);
    }
    if is_of_sibling(other, owner) {
        return Ok(Existing::Keep);
    }
    Err(Error::PortTaken {
        port: wanted.host_port,
        protocol: wanted.protocol.name(),
        address: wanted.host_ip,
        holder: other.comment.clone().unwrap_or_else(|| held.pod.addr().to_string()),
    })
}

/// Whether an element belongs to another interface of the same container.
fn is_of_sibling(element: &Element, owner: &Owner) -> bool {
    let comment = element.comment.as_deref().unwrap_or_default();
    owner.shares_container(comment) && !owner.matches(comment)
}

/// Deletes these mappings, if they belong to the owner; returns whether there were any.
pub fn remove(nft: &mut Socket, owner: &Owner, maps: &[PortMap], options: &Options) -> Result<bool> {
    let table = options::table(options);
    let mut keys: Vec<(Cow<'static, str>, Value)> = Vec::with_capacity(maps.len() * 3);
    for key in maps.iter().filter(|map| map.maps_something()).flat_map(PortMap::keys) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    elements::remove(nft, &table, &keys, &|element| is_owned_by(element, owner))
}

/// Deletes all mappings of this owner, in any table.
pub fn remove_all(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    Ok(remove_matching(nft, &|comment| owner.matches(comment))? > 0)
}

/// Deletes the mappings of owners in this network that are not in `keep`; returns the number of elements.
pub fn collect(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    remove_matching(nft, &elements::orphans(network, keep))
}

fn remove_matching(nft: &mut Socket, matches: &dyn Fn(&str) -> bool) -> Result<usize> {
    tables(nft)?.iter().try_fold(0, |sum, table| {
        let sets = nft::list_sets(nft, table)?;
        Ok(sum + elements::remove_matching(nft, table, &sets, matches)?)
    })
}

fn tables(nft: &mut Socket) -> Result<Vec<Table>> {
    let mut tables = nft::list_tables(nft, Some(Family::Inet))?;
    tables.retain(is_table);
    Ok(tables)
}

/// The mappings that are not as [`add`] creates or keeps them.
pub fn missing(nft: &mut Socket, owner: &Owner, maps: &[PortMap], options: &Options) -> Result<Vec<PortMap>> {
    let (table, comment) = (options::table(options), owner.comment());
    let mut missing = Vec::new();
    for map in maps.iter().filter(|map| map.maps_something()) {
        for Entry { set, element, .. } in map.entries(&comment, options.snat) {
            let found = nft::get_element(nft, &table, &set, &element.key)?;
            let is_map = PortMap::from_element(&element).is_some();
            let leads_to_sibling = is_map && found.as_ref().is_some_and(|found| is_of_sibling(found, owner));
            if found.as_ref() != Some(&element) && !leads_to_sibling {
                missing.push(*map);
                break;
            }
        }
    }
    Ok(missing)
}

/// All port mappings of the node with the comments of their owners. Pod addresses have a full-length prefix.
pub fn list(nft: &mut Socket) -> Result<Vec<(PortMap, String)>> {
    let mut maps = Vec::new();
    for table in tables(nft)? {
        for set in [ANY[0], HOST[0], ANY[1], HOST[1]] {
            let elements = nft::list_elements(nft, &table, set)?;
            maps.extend(elements.into_iter().filter_map(|element| {
                Some((PortMap::from_element(&element)?, element.comment.unwrap_or_default()))
            }));
        }
    }
    Ok(maps)
}

/// Deletes conntrack entries for these ports, for any pod: after [`add`], so that a client that keeps sending reaches
/// the new pod. TCP clients reconnect themselves.
pub fn forget_earlier_connections(nft: &mut Socket, maps: &[PortMap]) -> Result<()> {
    forget(nft, maps, |_| None)
}

/// Deletes conntrack entries for these ports to the pod: after [`remove`].
pub fn forget_connections_to_pod(nft: &mut Socket, maps: &[PortMap]) -> Result<()> {
    forget(nft, maps, |map| Some(map.pod.addr()))
}

fn forget(
    nft: &mut Socket,
    maps: &[PortMap],
    answers_from: impl Fn(&PortMap) -> Option<IpAddr>,
) -> Result<()> {
    for map in maps.iter().filter(|map| map.protocol != Protocol::Tcp && map.maps_something()) {
        let filter = ct::Filter {
            family: nft_family(&map.pod),
            service: Some((map.protocol.number(), map.host_port)),
            source: None,
            destination: map.address(),
            answers_from: answers_from(map),
            answers_to: None,
        };
        ct::delete(nft, &filter)?;
    }
    Ok(())
}
