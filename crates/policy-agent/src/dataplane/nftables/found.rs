//! The content of a table in the kernel, compared with the desired content.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use podwire_netlink::nft::{self, Table, Transaction};
use podwire_netlink::{Result, Socket};

use super::model::{keyed, DesiredChain, DesiredTable, Elements};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FoundTable {
    /// Whether the table exists.
    pub exists: bool,
    pub sets: BTreeMap<String, Arc<Elements>>,
    pub chains: BTreeSet<String>,
    /// The chains that are as desired.
    pub matching_chains: BTreeSet<String>,
}

impl FoundTable {
    /// The content that the last commit left. Valid only if the rule generation is still the one of that commit.
    pub fn from_last(last: &DesiredTable, desired: &DesiredTable) -> FoundTable {
        let same = |(name, chain): &(&String, &Arc<DesiredChain>)| last.chains.get(*name) == Some(*chain);
        FoundTable {
            exists: true,
            sets: last.sets.iter().map(|(name, set)| (name.clone(), set.elements.clone())).collect(),
            chains: last.chains.keys().cloned().collect(),
            matching_chains: desired.chains.iter().filter(same).map(|(name, _)| name.clone()).collect(),
        }
    }

    /// Reads the whole table from the kernel.
    pub fn read(socket: &mut Socket, desired: &DesiredTable) -> Result<FoundTable> {
        let table = &desired.table;
        if !nft::has_table(socket, table)? {
            return Ok(FoundTable::default());
        }
        let mut found = FoundTable { exists: true, ..FoundTable::default() };
        for name in nft::list_sets(socket, table)? {
            let elements = nft::list_elements(socket, table, &name)?;
            let elements = elements.into_iter().map(|element| keyed(Arc::new(element)));
            found.sets.insert(name, Arc::new(elements.collect()));
        }
        let chains = nft::list_chains(socket, Some(table.family))?;
        for chain in chains.into_iter().filter(|chain| chain.table == *table) {
            if let Some(desired) = desired.chains.get(&chain.name) {
                if matches(socket, table, &chain.name, desired)? {
                    found.matching_chains.insert(chain.name.clone());
                }
            }
            found.chains.insert(chain.name);
        }
        Ok(found)
    }
}

/// Whether the chain in the kernel has the desired hook and rules.
fn matches(socket: &mut Socket, table: &Table, name: &str, desired: &DesiredChain) -> Result<bool> {
    let mut whole = Transaction::new();
    match &desired.base {
        Some(base) => whole.add_base_chain(table, name, base),
        None => whole.add_chain(table, name),
    }
    whole.flush_chain(table, name);
    desired.rules.iter().for_each(|rule| whole.add_rule(table, name, rule));
    Ok(whole.absent(socket)?.is_empty())
}
