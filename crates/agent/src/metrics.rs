//! Numbers for Prometheus.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{exponential_buckets, Histogram};
use prometheus_client::registry::{Registry, Unit};

/// What is counted.
pub(crate) struct Metrics {
    registry: Registry,
    pub ready: Gauge,
    pub peers: Gauge,
    pub refused: Gauge,
    pub source_current: Gauge,
    pub range_addresses: Gauge<f64, AtomicU64>,
    pub changes: Counter,
    pub comparisons: Counter,
    pub failures: Counter,
    comparison: Histogram,
    convergence: Histogram,
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut registry = Registry::with_prefix("podwire_agent");
        let seconds = || Histogram::new(exponential_buckets(0.000_5, 2.0, 16));
        let metrics = Metrics {
            ready: Gauge::default(),
            peers: Gauge::default(),
            refused: Gauge::default(),
            source_current: Gauge::default(),
            range_addresses: Gauge::default(),
            changes: Counter::default(),
            comparisons: Counter::default(),
            failures: Counter::default(),
            comparison: seconds(),
            convergence: seconds(),
            registry: Registry::default(),
        };
        registry.register("ready", "1 if pods may come", metrics.ready.clone());
        registry.register("peers", "Nodes with a road", metrics.peers.clone());
        registry.register("refused_peers", "Nodes without a road", metrics.refused.clone());
        let text = "1 if the source of nodes answers";
        registry.register("source_current", text, metrics.source_current.clone());
        let text = "Addresses in this node's range";
        registry.register("range_addresses", text, metrics.range_addresses.clone());
        registry.register(
            "kernel_changes",
            "Objects that were added, changed or removed",
            metrics.changes.clone(),
        );
        registry.register(
            "comparisons",
            "Comparisons of what is wanted with the kernel",
            metrics.comparisons.clone(),
        );
        registry.register("failures", "Comparisons that failed", metrics.failures.clone());
        let text = "Time of one comparison";
        registry.register_with_unit("comparison", text, Unit::Seconds, metrics.comparison.clone());
        let text = "Time from a change at the source to the kernel";
        registry.register_with_unit("convergence", text, Unit::Seconds, metrics.convergence.clone());
        Metrics { registry, ..metrics }
    }

    pub fn compared(&self, took: Duration, changes: usize) {
        self.comparisons.inc();
        self.changes.inc_by(changes as u64);
        self.comparison.observe(took.as_secs_f64());
    }

    pub fn converged(&self, took: Duration) {
        self.convergence.observe(took.as_secs_f64());
    }

    /// In Prometheus' text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}
