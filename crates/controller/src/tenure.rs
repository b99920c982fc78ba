//! Until when this controller may write. Whoever is about to change a Node object asks here first: a process that was stopped for a
//! minute and goes on must not finish what it was about to do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The end of what the lease allows, shared between who renews it and who works.
#[derive(Clone, Debug)]
pub(crate) struct Tenure(Arc<Mutex<Option<Instant>>>);

impl Tenure {
    /// Until a moment.
    pub fn until(end: Instant) -> Tenure {
        Tenure(Arc::new(Mutex::new(Some(end))))
    }

    /// For ever: nobody else is there.
    pub fn endless() -> Tenure {
        Tenure(Arc::new(Mutex::new(None)))
    }

    /// It was renewed.
    pub fn extend(&self, end: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    /// When it ends, if it does.
    pub fn end(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has not ended.
    pub fn holds(&self) -> bool {
        self.end().is_none_or(|end| Instant::now() < end)
    }
}
