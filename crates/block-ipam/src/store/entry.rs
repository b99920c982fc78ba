//! Entries of a store, their revisions, and the errors of a store.

/// The state of a key: opaque, and never used twice for one key, not even after the key was deleted. (A write that
/// changes nothing may keep the revision: the Kubernetes API does.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(pub u64);

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// The revision.
    pub revision: Revision,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum StoreError {
    /// The key exists already.
    #[error("{key} exists already")]
    Exists {
        /// The key.
        key: String,
    },
    /// The value has changed since it was read.
    #[error("{key} was changed by another client")]
    Changed {
        /// The key.
        key: String,
    },
    /// The key does not exist, or was deleted since it was read.
    #[error("{key} does not exist")]
    Missing {
        /// The key.
        key: String,
    },
    /// The store does not answer, or its response is invalid. **A write may have been done nevertheless.**
    #[error("the store {store} cannot {verb} {key}: {why}")]
    Unavailable {
        /// The store.
        store: String,
        /// The operation.
        verb: &'static str,
        /// The key or the prefix.
        key: String,
        /// The store's error.
        why: String,
    },
}

impl StoreError {
    /// Whether the write was certainly not done because another client was faster. The caller must read again.
    pub fn is_conflict(&self) -> bool {
        !matches!(self, StoreError::Unavailable { .. })
    }

    /// A hint for the administrator.
    pub fn hint(&self) -> &'static str {
        match self {
            StoreError::Unavailable { .. } => {
                "check that the store runs and is reachable from this node, then try again"
            }
            _ => "try again: several nodes are changing the same record",
        }
    }
}
