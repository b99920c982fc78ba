//! Programs in nftables: compared with what is there, and changed by one transaction.

mod found;
mod judge;
mod skeleton;
mod wanted;

use ipnet::IpNet;
use netlink::nft::{self, Transaction};
use netlink::Socket;
use policy::Program;

use crate::{Change, Dataplane, Error, Result};
use found::Found;
use skeleton::TABLE;
use wanted::{Elements, Wanted, WantedChain};

/// How often a change is tried again because others changed the firewall at the same time.
const ATTEMPTS: usize = 100;
/// The largest transaction: some hundred thousand elements.
const LARGEST: usize = 64 << 20;

/// The table `inet podwire_policy` of one namespace.
#[derive(Debug)]
pub struct Nftables {
    /// Kept open: closing one that deleted something waits for a grace period.
    socket: Socket,
    /// What was put there last, and the generation of the rules since which nobody has changed any.
    last: Option<(u32, Wanted)>,
}

impl Nftables {
    /// For the namespace of the calling thread.
    pub fn open() -> Result<Nftables> {
        let mut socket = Socket::netfilter()?;
        socket.widen(LARGEST)?;
        Ok(Nftables { socket, last: None })
    }

    /// What is there: remembered if nobody has changed any rules since, else read.
    fn found(&mut self, generation: u32, wanted: &Wanted) -> Result<Found> {
        match &self.last {
            Some((at, last)) if *at == generation => Ok(Found::remembered(last, wanted)),
            _ => Ok(Found::read(&mut self.socket, wanted)?),
        }
    }
}

impl Dataplane for Nftables {
    fn apply(&mut self, program: &Program, guarded: &[IpNet]) -> Result<Change> {
        let wanted = Wanted::of(program, guarded);
        for _ in 0..ATTEMPTS {
            let generation = nft::generation(&mut self.socket)?;
            let found = self.found(generation, &wanted)?;
            let (transaction, change) = difference(&wanted, &found, generation);
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
        if nft::has_table(&mut self.socket, &TABLE)? {
            let mut change = Transaction::new();
            change.delete_table(&TABLE);
            change.commit(&mut self.socket)?;
        }
        Ok(())
    }
}

/// What leads from what is found to what is wanted.
fn difference(wanted: &Wanted, found: &Found, generation: u32) -> (Transaction, Change) {
    let (mut transaction, mut change) = (Transaction::at_generation(generation), Change::default());
    if !found.table {
        transaction.add_table(&TABLE);
    }
    for (name, set) in wanted.sets.iter().filter(|(name, _)| !found.sets.contains_key(*name)) {
        transaction.add_set(&TABLE, &set.described(name));
        change.sets += 1;
    }
    chains(wanted, found, &mut transaction, &mut change);
    for (name, set) in &wanted.sets {
        let (there, is_new) = match found.sets.get(name) {
            Some(there) => (there, false),
            None => (&Elements::new(), true),
        };
        let count = elements(name, &set.elements, there, &mut transaction);
        change.elements += if is_new { 0 } else { count };
    }
    // Nobody leads to these any more.
    let gone: Vec<&String> = found.chains.iter().filter(|name| !wanted.chains.contains_key(*name)).collect();
    gone.iter().for_each(|name| transaction.flush_chain(&TABLE, name));
    gone.iter().for_each(|name| transaction.delete_chain(&TABLE, name));
    change.chains += gone.len();
    for name in found.sets.keys().filter(|name| !wanted.sets.contains_key(*name)) {
        transaction.delete_set(&TABLE, name);
        change.sets += 1;
    }
    (transaction, change)
}

/// First all chains, since rules lead from one to another, then what is in them.
fn chains(wanted: &Wanted, found: &Found, transaction: &mut Transaction, change: &mut Change) {
    let differ = |(name, _): &(&String, &WantedChain)| !found.good_chains.contains(*name);
    let wrong: Vec<(&String, &WantedChain)> = wanted.chains.iter().filter(differ).collect();
    for (name, chain) in wrong.iter().filter(|(name, _)| !found.chains.contains(*name)) {
        match &chain.base {
            Some(base) => transaction.add_base_chain(&TABLE, name, base),
            None => transaction.add_chain(&TABLE, name),
        }
    }
    for (name, chain) in &wrong {
        if found.chains.contains(*name) {
            transaction.flush_chain(&TABLE, name);
        }
        for rule in &chain.rules {
            transaction.add_rule(&TABLE, name, rule);
        }
    }
    change.chains += wrong.len();
}

/// Elements that are there and should not be, or lead elsewhere, go; then those that are missing come.
fn elements(name: &str, wanted: &Elements, found: &Elements, transaction: &mut Transaction) -> usize {
    let gone = found.iter().filter(|(key, element)| wanted.get(*key) != Some(*element));
    let gone: Vec<_> = gone.map(|(_, element)| element.clone()).collect();
    let missing = wanted.iter().filter(|(key, element)| found.get(*key) != Some(*element));
    let missing: Vec<_> = missing.map(|(_, element)| element.clone()).collect();
    transaction.delete_elements(&TABLE, name, &gone);
    transaction.add_elements(&TABLE, name, &missing);
    gone.len() + missing.len()
}
