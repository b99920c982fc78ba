//! From what is found to what is wanted, by two transactions: one makes what is new, the other leads to it.
//!
//! A single one would let packets through. The kernel judges a packet by the rules of the generation in which it came, but what it
//! finds in a set is of the generation in which it looks. So one that comes before a commit may be led by a map to a chain that was made in
//! that commit, which has no rules yet in the packet's generation: at its end nobody has said no. Chains that are there a
//! generation before anything leads to them have their rules in both.

use std::sync::Arc;

use podwire_netlink::nft::{Table, Transaction};
use podwire_netlink::Socket;

use super::desired::{Elements, Holds, Wanted, WantedChain};
use super::found::Found;
use crate::dataplane::Change;

/// What is to be done, one after the other.
#[derive(Default)]
pub(super) struct Steps {
    /// What is new, and nothing leads to yet.
    ahead: Transaction,
    /// What leads to it, and the end of what nothing leads to any more.
    turn: Transaction,
}

impl Steps {
    /// What leads from what is found to what is wanted.
    pub fn add(&mut self, wanted: &Wanted, found: &Found, change: &mut Change) {
        let table = &wanted.table;
        let Steps { ahead, turn } = self;
        if !found.table {
            ahead.add_table(table);
        }
        for (name, set) in wanted.sets.iter().filter(|(name, _)| !found.sets.contains_key(*name)) {
            ahead.add_set(table, &set.described(name));
            change.sets += 1;
        }
        change.chains += chains(wanted, found, ahead, turn);
        for (name, set) in &wanted.sets {
            match found.sets.get(name) {
                // Elements of their own life are nobody's wish.
                Some(_) if matches!(set.holds, Holds::Passing(..)) => {}
                Some(there) if *there == set.elements => {}
                Some(there) => change.elements += elements(table, name, (&set.elements, there), turn),
                None => _ = elements(table, name, (&set.elements, &Elements::new()), ahead),
            }
        }
        // Nobody leads to these any more.
        let gone: Vec<&String> =
            found.chains.iter().filter(|name| !wanted.chains.contains_key(*name)).collect();
        gone.iter().for_each(|name| turn.flush_chain(table, name));
        gone.iter().for_each(|name| turn.delete_chain(table, name));
        change.chains += gone.len();
        for name in found.sets.keys().filter(|name| !wanted.sets.contains_key(*name)) {
            turn.delete_set(table, name);
            change.sets += 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.ahead.is_empty() && self.turn.is_empty()
    }

    /// Takes them all, unless somebody else changes rules meanwhile; returns the generation that they lead to.
    pub fn commit(self, mut generation: u32, socket: &mut Socket) -> podwire_netlink::Result<u32> {
        for step in [self.ahead, self.turn] {
            if !step.is_empty() {
                step.only_at(generation).commit(socket)?;
                generation = generation.wrapping_add(1);
            }
        }
        Ok(generation)
    }
}

/// First all chains, since rules lead from one to another, then what is in them. Packets come to a base chain as soon as it is there.
fn chains(wanted: &Wanted, found: &Found, ahead: &mut Transaction, turn: &mut Transaction) -> usize {
    let table = &wanted.table;
    let differ = |(name, _): &(&String, &Arc<WantedChain>)| !found.good_chains.contains(*name);
    let wrong: Vec<(&String, &Arc<WantedChain>)> = wanted.chains.iter().filter(differ).collect();
    for (name, chain) in wrong.iter().filter(|(name, _)| !found.chains.contains(*name)) {
        match &chain.base {
            Some(base) => turn.add_base_chain(table, name, base),
            None => ahead.add_chain(table, name),
        }
    }
    for (name, chain) in &wrong {
        let is_new = !found.chains.contains(*name);
        let step = if is_new && chain.base.is_none() { &mut *ahead } else { &mut *turn };
        if !is_new {
            step.flush_chain(table, name);
        }
        chain.rules.iter().for_each(|rule| step.add_rule(table, name, rule));
    }
    wrong.len()
}

/// Elements that are there and should not be, or lead elsewhere, go; then those that are missing come.
fn elements(
    table: &Table,
    name: &str,
    (wanted, found): (&Elements, &Elements),
    transaction: &mut Transaction,
) -> usize {
    let gone = found.iter().filter(|(key, element)| wanted.get(*key) != Some(*element));
    let gone: Vec<_> = gone.map(|(_, element)| (**element).clone()).collect();
    let missing = wanted.iter().filter(|(key, element)| found.get(*key) != Some(*element));
    let missing: Vec<_> = missing.map(|(_, element)| (**element).clone()).collect();
    transaction.delete_elements(table, name, &gone);
    transaction.add_elements(table, name, &missing);
    gone.len() + missing.len()
}
