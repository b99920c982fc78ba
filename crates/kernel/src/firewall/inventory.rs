//! The owners of all elements in the tables of this module, for node-wide audits.

use podwire_netlink::nft::{self, Element, Table};
use podwire_netlink::Socket;

use super::tables::is_owned;
use super::{elements, forward, masquerade, spoof};
use crate::error::Result;

/// The elements of one owner in one table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnedObject {
    /// The owner, as in the comments of elements: `network/container/interface`.
    pub comment: String,
    /// The feature of the table.
    pub feature: &'static str,
}

/// All owners of elements and the features that they use, without duplicates.
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

/// Deletes all elements with this comment; returns their number.
pub fn remove_all_of(nft: &mut Socket, comment: &str) -> Result<usize> {
    let mut removed = 0;
    for table in tables(nft)? {
        let sets = nft::list_sets(nft, &table)?;
        removed += elements::remove_matching(nft, &table, &sets, &|other| other == comment)?;
    }
    Ok(removed)
}

fn tables(nft: &mut Socket) -> Result<Vec<Table>> {
    Ok(nft::list_tables(nft, None)?.into_iter().filter(is_owned).collect())
}

fn feature(table: &Table) -> &'static str {
    match table {
        table if *table == masquerade::TABLE => "masquerading",
        table if *table == forward::TABLE => "forwarding",
        table if *table == spoof::TABLE => "spoof guard",
        _ => "host ports",
    }
}
