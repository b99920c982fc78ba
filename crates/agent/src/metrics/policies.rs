//! Numbers of policies: how they are enforced, and what they dropped. They are read when somebody asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use podwire_policy_agent::{DropCounts, PolicyAgent, PolicyStatus, TableSize};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tracing::warn;

use super::Labels;

#[derive(Default)]
pub(super) struct Policies {
    enforced: Gauge,
    policies: Gauge,
    interfaces: Gauge,
    unmatched: Gauge,
    objects: Family<Labels, Gauge>,
    changes: Counter,
    mends: Counter,
    failures: Counter,
    cuts: Counter,
    last_change: Gauge<f64, AtomicU64>,
    drops: Family<Labels, Counter>,
    pod_drops: Family<Labels, Counter>,
}

impl Policies {
    pub fn register(&self, all: &mut Registry) {
        let all = all.sub_registry_with_prefix("policy");
        all.register("enforced", "1 if what the source told is in the kernel", self.enforced.clone());
        all.register("policies", "Policies that are known", self.policies.clone());
        all.register("interfaces", "Interfaces of pods that are guarded", self.interfaces.clone());
        let text = "Selectors of policies to which nobody fits";
        all.register("unmatched_selectors", text, self.unmatched.clone());
        let text = "Objects in the kernel that enforce policies, by kind";
        all.register("kernel_objects", text, self.objects.clone());
        all.register("changes", "Changes of the kernel's rules", self.changes.clone());
        let text = "Changes that were made because others had touched the rules";
        all.register("mends", text, self.mends.clone());
        all.register("failures", "Attempts to enforce that failed", self.failures.clone());
        let text = "Connections that were cut because policies no longer allow them";
        all.register("cut_connections", text, self.cuts.clone());
        let text = "Time of the last change, from the news to the kernel";
        all.register_with_unit("last_change", text, Unit::Seconds, self.last_change.clone());
        let text = "Packets that were dropped, by direction and by what decided";
        all.register("dropped_packets", text, self.drops.clone());
        let text = "Packets that were dropped, by direction and by the pod whose policies were asked";
        all.register("pod_dropped_packets", text, self.pod_drops.clone());
    }

    pub fn read(&self, policy_agent: &PolicyAgent) {
        self.stands(&policy_agent.status());
        match policy_agent.drop_counts() {
            Ok(drops) => self.dropped(drops),
            Err(error) => warn!("the counts of dropped packets are not known: {error}"),
        }
    }

    fn stands(&self, state: &PolicyStatus) {
        self.enforced.set(state.enforced.into());
        self.policies.set(state.policies as i64);
        self.interfaces.set(state.interfaces as i64);
        self.unmatched.set(state.unmatched_selectors.len() as i64);
        let TableSize { chains, rules, sets, elements } = state.size;
        for (kind, count) in [("chain", chains), ("rule", rules), ("set", sets), ("element", elements)] {
            self.objects.get_or_create(&vec![("kind", kind.to_owned())]).set(count as i64);
        }
        for (counter, count) in [
            (&self.changes, state.changes),
            (&self.mends, state.repairs),
            (&self.failures, state.failures),
            (&self.cuts, state.closed_connections),
        ] {
            counter.inner().store(count, Ordering::Relaxed);
        }
        self.last_change.set(state.last_change.as_secs_f64());
    }

    /// What is gone from the kernel, a pod or a policy, is gone here.
    fn dropped(&self, drops: DropCounts) {
        for (family, name, counts) in
            [(&self.drops, "reason", drops.reasons), (&self.pod_drops, "pod", drops.pods)]
        {
            family.clear();
            show(family, name, counts);
        }
    }
}

fn show<D: ToString>(
    family: &Family<Labels, Counter>,
    name: &'static str,
    counts: BTreeMap<(D, String), u64>,
) {
    for ((direction, value), count) in counts {
        let labels = vec![("direction", direction.to_string()), (name, value)];
        family.get_or_create(&labels).inner().store(count, Ordering::Relaxed);
    }
}
