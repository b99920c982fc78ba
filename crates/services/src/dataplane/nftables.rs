//! The table in the kernel: compared with the desired state, and changed where it differs.
//!
//! A change takes two transactions. `prepare` creates chains that nothing refers to yet, `switch` changes elements. The
//! kernel evaluates the rules of the generation in which a packet arrived, but the lookup in a map returns elements of the
//! generation at the time of the lookup: a chain that is as new as the element would have no rules yet.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
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
use crate::{Backend, Changes, Desired, Error, Frontend, Result};

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

    /// Brings the kernel to the desired state, which differs from that of the last apply in these parts. If the last apply
    /// failed, or if there was none, all parts are compared. Returns how much changed.
    pub fn apply(&mut self, desired: &Desired, changes: &Changes) -> Result<Change> {
        let applied = self.commit(desired, changes).map_err(Error::while_applying);
        applied.inspect_err(|_| self.last = None)
    }

    fn commit(&mut self, desired: &Desired, changes: &Changes) -> Result<Change> {
        for _ in 0..ATTEMPTS {
            let generation = self.kernel.generation()?;
            self.read_events()?;
            let plan = match &self.last {
                Some(last) => self.plan_from(last, desired, changes),
                None => self.plan_from_kernel(desired)?,
            };
            let Plan { prepare, switch, mut change, chains, checks_affinity, next } = plan;
            let committed = self.kernel.commit(generation, prepare);
            match committed.and_then(|generation| self.kernel.commit(generation, switch)) {
                Ok(_) => {
                    self.chains.extend(chains);
                    if checks_affinity {
                        change.affinities = affinity::delete_obsolete(&mut self.kernel, desired)?;
                    }
                    next.store(&mut self.last, desired);
                    return Ok(change);
                }
                Err(error) if nft::changed_meanwhile(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Busy(ATTEMPTS))
    }

    /// The plan if nothing has changed in the kernel since the last apply.
    fn plan_from(&self, last: &Desired, desired: &Desired, changes: &Changes) -> Plan {
        let (mut chains, mut difference) = (BTreeSet::new(), Difference::default());
        let (mut frontends, mut checks_affinity) = (Vec::new(), false);
        for frontend in changes.frontends(&last.frontends, &desired.frontends) {
            let (before, after) = (last.frontends.get(&frontend), desired.frontends.get(&frontend));
            let after = after.map(|backend| match before {
                Some(before) => in_order(backend, &before.endpoints, &before.local_endpoints),
                None => backend.clone(),
            });
            if before == after.as_ref() {
                continue;
            }
            chains.extend(after.iter().flat_map(|backend| chains_of(&frontend, backend)));
            checks_affinity |= before.is_some_and(|before| affinity::is_affected(before, after.as_deref()));
            let elements = |backend: Option<&Arc<Backend>>| {
                backend.map(|backend| of_frontend(&frontend, backend)).unwrap_or_default()
            };
            difference.add(elements(before), elements(after.as_ref()));
            frontends.push((frontend, after));
        }
        let ips = changes.ips(last, desired);
        difference.add(of_node(last, &ips), of_node(desired, &ips));
        chains.retain(|chain| !self.chains.contains(chain));
        let mut prepare = Transaction::new();
        add_chains(&mut prepare, &chains);
        Plan::new(prepare, &difference, chains, checks_affinity, Next::Changed { frontends, ips })
    }

    /// The plan from what is in the kernel.
    fn plan_from_kernel(&mut self, desired: &Desired) -> Result<Plan> {
        let found = found::read(self.kernel.socket())?;
        let mut next = desired.clone();
        for (frontend, backend) in &mut next.frontends {
            let [all, others] = found::order(&found, frontend);
            *backend = in_order(backend, &all, &others);
        }
        self.chains = needed_chains(&next);
        let mut whole = Transaction::new();
        chains::whole(&mut whole);
        add_chains(&mut whole, &self.chains);
        let prepare = if whole.absent(self.kernel.socket())?.is_empty() { Transaction::new() } else { whole };
        let mut elements: Elements = of_node(&next, &Changes::All.ips(&next, &Desired::default()));
        elements.extend(next.frontends.iter().flat_map(|(frontend, backend)| of_frontend(frontend, backend)));
        let mut difference = Difference::default();
        difference.add(found, elements);
        Ok(Plan::new(prepare, &difference, BTreeSet::new(), true, Next::All(next)))
    }
}

/// Deletes the table of a node that no longer serves Services. Returns whether it existed. Established connections stay.
pub fn remove() -> Result<bool> {
    let mut nft = Socket::netfilter()?;
    Ok(nft::is_supported(&mut nft)? && nft::remove_table(&mut nft, &TABLE)?)
}

/// The same backend with the endpoints at the indexes that they had before.
fn in_order(backend: &Arc<Backend>, all: &[SocketAddr], others: &[SocketAddr]) -> Arc<Backend> {
    let endpoints = keep_order(all, &backend.endpoints);
    let local_endpoints = keep_order(others, &backend.local_endpoints);
    if endpoints == backend.endpoints && local_endpoints == backend.local_endpoints {
        return backend.clone();
    }
    Arc::new(Backend { endpoints, local_endpoints, ..Backend::clone(backend) })
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
    next: Next,
}

/// The state after an apply, with the endpoints in the order of their indexes.
enum Next {
    All(Desired),
    /// The last state with these frontends and addresses replaced.
    Changed {
        frontends: Vec<(Frontend, Option<Arc<Backend>>)>,
        ips: BTreeSet<IpAddr>,
    },
}

impl Plan {
    fn new(
        prepare: Transaction,
        difference: &Difference,
        chains: BTreeSet<CountedChain>,
        checks_affinity: bool,
        next: Next,
    ) -> Plan {
        let mut switch = Transaction::new();
        difference.write(&mut switch);
        let change = Change { elements: difference.len(), chains: !prepare.is_empty(), affinities: 0 };
        Plan { prepare, switch, change, chains, checks_affinity, next }
    }
}

impl Next {
    fn store(self, last: &mut Option<Desired>, desired: &Desired) {
        match (self, last) {
            (Next::All(state), last) => *last = Some(state),
            (Next::Changed { frontends, ips }, Some(last)) => {
                for (frontend, backend) in frontends {
                    match backend {
                        Some(backend) => _ = last.frontends.insert(frontend, backend),
                        None => _ = last.frontends.remove(&frontend),
                    }
                }
                for ip in &ips {
                    replace_ip(&mut last.cluster_ips, &desired.cluster_ips, ip);
                    replace_ip(&mut last.local_endpoint_ips, &desired.local_endpoint_ips, ip);
                }
                last.service_cidrs.clone_from(&desired.service_cidrs);
                last.pod_networks.clone_from(&desired.pod_networks);
            }
            (Next::Changed { .. }, None) => {}
        }
    }
}

fn replace_ip(to: &mut BTreeSet<IpAddr>, from: &BTreeSet<IpAddr>, ip: &IpAddr) {
    if from.contains(ip) {
        to.insert(*ip);
    } else {
        to.remove(ip);
    }
}
