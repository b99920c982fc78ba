//! Problems of the allocator, for status and log.

use std::collections::{BTreeMap, BTreeSet};

use podwire_block_ipam::IpFamily;

#[derive(Default)]
pub(super) struct Problems {
    /// Why the store cannot be used.
    pub(super) store: Option<String>,
    /// Blocks and handles that cannot be read.
    pub(super) unreadable: BTreeSet<String>,
    /// Addresses that a pod has and that the store assigns to another owner.
    pub(super) conflicting: BTreeSet<String>,
    /// Whether there is no enabled pool.
    pub(super) no_pool: bool,
    /// Why the pools for all pods of this node have no more addresses, by family.
    pub(super) shortages: BTreeMap<IpFamily, String>,
}

impl Problems {
    /// Adds a record that cannot be read. Returns whether it is new.
    pub(super) fn add_unreadable(&mut self, why: String) -> bool {
        self.unreadable.insert(why)
    }

    /// Adds conflicting addresses, or replaces them if `is_complete`. Returns the new ones.
    pub(super) fn set_conflicting(&mut self, found: BTreeSet<String>, is_complete: bool) -> Vec<String> {
        let new = found.difference(&self.conflicting).cloned().collect();
        if is_complete {
            self.conflicting.clear();
        }
        self.conflicting.extend(found);
        new
    }
}
