//! Pseudo-random choices, which a seed repeats.

/// SplitMix64 of Steele, Lea and Flood.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The choices of the worker with this number. Each worker of a seed has others.
    pub fn new(seed: u64, worker: u64) -> Random {
        Random(seed ^ worker.wrapping_mul(0xa076_1d64_78bd_642f))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number that is smaller than `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % (end as u64).max(1)) as usize
    }

    /// True with this probability in percent.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A random element, if there are any.
    pub fn pick<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        all.get(self.below(all.len())).cloned()
    }

    /// A random element. The number of each element is its weight.
    pub fn pick_weighted<T: Copy>(&mut self, all: &[(usize, T)]) -> T {
        let mut at = self.below(all.iter().map(|(weight, _)| weight).sum());
        for (weight, one) in all {
            match at.checked_sub(*weight) {
                Some(left) => at = left,
                None => return *one,
            }
        }
        all[0].1
    }
}
