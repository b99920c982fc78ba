//! Whoever follows a store hears what others write.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::sample::Sample;
use super::Open;
use crate::store::{Change, Entry, Follow};

/// The longest that news may take. Far longer than they do: a busy machine is no broken store.
const MAX_RETRIES: Duration = Duration::from_secs(30);
/// How long it is listened when nothing is to be heard.
const A_MOMENT: Duration = Duration::from_millis(100);

/// What somebody who follows believes to be there.
#[derive(Default)]
struct Belief(BTreeMap<String, Entry>);

impl Belief {
    fn learn(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Put(entry) => drop(self.0.insert(entry.key.clone(), entry)),
                Change::Gone(key) => drop(self.0.remove(&key)),
            }
        }
    }

    /// Listens until it believes in exactly these.
    fn settle(&mut self, follow: &mut dyn Follow, truth: &[Entry]) {
        let until = Instant::now() + MAX_RETRIES;
        let believed = |belief: &Belief| belief.0.values().cloned().collect::<Vec<_>>();
        while believed(self) != truth {
            assert!(Instant::now() < until, "it believes in {:?}, there is {truth:?}", believed(self));
            let news = follow.wait(A_MOMENT).expect("news");
            self.learn(news.unwrap_or_default());
        }
    }
}

pub(super) fn what_others_write_is_heard(open: Open<'_>, followed: &Sample, other: &Sample) {
    let (writer, reader) = (open(), open());
    let key = |number| (followed.key)(number);
    let prefix = key(0).trim_end_matches('0').to_owned();
    let truth = || writer.list(&prefix).expect("a list");
    writer.create(&key(1), &(followed.write)(1, 1)).expect("a key");
    let mut follow = reader.follow(&[&prefix]).expect("to follow");
    let mut belief = Belief::default();
    let first = follow.wait(MAX_RETRIES).expect("the first news").expect("all that is there");
    belief.learn(first);
    belief.settle(&mut *follow, &truth());

    let made = writer.create(&key(2), &(followed.write)(2, 2)).expect("another key");
    belief.settle(&mut *follow, &truth());
    let changed = writer.update(&key(2), &(followed.write)(2, 3), made).expect("a change");
    belief.settle(&mut *follow, &truth());
    writer.delete(&key(2), changed).expect("a deletion");
    belief.settle(&mut *follow, &truth());

    // Of other keys nothing is heard.
    let elsewhere = writer.create(&(other.key)(1), &(other.write)(1, 1)).expect("a key elsewhere");
    let until = Instant::now() + A_MOMENT;
    while Instant::now() < until {
        let news = follow.wait(A_MOMENT).expect("no news").unwrap_or_default();
        let is_meant = |change: &Change| match change {
            Change::Put(entry) => entry.key.starts_with(&prefix),
            Change::Gone(key) => key.starts_with(&prefix),
        };
        assert!(news.iter().all(is_meant), "{news:?}");
    }
    writer.delete(&(other.key)(1), elsewhere).expect("a deletion");
    let left = writer.get(&key(1)).expect("the first").expect("the first");
    writer.delete(&key(1), left.revision).expect("a deletion");
    belief.settle(&mut *follow, &[]);
}
