//! Durations, with the buckets of kube-proxy's metrics.

use prometheus_client::metrics::histogram::{exponential_buckets, Histogram};

/// What the reconciler measures. Clones share their values.
#[derive(Clone, Debug)]
pub struct Measurements {
    /// The duration of a reconcile.
    pub sync: Histogram,
    /// The time from the change of a pod to the kernel.
    pub programming: Histogram,
    /// The duration of a search for UDP flows that must end.
    pub conntrack: Histogram,
}

impl Default for Measurements {
    fn default() -> Measurements {
        Measurements {
            sync: Histogram::new(milliseconds()),
            programming: Histogram::new(seconds()),
            conntrack: Histogram::new(milliseconds()),
        }
    }
}

/// From 1 ms to 16 s.
fn milliseconds() -> impl Iterator<Item = f64> {
    exponential_buckets(0.001, 2.0, 15)
}

/// From 0.25 s to 5 min: each second of the first minute, then every 5 and every 30 s.
fn seconds() -> impl Iterator<Item = f64> {
    let whole = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(whole.map(f64::from))
}
