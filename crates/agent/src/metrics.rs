//! Numbers for Prometheus.

mod policies;
mod routed;

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use podwire_cni_plugin::stopwatch::Call;
use podwire_overlay::Objects;
use podwire_policy_agent::PolicyAgent;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{exponential_buckets, Histogram};
use prometheus_client::registry::{Registry, Unit};

use policies::Policies;
pub(crate) use routed::Routed;

/// Names and values of what tells numbers of one kind apart.
type Labels = Vec<(&'static str, String)>;

/// What is counted.
pub(crate) struct Metrics {
    registry: Registry,
    pub ready: Gauge,
    pub peers: Gauge,
    pub refused: Gauge,
    pub source_current: Gauge,
    pub range_addresses: Gauge<f64, AtomicU64>,
    pub taken_addresses: Gauge,
    objects: Family<Labels, Gauge>,
    pub changes: Counter,
    pub comparisons: Counter,
    pub failures: Counter,
    comparison: Histogram,
    convergence: Histogram,
    calls: Family<Labels, Histogram, fn() -> Histogram>,
    call_failures: Family<Labels, Counter>,
    policies: Policies,
    asked: Mutex<()>,
}

/// From half a millisecond to sixteen seconds.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_5, 2.0, 16))
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut metrics = Metrics {
            ready: Gauge::default(),
            peers: Gauge::default(),
            refused: Gauge::default(),
            source_current: Gauge::default(),
            range_addresses: Gauge::default(),
            taken_addresses: Gauge::default(),
            objects: Family::default(),
            changes: Counter::default(),
            comparisons: Counter::default(),
            failures: Counter::default(),
            comparison: seconds(),
            convergence: seconds(),
            calls: Family::new_with_constructor(seconds),
            call_failures: Family::default(),
            policies: Policies::default(),
            asked: Mutex::default(),
            registry: Registry::default(),
        };
        metrics.registry = metrics.register();
        metrics
    }

    fn register(&self) -> Registry {
        let mut all = Registry::with_prefix("podwire_agent");
        all.register("ready", "1 if pods may come", self.ready.clone());
        all.register("peers", "Nodes with a road", self.peers.clone());
        all.register("refused_peers", "Nodes without a road", self.refused.clone());
        all.register("source_current", "1 if the source of nodes answers", self.source_current.clone());
        all.register("range_addresses", "Addresses in this node's range", self.range_addresses.clone());
        let text = "Addresses of this node's range that pods have";
        all.register("range_addresses_taken", text, self.taken_addresses.clone());
        all.register("kernel_objects", "Objects of ours in the kernel, by kind", self.objects.clone());
        let text = "Objects that were added, changed or removed";
        all.register("kernel_changes", text, self.changes.clone());
        let text = "Comparisons of what is wanted with the kernel";
        all.register("comparisons", text, self.comparisons.clone());
        all.register("failures", "Comparisons that failed", self.failures.clone());
        let text = "Time of one comparison";
        all.register_with_unit("comparison", text, Unit::Seconds, self.comparison.clone());
        let text = "Time from a change at the source to the kernel";
        all.register_with_unit("convergence", text, Unit::Seconds, self.convergence.clone());
        let text =
            "Time of a plugin's call, by verb and plugin; a plugin's time has that of its delegates in it";
        all.register_with_unit("plugin_call", text, Unit::Seconds, self.calls.clone());
        let text = "Calls of plugins that failed, by verb, plugin and the error's code";
        all.register("plugin_call_failures", text, self.call_failures.clone());
        all
    }

    pub fn compared(&self, took: Duration, changes: usize) {
        self.comparisons.inc();
        self.changes.inc_by(changes as u64);
        self.comparison.observe(took.as_secs_f64());
    }

    pub fn converged(&self, took: Duration) {
        self.convergence.observe(took.as_secs_f64());
    }

    pub fn holds(&self, objects: &Objects) {
        let Objects { devices, routes, neighbours, forwarding } = *objects;
        let kinds =
            [("device", devices), ("route", routes), ("neighbour", neighbours), ("forwarding", forwarding)];
        for (kind, count) in kinds {
            self.objects.get_or_create(&vec![("kind", kind.to_owned())]).set(count as i64);
        }
    }

    pub fn called(&self, call: &Call) {
        let mut labels = vec![("verb", call.verb.clone()), ("plugin", call.plugin.clone())];
        self.calls.get_or_create(&labels).observe(call.took.as_secs_f64());
        if call.code != 0 {
            labels.push(("code", call.code.to_string()));
            self.call_failures.get_or_create(&labels).inc();
        }
    }

    /// From now on there are numbers of policies too.
    pub fn with_policies(mut self) -> Metrics {
        self.policies.register(&mut self.registry);
        self
    }

    /// In Prometheus' text format, with what the policy_agent knows at this moment. One asks after the other, so that nobody sees
    /// half of what is read for another.
    pub fn text(&self, policy_agent: Option<&PolicyAgent>) -> String {
        let _alone = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(policy_agent) = policy_agent {
            self.policies.read(policy_agent);
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}
