//! Metrics of calico mode: addresses, blocks, routes and BGP sessions. All of them follow from the status.

use podwire_agent_ipc::status::{AddressStatus, Status};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Labels;

#[derive(Default)]
pub(super) struct CalicoMetrics {
    leases: Gauge,
    warm_pool: Gauge,
    unsynced: Gauge,
    unreadable: Gauge,
    conflicting: Gauge,
    store_answers: Gauge,
    blocks: Gauge,
    routes: Gauge,
    sessions: Family<Labels, Gauge>,
}

impl CalicoMetrics {
    pub(super) fn register(all: &mut Registry) -> CalicoMetrics {
        let metrics = CalicoMetrics::default();
        for (name, text, gauge) in [
            ("leases", "Attachments that have addresses", &metrics.leases),
            (
                "warm_pool_addresses",
                "Addresses that pods get without a request to the store",
                &metrics.warm_pool,
            ),
            ("unsynced_records", "Leases and endpoints that are not in the store yet", &metrics.unsynced),
            ("unreadable_records", "Blocks and handles that cannot be read", &metrics.unreadable),
            (
                "conflicting_addresses",
                "Addresses of pods that the store assigns to another owner",
                &metrics.conflicting,
            ),
            ("store_answers", "1 if the store of addresses answers", &metrics.store_answers),
            ("blocks", "Blocks of this node", &metrics.blocks),
            ("routes", "Routes to the blocks of other nodes", &metrics.routes),
        ] {
            all.register(name, text, gauge.clone());
        }
        let text = "1 if the BGP session is established, by the peer's name in BIRD";
        all.register("bgp_session_established", text, metrics.sessions.clone());
        metrics
    }

    pub(super) fn update(&self, status: &Status) {
        let none = AddressStatus::default();
        let addresses = status.addresses.as_ref().unwrap_or(&none);
        self.store_answers.set(addresses.problem.is_none().into());
        for (gauge, count) in [
            (&self.leases, addresses.leases),
            (&self.warm_pool, addresses.warm_pool),
            (&self.unsynced, addresses.unsynced),
            (&self.unreadable, addresses.unreadable.len()),
            (&self.conflicting, addresses.conflicting.len()),
            (&self.blocks, status.pod_cidrs.len()),
            (&self.routes, status.routes.unwrap_or(0)),
        ] {
            gauge.set(count as i64);
        }
        self.sessions.clear();
        for (name, state) in status.bgp_sessions.iter().flatten() {
            let labels = vec![("peer", name.clone())];
            self.sessions.get_or_create(&labels).set(state.starts_with("Established").into());
        }
    }
}
