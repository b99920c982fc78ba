//! Following a store: what others write is heard, not asked for again and again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Entry, Revision, StoreError};

/// What became of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has this value now.
    Put(Entry),
    /// It is gone.
    Gone(String),
}

/// Hears of the keys that somebody follows.
pub trait Follow: Send {
    /// Waits for news, but not longer than `patience`; `None` if there were none. The first news are all that is there, even if
    /// that is nothing. After an error it may be asked again: what was missed meanwhile is told then.
    fn wait(&mut self, patience: Duration) -> Result<Option<Vec<Change>>, StoreError>;
}

/// What somebody knows of a store's keys. Whoever has lost the thread compares a new list with it.
#[derive(Clone, Debug, Default)]
pub struct Known(BTreeMap<String, Revision>);

impl Known {
    /// What is new in a list of all keys that begin with one of `prefixes`.
    pub fn compare(&mut self, prefixes: &[impl AsRef<str>], entries: Vec<Entry>) -> Vec<Change> {
        let is_meant = |key: &str| prefixes.iter().any(|prefix| key.starts_with(prefix.as_ref()));
        let there: BTreeMap<String, Revision> =
            entries.iter().map(|entry| (entry.key.clone(), entry.revision)).collect();
        let gone = self.0.keys().filter(|key| is_meant(key) && !there.contains_key(*key));
        let mut changes: Vec<Change> = gone.cloned().map(Change::Gone).collect();
        let is_new = |entry: &Entry| self.0.get(&entry.key) != Some(&entry.revision);
        changes.extend(entries.into_iter().filter(is_new).map(Change::Put));
        self.0.retain(|key, _| !is_meant(key));
        self.0.extend(there);
        changes
    }

    /// Notes a change that was heard.
    pub fn note(&mut self, change: &Change) {
        match change {
            Change::Put(entry) => drop(self.0.insert(entry.key.clone(), entry.revision)),
            Change::Gone(key) => drop(self.0.remove(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, revision: u64) -> Entry {
        Entry { key: key.into(), value: b"x".to_vec(), revision: Revision(revision) }
    }

    #[test]
    fn a_new_list_tells_what_was_missed() {
        let mut known = Known::default();
        let all = vec![entry("/a/1", 1), entry("/b/1", 2)];
        assert_eq!(
            known.compare(&["/a/", "/b/"], all.clone()),
            [Change::Put(all[0].clone()), Change::Put(all[1].clone())]
        );
        assert_eq!(known.compare(&["/a/", "/b/"], all), []);
        assert_eq!(
            known.compare(&["/a/"], vec![entry("/a/2", 3)]),
            [Change::Gone("/a/1".into()), Change::Put(entry("/a/2", 3))],
            "of other keys nothing is said"
        );
        known.note(&Change::Gone("/b/1".into()));
        assert_eq!(known.compare(&["/b/"], vec![entry("/b/1", 2)]), [Change::Put(entry("/b/1", 2))]);
    }
}
