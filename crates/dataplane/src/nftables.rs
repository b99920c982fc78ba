//! Programs in nftables: compared with what is there, and changed where they differ.

mod claimed;
mod dropped;
mod ended;
mod found;
mod judge;
mod skeleton;
mod sources;
mod steps;
mod wanted;

use std::sync::Arc;

use podwire_netlink::nft::{self, Transaction};
use podwire_netlink::Socket;
use podwire_policy::Program;

use crate::{Change, Dataplane, Error, Premises, Result, Sample};
use dropped::Reasons;
pub(crate) use dropped::{counters, CountedBy, GROUP, NOT_ITS_OWN, SPOOFED};
use found::Found;
pub use skeleton::TABLE;
use steps::Steps;
use wanted::{Before, Wanted};

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
        socket.set_send_buffer(LARGEST)?;
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
            let (mut steps, mut change) = (Steps::default(), Change::default());
            for wanted in &wanted {
                let found = self.found(generation, wanted)?;
                steps.add(wanted, &found, &mut change);
            }
            if steps.is_empty() {
                self.last = Some((generation, wanted));
                return Ok(change);
            }
            self.last = None;
            match steps.commit(generation, &mut self.socket) {
                Ok(after) => {
                    // No further than that: the changes were ours and nobody else's.
                    let now = nft::generation(&mut self.socket)?;
                    self.last = (now == after).then_some((now, wanted));
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
