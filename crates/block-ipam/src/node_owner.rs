//! The owner of a node's blocks: at most one process for each node name.
//!
//! Two agents with the name of one node would take the same addresses from its warm pool. So an agent writes a record
//! with its identity before it assigns anything, and renews it. While the record changes, another process is refused,
//! and one that had the node and finds another process's record has lost it.
//!
//! A record that has not changed for [`Ownership::DURATION`] has expired. Each process measures this time by itself,
//! because clocks of machines differ. Direct requests without an agent need no record: they take nothing in advance.
//!
//! A process that starts again with the same state directory need not wait, because the process before it has ended:
//!
//! - In one boot of the machine it takes the node at once. If a copy of the directory is in use there, the older process
//!   finds the record of the newer one, and stops.
//! - In another boot the record may be of a machine with a copy of the disk that still runs. So it must have been
//!   silent for half of the duration, by the time in it or as seen by this process.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::store::{Entry, Revision, Store, StoreError};
use crate::timestamp::Timestamp;
use crate::{json, Error};

/// How often the record is written, if other processes are faster.
const ATTEMPTS: usize = 5;

/// The identity of a process that owns a node's blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeOwner {
    /// The id of its state directory.
    pub id: String,
    /// The host's name.
    pub host: String,
    /// The machine's id; empty if it has none.
    pub machine_id: String,
    /// The id of the boot.
    pub boot_id: String,
    /// A random id of the process: in containers, process ids are alike.
    pub run_id: String,
    /// The process id.
    pub pid: u32,
    /// When it started.
    pub since: String,
}

impl NodeOwner {
    /// Whether both have one state directory, or copies of it on machines with the same id.
    fn is_same_origin(&self, other: &NodeOwner) -> bool {
        self.id == other.id && self.machine_id == other.machine_id
    }
}

impl fmt::Display for NodeOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeOwner { host, machine_id, boot_id, pid, since, .. } = self;
        write!(f, "process {pid} on host {host:?} (machine {machine_id:?}, boot {boot_id:?}) since {since}")
    }
}

/// The record in the store.
#[derive(Default, Serialize, Deserialize)]
struct Claim {
    #[serde(flatten)]
    owner: NodeOwner,
    /// When it was renewed. A write must change the value: otherwise a store may keep the revision.
    #[serde(default)]
    renewed: String,
}

/// This process's claim to a node's blocks.
#[derive(Debug)]
pub struct Ownership {
    node: String,
    own: NodeOwner,
    duration: Duration,
    /// The record that this process has written, and when.
    held: Option<(Revision, Instant)>,
    /// Whether this process has ever held the claim.
    was_held: bool,
    /// The record of another process, and since when it has not changed.
    seen: Option<(Revision, Instant)>,
}

impl Ownership {
    /// How long a claim is respected after its last renewal.
    pub const DURATION: Duration = Duration::from_secs(60);

    /// A claim that is not made yet.
    pub fn new(node: &str, own: NodeOwner, duration: Duration) -> Ownership {
        Ownership { node: node.to_owned(), own, duration, held: None, was_held: false, seen: None }
    }

    /// The interval of renewals.
    pub fn interval(&self) -> Duration {
        self.duration / 4
    }

    /// The time until the next renewal; zero if the claim is not made.
    pub fn until_renewal(&self) -> Duration {
        let left = |(_, written): &(Revision, Instant)| self.interval().saturating_sub(written.elapsed());
        self.held.as_ref().map_or(Duration::ZERO, left)
    }

    /// Makes the claim, or renews it if it is time to. Fails with [`Error::NodeOwned`] if another process has the node.
    pub fn hold(&mut self, store: &dyn Store) -> Result<(), Error> {
        if !self.until_renewal().is_zero() {
            return Ok(());
        }
        let key = Key::NodeOwner(self.node.clone()).to_string();
        if let Some((revision, _)) = self.held {
            match store.update(&key, &self.value()?, revision) {
                Err(error) if error.is_conflict() => {}
                written => return written.map(|revision| self.note(revision)).map_err(Error::from),
            }
        }
        for _ in 0..ATTEMPTS {
            match self.write(store, &key)? {
                Err(error) if error.is_conflict() => {}
                written => return written.map(|revision| self.note(revision)).map_err(Error::from),
            }
        }
        Err(Error::Busy { what: format!("claiming node {}", self.node) })
    }

    /// Deletes the record of a node that is gone.
    pub(super) fn delete(store: &dyn Store, node: &str) -> Result<(), Error> {
        let key = Key::NodeOwner(node.to_owned()).to_string();
        let Some(entry) = store.get(&key)? else { return Ok(()) };
        match store.delete(&key, entry.revision) {
            Err(error) if !error.is_conflict() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Writes the record if it is missing, or of a process that has ended.
    fn write(&mut self, store: &dyn Store, key: &str) -> Result<Result<Revision, StoreError>, Error> {
        let Some(entry) = store.get(key)? else {
            return Ok(store.create(key, &self.value()?));
        };
        let claim: Claim = serde_json::from_slice(&entry.value).unwrap_or_default();
        if !self.may_replace(&claim, &entry) {
            self.held = None;
            return Err(Error::NodeOwned { node: self.node.clone(), owner: Box::new(claim.owner) });
        }
        Ok(store.update(key, &self.value()?, entry.revision))
    }

    fn may_replace(&mut self, Claim { owner, renewed }: &Claim, entry: &Entry) -> bool {
        // The response of a write was lost.
        if *owner == self.own {
            return true;
        }
        let silence = self.silence(entry);
        if !owner.is_same_origin(&self.own) || self.was_held {
            return silence >= self.duration;
        }
        // The clock of a machine that has started again, not that of another one.
        let age = Timestamp::parse_rfc3339(renewed).map_or(0, |then| Timestamp::now().seconds_since(then));
        owner.boot_id == self.own.boot_id || silence.max(Duration::from_secs(age)) >= self.duration / 2
    }

    /// How long this process has seen the record unchanged.
    fn silence(&mut self, entry: &Entry) -> Duration {
        match self.seen {
            Some((revision, since)) if revision == entry.revision => since.elapsed(),
            _ => {
                self.seen = Some((entry.revision, Instant::now()));
                Duration::ZERO
            }
        }
    }

    fn note(&mut self, written: Revision) {
        (self.held, self.was_held) = (Some((written, Instant::now())), true);
    }

    fn value(&self) -> Result<Vec<u8>, Error> {
        let claim = Claim { owner: self.own.clone(), renewed: Timestamp::now().rfc3339() };
        json::encode(&claim).map_err(|error| Error::Malformed {
            key: Key::NodeOwner(self.node.clone()).to_string(),
            why: error.to_string(),
        })
    }
}
