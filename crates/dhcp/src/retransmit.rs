//! Retransmission: waits that double, with jitter so that pods that start together do not send together.

use std::time::Duration;

/// Random numbers for waits and transaction ids. Only the ids should be hard to guess; the seed comes from the kernel's random
/// numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The same seed gives the same sequence.
    pub fn seeded(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next number (splitmix64).
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `time` plus or minus a random share of it.
    fn jitter(&mut self, time: Duration, share: f64) -> Duration {
        let random = (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64; // 0 to 1
        time.mul_f64(1.0 + share * (2.0 * random - 1.0))
    }
}

/// The limits of waits, from the daemon's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The longest wait between two transmissions.
    pub max: Duration,
    /// How long a server may take to confirm its offer.
    pub answer: Duration,
}

/// How often a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first transmission.
    pub initial: Duration,
    /// The longest wait.
    pub max: Duration,
    /// The largest number of transmissions.
    pub tries: u32,
}

impl Backoff {
    /// The wait after the `sent`-th transmission.
    pub fn wait(&self, sent: u32, rng: &mut Rng) -> Duration {
        let doubled = self.initial.saturating_mul(1 << sent.saturating_sub(1).min(16));
        rng.jitter(doubled.min(self.max), 0.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum_with_jitter() {
        let backoff =
            Backoff { initial: Duration::from_secs(1), max: Duration::from_secs(62), tries: u32::MAX };
        let mut rng = Rng::seeded(1);
        for (sent, about) in [(1, 1.0), (2, 2.0), (3, 4.0), (7, 62.0), (40, 62.0), (u32::MAX, 62.0)] {
            let wait = backoff.wait(sent, &mut rng).as_secs_f64();
            assert!((about * 0.8..=about * 1.2).contains(&wait), "after {sent}: {wait}");
        }
        assert_ne!(backoff.wait(1, &mut rng), backoff.wait(1, &mut rng));
    }
}
