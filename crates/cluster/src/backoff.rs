//! How long to wait before a server is asked again: 100 ms, twice as long each time, 1.5 s at most, so that a node is itself
//! again within 2 s of its server; and not all nodes at the same moment. A question that is refused costs a server next to
//! nothing, and one that comes back is asked by every node once, however long they waited.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_millis(1500);

/// The next wait.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new()
    }
}

impl Backoff {
    /// Short at first.
    pub fn new() -> Backoff {
        Backoff(FIRST)
    }

    /// It worked: the next trouble is a new one.
    pub fn reset(&mut self) {
        self.0 = FIRST;
    }

    /// How long to wait now: between half and all of the current step, so that a thousand nodes that lost the same server
    /// do not come back together.
    pub fn pause(&mut self) -> Duration {
        let step = self.0;
        self.0 = (step * 2).min(LONGEST);
        step / 2 + step.mul_f64(f64::from(random_u32() >> 1) / f64::from(u32::MAX))
    }

    /// Waits that long.
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

/// For watches of the library.
impl kube::runtime::utils::Backoff for Backoff {
    fn reset(&mut self) {
        Backoff::reset(self);
    }
}

/// A random number. Where the kernel has none to give, which it always has after boot, the middle will do: nothing here is
/// a secret.
pub(crate) fn random_u32() -> u32 {
    getrandom::u32().unwrap_or(u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_second_and_a_half_and_begin_anew() {
        let mut backoff = Backoff::new();
        let waits: Vec<Duration> = (0..10).map(|_| backoff.pause()).collect();
        assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST, "{waits:?}");
        assert!(waits[9] >= LONGEST / 2 && waits[9] <= LONGEST, "{waits:?}");
        backoff.reset();
        assert!(backoff.pause() <= FIRST);
    }
}
