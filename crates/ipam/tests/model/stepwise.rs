//! A store whose operations are done one at a time, when the explorer says so.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use ipam::store::{Entry, Revision, Store, StoreError};

/// What the store holds: for each key how often it was written, which is its revision, and its value. How often it was written
/// survives a deletion. Revisions of different keys have nothing to do with each other, so that worlds which differ only in the order of
/// writes to different keys are alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shelves(pub BTreeMap<String, (u64, Option<Vec<u8>>)>);

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Entries(Result<Vec<Entry>, StoreError>),
    Written(Result<Revision, StoreError>),
}

/// What becomes of the next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is done, and answered.
    Done,
    /// It is done, but the answer is lost: the node cannot know.
    AnswerLost,
}

/// The store as one node sees it during one run of its program.
pub struct Stepwise<'a> {
    log: &'a [Answer],
    place: Cell<usize>,
    shelves: RefCell<&'a mut Shelves>,
    fate: Fate,
    /// The answer to the operation behind the log.
    pub next: RefCell<Option<Answer>>,
    /// Whether that operation was a write.
    pub was_write: Cell<bool>,
}

const CUT_OFF: &str = "cut off";

impl<'a> Stepwise<'a> {
    pub fn new(log: &'a [Answer], shelves: &'a mut Shelves, fate: Fate) -> Stepwise<'a> {
        let (next, was_write) = (RefCell::new(None), Cell::new(false));
        Stepwise { log, place: Cell::new(0), shelves: RefCell::new(shelves), fate, next, was_write }
    }

    /// How many operations the node has done so far, for its clock.
    pub fn steps(&self) -> u64 {
        self.place.get() as u64
    }

    /// Whether the program has come to the end of its log.
    pub fn is_cut_off(error: &StoreError) -> bool {
        matches!(error, StoreError::Unavailable { why, .. } if why == CUT_OFF)
    }

    fn answer(&self, key: &str, is_write: bool, act: impl FnOnce(&mut Shelves) -> Answer) -> Answer {
        let place = self.place.replace(self.place.get() + 1);
        if let Some(answer) = self.log.get(place) {
            return answer.clone();
        }
        if place == self.log.len() && self.next.borrow().is_none() {
            let answer = act(&mut self.shelves.borrow_mut());
            let answer = match (self.fate, answer) {
                (Fate::AnswerLost, Answer::Written(_)) => Answer::Written(Err(unavailable(key, "answer lost"))),
                (_, answer) => answer,
            };
            self.was_write.set(is_write);
            *self.next.borrow_mut() = Some(answer);
        }
        match is_write {
            true => Answer::Written(Err(unavailable(key, CUT_OFF))),
            false => Answer::Entries(Err(unavailable(key, CUT_OFF))),
        }
    }

    fn read(&self, key: &str, act: impl FnOnce(&mut Shelves) -> Vec<Entry>) -> Result<Vec<Entry>, StoreError> {
        match self.answer(key, false, |shelves| Answer::Entries(Ok(act(shelves)))) {
            Answer::Entries(entries) => entries,
            Answer::Written(_) => panic!("a program must do the same when it is run again"),
        }
    }

    fn write(
        &self,
        key: &str,
        act: impl FnOnce(&mut Shelves) -> Result<Revision, StoreError>,
    ) -> Result<Revision, StoreError> {
        match self.answer(key, true, |shelves| Answer::Written(act(shelves))) {
            Answer::Written(written) => written,
            Answer::Entries(_) => panic!("a program must do the same when it is run again"),
        }
    }
}

fn unavailable(key: &str, why: &str) -> StoreError {
    StoreError::Unavailable { store: "model".into(), verb: "answer", key: key.into(), why: why.into() }
}

impl Shelves {
    pub fn entries(&self, prefix: &str) -> Vec<Entry> {
        let from = self.0.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        from.filter_map(|(key, (revision, value))| {
            Some(Entry { key: key.clone(), value: value.clone()?, revision: Revision(*revision) })
        })
        .collect()
    }

    fn put(&mut self, key: &str, value: Option<&[u8]>) -> Revision {
        let entry = self.0.entry(key.into()).or_default();
        *entry = (entry.0 + 1, value.map(Into::into));
        Revision(entry.0)
    }

    fn expect(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        match self.0.get(key) {
            Some((now, Some(_))) if *now == revision.0 => Ok(()),
            Some((_, Some(_))) => Err(StoreError::Changed { key: key.into() }),
            _ => Err(StoreError::Missing { key: key.into() }),
        }
    }

    fn create(&mut self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        match self.0.get(key) {
            Some((_, Some(_))) => Err(StoreError::Exists { key: key.into() }),
            _ => Ok(self.put(key, Some(value))),
        }
    }

    fn update(&mut self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        self.expect(key, revision)?;
        Ok(self.put(key, Some(value)))
    }

    fn delete(&mut self, key: &str, revision: Revision) -> Result<Revision, StoreError> {
        self.expect(key, revision)?;
        Ok(self.put(key, None))
    }
}

impl Store for Stepwise<'_> {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let entries = self.read(key, |shelves| {
            let mut entries = shelves.entries(key);
            entries.retain(|entry| entry.key == key);
            entries
        })?;
        Ok(entries.into_iter().next())
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.read(prefix, |shelves| shelves.entries(prefix))
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        self.write(key, |shelves| shelves.create(key, value))
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        self.write(key, |shelves| shelves.update(key, value, revision))
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        self.write(key, |shelves| shelves.delete(key, revision)).map(drop)
    }
}

/// The shelves as a store without steps, to look at a world and to clean up at its end.
pub struct Whole(pub RefCell<Shelves>);

impl Store for Whole {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        Ok(self.0.borrow().entries(key).into_iter().find(|entry| entry.key == key))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        Ok(self.0.borrow().entries(prefix))
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        self.0.borrow_mut().create(key, value)
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        self.0.borrow_mut().update(key, value, revision)
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        self.0.borrow_mut().delete(key, revision).map(drop)
    }
}
