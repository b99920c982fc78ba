//! Follows a store: changes by other clients, without polling.

use std::collections::BTreeMap;
use std::time::Duration;

use super::entry::{Entry, Revision, StoreError};

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key was created or changed.
    Put(Entry),
    /// The key was deleted.
    Deleted(String),
}

/// A subscription to changes.
pub trait Follow: Send {
    /// Waits for changes, at most for `timeout`; `None` if there were none. The first result has all existing keys,
    /// even if there are none. After an error it can be called again, and returns the changes that were missed.
    fn wait(&mut self, timeout: Duration) -> Result<Option<Vec<Change>>, StoreError>;
}

/// The known keys of a store and their revisions. After missed changes, a new list is compared with it.
#[derive(Clone, Debug, Default)]
pub struct Known(BTreeMap<String, Revision>);

impl Known {
    /// The changes in a list of all keys that begin with one of `prefixes`.
    pub fn compare(&mut self, prefixes: &[impl AsRef<str>], entries: Vec<Entry>) -> Vec<Change> {
        let is_followed = |key: &str| prefixes.iter().any(|prefix| key.starts_with(prefix.as_ref()));
        let listed: BTreeMap<String, Revision> =
            entries.iter().map(|entry| (entry.key.clone(), entry.revision)).collect();
        let deleted = self.0.keys().filter(|key| is_followed(key) && !listed.contains_key(*key));
        let mut changes: Vec<Change> = deleted.cloned().map(Change::Deleted).collect();
        let is_new = |entry: &Entry| self.0.get(&entry.key) != Some(&entry.revision);
        changes.extend(entries.into_iter().filter(is_new).map(Change::Put));
        self.0.retain(|key, _| !is_followed(key));
        self.0.extend(listed);
        changes
    }

    /// Records a change.
    pub fn record(&mut self, change: &Change) {
        match change {
            Change::Put(entry) => drop(self.0.insert(entry.key.clone(), entry.revision)),
            Change::Deleted(key) => drop(self.0.remove(key)),
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
    fn a_new_list_shows_the_missed_changes() {
        let mut known = Known::default();
        let all = vec![entry("/a/1", 1), entry("/b/1", 2)];
        assert_eq!(
            known.compare(&["/a/", "/b/"], all.clone()),
            [Change::Put(all[0].clone()), Change::Put(all[1].clone())]
        );
        assert_eq!(known.compare(&["/a/", "/b/"], all), []);
        assert_eq!(
            known.compare(&["/a/"], vec![entry("/a/2", 3)]),
            [Change::Deleted("/a/1".into()), Change::Put(entry("/a/2", 3))],
            "other keys are not affected"
        );
        known.record(&Change::Deleted("/b/1".into()));
        assert_eq!(known.compare(&["/b/"], vec![entry("/b/1", 2)]), [Change::Put(entry("/b/1", 2))]);
    }
}
