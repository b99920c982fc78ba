//! Metrics of the fast path. They are read when the metrics are read.

use std::sync::atomic::Ordering;

use podwire_fast_path::{FastPath, Redirected};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Labels;

pub(super) struct FastPathMetrics {
    /// `None` if it is off.
    fast_path: Option<FastPath>,
    on: Gauge,
    pods: Family<Labels, Gauge>,
    packets: Family<Labels, Counter>,
    bytes: Family<Labels, Counter>,
}

impl FastPathMetrics {
    pub(super) fn new(fast_path: Option<FastPath>) -> FastPathMetrics {
        FastPathMetrics {
            fast_path,
            on: Gauge::default(),
            pods: Family::default(),
            packets: Family::default(),
            bytes: Family::default(),
        }
    }

    pub(super) fn register(&self, all: &mut Registry) {
        let all = all.sub_registry_with_prefix("fast_path");
        all.register("on", "1 if connections can take the fast path", self.on.clone());
        all.register("pods", "Pod interfaces by the path of their packets", self.pods.clone());
        let text = "Packets that took the fast path, by where they went";
        all.register("packets", text, self.packets.clone());
        let text = "Bytes that took the fast path, by where they went";
        all.register("bytes", text, self.bytes.clone());
    }

    pub(super) fn update(&self) {
        let Some(status) = self.fast_path.as_ref().map(FastPath::status) else { return };
        self.on.set(status.on.into());
        for (path, count) in [("fast", status.fast.len()), ("normal", status.normal.len())] {
            self.pods.get_or_create(&vec![("path", path.to_owned())]).set(count as i64);
        }
        for (to, Redirected { packets, bytes }) in [("pod", status.to_pods), ("node", status.to_nodes)] {
            let labels = vec![("to", to.to_owned())];
            self.packets.get_or_create(&labels).inner().store(packets, Ordering::Relaxed);
            self.bytes.get_or_create(&labels).inner().store(bytes, Ordering::Relaxed);
        }
    }
}
