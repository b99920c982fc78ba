//! Numbers of a node whose pods are routed: its addresses and its roads. They are read when somebody asks.

use std::sync::{Mutex, PoisonError};

use podwire_policy_agent::PolicyAgent;
use prometheus_client::encoding::text;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Labels, Policies};

/// What is counted.
pub(crate) struct Routed {
    registry: Registry,
    ready: Gauge,
    leases: Gauge,
    stock: Gauge,
    untold: Gauge,
    unreadable: Gauge,
    lost: Gauge,
    store_answers: Gauge,
    blocks: Gauge,
    peers: Gauge,
    refused: Gauge,
    routes: Gauge,
    problems: Gauge,
    sessions: Family<Labels, Gauge>,
    policies: Policies,
    asked: Mutex<()>,
}

impl Routed {
    /// With numbers of policies, if there is somebody who enforces them.
    pub(crate) fn new(has_policies: bool) -> Routed {
        let gauge = Gauge::default;
        let mut numbers = Routed {
            registry: Registry::with_prefix("podwire_node"),
            ready: gauge(),
            leases: gauge(),
            stock: gauge(),
            untold: gauge(),
            unreadable: gauge(),
            lost: gauge(),
            store_answers: gauge(),
            blocks: gauge(),
            peers: gauge(),
            refused: gauge(),
            routes: gauge(),
            problems: gauge(),
            sessions: Family::default(),
            policies: Policies::default(),
            asked: Mutex::default(),
        };
        let all = &mut numbers.registry;
        for (name, text, value) in [
            ("ready", "1 if pods may come", &numbers.ready),
            ("leases", "Attachments that have addresses", &numbers.leases),
            ("stock_addresses", "Addresses that pods may get at once", &numbers.stock),
            ("untold", "What the store has not been told yet", &numbers.untold),
            ("unreadable_records", "Blocks and handles that make no sense", &numbers.unreadable),
            ("lost_addresses", "Addresses of pods that the store gave to somebody else", &numbers.lost),
            ("store_answers", "1 if the store of addresses answers", &numbers.store_answers),
            ("blocks", "Blocks of this node", &numbers.blocks),
            ("peers", "Nodes with a road", &numbers.peers),
            ("refused_peers", "Nodes without a road", &numbers.refused),
            ("routes", "Routes to the others' blocks", &numbers.routes),
            ("problems", "What is wrong with the roads", &numbers.problems),
        ] {
            all.register(name, text, value.clone());
        }
        let text = "Sessions of BGP, by the peer's name in BIRD; 1 if it is established";
        all.register("bgp_session_established", text, numbers.sessions.clone());
        if has_policies {
            numbers.policies.register(all);
        }
        numbers
    }

    /// In Prometheus' text format, as it is at this moment. One asks after the other, so that nobody sees half of what is read for another.
    pub(crate) fn text(
        &self,
        is_ready: bool,
        addresses: &podwire_steward::State,
        roads: &podwire_router::Status,
        policy_agent: Option<&PolicyAgent>,
    ) -> String {
        let _alone = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        self.ready.set(is_ready.into());
        self.store_answers.set(addresses.trouble.is_none().into());
        for (gauge, count) in [
            (&self.leases, addresses.leases),
            (&self.stock, addresses.stock),
            (&self.untold, addresses.untold),
            (&self.unreadable, addresses.unreadable.len()),
            (&self.lost, addresses.lost.len()),
            (&self.blocks, roads.blocks.len()),
            (&self.peers, roads.peers),
            (&self.refused, roads.refused.len()),
            (&self.routes, roads.routes),
            (&self.problems, roads.problems.len()),
        ] {
            gauge.set(count as i64);
        }
        self.sessions.clear();
        for (name, state) in &roads.sessions {
            let labels = vec![("peer", name.clone())];
            self.sessions.get_or_create(&labels).set(state.starts_with("Established").into());
        }
        if let Some(policy_agent) = policy_agent {
            self.policies.read(policy_agent);
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}
