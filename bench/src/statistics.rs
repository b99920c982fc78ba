//! Latency percentiles, and the rows of a report.

use serde::Serialize;

/// A distribution of latencies, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// The number of operations.
    pub count: usize,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The highest.
    pub max: f64,
    /// The mean.
    pub mean: f64,
}

impl Distribution {
    /// The distribution of these samples, which may be in any order.
    pub fn of(samples: &[f64]) -> Distribution {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let Some(&max) = sorted.last() else { return Distribution::default() };
        // The nearest rank: a percentile is always one of the samples.
        let rank =
            |share: f64| sorted[((share * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len()) - 1];
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        Distribution { count: sorted.len(), p50: rank(0.50), p90: rank(0.90), p99: rank(0.99), max, mean }
    }
}

/// The measurements of one variant for one verb.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The verb; for VERSION, with the plugin's name.
    pub verb: String,
    /// The variant's name.
    pub variant: String,
    /// Microseconds of an operation.
    pub latency: Distribution,
    /// Operations per second of this variant's own turns.
    pub per_second: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let d = Distribution::of(&samples);
        assert_eq!((d.count, d.p50, d.p90, d.p99, d.max, d.mean), (200, 100.0, 180.0, 198.0, 200.0, 100.5));
        assert_eq!(Distribution::of(&[7.0]).p99, 7.0);
        assert_eq!(Distribution::of(&[]), Distribution::default());
    }
}
