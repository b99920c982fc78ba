//! The delay between attempts: 100 ms, doubled up to 1.5 s, so that a node recovers within 2 s of its server, with
//! jitter so that not all nodes ask at the same moment. A refused connection costs a server next to nothing, and a
//! server that comes back gets one request from each node, no matter how long the nodes waited.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(100);
const MAX: Duration = Duration::from_millis(1500);

/// How long a watch must have worked before its next failure counts as the first.
const STABLE: Duration = Duration::from_secs(10);

/// Exponential backoff with jitter.
#[derive(Debug)]
pub struct Backoff {
    step: Duration,
    /// When the last delay was requested.
    failed: Option<Instant>,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new()
    }
}

impl Backoff {
    /// Starts at the shortest delay.
    pub fn new() -> Backoff {
        Backoff { step: FIRST, failed: None }
    }

    /// Call this after a success: the next delay is the shortest again.
    pub fn reset(&mut self) {
        self.step = FIRST;
    }

    /// The next delay: between half and all of the current step, so that a thousand nodes that lost the same server do
    /// not come back together.
    pub fn pause(&mut self) -> Duration {
        let step = self.step;
        self.step = (step * 2).min(MAX);
        self.failed = Some(Instant::now());
        step / 2 + step.mul_f64(f64::from(random_u32() >> 1) / f64::from(u32::MAX))
    }

    /// Sleeps for the next delay.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.pause()).await;
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.pause())
    }
}

/// For `kube`'s watches. A watch reports the beginning of a list before it requests the list, and resets the delay with
/// each report. If that counted, a list that fails would be requested ten times a second for ever.
impl kube::runtime::utils::Backoff for Backoff {
    fn reset(&mut self) {
        if self.failed.is_none_or(|when| when.elapsed() >= STABLE) {
            Backoff::reset(self);
        }
    }
}

/// A random number for jitter, not for secrets. If the kernel has none, which cannot happen after boot, the middle of
/// the range.
pub fn random_u32() -> u32 {
    getrandom::u32().unwrap_or(u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_second_and_a_half_and_start_over_after_a_reset() {
        let mut backoff = Backoff::new();
        let delays: Vec<Duration> = (0..10).map(|_| backoff.pause()).collect();
        assert!(delays[0] >= FIRST / 2 && delays[0] <= FIRST, "{delays:?}");
        assert!(delays[9] >= MAX / 2 && delays[9] <= MAX, "{delays:?}");
        backoff.reset();
        assert!(backoff.pause() <= FIRST);
    }
}
