//! A store in memory: for tests, and for trying things out.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Change, Entry, Follow, Known, Revision, Store, StoreError};

/// A store that vanishes with the process.
#[derive(Debug, Default)]
pub struct Memory(Arc<Room>);

#[derive(Debug, Default)]
struct Room {
    shelves: Mutex<Shelves>,
    /// Rings after each write.
    bell: Condvar,
}

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
        self.0.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, mut shelves: MutexGuard<'_, Shelves>, key: &str, value: &[u8]) -> Revision {
        shelves.writes += 1;
        let revision = Revision(shelves.writes);
        shelves.entries.insert(key.into(), (value.into(), revision));
        self.0.bell.notify_all();
        revision
    }
}

impl Shelves {
    fn list(&self, prefix: &str) -> Vec<Entry> {
        let entry = |(key, (value, revision)): (&String, &(Vec<u8>, Revision))| Entry {
            key: key.clone(),
            value: value.clone(),
            revision: *revision,
        };
        self.under(prefix).map(entry).collect()
    }

    fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a (Vec<u8>, Revision))> {
        self.entries.range(prefix.to_owned()..).take_while(move |(key, _)| key.starts_with(prefix))
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
        Ok(self.shelves().list(prefix))
    }

    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        Ok(self.shelves().under(prefix).map(|(key, _)| key.clone()).collect())
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        let shelves = self.shelves();
        match shelves.entries.contains_key(key) {
            true => Err(StoreError::Exists { key: key.into() }),
            false => Ok(self.put(shelves, key, value)),
        }
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        let shelves = self.shelves();
        shelves.expect(key, revision)?;
        Ok(self.put(shelves, key, value))
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        let mut shelves = self.shelves();
        shelves.expect(key, revision)?;
        shelves.writes += 1;
        shelves.entries.remove(key);
        self.0.bell.notify_all();
        Ok(())
    }

    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        let prefixes = prefixes.iter().map(ToString::to_string).collect();
        Ok(Box::new(Follower { room: self.0.clone(), prefixes, known: Known::default(), seen: None }))
    }
}

struct Follower {
    room: Arc<Room>,
    prefixes: Vec<String>,
    known: Known,
    /// How many writes there were when it looked last.
    seen: Option<u64>,
}

impl Follow for Follower {
    fn wait(&mut self, patience: Duration) -> Result<Option<Vec<Change>>, StoreError> {
        let shelves = self.room.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |shelves: &mut Shelves| self.seen == Some(shelves.writes);
        let waited = self.room.bell.wait_timeout_while(shelves, patience, is_old);
        let (shelves, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_first = self.seen.is_none();
        self.seen = Some(shelves.writes);
        let entries = self.prefixes.iter().flat_map(|prefix| shelves.list(prefix)).collect();
        let changes = self.known.compare(&self.prefixes, entries);
        Ok(Some(changes).filter(|changes| is_first || !changes.is_empty()))
    }
}
