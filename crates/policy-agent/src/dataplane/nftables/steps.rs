//! The transactions that turn the found content into the desired content. There are two: `prepare` creates what is new,
//! `switch` makes rules and maps refer to it and deletes what is no longer used. If `switch` fails, what `prepare` has
//! created stays until the next attempt; nothing refers to it.
//!
//! A single transaction would let packets through. The kernel evaluates the rules of the generation in which a packet
//! arrived, but a lookup in a set returns elements of the generation at the time of the lookup. So a map can send a
//! packet that arrived before a commit to a chain that this commit created. That chain has no rules in the packet's
//! generation, and at the end of a chain without a verdict the packet is accepted. A chain that exists one generation
//! before anything refers to it has its rules in both.

use std::sync::Arc;

use podwire_netlink::nft::{Element, Table, Transaction};
use podwire_netlink::Socket;

use super::found::FoundTable;
use super::model::{DesiredChain, DesiredTable, Elements, SetKind};
use crate::dataplane::change::Change;

/// The two transactions. `prepare` must be committed one generation before `switch`.
#[derive(Default)]
pub(super) struct Steps {
    /// Creates objects that nothing refers to yet.
    prepare: Transaction,
    /// Makes base chains, rules and map elements refer to them, and deletes what nothing refers to any more.
    switch: Transaction,
}

impl Steps {
    /// Adds what changes `found` into `desired`.
    pub fn add(&mut self, desired: &DesiredTable, found: &FoundTable, change: &mut Change) {
        let table = &desired.table;
        let Steps { prepare, switch } = self;
        if !found.exists {
            prepare.add_table(table);
        }
        for (name, set) in desired.sets.iter().filter(|(name, _)| !found.sets.contains_key(*name)) {
            prepare.add_set(table, &set.definition(name));
            change.sets += 1;
        }
        change.chains += add_chains(desired, found, prepare, switch);
        for (name, set) in &desired.sets {
            match found.sets.get(name) {
                // Expiring elements are not part of the desired state.
                Some(_) if matches!(set.kind, SetKind::Expiring(..)) => {}
                Some(present) if *present == set.elements => {}
                Some(present) => {
                    let difference = Difference::of(&set.elements, present);
                    change.elements += difference.add_to(switch, table, name);
                }
                None => _ = Difference::of(&set.elements, &Elements::new()).add_to(prepare, table, name),
            }
        }
        let unused: Vec<&String> =
            found.chains.iter().filter(|name| !desired.chains.contains_key(*name)).collect();
        // Sets go before chains, because their elements may refer to a chain, and after the rules that refer to them.
        unused.iter().for_each(|name| switch.flush_chain(table, name));
        for name in found.sets.keys().filter(|name| !desired.sets.contains_key(*name)) {
            switch.delete_set(table, name);
            change.sets += 1;
        }
        unused.iter().for_each(|name| switch.delete_chain(table, name));
        change.chains += unused.len();
    }

    pub fn is_empty(&self) -> bool {
        self.prepare.is_empty() && self.switch.is_empty()
    }

    /// Commits one after the other. Fails if another program changes rules after `generation`. Returns the generation
    /// after the last commit.
    pub fn commit(self, mut generation: u32, socket: &mut Socket) -> podwire_netlink::Result<u32> {
        for step in [self.prepare, self.switch] {
            if !step.is_empty() {
                step.only_at(generation).commit(socket)?;
                generation = generation.wrapping_add(1);
            }
        }
        Ok(generation)
    }
}

/// All chains come before all rules, since rules jump from one chain to another. A base chain sees packets as soon as
/// it exists, so it belongs to `switch`.
fn add_chains(
    desired: &DesiredTable,
    found: &FoundTable,
    prepare: &mut Transaction,
    switch: &mut Transaction,
) -> usize {
    let table = &desired.table;
    let differs = |(name, _): &(&String, &Arc<DesiredChain>)| !found.matching_chains.contains(*name);
    let changed: Vec<(&String, &Arc<DesiredChain>)> = desired.chains.iter().filter(differs).collect();
    for (name, chain) in changed.iter().filter(|(name, _)| !found.chains.contains(*name)) {
        match &chain.base {
            Some(base) => switch.add_base_chain(table, name, base),
            None => prepare.add_chain(table, name),
        }
    }
    for (name, chain) in &changed {
        let is_new = !found.chains.contains(*name);
        let step = if is_new && chain.base.is_none() { &mut *prepare } else { &mut *switch };
        if !is_new {
            step.flush_chain(table, name);
        }
        chain.rules.iter().for_each(|rule| step.add_rule(table, name, rule));
    }
    changed.len()
}

/// The elements to delete from a set and to add to it. An element with a changed verdict is in both lists.
struct Difference {
    delete: Vec<Element>,
    add: Vec<Element>,
}

impl Difference {
    fn of(desired: &Elements, found: &Elements) -> Difference {
        let only_in = |one: &Elements, other: &Elements| {
            let differing = one.iter().filter(|(key, element)| other.get(*key) != Some(*element));
            differing.map(|(_, element)| (**element).clone()).collect()
        };
        Difference { delete: only_in(found, desired), add: only_in(desired, found) }
    }

    /// Deletes first, then adds. Returns the number of elements.
    fn add_to(&self, transaction: &mut Transaction, table: &Table, set: &str) -> usize {
        transaction.delete_elements(table, set, &self.delete);
        transaction.add_elements(table, set, &self.add);
        self.delete.len() + self.add.len()
    }
}
