//! A store that counts requests and bytes.

use std::cell::Cell;

use podwire_block_ipam::store::{Entry, Revision, Store, StoreError};

pub struct Counting<'a> {
    store: &'a dyn Store,
    pub requests: Cell<usize>,
    /// Bytes of keys and values in responses.
    pub bytes: Cell<usize>,
}

impl<'a> Counting<'a> {
    pub fn new(store: &'a dyn Store) -> Counting<'a> {
        Counting { store, requests: Cell::new(0), bytes: Cell::new(0) }
    }

    fn count(&self, bytes: usize) {
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
    }
}

fn size(entry: &Entry) -> usize {
    entry.key.len() + entry.value.len()
}

impl Store for Counting<'_> {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let found = self.store.get(key)?;
        self.count(found.iter().map(size).sum());
        Ok(found)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        let found = self.store.list(prefix)?;
        self.count(found.iter().map(size).sum());
        Ok(found)
    }

    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let found = self.store.keys(prefix)?;
        self.count(found.iter().map(String::len).sum());
        Ok(found)
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        self.count(0);
        self.store.create(key, value)
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        self.count(0);
        self.store.update(key, value, revision)
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        self.count(0);
        self.store.delete(key, revision)
    }
}
