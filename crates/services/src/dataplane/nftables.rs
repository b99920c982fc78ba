//! The table in the kernel: compared with the desired state, and changed where it differs.
//!
//! A change takes two transactions. `prepare` creates chains that nothing refers to yet, `switch` changes elements. The
//! kernel evaluates the rules of the generation in which a packet arrived, but the lookup in a map returns elements of the
//! generation at the time of the lookup: a chain that is as new as the element would have no rules yet.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use podwire_netlink::nft::{self, Transaction};
use podwire_netlink::Socket;

use super::affinity;
use super::chains;
use super::counted_chains::CountedChain;
use super::elements::{chains_of, of_frontend, of_node, Elements};
use super::found;
use super::order::keep_order;
use super::sets::TABLE;
use super::transactions::Difference;
use crate::{Backend, Desired, Error, Result};

/// How often a commit is repeated because another program changed rules at the same time.
const ATTEMPTS: usize = 100;
/// The send buffer: a transaction of some hundred thousand elements.
const MAX_TRANSACTION: usize = 64 << 20;

/// What an apply has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Elements of sets and maps that were added or deleted.
    pub elements: usize,
    /// Whether chains or sets were missing or wrong, or new ones were needed.
    pub chains: bool,
    /// Affinities of clients whose endpoint is gone.
    pub affinities: usize,
}

impl Change {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }
}

/// The Services of one network namespace.
#[derive(Debug)]
pub struct Nftables {
    /// Stays open: closing a socket that deleted objects waits for an RCU grace period.
    socket: Socket,
    /// The state of the last apply, with the endpoints in the order of their indexes, and the rule generation since which
    /// nothing has changed.
    last: Option<(u32, Desired)>,
    /// The counted chains of the last apply.
    chains: BTreeSet<CountedChain>,
}

impl Nftables {
    /// For the network namespace of the calling thread.
    pub fn open() -> Result<Nftables> {
        let mut socket = Socket::netfilter()?;
        socket.set_send_buffer(MAX_TRANSACTION)?;
        Ok(Nftables { socket, last: None, chains: BTreeSet::new() })
    }

    /// Brings the kernel to the desired state. Returns how much changed.
    pub fn apply(&mut self, desired: Desired) -> Result<Change> {
        self.commit(desired).map_err(Error::while_applying)
    }

