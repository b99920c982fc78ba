//! Deletion of tables that are no longer needed.

use podwire_netlink::nft::{self, Table, Transaction};
use podwire_netlink::rt::link::{self, Link};
use podwire_netlink::Socket;

use super::{cluster, forward, hostports, masquerade, spoof};
use crate::error::Result;
use crate::host::Host;

/// Deletes the unused tables of a running node; returns their number. The tables of host ports stay while a device has
/// `route_localnet`, which the first port mapping sets: their rules keep external packets away from the loopback.
pub fn drop_unneeded_tables() -> Result<usize> {
    let (mut node, mut links) = (Host::here()?, Host::here()?);
    let has_route_localnet = |link: &Link| link.route_localnet == Some(true);
    drop_empty(node.nft()?, |table| {
        Ok(!hostports::is_table(table) || !link::list(&mut links.route)?.iter().any(has_route_localnet))
    })
}

/// Deletes the tables of this module that have no elements; returns their number. A table that another program changes
/// at the same time stays until the next call.
pub fn drop_empty_tables(nft: &mut Socket) -> Result<usize> {
    drop_empty(nft, |_| Ok(true))
}

fn drop_empty(nft: &mut Socket, mut may_delete: impl FnMut(&Table) -> Result<bool>) -> Result<usize> {
    let mut deleted = 0;
    for table in nft::list_tables(nft, None)?.iter().filter(|table| is_owned(table)) {
        let mut change = Transaction::at_generation(nft::generation(nft)?);
        // Every later change by another program changes the generation, and the commit fails.
        if !is_empty(nft, table)? || !may_delete(table)? {
            continue;
        }
        change.delete_table(table);
        // The overlay's table uses the iptables rule too.
        if *table == forward::TABLE && !nft::has_table(nft, &cluster::TABLE)? {
            forward::remove_accept_rule(nft, &mut change)?;
        }
        match change.commit(nft) {
            Ok(()) => deleted += 1,
            Err(error) if nft::changed_meanwhile(&error) || error.is_gone() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(deleted)
}

/// Whether a table belongs to a feature of this module.
pub(super) fn is_owned(table: &Table) -> bool {
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
