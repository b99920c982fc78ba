//! A store in memory, for tests and experiments.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Change, Entry, Follow, Known, Revision, Store, StoreError};

/// A store that ends with the process.
#[derive(Debug, Default)]
pub struct Memory(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified after each write.
    written: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number of writes, which is the revision of the last.
    writes: u64,
    entries: BTreeMap<String, (Vec<u8>, Revision)>,
}

impl Memory {
    /// An empty store.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Every write is one step, so that a poisoned lock does not matter.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, mut state: MutexGuard<'_, State>, key: &str, value: &[u8]) -> Revision {
        state.writes += 1;
        let revision = Revision(state.writes);
        state.entries.insert(key.into(), (value.into(), revision));
        self.0.written.notify_all();
        revision
    }
}

impl State {
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
        let state = self.state();
        let found = state.entries.get(key);
        Ok(found.map(|(value, revision)| Entry {
            key: key.into(),
            value: value.clone(),
            revision: *revision,
        }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        Ok(self.state().list(prefix))
    }

    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        Ok(self.state().under(prefix).map(|(key, _)| key.clone()).collect())
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        let state = self.state();
        if state.entries.contains_key(key) {
            return Err(StoreError::Exists { key: key.into() });
        }
        Ok(self.put(state, key, value))
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        let state = self.state();
        state.expect(key, revision)?;
        Ok(self.put(state, key, value))
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        let mut state = self.state();
        state.expect(key, revision)?;
        state.writes += 1;
        state.entries.remove(key);
        self.0.written.notify_all();
        Ok(())
    }

    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        let prefixes = prefixes.iter().map(ToString::to_string).collect();
        Ok(Box::new(Follower { shared: self.0.clone(), prefixes, known: Known::default(), seen: None }))
    }
}

struct Follower {
    shared: Arc<Shared>,
    prefixes: Vec<String>,
    known: Known,
    /// The number of writes at the last call.
    seen: Option<u64>,
}

impl Follow for Follower {
    fn wait(&mut self, timeout: Duration) -> Result<Option<Vec<Change>>, StoreError> {
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unchanged = |state: &mut State| self.seen == Some(state.writes);
        let waited = self.shared.written.wait_timeout_while(state, timeout, is_unchanged);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_first = self.seen.is_none();
        self.seen = Some(state.writes);
        let entries = self.prefixes.iter().flat_map(|prefix| state.list(prefix)).collect();
        let changes = self.known.compare(&self.prefixes, entries);
        Ok(Some(changes).filter(|changes| is_first || !changes.is_empty()))
    }
}
