//! The store of blocks: keys and values with compare-and-swap.
//!
//! The allocator needs six operations and one guarantee: a write with a [`Revision`] succeeds only if the key has not
//! been written since it was read. SQLite, etcd and the Kubernetes API provide that, and so does [`Memory`]. Every
//! implementation of [`Store`] must pass the conformance suite (feature `conformance`).
//!
//! The trait is synchronous (docs/decisions/0017-synchronous-store.md).

mod cached;
mod entry;
mod follow;
mod memory;

pub use cached::{Cached, Memo};
pub use entry::{Entry, Revision, StoreError};
pub use follow::{Change, Follow, Known};
pub use memory::Memory;

/// Keys and values with compare-and-swap.
pub trait Store {
    /// Reads a key.
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// All entries whose keys begin with `prefix`, consistent and sorted by key.
    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError>;

    /// The keys of [`Store::list`] without the values, sorted. Keys that are being deleted may be included.
    ///
    /// A store should read only the keys if it can: a thousand full blocks are 20 MB, their keys are 50 KB.
    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        Ok(self.list(prefix)?.into_iter().map(|entry| entry.key).collect())
    }

    /// Creates a key. Fails with [`StoreError::Exists`].
    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError>;

    /// Replaces the value that was read with `revision`. Fails with [`StoreError::Changed`] or [`StoreError::Missing`].
    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError>;

    /// Deletes the value that was read with `revision`. Fails with [`StoreError::Changed`] or [`StoreError::Missing`].
    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError>;

    /// Whether other programs read endpoints in this store. If not, they need not be written.
    fn has_endpoint_readers(&self) -> bool {
        true
    }

    /// Writes the endpoint of a pod that was attached, without a read before. `false` if that takes a read.
    fn publish_without_read(&self, _key: &str, _value: &[u8]) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Withdraws the endpoint of a container that was detached, without a read before. `false` if that takes a read.
    fn withdraw_without_read(&self, _key: &str, _container: &str) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Follows all keys that begin with one of `prefixes`.
    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        Err(StoreError::Unavailable {
            store: "of this kind".into(),
            verb: "follow",
            key: prefixes.join(", "),
            why: "it does not support notifications".into(),
        })
    }
}

/// A shared store.
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

    fn has_endpoint_readers(&self) -> bool {
        (**self).has_endpoint_readers()
    }

    fn publish_without_read(&self, key: &str, value: &[u8]) -> Result<bool, StoreError> {
        (**self).publish_without_read(key, value)
    }

    fn withdraw_without_read(&self, key: &str, container: &str) -> Result<bool, StoreError> {
        (**self).withdraw_without_read(key, container)
    }

    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        (**self).follow(prefixes)
    }
}
