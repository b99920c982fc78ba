//! The outcome of a benchmark: samples, targets and the exit status.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;

/// Runs a benchmark. Exit status 0: all well; 1: a promise was not kept, and promises are enforced; 2: it could not
/// run.
pub fn run(name: &str, enforce: bool, bench: impl FnOnce() -> Result<Promises>) -> ExitCode {
    match bench() {
        Ok(promises) => ExitCode::from(u8::from(enforce && promises.broken > 0)),
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Targets; each result is printed when it is judged.
#[derive(Debug, Default)]
pub struct Promises {
    broken: usize,
}

impl Promises {
    /// Says whether one was kept.
    pub fn judge(&mut self, kept: bool, text: &str) {
        self.broken += usize::from(!kept);
        println!("  {}  {text}", if kept { "PASS" } else { "MISS" });
    }
}

/// What was measured again and again.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// One more.
    pub fn add(&mut self, sample: f64) {
        let place = self.0.partition_point(|other| *other < sample);
        self.0.insert(place, sample);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The sample that this share of all is not above; not a number if there is none.
    pub fn share(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }

    /// The one in the middle.
    pub fn median(&self) -> f64 {
        self.share(0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_sorted() {
        let mut samples = Samples::default();
        assert!(samples.median().is_nan());
        [3.0, 1.0, 2.0, 5.0, 4.0].into_iter().for_each(|sample| samples.add(sample));
        assert_eq!((samples.count(), samples.median(), samples.share(1.0)), (5, 3.0, 5.0));
    }
}
