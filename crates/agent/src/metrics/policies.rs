//! Metrics of the policy agent: how it enforces policies and what they drop. They are read when the metrics are read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use podwire_policy_agent::{DropCounts, PolicyAgent, PolicyStatus, TableSize};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tracing::warn;

use super::Labels;

pub(super) struct PolicyMetrics {
    agent: PolicyAgent,
    enforced: Gauge,
    policies: Gauge,
    interfaces: Gauge,
    unmatched: Gauge,
    unguarded: Family<Labels, Gauge>,
    objects: Family<Labels, Gauge>,
    changes: Counter,
    repairs: Counter,
    failures: Counter,
    closed: Counter,
    last_change: Gauge<f64, AtomicU64>,
    drops: Family<Labels, Counter>,
    pod_drops: Family<Labels, Counter>,
}

impl PolicyMetrics {
    pub(super) fn register(all: &mut Registry, agent: PolicyAgent) -> PolicyMetrics {
        let metrics = PolicyMetrics {
            agent,
            enforced: Gauge::default(),
            policies: Gauge::default(),
            interfaces: Gauge::default(),
            unmatched: Gauge::default(),
            unguarded: Family::default(),
            objects: Family::default(),
            changes: Counter::default(),
            repairs: Counter::default(),
            failures: Counter::default(),
            closed: Counter::default(),
            last_change: Gauge::default(),
            drops: Family::default(),
            pod_drops: Family::default(),
        };
        let all = all.sub_registry_with_prefix("policy");
        all.register("enforced", "1 if the kernel enforces the policies", metrics.enforced.clone());
        all.register("policies", "Policies", metrics.policies.clone());
        all.register(
            "interfaces",
            "Pod interfaces that policies are enforced for",
            metrics.interfaces.clone(),
        );
        let text = "Selectors of policies that match nothing";
        all.register("unmatched_selectors", text, metrics.unmatched.clone());
        let text = "1 for each pod of this node that policies protect only in part";
        all.register("unguarded_pod", text, metrics.unguarded.clone());
        let text = "Kernel objects that enforce policies, by kind";
        all.register("kernel_objects", text, metrics.objects.clone());
        all.register("changes", "Changes of the kernel's rules", metrics.changes.clone());
        let text = "Changes that repaired rules which another program had changed";
        all.register("repairs", text, metrics.repairs.clone());
        all.register("failures", "Attempts to enforce policies that failed", metrics.failures.clone());
        let text = "Connections that were closed because policies no longer allow them";
        all.register("closed_connections", text, metrics.closed.clone());
        let text = "Time of the last change, from the source to the kernel";
        all.register_with_unit("last_change", text, Unit::Seconds, metrics.last_change.clone());
        let text = "Packets that were dropped, by direction and reason";
        all.register("dropped_packets", text, metrics.drops.clone());
        let text = "Packets that were dropped, by direction and the pod whose policies dropped them";
        all.register("pod_dropped_packets", text, metrics.pod_drops.clone());
        metrics
    }

    pub(super) fn update(&self) {
        self.update_state(&self.agent.status());
        match self.agent.drop_counts() {
            Ok(drops) => self.update_drops(drops),
            Err(error) => warn!(%error, "counters of dropped packets cannot be read"),
        }
    }

    fn update_state(&self, state: &PolicyStatus) {
        self.enforced.set(state.enforced.into());
        self.policies.set(state.policies as i64);
        self.interfaces.set(state.interfaces as i64);
        self.unmatched.set(state.unmatched_selectors.len() as i64);
        self.unguarded.clear();
        for pod in &state.unguarded {
            self.unguarded.get_or_create(&vec![("pod", pod.clone())]).set(1);
        }
        let TableSize { chains, rules, sets, elements } = state.size;
        for (kind, count) in [("chain", chains), ("rule", rules), ("set", sets), ("element", elements)] {
            self.objects.get_or_create(&vec![("kind", kind.to_owned())]).set(count as i64);
        }
        for (counter, count) in [
            (&self.changes, state.changes),
            (&self.repairs, state.repairs),
            (&self.failures, state.failures),
            (&self.closed, state.closed_connections),
        ] {
            counter.inner().store(count, Ordering::Relaxed);
        }
        self.last_change.set(state.last_change.as_secs_f64());
    }

    /// Replaces all counters, so that those of deleted pods and policies disappear.
    fn update_drops(&self, drops: DropCounts) {
        for (family, name, counts) in
            [(&self.drops, "reason", drops.reasons), (&self.pod_drops, "pod", drops.pods)]
        {
            family.clear();
            set_counters(family, name, counts);
        }
    }
}

fn set_counters<D: ToString>(
    family: &Family<Labels, Counter>,
    name: &'static str,
    counts: BTreeMap<(D, String), u64>,
) {
    for ((direction, value), count) in counts {
        let labels = vec![("direction", direction.to_string()), (name, value)];
        family.get_or_create(&labels).inner().store(count, Ordering::Relaxed);
    }
}
