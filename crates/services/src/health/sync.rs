//! Whether changes of the source reach the kernel in time.

use std::time::{Duration, Instant, SystemTime};

/// A change that is not in the kernel after this time means that the Services are not healthy, as in kube-proxy.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// The time of two clocks: one to measure with, one to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    pub monotonic: Instant,
    pub wall: SystemTime,
}

impl Now {
    pub fn read() -> Now {
        Now { monotonic: Instant::now(), wall: SystemTime::now() }
    }
}

/// When the source changed, and when the kernel followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SyncTimes {
    /// The source has listed all kinds. Changes before that need not be applied.
    is_complete: bool,
    oldest_pending: Option<Instant>,
    last_queued: Option<SystemTime>,
    last_applied: Option<SystemTime>,
}

impl SyncTimes {
    /// The source has listed all kinds.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// There is a change. The sender of a change calls it, so that a hanging reconciler is noticed; the reconciler calls it
    /// too when it receives the change, because the change before may have been applied meanwhile.
    pub fn queued(&mut self, now: Now) {
        if self.is_complete {
            self.oldest_pending.get_or_insert(now.monotonic);
            self.last_queued = Some(now.wall);
        }
    }

    /// All changes that the reconciler has received are in the kernel.
    pub fn applied(&mut self, now: Now) {
        self.oldest_pending = None;
        self.last_applied = Some(now.wall);
    }

    pub fn is_healthy(&self, now: Now) -> bool {
        let delay = |since: Instant| now.monotonic.saturating_duration_since(since);
        self.oldest_pending.is_none_or(|since| delay(since) < MAX_DELAY)
    }

    pub fn last_queued(&self) -> Option<SystemTime> {
        self.last_queued
    }

    pub fn last_applied(&self) -> Option<SystemTime> {
        self.last_applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds after the start of the test.
    fn at(start: Now, seconds: u64) -> Now {
        let later = Duration::from_secs(seconds);
        Now { monotonic: start.monotonic + later, wall: start.wall + later }
    }

    #[test]
    fn the_oldest_pending_change_decides() {
        let start = Now::read();
        let at = |seconds| at(start, seconds);
        let mut times = SyncTimes::default();
        times.queued(at(0));
        assert!(times.is_healthy(at(1000)), "the source is not complete");
        times.complete();
        times.queued(at(1000));
        times.queued(at(1050));
        assert!(times.is_healthy(at(1059)));
        assert!(!times.is_healthy(at(1060)));
        assert_eq!((times.last_queued(), times.last_applied()), (Some(at(1050).wall), None));
        times.applied(at(1070));
        assert!(times.is_healthy(at(9000)), "nothing is pending");
        times.queued(at(9000));
        assert!(times.is_healthy(at(9059)));
        assert!(!times.is_healthy(at(9061)));
        assert_eq!(times.last_applied(), Some(at(1070).wall));
    }
}
