//! Whose elements there are in the tables of this module: for whoever looks after the whole node.

use podwire_netlink::nft::{self, Element, Table};
use podwire_netlink::Socket;

use super::{elements, forward, is_ours, masquerade, spoof};
use crate::Result;

/// Elements of one owner in one table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnedObject {
    /// The owner, as elements name it: `network/container/interface`.
    pub comment: String,
    /// What the table is for.
    pub feature: &'static str,
}

/// Everybody who has elements in a table of ours, and for what; each once.
pub fn owned_objects(nft: &mut Socket) -> Result<Vec<OwnedObject>> {
    let mut all = Vec::new();
    for table in tables(nft)? {
        for set in nft::list_sets(nft, &table)? {
            let comments =
                nft::list_elements(nft, &table, &set)?.into_iter().filter_map(|one: Element| one.comment);
            let of_pods = comments.filter(|comment| comment.matches('/').count() == 2);
            all.extend(of_pods.map(|comment| OwnedObject { comment, feature: feature(&table) }));
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// Deletes all elements with this comment; says how many there were.
pub fn remove_all_of(nft: &mut Socket, comment: &str) -> Result<usize> {
    let mut removed = 0;
    for table in tables(nft)? {
        let sets = nft::list_sets(nft, &table)?;
        removed += elements::sweep(nft, &table, &sets, &|other| other == comment)?;
    }
    Ok(removed)
}

fn tables(nft: &mut Socket) -> Result<Vec<Table>> {
    Ok(nft::list_tables(nft, None)?.into_iter().filter(is_ours).collect())
}

fn feature(table: &Table) -> &'static str {
    match table {
        table if *table == masquerade::TABLE => "masquerading",
        table if *table == forward::TABLE => "forwarding",
        table if *table == spoof::TABLE => "spoof guard",
        _ => "host ports",
    }
}
