//! The tables `podwire_policy`: built from a program, compared with the kernel, and changed where they differ.
//!
//! `model` is the desired content of a table and `found` the content in the kernel. The builders (`policy_table` and
//! the modules it calls) make the model; `steps` turns the difference of both into transactions.

mod base_chains;
mod bridge_table;
mod closed_connections;
pub(super) mod drop_chains;
mod family;
mod found;
mod granted_prefixes;
mod intervals;
mod model;
mod names;
mod policy_table;
pub(super) mod reasons;
mod source_check;
mod stage_rules;
mod steps;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use podwire_netlink::nft::{self, Element, Transaction};
use podwire_netlink::Socket;
use podwire_policy::Program;

use super::change::{Change, TableSize};
use super::drop_samples::DropSample;
use super::node_input::NodeInput;
use crate::{Error, Result};
use found::FoundTable;
use model::DesiredTable;
pub use names::POLICY_TABLE;
use names::{BRIDGE_TABLE, GUARDED_PORTS};
use policy_table::PolicyTable;
use reasons::{Reasons, SPOOFED_SOURCE, UNKNOWN_POD};
use steps::Steps;

/// How often a commit is repeated because another program changed rules at the same time.
const ATTEMPTS: usize = 100;
/// The send buffer: a transaction of some hundred thousand elements.
const MAX_TRANSACTION: usize = 64 << 20;

/// The policy tables of one network namespace.
#[derive(Debug)]
pub struct Nftables {
    /// Stays open: closing a socket that deleted objects waits for an RCU grace period.
    socket: Socket,
    /// The tables of the last apply, and the rule generation since which nothing has changed.
    last: Option<(u32, Vec<Arc<DesiredTable>>)>,
    /// The table of the last program, whether it is in the kernel or not.
    previous: Option<PolicyTable>,
    reasons: Reasons,
}

impl Nftables {
    /// For the network namespace of the calling thread.
    pub fn open() -> Result<Nftables> {
        let mut socket = Socket::netfilter()?;
        socket.set_send_buffer(MAX_TRANSACTION)?;
        Ok(Nftables { socket, last: None, previous: None, reasons: Reasons::default() })
    }

    /// The size of the tables of the last apply.
    pub fn size(&self) -> TableSize {
        let tables = self.last.iter().flat_map(|(_, tables)| tables);
        tables.fold(TableSize::default(), |sum, table| TableSize {
            chains: sum.chains + table.chains.len(),
            rules: sum.rules + table.chains.values().map(|chain| chain.rules.len()).sum::<usize>(),
            sets: sum.sets + table.sets.len(),
            elements: sum.elements + table.sets.values().map(|set| set.elements.len()).sum::<usize>(),
        })
    }

    /// Why a packet was dropped.
    pub fn reason(&self, sample: &DropSample) -> &str {
        match sample.reason {
            None => SPOOFED_SOURCE,
            // The policy was replaced after the packet was dropped and before its sample was read.
            Some(number) => self.reasons.text(number).unwrap_or("a policy that was deleted or changed since"),
        }
    }

    /// Whether a packet was dropped because no pod of the program has its address.
    pub fn is_unknown_pod(&self, sample: &DropSample) -> bool {
        sample.reason.and_then(|number| self.reasons.text(number)) == Some(UNKNOWN_POD)
    }

    /// The guarded ports in the kernel: those of the previous agent.
    pub fn guarded_ports(&mut self) -> Result<BTreeSet<u16>> {
        if !nft::has_set(&mut self.socket, &POLICY_TABLE, GUARDED_PORTS)? {
            return Ok(BTreeSet::new());
        }
        let elements = nft::list_elements(&mut self.socket, &POLICY_TABLE, GUARDED_PORTS)?;
        let port = |element: &Element| Some(u16::from_be_bytes(*element.key.bytes().first_chunk()?));
        Ok(elements.iter().filter_map(port).collect())
    }

    /// Brings the kernel to what the program says. Returns how much changed.
    pub fn apply(&mut self, program: &Program, input: &NodeInput) -> Result<Change> {
        self.reasons.update(program, input);
        let built = PolicyTable::build(program, input, &self.reasons, self.previous.as_ref());
        let mut desired = vec![built.desired.clone()];
        self.previous = Some(built);
        // A node that never had bridged pods needs no bridge table.
        if input.ports.iter().any(|port| port.bridged) || nft::has_table(&mut self.socket, &BRIDGE_TABLE)? {
            desired.push(Arc::new(bridge_table::build(program, input)));
        }
        self.commit(&mut desired).map_err(Error::while_applying)
    }

    fn commit(&mut self, desired: &mut Vec<Arc<DesiredTable>>) -> Result<Change> {
        for _ in 0..ATTEMPTS {
            let generation = nft::generation(&mut self.socket)?;
            let (mut steps, mut change) = (Steps::default(), Change::default());
            for table in desired.iter() {
                let found = self.found(generation, table)?;
                steps.add(table, &found, &mut change);
            }
            if steps.is_empty() {
                self.last = Some((generation, std::mem::take(desired)));
                return Ok(change);
            }
            self.last = None;
            match steps.commit(generation, &mut self.socket) {
                Ok(after) => {
                    // Another program may have changed rules between our commit and this read.
                    let now = nft::generation(&mut self.socket)?;
                    self.last = (now == after).then(|| (now, std::mem::take(desired)));
                    return Ok(change);
                }
                Err(error) if nft::changed_meanwhile(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Busy(ATTEMPTS))
    }

    /// The content of a table: remembered if no rule has changed since, else read.
    fn found(&mut self, generation: u32, desired: &DesiredTable) -> Result<FoundTable> {
        let last = self.last.iter().filter(|(at, _)| *at == generation).flat_map(|(_, last)| last);
        match last.into_iter().find(|last| last.table == desired.table) {
            Some(last) => Ok(FoundTable::from_last(last, desired)),
            None => Ok(FoundTable::read(&mut self.socket, desired)?),
        }
    }

    /// Drops packets of these TCP connections from now on, unless conntrack knows them as established: the caller
    /// deletes them from conntrack next. The last apply must have had [`NodeInput::block_closed_connections`].
    pub fn block_closed_connections(&mut self, connections: &[(SocketAddr, SocketAddr)]) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let generation = nft::generation(&mut self.socket)?;
            let mut transaction = Transaction::at_generation(generation);
            closed_connections::add(&mut transaction, connections);
            if transaction.is_empty() {
                return Ok(());
            }
            match transaction.commit(&mut self.socket) {
                Ok(()) => {
                    let now = nft::generation(&mut self.socket)?;
                    // Expiring elements are not compared, so the last tables are still valid.
                    let last = self.last.take().filter(|(at, _)| *at == generation);
                    self.last =
                        last.filter(|_| now == generation.wrapping_add(1)).map(|(_, last)| (now, last));
                    return Ok(());
                }
                Err(error) if nft::changed_meanwhile(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Busy(ATTEMPTS))
    }

    /// Deletes the tables.
    pub fn remove(&mut self) -> Result<()> {
        self.last = None;
        let mut change = Transaction::new();
        for table in [&POLICY_TABLE, &BRIDGE_TABLE] {
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
