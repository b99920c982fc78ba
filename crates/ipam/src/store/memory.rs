//! A store in memory: for tests, and for trying things out.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Entry, Revision, Store, StoreError};

/// A store that vanishes with the process.
#[derive(Debug, Default)]
pub struct Memory(Mutex<Shelves>);

#[derive(Debug, Default)]
struct Shelves {
    /// How many writes there were: the revision of the last.
    writes: u64,
    entries: BTreeMap<String, (Vec<u8>, Revision)>,
}

impl Memory {
    /// An empty store.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// No write leaves the shelves half done, so that a panic elsewhere does not matter.
    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelves {
    fn put(&mut self, key: &str, value: &[u8]) -> Revision {
        self.writes += 1;
        let revision = Revision(self.writes);
        self.entries.insert(key.into(), (value.into(), revision));
        revision
    }

    fn expect(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        match self.entries.get(key) {
            None => Err(StoreError::Missing { key: key.into() }),
            Some((_, now)) if *now != revision => Err(StoreError::Changed { key: key.into() }),
            Some(_) => Ok(()),
        }
    }
}

impl Store for Memory {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let shelves = self.shelves();
        let found = shelves.entries.get(key);
        Ok(found.map(|(value, revision)| Entry {
            key: key.into(),
            value: value.clone(),
            revision: *revision,
        }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        let shelves = self.shelves();
        let from = shelves.entries.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        Ok(from
            .map(|(key, (value, revision))| Entry {
                key: key.clone(),
                value: value.clone(),
                revision: *revision,
            })
            .collect())
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        let mut shelves = self.shelves();
        match shelves.entries.contains_key(key) {
            true => Err(StoreError::Exists { key: key.into() }),
            false => Ok(shelves.put(key, value)),
        }
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        let mut shelves = self.shelves();
        shelves.expect(key, revision)?;
        Ok(shelves.put(key, value))
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        let mut shelves = self.shelves();
        shelves.expect(key, revision)?;
        shelves.entries.remove(key);
        Ok(())
    }
}
