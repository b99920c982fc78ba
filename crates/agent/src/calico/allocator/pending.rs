//! Changes that the store does not have yet.

use std::collections::{BTreeMap, BTreeSet};

use podwire_agent_ipc::addresses::Lease;
use podwire_agent_ipc::{Owner, ValidAttachment};

/// The requested leak checks: networks, each with its valid attachments, whose addresses stay.
pub(super) type LeakChecks = BTreeMap<String, Vec<ValidAttachment>>;

/// How many released owners are remembered. A forgotten one costs a request to the store.
const MAX_RELEASED: usize = 1024;

#[derive(Default)]
pub(super) struct Pending {
    /// Owners whose leases are not in the store.
    pub(super) unsynced: BTreeSet<Owner>,
    /// Owners whose leases were released since the start, and which have no new ones.
    released: BTreeSet<Owner>,
    /// Owners whose blocks cannot be read. They are retried when the sync is idle.
    postponed: BTreeSet<Owner>,
    /// The handles `namespace.pod` of deleted pods, in the format of Calico 2. They may still have addresses.
    pub(super) legacy_handles: BTreeSet<String>,
    /// Whether there may be pending releases in the lease directory.
    pub(super) has_releases: bool,
    pub(super) leak_checks: LeakChecks,
    /// Whether pools have changed since they were read.
    pub(super) has_new_pools: bool,
}

impl Pending {
    /// After a start: what the store has is unknown, so all leases are synced.
    pub(super) fn after_start(owners: BTreeSet<Owner>) -> Pending {
        Pending { unsynced: owners, has_releases: true, ..Pending::default() }
    }

    /// Whether the store has everything, as far as it can be written.
    pub(super) fn is_empty(&self) -> bool {
        self.unsynced.is_empty() && !self.has_releases && self.leak_checks.is_empty() && !self.has_new_pools
    }

    /// The store lacks a new lease.
    pub(super) fn add(&mut self, owner: &Owner) {
        self.released.remove(owner);
        self.unsynced.insert(owner.clone());
    }

    /// Whether the release of a lease of this owner is recorded, and none came after it.
    pub(super) fn is_released(&self, owner: &Owner) -> bool {
        self.released.contains(owner)
    }

    /// The release of a lease is recorded.
    pub(super) fn mark_released(&mut self, owner: &Owner) {
        if self.released.len() >= MAX_RELEASED {
            self.released.clear();
        }
        self.released.insert(owner.clone());
    }

    /// The number of leases that are not in the store.
    pub(super) fn unsynced_leases(&self) -> usize {
        self.unsynced.len() + self.postponed.len()
    }

    pub(super) fn forget(&mut self, owner: &Owner) {
        self.unsynced.remove(owner);
        self.postponed.remove(owner);
    }

    /// The store has these leases.
    pub(super) fn mark_synced(&mut self, leases: &[Lease]) {
        for lease in leases {
            self.unsynced.remove(&lease.owner);
        }
    }

    /// The store cannot get these leases before their blocks are repaired.
    pub(super) fn postpone(&mut self, leases: &[Lease]) {
        for lease in leases {
            if self.unsynced.remove(&lease.owner) {
                self.postponed.insert(lease.owner.clone());
            }
        }
    }

    /// Retries what was postponed, and looks for releases of plugins that could not reach the agent.
    pub(super) fn retry(&mut self) {
        self.unsynced.append(&mut self.postponed);
        self.has_releases = true;
    }

    /// A leak check is done, unless another one with other attachments was requested meanwhile.
    pub(super) fn finish_leak_check(&mut self, network: &str, valid: &[ValidAttachment]) {
        if self.leak_checks.get(network).is_some_and(|requested| requested == valid) {
            self.leak_checks.remove(network);
        }
    }
}
