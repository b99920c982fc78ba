//! Programs in nftables: compared with what is there, and changed by one transaction.

mod claimed;
mod dropped;
mod ended;
mod found;
mod judge;
mod skeleton;
mod sources;
mod wanted;

use std::sync::Arc;

use netlink::nft::{self, Table, Transaction};
use netlink::Socket;
use policy::Program;

use crate::{Change, Dataplane, Error, Premises, Result, Sample};
use dropped::Reasons;
pub(crate) use dropped::{counters, CountedBy, GROUP, NOT_ITS_OWN, SPOOFED};
use found::Found;
pub use skeleton::TABLE;
use wanted::{Before, Elements, Holds, Wanted, WantedChain};

/// How often a change is tried again because others changed the firewall at the same time.
const ATTEMPTS: usize = 100;
/// The largest transaction: some hundred thousand elements.
const LARGEST: usize = 64 << 20;

/// The tables `podwire_policy` of one namespace.
#[derive(Debug)]
pub struct Nftables {
    /// Kept open: closing one that deleted something waits for a grace period.
    socket: Socket,
    /// What was put there last, and the generation of the rules since which nobody has changed any.
    last: Option<(u32, Vec<Arc<Wanted>>)>,
    /// What the last program was made into, be it in the kernel or not.
    before: Option<Before>,
    /// Because of what it drops packets.
    reasons: Reasons,
}

/// How much there is in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Chains.
    pub chains: usize,
    /// Rules in them.
    pub rules: usize,
    /// Sets and maps.
    pub sets: usize,
    /// Elements in these.
    pub elements: usize,
}

impl Nftables {
    /// For the namespace of the calling thread.
    pub fn open() -> Result<Nftables> {
        let mut socket = Socket::netfilter()?;
        socket.widen(LARGEST)?;
        Ok(Nftables { socket, last: None, before: None, reasons: Reasons::default() })
    }

    /// How much was put there last.
    pub fn size(&self) -> Size {
        let tables = self.last.iter().flat_map(|(_, tables)| tables);
        tables.fold(Size::default(), |sum, table| Size {
            chains: sum.chains + table.chains.len(),
            rules: sum.rules + table.chains.values().map(|chain| chain.rules.len()).sum::<usize>(),
            sets: sum.sets + table.sets.len(),
            elements: sum.elements + table.sets.values().map(|set| set.elements.len()).sum::<usize>(),
        })
    }

    /// Because of what a packet was dropped, in words.
    pub fn reason(&self, sample: &Sample) -> &str {
        match sample.reason {
            None => dropped::NOT_ITS_OWN,
            // The policy was replaced while the packet's notice was on its way.
            Some(number) => self.reasons.words(number).unwrap_or("a policy that is gone by now"),
        }
    }

    /// What is there: remembered if nobody has changed any rules since, else read.
    fn found(&mut self, generation: u32, wanted: &Wanted) -> Result<Found> {
        let last = self.last.iter().filter(|(at, _)| *at == generation).flat_map(|(_, last)| last);
        match last.into_iter().find(|last| last.table == wanted.table) {
            Some(last) => Ok(Found::remembered(last, wanted)),
            None => Ok(Found::read(&mut self.socket, wanted)?),
        }
    }
}

impl Dataplane for Nftables {
    fn apply(&mut self, program: &Program, premises: &Premises) -> Result<Change> {
        self.reasons.follow(program, premises);
        let judging = Arc::new(Wanted::of(program, premises, &self.reasons, self.before.as_ref()));
        self.before = Some(Before { addresses: program.addresses.clone(), wanted: judging.clone() });
        let mut wanted = vec![judging];
        // A node without bridges needs no rules for them, until it had some.
        let bridges = sources::on_bridges(premises);
        if premises.ports.iter().any(|port| port.bridged) || nft::has_table(&mut self.socket, &bridges.table)?
        {
            wanted.push(Arc::new(bridges));
        }
        for _ in 0..ATTEMPTS {
            let generation = nft::generation(&mut self.socket)?;
            let (mut transaction, mut change) = (Transaction::at_generation(generation), Change::default());
            for wanted in &wanted {
                let found = self.found(generation, wanted)?;
                difference(wanted, &found, &mut transaction, &mut change);
            }
            if transaction.is_empty() {
                self.last = Some((generation, wanted));
                return Ok(change);
            }
            self.last = None;
            match transaction.commit(&mut self.socket) {
                Ok(()) => {
                    // One further than before: the change was ours and nobody else's.
                    let now = nft::generation(&mut self.socket)?;
                    self.last = (now == generation.wrapping_add(1)).then_some((now, wanted));
                    return Ok(change);
                }
                Err(error) if nft::changed_meanwhile(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Busy(ATTEMPTS))
    }

    fn remove(&mut self) -> Result<()> {
        self.last = None;
        let mut change = Transaction::new();
        for table in [&TABLE, &sources::BRIDGES] {
            if nft::has_table(&mut self.socket, table)? {
                change.delete_table(table);
            }
        }
        if !change.is_empty() {
            change.commit(&mut self.socket)?;
        }
        Ok(())
    }
}

/// What leads from what is found to what is wanted.
fn difference(wanted: &Wanted, found: &Found, transaction: &mut Transaction, change: &mut Change) {
    let table = &wanted.table;
    if !found.table {
        transaction.add_table(table);
    }
    for (name, set) in wanted.sets.iter().filter(|(name, _)| !found.sets.contains_key(*name)) {
        transaction.add_set(table, &set.described(name));
        change.sets += 1;
    }
    chains(wanted, found, transaction, change);
    for (name, set) in &wanted.sets {
        match found.sets.get(name) {
            // Elements of their own life are nobody's wish.
            Some(_) if matches!(set.holds, Holds::Passing(..)) => {}
            Some(there) if *there == set.elements => {}
            Some(there) => change.elements += elements(table, name, (&set.elements, there), transaction),
            None => _ = elements(table, name, (&set.elements, &Elements::new()), transaction),
        }
    }
    // Nobody leads to these any more.
    let gone: Vec<&String> = found.chains.iter().filter(|name| !wanted.chains.contains_key(*name)).collect();
    gone.iter().for_each(|name| transaction.flush_chain(table, name));
    gone.iter().for_each(|name| transaction.delete_chain(table, name));
    change.chains += gone.len();
    for name in found.sets.keys().filter(|name| !wanted.sets.contains_key(*name)) {
        transaction.delete_set(table, name);
        change.sets += 1;
    }
}

/// First all chains, since rules lead from one to another, then what is in them.
fn chains(wanted: &Wanted, found: &Found, transaction: &mut Transaction, change: &mut Change) {
    let differ = |(name, _): &(&String, &Arc<WantedChain>)| !found.good_chains.contains(*name);
    let wrong: Vec<(&String, &Arc<WantedChain>)> = wanted.chains.iter().filter(differ).collect();
    for (name, chain) in wrong.iter().filter(|(name, _)| !found.chains.contains(*name)) {
        match &chain.base {
            Some(base) => transaction.add_base_chain(&wanted.table, name, base),
            None => transaction.add_chain(&wanted.table, name),
        }
    }
    for (name, chain) in &wrong {
        if found.chains.contains(*name) {
            transaction.flush_chain(&wanted.table, name);
        }
        for rule in &chain.rules {
            transaction.add_rule(&wanted.table, name, rule);
        }
    }
    change.chains += wrong.len();
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
