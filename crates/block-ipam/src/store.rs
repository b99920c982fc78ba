//! Where blocks are kept: keys and values with compare-and-swap, and nothing else.
//!
//! The allocator needs six verbs of a store and one promise: a write with a [`Revision`] succeeds only if nobody wrote
//! the key since it was read. SQLite, etcd and the Kubernetes API can all give it, and so can [`Memory`]. Whoever
//! implements [`Store`] runs the conformance suite (feature `conformance`) on it.
//!
//! The trait is synchronous (docs/decisions/0017-synchronous-store.md).

mod follow;
mod memory;

pub use follow::{Change, Follow, Known};
pub use memory::Memory;

/// The state of a key that was read: opaque, never used twice for one key, not even if it was deleted in between. (A write that changes
/// nothing may leave the state as it is: the Kubernetes API does.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(pub u64);

/// What a store holds under a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// Its revision.
    pub revision: Revision,
}

/// Keys and values with compare-and-swap.
pub trait Store {
    /// What is under `key`.
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// Everything whose key begins with `prefix`, as it was at one moment, in the order of the keys.
    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError>;

    /// The keys alone of what [`Store::list`] tells, in their order. What somebody is deleting at this moment may be among them.
    ///
    /// A store that can tell keys without reading values does: a thousand full blocks are 20 MB, their keys 50 KB.
    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        Ok(self.list(prefix)?.into_iter().map(|entry| entry.key).collect())
    }

    /// Puts a value under a key that has none, else [`StoreError::Exists`].
    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError>;

    /// Replaces the value that was read with `revision`, else [`StoreError::Changed`] or [`StoreError::Missing`].
    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError>;

    /// Deletes the value that was read with `revision`, else [`StoreError::Changed`] or [`StoreError::Missing`].
    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError>;

    /// Hears from now on of every key that begins with one of `prefixes`.
    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        Err(StoreError::Unavailable {
            store: "of this kind".into(),
            verb: "follow",
            key: prefixes.join(", "),
            why: "it tells nobody what others write".into(),
        })
    }
}

/// Several may hold one store.
impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        (**self).get(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        (**self).list(prefix)
    }

    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        (**self).keys(prefix)
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        (**self).create(key, value)
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        (**self).update(key, value, revision)
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        (**self).delete(key, revision)
    }

    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        (**self).follow(prefixes)
    }
}

/// Why a store did not do it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum StoreError {
    /// Somebody else made it first.
    #[error("{key} exists already")]
    Exists {
        /// The key.
        key: String,
    },
    /// Somebody wrote it since it was read.
    #[error("{key} was changed by somebody else meanwhile")]
    Changed {
        /// The key.
        key: String,
    },
    /// Somebody deleted it since it was read.
    #[error("{key} is gone")]
    Missing {
        /// The key.
        key: String,
    },
    /// The store does not answer, or not sensibly. **A write may have been done all the same.**
    #[error("the store {store} cannot {verb} {key}: {why}")]
    Unavailable {
        /// Which store.
        store: String,
        /// What it was asked for.
        verb: &'static str,
        /// The key, or the prefix.
        key: String,
        /// Its own words.
        why: String,
    },
}

impl StoreError {
    /// Whether the write was certainly not done because somebody else was faster: read again and think again.
    pub fn is_conflict(&self) -> bool {
        !matches!(self, StoreError::Unavailable { .. })
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            StoreError::Unavailable { .. } => {
                "see that the store runs and can be reached from this node, then try again"
            }
            _ => "try again: several nodes are changing the same thing",
        }
    }
}
