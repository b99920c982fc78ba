//! What is in the kernel.

use std::collections::{BTreeMap, BTreeSet};

use netlink::nft::{self, Transaction};
use netlink::{Result, Socket};

use super::skeleton::TABLE;
use super::wanted::{Elements, Wanted, WantedChain};

/// What is in the table, seen with the eyes of somebody who wants something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub table: bool,
    pub sets: BTreeMap<String, Elements>,
    pub chains: BTreeSet<String>,
    /// Those that are as they are wanted.
    pub good_chains: BTreeSet<String>,
}

impl Found {
    /// What must be there, since it was put there and nobody has changed it.
    pub fn remembered(last: &Wanted, wanted: &Wanted) -> Found {
        let same = |(name, chain): &(&String, &WantedChain)| last.chains.get(*name) == Some(*chain);
        Found {
            table: true,
            sets: last.sets.iter().map(|(name, set)| (name.clone(), set.elements.clone())).collect(),
            chains: last.chains.keys().cloned().collect(),
            good_chains: wanted.chains.iter().filter(same).map(|(name, _)| name.clone()).collect(),
        }
    }

    /// Reads the whole table.
    pub fn read(socket: &mut Socket, wanted: &Wanted) -> Result<Found> {
        if !nft::has_table(socket, &TABLE)? {
            return Ok(Found::default());
        }
        let mut found = Found { table: true, ..Found::default() };
        for name in nft::list_sets(socket, &TABLE)? {
            let elements = nft::list_elements(socket, &TABLE, &name)?;
            let keyed = elements.into_iter().map(|one| ((one.key.bytes().to_vec(), one.ends_range), one));
            found.sets.insert(name, keyed.collect());
        }
        let chains = nft::list_chains(socket, Some(TABLE.family))?;
        for chain in chains.into_iter().filter(|chain| chain.table == TABLE) {
            if let Some(wanted) = wanted.chains.get(&chain.name) {
                if is_as_wanted(socket, &chain.name, wanted)? {
                    found.good_chains.insert(chain.name.clone());
                }
            }
            found.chains.insert(chain.name);
        }
        Ok(found)
    }
}

/// Whether the chain hangs where it should and has the rules that it should.
fn is_as_wanted(socket: &mut Socket, name: &str, wanted: &WantedChain) -> Result<bool> {
    let mut whole = Transaction::new();
    match &wanted.base {
        Some(base) => whole.add_base_chain(&TABLE, name, base),
        None => whole.add_chain(&TABLE, name),
    }
    whole.flush_chain(&TABLE, name);
    wanted.rules.iter().for_each(|rule| whole.add_rule(&TABLE, name, rule));
    Ok(whole.absent(socket)?.is_empty())
}
