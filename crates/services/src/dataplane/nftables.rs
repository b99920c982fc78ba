//! The table in the kernel: compared with the desired state, and changed where it differs.
//!
//! A change takes two transactions. `prepare` creates chains that nothing refers to yet, `switch` changes elements. The
//! kernel evaluates the rules of the generation in which a packet arrived, but the lookup in a map returns elements of the
//! generation at the time of the lookup: a chain that is as new as the element would have no rules yet.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use podwire_netlink::nft::{self, Transaction};
use podwire_netlink::Socket;

use super::affinity;
use super::chains;
use super::counted_chains::CountedChain;
use super::elements::{chains_of, of_frontend, of_node, Elements};
use super::found;
use super::kernel::Kernel;
use super::order::keep_order;
use super::sets::TABLE;
use super::transactions::Difference;
use crate::{Backend, Desired, Error, Result};

/// How often a commit is repeated because another program changed rules at the same time.
const ATTEMPTS: usize = 100;

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
    kernel: Kernel,
    /// The state of the last apply, with the endpoints in the order of their indexes; `None` if the kernel may have
    /// another one.
    last: Option<Desired>,
    /// The counted chains of the last apply.
    chains: BTreeSet<CountedChain>,
}

impl Nftables {
    /// For the network namespace of the calling thread.
    pub fn open() -> Result<Nftables> {
        Ok(Nftables { kernel: Kernel::open()?, last: None, chains: BTreeSet::new() })
    }

    /// Becomes readable when a program changes nftables rules.
    pub fn event_source(&self) -> BorrowedFd<'_> {
        self.kernel.event_source()
    }

    /// Reads the notices. Returns whether another program may have changed the table, so that it must be applied again.
    pub fn read_events(&mut self) -> Result<bool> {
        let changed = self.kernel.was_changed_by_others().inspect_err(|_| self.last = None)?;
        if changed {
            self.last = None;
        }
        Ok(changed)
    }

    /// Brings the kernel to the desired state. Returns how much changed.
    pub fn apply(&mut self, desired: Desired) -> Result<Change> {
        let applied = self.commit(desired).map_err(Error::while_applying);
        applied.inspect_err(|_| self.last = None)
    }

    fn commit(&mut self, mut desired: Desired) -> Result<Change> {
        for _ in 0..ATTEMPTS {
            let generation = self.kernel.generation()?;
            self.read_events()?;
            let plan = match &self.last {
                Some(last) => self.plan_from(last, &mut desired),
                None => self.plan_from_kernel(&mut desired)?,
            };
            let Plan { prepare, switch, mut change, chains, checks_affinity } = plan;
            let committed = self.kernel.commit(generation, prepare);
            match committed.and_then(|generation| self.kernel.commit(generation, switch)) {
                Ok(_) => {
                    self.chains.extend(chains);
                    if checks_affinity {
                        change.affinities = affinity::delete_obsolete(&mut self.kernel, &desired)?;
                    }
                    self.last = Some(desired);
                    return Ok(change);
                }
                Err(error) if nft::changed_meanwhile(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Busy(ATTEMPTS))
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
        let found = found::read(self.kernel.socket())?;
        for (frontend, backend) in &mut desired.frontends {
            let [all, others] = found::order(&found, frontend);
            keep_orders(backend, &all, &others);
        }
        self.chains = needed_chains(desired);
        let mut whole = Transaction::new();
        chains::whole(&mut whole);
        add_chains(&mut whole, &self.chains);
        let prepare = if whole.absent(self.kernel.socket())?.is_empty() { Transaction::new() } else { whole };
        let mut elements: Elements = of_node(desired, None);
        elements
            .extend(desired.frontends.iter().flat_map(|(frontend, backend)| of_frontend(frontend, backend)));
        let mut difference = Difference::default();
        difference.add(found, elements);
        Ok(Plan::new(prepare, difference, BTreeSet::new(), true))
    }
}

/// Deletes the table of a node that no longer serves Services. Returns whether it existed. Established connections stay.
pub fn remove() -> Result<bool> {
    let mut nft = Socket::netfilter()?;
    Ok(nft::is_supported(&mut nft)? && nft::remove_table(&mut nft, &TABLE)?)
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
}
