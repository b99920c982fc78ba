//! A store whose operations the explorer does one at a time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use podwire_block_ipam::store::{Entry, Revision, Store, StoreError};

/// The state of the store: for each key its revision, which counts its writes, and its value. The revision survives a
/// deletion. Revisions of different keys are independent, so that worlds that differ only in the order of writes to
/// different keys are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoreState(BTreeMap<Rc<str>, Slot>, Counted);

/// Which writes change the revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counted {
    /// All, as in SQLite and etcd.
    #[default]
    Writes,
    /// Those that change something, as in the Kubernetes API.
    Changes,
}

/// The revision of a key, and its value if it has one.
type Slot = (u64, Option<Rc<[u8]>>);

/// An operation of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Get(String),
    List(String),
    Keys(String),
    Create(String, Vec<u8>),
    Update(String, Vec<u8>, Revision),
    Delete(String, Revision),
}

/// The response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Entries(Result<Vec<Entry>, StoreError>),
    Keys(Result<Vec<String>, StoreError>),
    Written(Result<Revision, StoreError>),
}

impl Operation {
    pub fn is_write(&self) -> bool {
        !matches!(self, Operation::Get(_) | Operation::List(_) | Operation::Keys(_))
    }

    fn key(&self) -> &str {
        match self {
            Operation::Get(key)
            | Operation::List(key)
            | Operation::Keys(key)
            | Operation::Create(key, _)
            | Operation::Update(key, ..)
            | Operation::Delete(key, _) => key,
        }
    }

    /// The response is lost: the operation may or may not have been done.
    pub fn unanswered(&self, why: &str) -> Answer {
        let key = self.key().to_owned();
        let error = StoreError::Unavailable { store: "model".into(), verb: "answer", key, why: why.into() };
        match self {
            Operation::Get(_) | Operation::List(_) => Answer::Entries(Err(error)),
            Operation::Keys(_) => Answer::Keys(Err(error)),
            _ => Answer::Written(Err(error)),
        }
    }
}

impl StoreState {
    pub fn new(counted: Counted) -> StoreState {
        StoreState(BTreeMap::new(), counted)
    }

    pub fn entries(&self, prefix: &str) -> Vec<Entry> {
        let from = self
            .0
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix));
        from.filter_map(|(key, (revision, value))| {
            Some(Entry {
                key: key.to_string(),
                value: value.as_ref()?.to_vec(),
                revision: Revision(*revision),
            })
        })
        .collect()
    }

    pub fn apply(&mut self, operation: &Operation) -> Answer {
        let key = operation.key();
        let there =
            self.0.get(key).filter(|(_, value)| value.is_some()).map(|(revision, _)| Revision(*revision));
        let expected = |revision: &Revision| match there {
            Some(now) if now == *revision => Ok(()),
            Some(_) => Err(StoreError::Changed { key: key.into() }),
            None => Err(StoreError::Missing { key: key.into() }),
        };
        let written = match operation {
            Operation::List(prefix) => return Answer::Entries(Ok(self.entries(prefix))),
            Operation::Keys(prefix) => {
                return Answer::Keys(Ok(self.entries(prefix).into_iter().map(|entry| entry.key).collect()))
            }
            Operation::Get(key) => {
                let mut found = self.entries(key);
                found.retain(|entry| entry.key == *key);
                return Answer::Entries(Ok(found));
            }
            Operation::Create(..) if there.is_some() => Err(StoreError::Exists { key: key.into() }),
            Operation::Create(_, value) => Ok(Some(value)),
            Operation::Update(_, value, revision) => expected(revision).map(|()| Some(value)),
            Operation::Delete(_, revision) => expected(revision).map(|()| None),
        };
        Answer::Written(written.map(|value| {
            let entry = self.0.entry(key.into()).or_default();
            let is_idle = value.is_some() && entry.1.as_deref() == value.map(Vec::as_slice);
            if !is_idle || self.1 == Counted::Writes {
                *entry = (entry.0 + 1, value.map(|value| value.as_slice().into()));
            }
            Revision(entry.0)
        }))
    }
}

/// Something that executes operations.
trait Oracle {
    fn ask(&self, operation: Operation) -> Answer;
}

/// A node's store during one run of its program. It answers from a log, and aborts the program at its end.
pub struct Stepwise {
    log: Vec<Answer>,
    place: Cell<usize>,
    /// The operation after the end of the log.
    pub next: RefCell<Option<Operation>>,
}

const CUT_OFF: &str = "cut off";
const ALWAYS_THE_SAME: &str = "a program must be deterministic";

impl Stepwise {
    pub fn new(log: Vec<Answer>) -> Stepwise {
        Stepwise { log, place: Cell::new(0), next: RefCell::new(None) }
    }

    /// The number of operations that the node has done, for its clock.
    pub fn steps(&self) -> u64 {
        self.place.get() as u64
    }
}

impl Oracle for Stepwise {
    fn ask(&self, operation: Operation) -> Answer {
        let place = self.place.replace(self.place.get() + 1);
        if let Some(answer) = self.log.get(place) {
            return answer.clone();
        }
        let answer = operation.unanswered(CUT_OFF);
        self.next.borrow_mut().get_or_insert(operation);
        answer
    }
}

/// The shared state as an ordinary store, to examine a world and to clean up at its end.
pub struct Whole(pub RefCell<StoreState>);

impl Oracle for Whole {
    fn ask(&self, operation: Operation) -> Answer {
        self.0.borrow_mut().apply(&operation)
    }
}

macro_rules! stores {
    ($($oracle:ty),*) => {$(
        impl Store for $oracle {
            fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
                Ok(entries(self.ask(Operation::Get(key.into())))?.into_iter().next())
            }

            fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
                entries(self.ask(Operation::List(prefix.into())))
            }

            fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
                match self.ask(Operation::Keys(prefix.into())) {
                    Answer::Keys(keys) => keys,
                    _ => panic!("{ALWAYS_THE_SAME}"),
                }
            }

            fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
                written(self.ask(Operation::Create(key.into(), value.into())))
            }

            fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
                written(self.ask(Operation::Update(key.into(), value.into(), revision)))
            }

            fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
                written(self.ask(Operation::Delete(key.into(), revision))).map(drop)
            }
        }
    )*};
}

stores!(Stepwise, Whole);

fn entries(answer: Answer) -> Result<Vec<Entry>, StoreError> {
    match answer {
        Answer::Entries(entries) => entries,
        _ => panic!("{ALWAYS_THE_SAME}"),
    }
}

fn written(answer: Answer) -> Result<Revision, StoreError> {
    match answer {
        Answer::Written(written) => written,
        _ => panic!("{ALWAYS_THE_SAME}"),
    }
}
