//! The status of the policy agent, shared between its thread and its handles.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::dataplane::TableSize;

/// The status of the policy agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyStatus {
    /// Whether the source's policies are in the kernel.
    pub enforced: bool,
    /// The number of policies.
    pub policies: usize,
    /// The number of pod interfaces that plugins attached.
    pub interfaces: usize,
    /// The size of the nftables tables.
    pub size: TableSize,
    /// How often the agent compared the rules with the policies: after each event that may concern policies, and
    /// periodically.
    pub reconciles: u64,
    /// How often the agent changed the rules.
    pub changes: u64,
    /// How many of these changes repaired what another program had changed.
    pub repairs: u64,
    /// How many reconciles failed.
    pub failures: u64,
    /// How many connections the agent closed because policies no longer allow them.
    pub closed_connections: u64,
    /// The duration of the last change, from the event to the kernel's acknowledgement.
    pub last_change: Duration,
    /// Selectors that select nothing, each with its object, field and text.
    pub unmatched_selectors: Vec<String>,
    /// The pods of this node, `namespace/name`, that policies protect only in part: the agent does not know their
    /// interfaces.
    pub unguarded: Vec<String>,
    /// The time of the newest change that is enforced, if the source knows it.
    pub as_of: Option<SystemTime>,
    /// The last error, until a reconcile succeeds.
    pub problem: Option<String>,
}

/// The shared status.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatusHandle(Arc<Mutex<PolicyStatus>>);

impl StatusHandle {
    pub fn read(&self) -> PolicyStatus {
        self.lock().clone()
    }

    pub fn lock(&self) -> MutexGuard<'_, PolicyStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