    fn commit(&mut self, mut desired: Desired) -> Result<Change> {
        for _ in 0..ATTEMPTS {
            let generation = nft::generation(&mut self.socket)?;
            let plan = match self.last.take().filter(|(at, _)| *at == generation) {
                Some((_, last)) => self.plan_from(&last, &mut desired),
                None => self.plan_from_kernel(&mut desired)?,
            };
            match plan.commit(generation, &mut self.socket) {
                Ok(after) => {
                    self.chains.extend(plan.chains);
                    return self.finish(after, plan.change, plan.checks_affinity, desired);
                }
                Err(error) if nft::changed_meanwhile(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Busy(ATTEMPTS))
    }

    /// Deletes obsolete affinities and remembers the state.
    fn finish(
        &mut self,
        mut generation: u32,
        mut change: Change,
        checks_affinity: bool,
        desired: Desired,
    ) -> Result<Change> {
        if checks_affinity {
            let deleted = affinity::delete_obsolete(&mut self.socket, &desired)?;
            change.affinities = deleted.entries;
            generation = generation.wrapping_add(deleted.transactions);
        }
        // If another program changed rules meanwhile, the generation is a later one, and the next apply reads the table.
        self.last = Some((generation, desired));
        Ok(change)
    }

    /// The plan if nothing has changed in the kernel since the last apply.
    fn plan_from(&self, last: &Desired, desired: &mut Desired) -> Plan {
        let mut chains = BTreeSet::new();
        for (frontend, backend) in &mut desired.frontends {
            let before = last.frontends.get(frontend);
            if before == Some(backend) {
                continue;
            }
            if let Some(before) = before {
                keep_orders(backend, &before.endpoints, &before.local_endpoints);
            }
            chains.extend(chains_of(frontend, backend));
        }
        chains.retain(|chain| !self.chains.contains(chain));
        let mut prepare = Transaction::new();
        add_chains(&mut prepare, &chains);
        let checks_affinity = last.frontends.iter().any(|(frontend, before)| {
            let after = desired.frontends.get(frontend);
            after != Some(before) && affinity::is_affected(before, after.map(Arc::as_ref))
        });
        Plan::new(prepare, Difference::between(last, desired), chains, checks_affinity)
    }

    /// The plan from what is in the kernel.
    fn plan_from_kernel(&mut self, desired: &mut Desired) -> Result<Plan> {
        let found = found::read(&mut self.socket)?;
        for (frontend, backend) in &mut desired.frontends {
            let [all, others] = found::order(&found, frontend);
            keep_orders(backend, &all, &others);
        }
        self.chains = needed_chains(desired);
        let mut whole = Transaction::new();
        chains::whole(&mut whole);
        add_chains(&mut whole, &self.chains);
        let prepare = if whole.absent(&mut self.socket)?.is_empty() { Transaction::new() } else { whole };
        let mut elements: Elements = of_node(desired, None);
        elements
            .extend(desired.frontends.iter().flat_map(|(frontend, backend)| of_frontend(frontend, backend)));
        let mut difference = Difference::default();
        difference.add(found, elements);
        Ok(Plan::new(prepare, difference, BTreeSet::new(), true))
    }

    /// Deletes the table.
    pub fn remove(&mut self) -> Result<()> {
        self.last = None;
        nft::remove_table(&mut self.socket, &TABLE)?;
        Ok(())
    }
}

/// Gives the endpoints the indexes that they had before.
fn keep_orders(backend: &mut Arc<Backend>, all: &[SocketAddr], others: &[SocketAddr]) {
    let endpoints = keep_order(all, &backend.endpoints);
    let local_endpoints = keep_order(others, &backend.local_endpoints);
    if endpoints != backend.endpoints || local_endpoints != backend.local_endpoints {
        let backend = Arc::make_mut(backend);
        (backend.endpoints, backend.local_endpoints) = (endpoints, local_endpoints);
    }
}

fn needed_chains(desired: &Desired) -> BTreeSet<CountedChain> {
    desired.frontends.iter().flat_map(|(frontend, backend)| chains_of(frontend, backend)).collect()
}

/// `Random` chains are the first in the order, so those that jump to them find them.
fn add_chains(change: &mut Transaction, chains: &BTreeSet<CountedChain>) {
    chains.iter().for_each(|chain| chain.add(change));
}

/// The transactions of one apply.
struct Plan {
    prepare: Transaction,
    switch: Transaction,
    change: Change,
    /// The chains that `prepare` creates.
    chains: BTreeSet<CountedChain>,
    checks_affinity: bool,
}

impl Plan {
    fn new(
        prepare: Transaction,
        difference: Difference,
        chains: BTreeSet<CountedChain>,
        checks_affinity: bool,
    ) -> Plan {
        let mut switch = Transaction::new();
        difference.write(&mut switch);
        let change = Change { elements: difference.len(), chains: !prepare.is_empty(), affinities: 0 };
        Plan { prepare, switch, change, chains, checks_affinity }
    }

    /// Commits one after the other. Fails if another program changes rules after `generation`. Returns the generation
    /// after the last commit.
    fn commit(&self, mut generation: u32, socket: &mut Socket) -> podwire_netlink::Result<u32> {
        for step in [&self.prepare, &self.switch] {
            if !step.is_empty() {
                step.clone().only_at(generation).commit(socket)?;
                generation = generation.wrapping_add(1);
            }
        }
        Ok(generation)
    }
}
