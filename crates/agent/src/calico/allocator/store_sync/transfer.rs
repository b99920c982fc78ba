//! Leases in the store: their addresses are transferred from the warm pool's handle to the pod's handle.

use std::collections::BTreeSet;

use ipnet::IpNet;
use podwire_agent_ipc::addresses::Lease;
use podwire_block_ipam::{AffinityOwner, Error as IpamError, Refill, Transfer, TransferOutcome};
use tracing::error;

use super::{Session, StoreSync};
use crate::calico::allocator::handles::{attributes, handle_of};

impl StoreSync {
    /// Writes leases to the store; `are_all` if these are all leases of the node.
    pub(super) fn write_leases(
        &self,
        session: &Session<'_>,
        leases: &[Lease],
        are_all: bool,
    ) -> Result<(), IpamError> {
        let transfers: Vec<Transfer> = leases.iter().flat_map(|lease| self.transfers(lease)).collect();
        let requests = self.warm_requests(session);
        let refill = Some(Refill { rules: &session.rules, requests: &requests });
        let TransferOutcome { refilled, mut lost, mut failed } =
            session.allocator.transfer(&self.warm_handle, &transfers, refill)?;
        self.state.add_warm(refilled);
        if self.reclaim(session, &lost)? {
            let again = session.allocator.transfer(&self.warm_handle, &lost, None)?;
            lost = again.lost;
            failed.extend(again.failed);
        }
        if !lost.is_empty() {
            // More of the warm pool may have another owner.
            self.reconcile_warm_pool(&session.allocator)?;
        }
        let conflicting =
            lost.iter().map(|lost| format!("{} of {}", lost.address.addr(), lost.handle)).collect();
        for address in self.state.lock().problems.set_conflicting(conflicting, are_all) {
            error!(address, "the store assigns a pod's address to another owner; restart the pod");
        }
        self.report(failed.iter().map(|(_, error)| error));
        let has_failed =
            |lease: &Lease| failed.iter().any(|(transfer, _)| lease.addresses.contains(&transfer.address));
        let (postponed, synced): (Vec<Lease>, Vec<Lease>) = leases.iter().cloned().partition(has_failed);
        let mut inner = self.state.lock();
        inner.pending.postpone(&postponed);
        inner.pending.mark_synced(&synced);
        Ok(())
    }

    /// The transfers of a lease's addresses.
    pub(super) fn transfers(&self, lease: &Lease) -> Vec<Transfer> {
        let attributes = attributes(&self.settings.node, &lease.namespace, &lease.pod);
        let handle = handle_of(lease);
        let transfer = |address: &IpNet| Transfer {
            address: *address,
            handle: handle.clone(),
            attributes: attributes.clone(),
        };
        lease.addresses.iter().map(transfer).collect()
    }

    /// Claims deleted blocks of addresses that are in use: an administrator released them, or the store is from a
    /// backup. Returns whether one was claimed.
    fn reclaim(&self, session: &Session<'_>, lost: &[Transfer]) -> Result<bool, IpamError> {
        let blocks: BTreeSet<IpNet> = lost.iter().map(|transfer| transfer.address.trunc()).collect();
        let in_pool = |block: &&IpNet| session.rules.pools.iter().any(|pool| pool.cidr().contains(*block));
        let mut claimed = false;
        for block in blocks.iter().filter(in_pool) {
            match session.allocator.claim(&AffinityOwner::host(&self.settings.node), *block) {
                Err(IpamError::NotOwner { .. }) => {}
                outcome => claimed |= self.is_done(outcome)?,
            }
        }
        Ok(claimed)
    }
}
