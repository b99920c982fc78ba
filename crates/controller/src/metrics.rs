//! Prometheus metrics: those of the NodeIpamController under their names, and our own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use podwire_ipam::Usage;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{exponential_buckets, Histogram};
use prometheus_client::registry::{Registry, Unit};

type Labels = Vec<(&'static str, String)>;
type Tries = Family<Labels, Histogram, fn() -> Histogram>;

/// All metrics.
pub(crate) struct Metrics {
    registry: Registry,
    allocations: Family<Labels, Counter>,
    releases: Family<Labels, Counter>,
    capacity: Family<Labels, Gauge<f64, AtomicU64>>,
    usage: Family<Labels, Gauge<f64, AtomicU64>>,
    tries: Tries,
    master: Family<Labels, Gauge>,
    pub nodes: Gauge,
    pub waiting: Gauge,
    pub quarantined: Gauge,
    pub writes: Counter,
    pub failures: Counter,
    pub watch_failures: Counter,
    assignment: Histogram,
    pub suspects: Gauge,
    pub released: Counter,
    pub repaired: Counter,
    pub freed_nodes: Counter,
    pub collection_failures: Counter,
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::default(),
            allocations: Family::default(),
            releases: Family::default(),
            capacity: Family::default(),
            usage: Family::default(),
            tries: Family::new_with_constructor(|| Histogram::new(exponential_buckets(1.0, 5.0, 5))),
            master: Family::default(),
            nodes: Gauge::default(),
            waiting: Gauge::default(),
            quarantined: Gauge::default(),
            writes: Counter::default(),
            failures: Counter::default(),
            watch_failures: Counter::default(),
            assignment: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            suspects: Gauge::default(),
            released: Counter::default(),
            repaired: Counter::default(),
            freed_nodes: Counter::default(),
            collection_failures: Counter::default(),
        };
        let mut registry = Registry::default();
        metrics.register_upstream(&mut registry);
        metrics.register_own(registry.sub_registry_with_prefix("podwire_controller"));
        metrics.registry = registry;
        metrics
    }

    /// Under the names that dashboards and alerts for Kubernetes use. "cirdset" is upstream's spelling.
    fn register_upstream(&self, registry: &mut Registry) {
        let of = |name: &str| format!("node_ipam_controller_{name}");
        let text = "Node CIDRs that were allocated";
        registry.register(of("cidrset_cidrs_allocations"), text, self.allocations.clone());
        let text = "Node CIDRs that were released";
        registry.register(of("cidrset_cidrs_releases"), text, self.releases.clone());
        registry.register(of("cirdset_max_cidrs"), "Node CIDRs of the network", self.capacity.clone());
        let text = "Fraction of the network that is allocated or excluded, from 0 to 1";
        registry.register(of("cidrset_usage_cidrs"), text, self.usage.clone());
        let text = "Candidates that were examined for one node CIDR";
        registry.register(of("cidrset_allocation_tries_per_request"), text, self.tries.clone());
        registry.register(
            "leader_election_master_status",
            "1 if this controller is the leader",
            self.master.clone(),
        );
    }

    fn register_own(&self, registry: &mut Registry) {
        registry.register("nodes", "Nodes of the cluster", self.nodes.clone());
        registry.register("waiting_nodes", "Nodes without a pod CIDR", self.waiting.clone());
        let text = "Nodes with invalid or duplicate pod CIDRs";
        registry.register("quarantined_nodes", text, self.quarantined.clone());
        registry.register("writes", "Node objects that got pod CIDRs", self.writes.clone());
        registry.register("write_failures", "Failed patches of Node objects", self.failures.clone());
        registry.register("watch_failures", "Failures of the node watch", self.watch_failures.clone());
        let text = "Time from the first observation of a node without a pod CIDR until it has one";
        registry.register_with_unit("assignment", text, Unit::Seconds, self.assignment.clone());
        let text = "Addresses of pods that are gone that are not released yet";
        registry.register("suspected_addresses", text, self.suspects.clone());
        registry.register("released_addresses", "Released leaked addresses", self.released.clone());
        registry.register("repaired_records", "Repaired handles and affinities", self.repaired.clone());
        let text = "Deleted nodes whose blocks were released";
        registry.register("freed_nodes", text, self.freed_nodes.clone());
        let text = "Failed runs of the leak collection";
        registry.register("collection_failures", text, self.collection_failures.clone());
    }

    pub fn set_leader(&self, lease: &str, is_leader: bool) {
        self.master.get_or_create(&vec![("name", lease.to_owned())]).set(i64::from(is_leader));
    }

    pub fn set_usage(&self, networks: &[Usage]) {
        for usage in networks {
            let label = labels(usage.network);
            self.capacity.get_or_create(&label).set(usage.capacity);
            self.usage.get_or_create(&label).set(usage.taken / usage.capacity);
            self.allocations.get_or_create(&label).inner().store(usage.allocations, Ordering::Relaxed);
            self.releases.get_or_create(&label).inner().store(usage.releases, Ordering::Relaxed);
        }
    }

    pub fn observe_tries(&self, network: IpNet, tries: u32) {
        self.tries.get_or_create(&labels(network)).observe(f64::from(tries));
    }

    pub fn observe_assignment(&self, took: Duration) {
        self.writes.inc();
        self.assignment.observe(took.as_secs_f64());
    }

    /// The metrics in Prometheus' text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

fn labels(network: IpNet) -> Labels {
    vec![("clusterCIDR", network.to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_those_of_kube_controller_manager() {
        let metrics = Metrics::new();
        let network: IpNet = "10.244.0.0/16".parse().unwrap();
        metrics.set_usage(&[Usage { network, capacity: 256.0, taken: 64.0, allocations: 65, releases: 1 }]);
        metrics.observe_tries(network, 3);
        metrics.set_leader("podwire-controller", true);
        let text = metrics.text();
        for line in [
            "node_ipam_controller_cidrset_cidrs_allocations_total{clusterCIDR=\"10.244.0.0/16\"} 65",
            "node_ipam_controller_cidrset_cidrs_releases_total{clusterCIDR=\"10.244.0.0/16\"} 1",
            "node_ipam_controller_cirdset_max_cidrs{clusterCIDR=\"10.244.0.0/16\"} 256.0",
            "node_ipam_controller_cidrset_usage_cidrs{clusterCIDR=\"10.244.0.0/16\"} 0.25",
            "node_ipam_controller_cidrset_allocation_tries_per_request_bucket{le=\"5.0\",clusterCIDR=\"10.244.0.0/16\"} 1",
            "leader_election_master_status{name=\"podwire-controller\"} 1",
            "podwire_controller_quarantined_nodes 0",
            "podwire_controller_suspected_addresses 0",
            "podwire_controller_released_addresses_total 0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
