//! The status of the thread, shared with its handles.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ServicesWithoutLocal;

/// The status of the Services of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicesStatus {
    /// Whether the source's Services are in the kernel.
    pub synced: bool,
    /// The number of frontends: addresses with a protocol and a port.
    pub frontends: usize,
    /// How often the agent compared the kernel with the Services.
    pub reconciles: u64,
    /// How often the agent changed the kernel.
    pub changes: u64,
    /// How many of these changes repaired what another program had changed.
    pub repairs: u64,
    /// How many reconciles failed.
    pub failures: u64,
    /// The elements that were added or deleted.
    pub changed_elements: u64,
    /// The UDP flows that were ended: their endpoint is gone, or source ranges no longer admit their client.
    pub ended_flows: u64,
    /// The duration of the last change, from the event to the kernel's acknowledgement.
    pub last_change: Duration,
    /// The events about Services.
    pub service_events: Events,
    /// The events about EndpointSlices.
    pub slice_events: Events,
    /// The Services without an endpoint of this node although they need one.
    pub without_local: ServicesWithoutLocal,
    /// Mistakes in objects, each with the object's name.
    pub problems: Vec<String>,
    /// The last error, until a reconcile succeeds.
    pub error: Option<String>,
    /// Why `/healthz` and `/livez` are not served.
    pub healthz_error: Option<String>,
}

/// The events about a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// All since the start. Each object of a list is one.
    pub total: u64,
    /// Those that are not in the kernel yet.
    pub pending: u64,
}

impl Events {
    pub(super) fn add(&mut self, count: usize) {
        self.total += count as u64;
        self.pending += count as u64;
    }
}

/// The shared status.
#[derive(Clone, Debug, Default)]
pub(super) struct StatusHandle(Arc<Mutex<ServicesStatus>>);

impl StatusHandle {
    pub fn lock(&self) -> MutexGuard<'_, ServicesStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
