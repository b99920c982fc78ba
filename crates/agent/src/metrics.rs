//! Prometheus metrics of both modes, with the prefix `podwire_agent_`; those of Services also with kube-proxy's names.
//!
//! Gauges are set from the [`Status`] when the metrics are read. Counters and histograms are updated when something
//! happens.

mod calico;
mod fast_path;
mod flannel;
mod kube_proxy;
mod pods;
mod policies;
mod services;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use podwire_agent_ipc::status::{Mode, Phase, Status};
use podwire_fast_path::FastPath;
use podwire_overlay::ObjectCounts;
use podwire_policy_agent::PolicyAgent;
use podwire_services::ServicesAgent;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{exponential_buckets, Histogram};
use prometheus_client::registry::{Registry, Unit};

use calico::CalicoMetrics;
use fast_path::FastPathMetrics;
pub(crate) use flannel::FlannelMetrics;
use kube_proxy::KubeProxyMetrics;
use pods::PodMetrics;
use policies::PolicyMetrics;
use services::ServicesMetrics;

/// Label names and values.
type Labels = Vec<(&'static str, String)>;

/// All metrics of an agent.
pub(crate) struct Metrics {
    registry: Registry,
    ready: Gauge,
    peers: Gauge,
    unreachable: Gauge,
    problems: Gauge,
    oversized: Gauge,
    objects: Family<Labels, Gauge>,
    changes: Counter,
    reconciles: Counter,
    failures: Counter,
    reconcile_time: Histogram,
    flannel: Option<FlannelMetrics>,
    calico: Option<CalicoMetrics>,
    policies: Option<PolicyMetrics>,
    services: Option<ServicesMetrics>,
    kube_proxy: Option<KubeProxyMetrics>,
    fast_path: FastPathMetrics,
    pods: PodMetrics,
    /// One reader at a time, so that none sees values that are half set for another.
    reading: Mutex<()>,
}

/// Buckets from 0.5 ms to 16 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_5, 2.0, 16))
}

impl Metrics {
    pub(crate) fn new(mode: Mode, policy_agent: Option<PolicyAgent>, fast_path: Option<FastPath>) -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("podwire_agent"),
            ready: Gauge::default(),
            peers: Gauge::default(),
            unreachable: Gauge::default(),
            problems: Gauge::default(),
            oversized: Gauge::default(),
            objects: Family::default(),
            changes: Counter::default(),
            reconciles: Counter::default(),
            failures: Counter::default(),
            reconcile_time: seconds(),
            flannel: None,
            calico: None,
            policies: None,
            services: None,
            kube_proxy: None,
            fast_path: FastPathMetrics::new(fast_path),
            pods: PodMetrics::default(),
            reading: Mutex::default(),
        };
        metrics.register();
        let registry = &mut metrics.registry;
        match mode {
            Mode::Flannel => metrics.flannel = Some(FlannelMetrics::register(registry)),
            Mode::Calico => metrics.calico = Some(CalicoMetrics::register(registry)),
        }
        metrics.policies = policy_agent.map(|agent| PolicyMetrics::register(registry, agent));
        metrics.fast_path.register(registry);
        metrics.pods.register(registry);
        metrics
    }

    /// With the metrics of the Services.
    pub(crate) fn with_services(mut self, agent: Option<ServicesAgent>) -> Metrics {
        self.kube_proxy = agent.clone().map(KubeProxyMetrics::new);
        self.services = agent.map(|agent| ServicesMetrics::register(&mut self.registry, agent));
        self
    }

    fn register(&mut self) {
        let all = &mut self.registry;
        all.register("ready", "1 if the node can carry pod traffic", self.ready.clone());
        all.register("peers", "Nodes that this node has routes to", self.peers.clone());
        all.register("unreachable_peers", "Nodes that this node has no route to", self.unreachable.clone());
        all.register("problems", "Problems that the status lists", self.problems.clone());
        let text = "Pods whose MTU is larger than that of the network between the nodes";
        all.register("oversized_pods", text, self.oversized.clone());
        all.register("kernel_objects", "Kernel objects of the agent, by kind", self.objects.clone());
        let text = "Kernel objects that were added, changed or removed";
        all.register("kernel_changes", text, self.changes.clone());
        let text = "Reconciles of the desired routes with the kernel";
        all.register("reconciles", text, self.reconciles.clone());
        all.register("reconcile_failures", "Reconciles that failed", self.failures.clone());
        let text = "Duration of a reconcile";
        all.register_with_unit("reconcile", text, Unit::Seconds, self.reconcile_time.clone());
    }

    /// Counts a reconcile that succeeded.
    pub(crate) fn reconciled(&self, took: Duration, changes: usize, objects: &ObjectCounts) {
        self.reconciles.inc();
        self.changes.inc_by(changes as u64);
        self.reconcile_time.observe(took.as_secs_f64());
        let ObjectCounts { devices, routes, neighbours, forwarding } = *objects;
        let kinds =
            [("device", devices), ("route", routes), ("neighbour", neighbours), ("forwarding", forwarding)];
        for (kind, count) in kinds {
            self.objects.get_or_create(&vec![("kind", kind.to_owned())]).set(count as i64);
        }
    }

    /// Counts a reconcile that failed.
    pub(crate) fn reconcile_failed(&self) {
        self.failures.inc();
    }

    /// The metrics of flannel mode.
    pub(crate) fn flannel(&self) -> Option<&FlannelMetrics> {
        self.flannel.as_ref()
    }

    /// The metrics in the OpenMetrics text format.
    pub(crate) fn text(&self, status: &Status) -> String {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        self.ready.set((status.phase == Phase::Ready).into());
        self.peers.set(status.peers as i64);
        self.unreachable.set(status.unreachable.len() as i64);
        self.problems.set(status.problems.len() as i64);
        self.oversized.set(status.oversized_pods.len() as i64);
        self.flannel.iter().for_each(|metrics| metrics.update(status));
        self.calico.iter().for_each(|metrics| metrics.update(status));
        self.policies.iter().for_each(PolicyMetrics::update);
        self.services.iter().for_each(ServicesMetrics::update);
        self.fast_path.update();
        self.pods.update();
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode_registry(&mut text, &self.registry);
        self.kube_proxy.iter().for_each(|metrics| metrics.write(&mut text));
        let _ = text::encode_eof(&mut text);
        text
    }
}

#[cfg(test)]
mod tests {
    use podwire_agent_ipc::status::AddressStatus;

    use super::*;

    #[test]
    fn both_modes_have_one_prefix_and_gauges_follow_the_status() {
        let addresses = Some(AddressStatus { leases: 3, warm_pool: 4, ..AddressStatus::default() });
        let oversized_pods = [("default/a".to_owned(), 1450)].into();
        let status = Status { phase: Phase::Ready, peers: 2, addresses, oversized_pods, ..Status::default() };
        let text = Metrics::new(Mode::Calico, None, None).text(&status);
        for line in [
            "podwire_agent_ready 1",
            "podwire_agent_peers 2",
            "podwire_agent_oversized_pods 1",
            "podwire_agent_leases 3",
            "podwire_agent_warm_pool_addresses 4",
            "podwire_agent_store_answers 1",
            "podwire_agent_reconciles_total 0",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in {text}");
        }
        let text = Metrics::new(Mode::Flannel, None, None)
            .text(&Status { pod_cidrs: vec!["10.244.7.0/24".into()], ..Status::default() });
        assert!(text.contains("podwire_agent_pod_cidr_addresses 256"), "{text}");
        assert!(!text.contains("warm_pool"));
    }
}
