//! Addresses that enter the warm pool, for pods that wait and for later ones, and addresses that leave it.

use std::collections::VecDeque;
use std::time::Instant;

use ipnet::IpNet;
use podwire_block_ipam::{Error as IpamError, IpFamily, Pool, Release, Request};
use tracing::{info, warn};

use super::{Session, StoreSync, AUDIT_INTERVAL};
use crate::calico::allocator::requests::{PoolChoice, Waiter, WaitingRequest, Wanted};

impl StoreSync {
    /// Assigns the addresses that pods wait for. A request that cannot be satisfied gets the reason; if the store
    /// fails, all wait on.
    pub(super) fn serve(
        &mut self,
        session: &Session<'_>,
        requests: Vec<WaitingRequest>,
    ) -> Result<(), IpamError> {
        let mut left = VecDeque::from(requests);
        while let Some(WaitingRequest { wanted, waiter }) = left.pop_front() {
            // Equal requests are served together.
            let is_same = |other: &WaitingRequest| matches!(wanted, Wanted::Any(_)) && other.wanted == wanted;
            let (same, others): (VecDeque<_>, VecDeque<_>) = left.into_iter().partition(is_same);
            left = others;
            let waiters: Vec<Waiter> =
                std::iter::once(waiter).chain(same.into_iter().map(|request| request.waiter)).collect();
            match self.assign(session, &wanted, waiters.len()) {
                Ok((addresses, shortage)) => {
                    let assigned = addresses.len();
                    self.state.add_warm(addresses);
                    self.remember(session, &wanted);
                    self.report_shortage(&wanted, shortage.as_ref());
                    for (number, waiter) in waiters.iter().enumerate() {
                        let missing = shortage.as_ref().filter(|_| number >= assigned);
                        waiter.send(missing.map_or(Ok(()), |why| Err(why.clone().into())));
                    }
                }
                Err(error @ IpamError::Store(_)) => {
                    let unserved =
                        waiters.into_iter().map(|waiter| WaitingRequest { wanted: wanted.clone(), waiter });
                    self.state.lock().requests.put_back(unserved.chain(left));
                    return Err(error);
                }
                Err(error) => waiters.iter().for_each(|waiter| waiter.send(Err(error.clone().into()))),
            }
        }
        Ok(())
    }

    /// Records whether the pools that every pod may use have addresses left.
    fn report_shortage(&self, wanted: &Wanted, shortage: Option<&IpamError>) {
        let Wanted::Any(choice) = wanted else { return };
        if *choice != PoolChoice::default_for(choice.family) {
            return;
        }
        let shortages = &mut self.state.lock().problems.shortages;
        match shortage {
            Some(why) => drop(shortages.insert(choice.family, why.to_string())),
            None => drop(shortages.remove(&choice.family)),
        }
    }

    /// Keeps warm addresses of pools that one pod has requested: other pods will request them too.
    fn remember(&mut self, session: &Session<'_>, wanted: &Wanted) {
        let Wanted::Any(choice) = wanted else { return };
        if *choice != PoolChoice::default_for(choice.family) {
            let request = choice.request(&self.settings.node, &session.labels);
            if let Ok(networks) = session.rules.networks_for(&request) {
                self.requested.insert(cidrs(&networks), choice.clone());
            }
        }
    }

    /// Assigns `count` addresses to the warm pool's handle. Returns them, and why there are not more.
    fn assign(
        &self,
        session: &Session<'_>,
        wanted: &Wanted,
        count: usize,
    ) -> Result<(Vec<IpNet>, Option<IpamError>), IpamError> {
        let Session { allocator, rules, labels } = session;
        let node = &self.settings.node;
        match wanted {
            Wanted::Address(ip) => {
                let request = PoolChoice::default_for(IpFamily::of(*ip)).request(node, labels);
                allocator.assign_address(rules, &request, *ip).map(|address| (vec![address], None))
            }
            Wanted::Any(choice) => {
                let request = Request { count, ..choice.request(node, labels) };
                let assigned = allocator.assign_serialized(rules, &request)?;
                self.report(&assigned.unreadable);
                Ok((assigned.addresses, assigned.shortage))
            }
        }
    }

