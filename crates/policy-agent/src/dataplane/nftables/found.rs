//! What is in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use podwire_netlink::nft::{self, Table, Transaction};
use podwire_netlink::{Result, Socket};

use super::desired::{keyed, Elements, Wanted, WantedChain};

/// What is in the table, seen with the eyes of somebody who wants something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub table: bool,
    pub sets: BTreeMap<String, Arc<Elements>>,
    pub chains: BTreeSet<String>,
    /// Those that are as they are wanted.
    pub good_chains: BTreeSet<String>,
}

impl Found {
    /// What must be there, since it was put there and nobody has changed it.
    pub fn remembered(last: &Wanted, wanted: &Wanted) -> Found {
        let same = |(name, chain): &(&String, &Arc<WantedChain>)| last.chains.get(*name) == Some(*chain);
        Found {
            table: true,
            sets: last.sets.iter().map(|(name, set)| (name.clone(), set.elements.clone())).collect(),
            chains: last.chains.keys().cloned().collect(),
            good_chains: wanted.chains.iter().filter(same).map(|(name, _)| name.clone()).collect(),
        }
    }

    /// Reads the whole table.
    pub fn read(socket: &mut Socket, wanted: &Wanted) -> Result<Found> {
        let table = &wanted.table;
        if !nft::has_table(socket, table)? {
            return Ok(Found::default());
        }
        let mut found = Found { table: true, ..Found::default() };
        for name in nft::list_sets(socket, table)? {
            let elements = nft::list_elements(socket, table, &name)?;
            let elements = elements.into_iter().map(|element| keyed(Arc::new(element)));
            found.sets.insert(name, Arc::new(elements.collect()));
        }
        let chains = nft::list_chains(socket, Some(table.family))?;
        for chain in chains.into_iter().filter(|chain| chain.table == *table) {
            if let Some(wanted) = wanted.chains.get(&chain.name) {
                if is_as_wanted(socket, table, &chain.name, wanted)? {
                    found.good_chains.insert(chain.name.clone());
                }
            }
            found.chains.insert(chain.name);
        }
        Ok(found)
    }
}

/// Whether the chain hangs where it should and has the rules that it should.
fn is_as_wanted(socket: &mut Socket, table: &Table, name: &str, wanted: &WantedChain) -> Result<bool> {
    let mut whole = Transaction::new();
    match &wanted.base {
        Some(base) => whole.add_base_chain(table, name, base),
        None => whole.add_chain(table, name),
    }
    whole.flush_chain(table, name);
    wanted.rules.iter().for_each(|rule| whole.add_rule(table, name, rule));
    Ok(whole.absent(socket)?.is_empty())
}
