//! The time until which this controller may write.
//!
//! Every write checks it first: a process that was suspended for a minute must not finish a write that it began before.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The end of the held lease, shared between the election, which extends it, and the leader's tasks.
#[derive(Clone, Debug)]
pub(crate) struct LeaseDeadline(Arc<Mutex<Option<Instant>>>);

impl LeaseDeadline {
    pub fn at(end: Instant) -> LeaseDeadline {
        LeaseDeadline(Arc::new(Mutex::new(Some(end))))
    }

    /// No deadline: leader election is off.
    pub fn never() -> LeaseDeadline {
        LeaseDeadline(Arc::new(Mutex::new(None)))
    }

    /// Sets the end of the renewed lease.
    pub fn extend(&self, end: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    pub fn end(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the lease is still held.
    pub fn is_held(&self) -> bool {
        self.end().is_none_or(|end| Instant::now() < end)
    }
}
