//! When to say it again: waits that double, each a little random so that pods that start together do not speak together.

use std::time::Duration;

/// Random numbers for waits and transaction ids. Nothing secret depends on them but the ids, which are seeded by the
/// kernel's own randomness.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The same seed always throws the same.
    pub fn seeded(seed: u64) -> Dice {
        Dice(seed)
    }

    /// The next number (splitmix64).
    pub fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `time` give or take a share of it.
    fn around(&mut self, time: Duration, share: f64) -> Duration {
        let throw = (self.throw() >> 11) as f64 / (1u64 << 53) as f64; // 0 to 1
        time.mul_f64(1.0 + share * (2.0 * throw - 1.0))
    }
}

/// How often something is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The wait after the first time.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
    /// How often it is said at most.
    pub times: u32,
}

impl Pace {
    /// The wait after it was said `said` times.
    pub fn wait(&self, said: u32, dice: &mut Dice) -> Duration {
        let doubled = self.first.saturating_mul(1 << said.saturating_sub(1).min(16));
        dice.around(doubled.min(self.longest), 0.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_are_never_quite_the_same() {
        let pace = Pace { first: Duration::from_secs(1), longest: Duration::from_secs(62), times: u32::MAX };
        let mut dice = Dice::seeded(1);
        for (said, about) in [(1, 1.0), (2, 2.0), (3, 4.0), (7, 62.0), (40, 62.0), (u32::MAX, 62.0)] {
            let wait = pace.wait(said, &mut dice).as_secs_f64();
            assert!((about * 0.8..=about * 1.2).contains(&wait), "after {said}: {wait}");
        }
        assert_ne!(pace.wait(1, &mut dice), pace.wait(1, &mut dice));
    }
}
