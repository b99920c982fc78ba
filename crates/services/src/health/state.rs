//! What the answers depend on, shared by the reconciler, its handles and the servers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::check::HealthCheck;
use super::sync::{Now, SyncTimes};

/// The number of responses by HTTP status code.
pub type ResponseCounts = BTreeMap<u16, u64>;

/// What the answers depend on.
#[derive(Clone, Debug, Default)]
pub(crate) struct HealthState {
    pub times: SyncTimes,
    /// Whether load balancers may send new connections to this node; `false` until the Node is known.
    pub node_eligible: bool,
    /// The health checks by port.
    pub checks: BTreeMap<u16, HealthCheck>,
    /// The responses to `/healthz` and `/livez`.
    pub healthz: ResponseCounts,
    pub livez: ResponseCounts,
}

impl HealthState {
    /// Whether changes reach the kernel in time.
    pub fn is_healthy(&self, now: Now) -> bool {
        self.times.is_healthy(now)
    }
}

/// The shared state.
#[derive(Clone, Debug, Default)]
pub(crate) struct HealthHandle(Arc<Mutex<HealthState>>);

impl HealthHandle {
    pub fn lock(&self) -> MutexGuard<'_, HealthState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn report(&self) -> HealthReport {
        let state = self.lock();
        HealthReport {
            last_queued: state.times.last_queued(),
            last_applied: state.times.last_applied(),
            healthz: state.healthz.clone(),
            livez: state.livez.clone(),
        }
    }
}

/// What is measured about health.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthReport {
    /// When the last change was received.
    pub last_queued: Option<SystemTime>,
    /// When the Services were last applied.
    pub last_applied: Option<SystemTime>,
    /// The responses to `/healthz`.
    pub healthz: ResponseCounts,
    /// The responses to `/livez`.
    pub livez: ResponseCounts,
}
