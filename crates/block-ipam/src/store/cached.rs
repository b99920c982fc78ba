//! A store that remembers the blocks and handles of one node between the node's writes.
//!
//! An agent is mostly the only writer of its blocks and of its pods' handles. With their last revisions it writes them
//! without a read before. A remembered entry is like an entry that was read earlier: if another client has written the
//! key since, the write fails, the entry is forgotten, and the next read asks the store. The owner clears the memory
//! regularly, because reads that lead to no write do not notice such a change.

use std::cell::RefCell;
use std::collections::HashMap;

use super::{Entry, Follow, Revision, Store, StoreError};
use crate::key::{BLOCKS, HANDLES};

/// The maximum number of entries. A full block has 20 KB, and a node has fewer blocks and pods.
const MAX_ENTRIES: usize = 512;

/// Entries of a store as they were last read or written, by key.
#[derive(Debug, Default)]
pub struct Memo(HashMap<String, Entry>);

/// A store, and what is remembered of it.
pub struct Cached<'a> {
    store: &'a dyn Store,
    memo: RefCell<Memo>,
}

impl<'a> Cached<'a> {
    /// A store with the memory of an earlier use.
    pub fn new(store: &'a dyn Store, memo: Memo) -> Cached<'a> {
        Cached { store, memo: RefCell::new(memo) }
    }

    /// The memory, for the next use.
    pub fn into_memo(self) -> Memo {
        self.memo.into_inner()
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.memo.borrow_mut().0.clear();
    }

    fn remember(&self, entry: Entry) {
        let entries = &mut self.memo.borrow_mut().0;
        if entries.len() >= MAX_ENTRIES {
            entries.clear();
        }
        if entry.key.starts_with(BLOCKS) || entry.key.starts_with(HANDLES) {
            entries.insert(entry.key.clone(), entry);
        }
    }

    fn forget(&self, key: &str) {
        self.memo.borrow_mut().0.remove(key);
    }

    /// Remembers the outcome of a write. After a failure the entry is unknown.
    fn written(
        &self,
        key: &str,
        value: &[u8],
        outcome: Result<Revision, StoreError>,
    ) -> Result<Revision, StoreError> {
        match &outcome {
            Ok(revision) => {
                self.remember(Entry { key: key.into(), value: value.into(), revision: *revision })
            }
            Err(_) => self.forget(key),
        }
        outcome
    }
}

impl Store for Cached<'_> {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        if let Some(known) = self.memo.borrow().0.get(key) {
            return Ok(Some(known.clone()));
        }
        let found = self.store.get(key)?;
        found.iter().cloned().for_each(|entry| self.remember(entry));
        Ok(found)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.store.list(prefix)
    }

    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.store.keys(prefix)
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        self.written(key, value, self.store.create(key, value))
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        self.written(key, value, self.store.update(key, value, revision))
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        self.forget(key);
        self.store.delete(key, revision)
    }

    fn has_endpoint_readers(&self) -> bool {
        self.store.has_endpoint_readers()
    }

    fn publish_without_read(&self, key: &str, value: &[u8]) -> Result<bool, StoreError> {
        self.store.publish_without_read(key, value)
    }

    fn withdraw_without_read(&self, key: &str, container: &str) -> Result<bool, StoreError> {
        self.store.withdraw_without_read(key, container)
    }

    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        self.store.follow(prefixes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;

    const KEY: &str = "/calico/ipam/v2/handle/net.1";

    #[test]
    fn a_write_of_another_client_is_noticed_by_the_next_write() {
        let store = Memory::new();
        let cached = Cached::new(&store, Memo::default());
        let first = cached.create(KEY, b"1").unwrap();
        let other = store.update(KEY, b"2", first).unwrap();
        assert_eq!(cached.get(KEY).unwrap().unwrap().value, b"1");
        assert_eq!(cached.update(KEY, b"3", first), Err(StoreError::Changed { key: KEY.into() }));
        let entry = cached.get(KEY).unwrap().unwrap();
        assert_eq!((entry.value.as_slice(), entry.revision), (&b"2"[..], other));
        let last = cached.update(KEY, b"4", other).unwrap();
        assert_eq!(store.get(KEY).unwrap().unwrap().revision, last);
        cached.delete(KEY, last).unwrap();
        assert_eq!(cached.get(KEY).unwrap(), None);
    }

    #[test]
    fn only_blocks_and_handles_are_remembered() {
        let store = Memory::new();
        let cached = Cached::new(&store, Memo::default());
        for key in [crate::key::CONFIG, KEY] {
            let revision = cached.create(key, b"1").unwrap();
            store.update(key, b"2", revision).unwrap();
        }
        assert_eq!(cached.get(crate::key::CONFIG).unwrap().unwrap().value, b"2");
        assert_eq!(cached.get(KEY).unwrap().unwrap().value, b"1");
        let cached = Cached::new(&store, cached.into_memo());
        assert_eq!(cached.get(KEY).unwrap().unwrap().value, b"1");
        cached.clear();
        assert_eq!(cached.get(KEY).unwrap().unwrap().value, b"2");
    }
}
