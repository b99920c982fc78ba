//! Metrics of the Services with the names of kube-proxy, so that its dashboards and alerts fit. They are read when the
//! metrics are read. There is no label `ip_family`: one transaction changes both families.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use podwire_services::{ResponseCounts, ServicesAgent};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::Labels;

pub(super) struct KubeProxyMetrics {
    agent: ServicesAgent,
    registry: Registry,
    last_applied: Gauge<f64, AtomicU64>,
    last_queued: Gauge<f64, AtomicU64>,
    service_events: Counter,
    pending_service_events: Gauge,
    slice_events: Counter,
    pending_slice_events: Gauge,
    without_local: Family<Labels, Gauge>,
    failures: Counter,
    ended_flows: Counter,
    healthz: Family<Labels, Counter>,
    livez: Family<Labels, Counter>,
}

impl KubeProxyMetrics {
    pub(super) fn new(agent: ServicesAgent) -> KubeProxyMetrics {
        let mut metrics = KubeProxyMetrics {
            agent,
            registry: Registry::with_prefix("kubeproxy"),
            last_applied: Gauge::default(),
            last_queued: Gauge::default(),
            service_events: Counter::default(),
            pending_service_events: Gauge::default(),
            slice_events: Counter::default(),
            pending_slice_events: Gauge::default(),
            without_local: Family::default(),
            failures: Counter::default(),
            ended_flows: Counter::default(),
            healthz: Family::default(),
            livez: Family::default(),
        };
        metrics.register_durations();
        metrics.register_rules();
        metrics.register_health();
        metrics
    }

    fn register_durations(&mut self) {
        let (all, measured) = (&mut self.registry, self.agent.measurements());
        let text = "Duration of a comparison of the Services with the kernel";
        all.register_with_unit("sync_proxy_rules_duration", text, Unit::Seconds, measured.sync.clone());
        let text = "Time from the change of a pod or Service to the kernel";
        all.register_with_unit(
            "network_programming_duration",
            text,
            Unit::Seconds,
            measured.programming.clone(),
        );
        let text = "Duration of a search for UDP flows whose endpoint is gone";
        let name = "conntrack_reconciler_sync_duration";
        all.register_with_unit(name, text, Unit::Seconds, measured.conntrack.clone());
        let text = "UDP flows that were ended because their endpoint is gone";
        all.register("conntrack_reconciler_deleted_entries", text, self.ended_flows.clone());
    }

    fn register_rules(&mut self) {
        let all = self.registry.sub_registry_with_prefix("sync_proxy_rules");
        let text = "When the Services were last applied";
        all.register_with_unit("last_timestamp", text, Unit::Seconds, self.last_applied.clone());
        let text = "When the last change of the source arrived";
        all.register_with_unit("last_queued_timestamp", text, Unit::Seconds, self.last_queued.clone());
        all.register("service_changes", "Events about Services", self.service_events.clone());
        let text = "Events about Services that are not in the kernel yet";
        all.register("service_changes_pending", text, self.pending_service_events.clone());
        all.register("endpoint_changes", "Events about EndpointSlices", self.slice_events.clone());
        let text = "Events about EndpointSlices that are not in the kernel yet";
        all.register("endpoint_changes_pending", text, self.pending_slice_events.clone());
        let text = "Service ports with the policy Local whose endpoints are all on other nodes";
        all.register("no_local_endpoints_total", text, self.without_local.clone());
        let text = "Attempts to apply the Services that failed";
        all.register("nftables_sync_failures", text, self.failures.clone());
    }

    fn register_health(&mut self) {
        let all = &mut self.registry;
        all.register("proxy_healthz", "Responses to /healthz, by code", self.healthz.clone());
        all.register("proxy_livez", "Responses to /livez, by code", self.livez.clone());
    }

    /// Appends the metrics to the text.
    pub(super) fn write(&self, text: &mut String) {
        self.update();
        // Writing to a string cannot fail.
        let _ = text::encode_registry(text, &self.registry);
    }

    fn update(&self) {
        let (status, health) = (self.agent.status(), self.agent.health());
        self.last_applied.set(seconds(health.last_applied));
        self.last_queued.set(seconds(health.last_queued));
        for (counter, count) in [
            (&self.service_events, status.service_events.total),
            (&self.slice_events, status.slice_events.total),
            (&self.failures, status.failures),
            (&self.ended_flows, status.ended_flows),
        ] {
            counter.inner().store(count, Ordering::Relaxed);
        }
        self.pending_service_events.set(status.service_events.pending as i64);
        self.pending_slice_events.set(status.slice_events.pending as i64);
        let without = status.without_local;
        for (policy, count) in [("internal", without.internal), ("external", without.external)] {
            self.without_local.get_or_create(&vec![("traffic_policy", policy.to_owned())]).set(count as i64);
        }
        set_codes(&self.healthz, &health.healthz);
        set_codes(&self.livez, &health.livez);
    }
}

fn set_codes(family: &Family<Labels, Counter>, counts: &ResponseCounts) {
    for (code, count) in counts {
        let labels = vec![("code", code.to_string())];
        family.get_or_create(&labels).inner().store(*count, Ordering::Relaxed);
    }
}

/// Seconds since 1970; 0 for never.
fn seconds(time: Option<SystemTime>) -> f64 {
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default().as_secs_f64()
}
