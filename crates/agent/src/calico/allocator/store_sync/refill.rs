//! Addresses that enter the warm pool, for pods that wait and for later ones, and addresses that leave it.

use std::collections::VecDeque;
use std::time::Instant;

use ipnet::IpNet;
use podwire_block_ipam::{Assigned, Error as IpamError, IpFamily, Release, Request};
use tracing::{info, warn};

use super::{Exhausted, Session, StoreSync, AUDIT_INTERVAL};
use crate::calico::allocator::problems::shortage_of;
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
                    self.note_exhausted(session, &wanted, shortage.as_ref());
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

    /// Records that a pod got no address of these pools, so that the agent is not ready while its warm pool is empty.
    fn note_exhausted(&mut self, session: &Session<'_>, wanted: &Wanted, shortage: Option<&IpamError>) {
        let (Wanted::Any(choice), Some(shortage)) = (wanted, shortage) else { return };
        let request = choice.request(&self.settings.node, &session.labels);
        if let Ok(networks) = session.rules.networks_for(&request) {
            let until = Instant::now() + AUDIT_INTERVAL;
            self.exhausted.insert(cidrs(&networks), Exhausted { until, shortage: Some(shortage.clone()) });
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

    /// Fills the warm pool if half of it is used, and notes why a pod without a request would get no address.
    pub(super) fn refill(&mut self, session: &Session<'_>) -> Result<(), IpamError> {
        let mut shortages = Vec::new();
        for choice in default_choices() {
            shortages.push(self.refill_from(session, &choice)?);
        }
        for choice in self.requested.values().cloned().collect::<Vec<_>>() {
            self.refill_from(session, &choice)?;
        }
        let mut inner = self.state.lock();
        inner.problems.shortage = shortage_of(shortages);
        inner.was_filled = true;
        Ok(())
    }

    /// The requests by which the warm pool is filled.
    pub(super) fn warm_requests(&self, session: &Session<'_>) -> Vec<Request> {
        let choices = default_choices().into_iter().chain(self.requested.values().cloned());
        choices.map(|choice| choice.request(&self.settings.node, &session.labels)).collect()
    }

    /// Fills the warm pool from these pools. It does not borrow addresses of other nodes' blocks: only pods do. Returns
    /// why a pod would get no address of them.
    fn refill_from(
        &mut self,
        session: &Session<'_>,
        choice: &PoolChoice,
    ) -> Result<Option<IpamError>, IpamError> {
        let Session { allocator, rules, labels } = session;
        let mut request = choice.request(&self.settings.node, labels);
        let networks = match rules.networks_for(&request) {
            Ok(networks) => networks,
            // A family without a pool for this node has no warm addresses.
            Err(error) => return Ok(Some(error)),
        };
        let pools = cidrs(&networks);
        let warm = self.state.lock().warm_pool.count(rules, &request).unwrap_or(0);
        if let Some(exhausted) = self.exhausted.get(&pools).filter(|one| Instant::now() < one.until) {
            return Ok(exhausted.shortage.clone().filter(|_| warm == 0));
        }
        let quarter = networks.iter().map(|(_, block)| block / 4).min().unwrap_or(0);
        let quarter = usize::try_from(quarter).unwrap_or(usize::MAX);
        let wanted = self.settings.warm_addresses.min(quarter).max(1);
        if warm * 2 > wanted {
            return Ok(None);
        }
        (request.count, request.may_borrow) = (wanted - warm, false);
        match allocator.assign_serialized(rules, &request) {
            Ok(Assigned { addresses, shortage, unreadable }) => {
                self.report(&unreadable);
                let has_address = warm + addresses.len() > 0;
                self.state.add_warm(addresses);
                let Some(shortage) = shortage else { return Ok(None) };
                let can_borrow = allocator.can_borrow(rules, &request)?;
                let shortage = Some(shortage).filter(|_| !can_borrow);
                let until = Instant::now() + AUDIT_INTERVAL;
                self.exhausted.insert(pools, Exhausted { until, shortage: shortage.clone() });
                Ok(shortage.filter(|_| !has_address))
            }
            Err(error @ IpamError::Store(_)) => Err(error),
            Err(error) => {
                warn!(%error, hint = error.hint(), family = %choice.family, "warm pool cannot be filled");
                Ok(Some(error).filter(|_| warm == 0))
            }
        }
    }
}

/// The pools that every pod may use, for each family.
fn default_choices() -> [PoolChoice; 2] {
    IpFamily::ALL.map(PoolChoice::default_for)
}

fn cidrs(networks: &[(IpNet, u64)]) -> Vec<IpNet> {
    networks.iter().map(|(network, _)| *network).collect()
}