    /// Releases warm addresses of pools that no longer allow them here, and reserved ones.
    pub(super) fn release_disallowed(&mut self, session: &Session<'_>) -> Result<(), IpamError> {
        let Session { allocator, rules, labels } = session;
        let networks =
            |choice: &PoolChoice| rules.networks_for(&choice.request(&self.settings.node, labels)).ok();
        let requested: Vec<IpNet> =
            self.requested.values().filter_map(networks).flat_map(|networks| cidrs(&networks)).collect();
        let disallowed = self.state.evict_disallowed(|ip| rules.allows_warm_address(ip, labels, &requested));
        let handle = Some(self.warm_handle.clone());
        let releases: Vec<Release> = disallowed
            .iter()
            .map(|address| Release { ip: address.addr(), handle: handle.clone(), sequence: None })
            .collect();
        if releases.is_empty() {
            return Ok(());
        }
        if self.is_done(allocator.release(rules, &releases))? {
            info!(addresses = releases.len(), "released warm addresses that pools no longer allow");
        } else {
            // The store still assigns them to this node: the next comparison finds them.
            self.audited = None;
        }
        Ok(())
    }

    /// Fills the warm pool if half of it is used. It does not borrow addresses of other nodes' blocks: only pods do.
    pub(super) fn refill(&mut self, session: &Session<'_>) -> Result<(), IpamError> {
        let Session { allocator, rules, labels } = session;
        let defaults = IpFamily::ALL.map(PoolChoice::default_for);
        self.state.lock().problems.no_pool = !rules.pools.iter().any(Pool::is_enabled);
        let choices: Vec<PoolChoice> = defaults.into_iter().chain(self.requested.values().cloned()).collect();
        for choice in choices {
            let mut request = choice.request(&self.settings.node, labels);
            let wanted_pools = Wanted::Any(choice.clone());
            let Ok(networks) = rules.networks_for(&request) else {
                // A family without a pool for this node has no warm addresses.
                self.report_shortage(&wanted_pools, None);
                continue;
            };
            let pools = cidrs(&networks);
            if self.exhausted.get(&pools).is_some_and(|until| Instant::now() < *until) {
                continue;
            }
            let quarter = networks.iter().map(|(_, block)| block / 4).min().unwrap_or(0);
            let quarter = usize::try_from(quarter).unwrap_or(usize::MAX);
            let wanted = self.settings.warm_addresses.min(quarter).max(1);
            let warm = self.state.lock().warm_pool.count(rules, &request).unwrap_or(0);
            if warm * 2 > wanted {
                continue;
            }
            (request.count, request.may_borrow) = (wanted - warm, false);
            match allocator.assign_serialized(rules, &request) {
                Ok(assigned) => {
                    let mut shortage = assigned.shortage;
                    if shortage.is_some() {
                        // A pod may still borrow an address.
                        shortage = shortage.filter(|_| !can_borrow(session, &pools));
                        self.exhausted.insert(pools, Instant::now() + AUDIT_INTERVAL);
                    }
                    self.report_shortage(&wanted_pools, shortage.as_ref());
                    self.report(&assigned.unreadable);
                    self.state.add_warm(assigned.addresses);
                }
                Err(error @ IpamError::Store(_)) => return Err(error),
                Err(error) => {
                    self.report_shortage(&wanted_pools, Some(&error));
                    warn!(%error, hint = error.hint(), family = %choice.family, "warm pool cannot be filled")
                }
            }
        }
        Ok(())
    }
}

/// Whether a block of another node in these pools has a free address that a pod may borrow.
fn can_borrow(session: &Session<'_>, pools: &[IpNet]) -> bool {
    let Session { allocator, rules, .. } = session;
    if rules.config.strict_affinity {
        return false;
    }
    // A store that fails is reported by the next request.
    let utilization = allocator.utilization(rules).unwrap_or_default();
    utilization.pools.iter().any(|pool| pools.contains(&pool.cidr) && pool.free() > 0)
}

fn cidrs(networks: &[(IpNet, u64)]) -> Vec<IpNet> {
    networks.iter().map(|(network, _)| *network).collect()
}
