//! Releases in the store: pending releases, legacy handles, and addresses that a leak check finds.

use ipnet::IpNet;
use podwire_agent_ipc::ValidAttachment;
use podwire_block_ipam::{Error as IpamError, Release, Transfer, TransferOutcome};
use tracing::{info, warn};

use super::{Session, StoreSync};
use crate::calico::allocator::handles::{self, handle_of};

impl StoreSync {
    /// Releases what is pending. The store may not have a lease yet, so its addresses are transferred first. A release
    /// that fails because a record cannot be read stays pending and is retried when the sync is idle. Returns whether
    /// something was pending.
    pub(super) fn release_pending(
        &self,
        session: &Session<'_>,
        legacy_handles: &[String],
    ) -> Result<bool, IpamError> {
        let Session { allocator, rules, .. } = session;
        let pending = self.state.pending_releases();
        let transfers: Vec<Transfer> = pending.iter().flat_map(|one| self.transfers(&one.lease)).collect();
        let TransferOutcome { lost, failed, .. } = allocator.transfer(&self.warm_handle, &transfers, None)?;
        self.report(failed.iter().map(|(_, error)| error));
        let has_failed = |address: &IpNet| failed.iter().any(|(transfer, _)| transfer.address == *address);
        let is_held = |transfer: &&Transfer| !lost.contains(transfer) && !has_failed(&transfer.address);
        let releases: Vec<Release> = transfers.iter().filter(is_held).map(release_of).collect();
        // One write for each block. If that fails, each lease is released by itself.
        let all_released = self.is_done(allocator.release(rules, &releases))?;
        for one in pending.iter().filter(|one| !one.lease.addresses.iter().any(has_failed)) {
            let addresses = &one.lease.addresses;
            let is_released = if addresses.is_empty() {
                self.is_done(self.release_unleased(session, &handle_of(&one.lease)))?
            } else if all_released {
                true
            } else {
                let is_own = |release: &&Release| addresses.iter().any(|own| own.addr() == release.ip);
                let own: Vec<Release> = releases.iter().filter(is_own).cloned().collect();
                self.is_done(allocator.release(rules, &own))?
            };
            if is_released {
                self.state.lease_dir.finish(one);
            }
        }
        for handle in legacy_handles {
            if self.is_done(allocator.release_handle(rules, handle))? {
                self.state.lock().pending.legacy_handles.remove(handle);
            }
        }
        Ok(!pending.is_empty() || !legacy_handles.is_empty())
    }

    /// Releases the addresses of a handle that no lease has: the container may have another interface, or a new lease.
    fn release_unleased(&self, session: &Session<'_>, handle: &str) -> Result<(), IpamError> {
        let Session { allocator, rules, .. } = session;
        let leased = self.state.lock().leased(handle);
        if leased.is_empty() {
            return allocator.release_handle(rules, handle).map(drop);
        }
        let unleased = allocator.addresses_of(handle)?.into_iter().filter(|ip| !leased.contains(ip));
        let releases: Vec<Release> =
            unleased.map(|ip| Release { ip, handle: Some(handle.to_owned()), sequence: None }).collect();
        allocator.release(rules, &releases).map(drop)
    }

    /// Records releases for a network's containers that are not valid and have no lease. A container that was attached
    /// after the leak check was requested has a lease.
    pub(super) fn check_leaks(
        &self,
        session: &Session<'_>,
        network: &str,
        valid: &[ValidAttachment],
    ) -> Result<(), IpamError> {
        for (handle, gone) in handles::stale(&session.allocator, &self.settings.node, network, valid)? {
            match self.state.release_stale(&handle, &gone) {
                Ok(true) => info!(handle, "releasing stale addresses"),
                Ok(false) => {}
                Err(error) => warn!(%error, handle, "stale addresses cannot be recorded for release"),
            }
        }
        self.state.lock().pending.finish_leak_check(network, valid);
        Ok(())
    }
}

/// Releases an address only if the pod's handle still has it.
fn release_of(transfer: &Transfer) -> Release {
    Release { ip: transfer.address.addr(), handle: Some(transfer.handle.clone()), sequence: None }
}
