//! The outcome of a benchmark: samples, targets and the exit status.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;

/// Runs a benchmark. The exit status is 1 if `enforce` is set and a target was missed, 2 if the benchmark could not
/// run, otherwise 0.
pub fn run(name: &str, enforce: bool, bench: impl FnOnce() -> Result<Targets>) -> ExitCode {
    match bench() {
        Ok(targets) => ExitCode::from(u8::from(enforce && targets.missed > 0)),
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Counts and prints which targets are met.
#[derive(Debug, Default)]
pub struct Targets {
    missed: usize,
}

impl Targets {
    /// Prints a target with its measurement.
    pub fn report(&mut self, is_met: bool, text: &str) {
        self.missed += usize::from(!is_met);
        println!("  {}  {text}", if is_met { "PASS" } else { "MISS" });
    }
}

/// The samples of one measurement, sorted.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds a sample.
    pub fn add(&mut self, sample: f64) {
        let at = self.0.partition_point(|other| *other < sample);
        self.0.insert(at, sample);
    }

    /// The number of samples.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The quantile of this share: 0.9 is the 90th percentile, 1 the maximum. NaN without samples.
    pub fn quantile(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }

    /// The median.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
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
        assert_eq!((samples.count(), samples.median(), samples.quantile(1.0)), (5, 3.0, 5.0));
    }
}
