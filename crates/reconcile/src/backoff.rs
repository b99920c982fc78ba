//! The pause after a failure of a daemon part that does not reconcile the kernel.

use std::time::Duration;

/// A pause that doubles with each failure, from 100 ms to 1.5 s: a node repairs everything within 2 s after the cause
/// is gone.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Backoff {
    const MIN: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_millis(1500);

    /// The next pause is the shortest.
    pub fn new() -> Backoff {
        Backoff(Backoff::MIN)
    }

    /// The pause after one more failure.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(Backoff::MAX);
        pause
    }

    /// Call it after a success.
    pub fn reset(&mut self) {
        *self = Backoff::new();
    }
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new()
    }
}
