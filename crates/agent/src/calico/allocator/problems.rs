//! Problems of the allocator, for status and log.

use std::collections::BTreeSet;

use podwire_block_ipam::Error as IpamError;

#[derive(Default)]
pub(super) struct Problems {
    /// Why the store cannot be used.
    pub(super) store: Option<IpamError>,
    /// Why the store has no address for a pod without a request.
    pub(super) shortage: Option<IpamError>,
    /// Blocks and handles that cannot be read.
    pub(super) unreadable: BTreeSet<String>,
    /// Addresses that a pod has and that the store assigns to another owner.
    pub(super) conflicting: BTreeSet<String>,
}

/// Why a pod without a request gets no address, from the shortage of each family. A cluster may have pools of one family
/// only.
pub(super) fn shortage_of(mut families: Vec<Option<IpamError>>) -> Option<IpamError> {
    let has_pool = |shortage: &Option<IpamError>| !matches!(shortage, Some(IpamError::NoPool { .. }));
    if families.iter().any(has_pool) {
        families.retain(has_pool);
    }
    families.into_iter().flatten().next()
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
