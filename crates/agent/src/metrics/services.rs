//! Metrics of the Services. They are read when the metrics are read.

use std::sync::atomic::{AtomicU64, Ordering};

use podwire_services::ServicesAgent;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

pub(super) struct ServicesMetrics {
    agent: ServicesAgent,
    synced: Gauge,
    frontends: Gauge,
    problems: Gauge,
    changes: Counter,
    repairs: Counter,
    failures: Counter,
    changed_elements: Counter,
    ended_flows: Counter,
    last_change: Gauge<f64, AtomicU64>,
}

impl ServicesMetrics {
    pub(super) fn register(all: &mut Registry, agent: ServicesAgent) -> ServicesMetrics {
        let metrics = ServicesMetrics {
            agent,
            synced: Gauge::default(),
            frontends: Gauge::default(),
            problems: Gauge::default(),
            changes: Counter::default(),
            repairs: Counter::default(),
            failures: Counter::default(),
            changed_elements: Counter::default(),
            ended_flows: Counter::default(),
            last_change: Gauge::default(),
        };
        let all = all.sub_registry_with_prefix("services");
        all.register("synced", "1 if the Services are in the kernel", metrics.synced.clone());
        let text = "Frontends of Services: addresses with a protocol and a port";
        all.register("frontends", text, metrics.frontends.clone());
        all.register("object_problems", "Mistakes in Services and EndpointSlices", metrics.problems.clone());
        all.register("changes", "Changes of the kernel's elements", metrics.changes.clone());
        let text = "Changes that repaired what another program had changed";
        all.register("repairs", text, metrics.repairs.clone());
        all.register("failures", "Attempts to apply the Services that failed", metrics.failures.clone());
        let text = "Elements that were added or deleted";
        all.register("changed_elements", text, metrics.changed_elements.clone());
        let text = "UDP flows that were ended because their endpoint is gone";
        all.register("ended_flows", text, metrics.ended_flows.clone());
        let text = "Time of the last change, from the source to the kernel";
        all.register_with_unit("last_change", text, Unit::Seconds, metrics.last_change.clone());
        metrics
    }

    pub(super) fn update(&self) {
        let status = self.agent.status();
        self.synced.set(status.synced.into());
        self.frontends.set(status.frontends as i64);
        self.problems.set(status.problems.len() as i64);
        for (counter, count) in [
            (&self.changes, status.changes),
            (&self.repairs, status.repairs),
            (&self.failures, status.failures),
            (&self.changed_elements, status.changed_elements),
            (&self.ended_flows, status.ended_flows),
        ] {
            counter.inner().store(count, Ordering::Relaxed);
        }
        self.last_change.set(status.last_change.as_secs_f64());
    }
}
