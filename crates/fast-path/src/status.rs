//! The state of the fast path, shared by its threads.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::programs::Redirected;

/// The state of the fast path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether connections can take the fast path.
    pub on: bool,
    /// If not, why.
    pub reason: Option<String>,
    /// The pod interfaces with programs: `network/container/interface`.
    pub fast: Vec<String>,
    /// The other pod interfaces, each with the reason.
    pub normal: BTreeMap<String, String>,
    /// The uplinks and tunnels with programs.
    pub uplinks: Vec<String>,
    /// What was redirected to pods since the agent started.
    pub to_pods: Redirected,
    /// What was redirected to other nodes.
    pub to_nodes: Redirected,
}

/// A thread that panicked leaves consistent values.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
