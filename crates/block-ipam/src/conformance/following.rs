//! A client that follows a store gets the changes of other clients.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::sample::{Open, Sample};
use crate::store::{Change, Entry, Follow};

/// The time limit of a change, for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long the client waits for changes that must not come.
const IDLE_TIME: Duration = Duration::from_millis(100);

/// The entries as a following client knows them.
#[derive(Default)]
struct View(BTreeMap<String, Entry>);

impl View {
    fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Put(entry) => drop(self.0.insert(entry.key.clone(), entry)),
                Change::Deleted(key) => drop(self.0.remove(&key)),
            }
        }
    }

    /// Waits until the view has exactly these entries.
    fn wait_for(&mut self, follow: &mut dyn Follow, expected: &[Entry]) {
        let until = Instant::now() + TIMEOUT;
        let entries = |view: &View| view.0.values().cloned().collect::<Vec<_>>();
        while entries(self) != expected {
            assert!(Instant::now() < until, "the view is {:?}, the store has {expected:?}", entries(self));
            let changes = follow.wait(IDLE_TIME).expect("changes");
            self.apply(changes.unwrap_or_default());
        }
    }
}

pub(super) fn changes_of_other_clients_are_reported(open: Open<'_>, followed: &Sample, other: &Sample) {
    let (writer, reader) = (open(), open());
    let key = |number| (followed.key)(number);
    let prefix = key(0).trim_end_matches('0').to_owned();
    let expected = || writer.list(&prefix).expect("a list");
    writer.create(&key(1), &(followed.write)(1, 1)).expect("a key");
    let mut follow = reader.follow(&[&prefix]).expect("to follow");
    let mut view = View::default();
    let first = follow.wait(TIMEOUT).expect("the first changes").expect("all existing entries");
    view.apply(first);
    view.wait_for(&mut *follow, &expected());

    let created = writer.create(&key(2), &(followed.write)(2, 2)).expect("another key");
    view.wait_for(&mut *follow, &expected());
    let changed = writer.update(&key(2), &(followed.write)(2, 3), created).expect("a change");
    view.wait_for(&mut *follow, &expected());
    writer.delete(&key(2), changed).expect("a deletion");
    view.wait_for(&mut *follow, &expected());

    // Changes of other keys are not reported.
    let elsewhere = writer.create(&(other.key)(1), &(other.write)(1, 1)).expect("a key elsewhere");
    let until = Instant::now() + IDLE_TIME;
    while Instant::now() < until {
        let changes = follow.wait(IDLE_TIME).expect("no error").unwrap_or_default();
        let is_followed = |change: &Change| match change {
            Change::Put(entry) => entry.key.starts_with(&prefix),
            Change::Deleted(key) => key.starts_with(&prefix),
        };
        assert!(changes.iter().all(is_followed), "{changes:?}");
    }
    writer.delete(&(other.key)(1), elsewhere).expect("a deletion");
    let left = writer.get(&key(1)).expect("the first").expect("the first");
    writer.delete(&key(1), left.revision).expect("a deletion");
    view.wait_for(&mut *follow, &[]);
}
