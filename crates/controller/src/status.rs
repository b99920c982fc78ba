//! The controller's status, as `/status` and `/readyz` show it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// What the controller does now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// The leader is not known yet.
    #[default]
    Starting,
    /// Another controller is the leader.
    Standby,
    /// This controller is the leader and lists the nodes.
    Listing,
    /// This controller is the leader and assigns pod CIDRs.
    Leading,
}

/// The whole status.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    /// This controller.
    pub identity: String,
    pub phase: Phase,
    /// The leader, if known.
    pub leader: Option<String>,
    /// The number of nodes.
    pub nodes: usize,
    /// Nodes without a pod CIDR.
    pub waiting: Vec<String>,
    /// Nodes with invalid or duplicate pod CIDRs, with the reason.
    pub quarantined: Vec<(String, String)>,
    /// The usage of the cluster networks.
    pub networks: Vec<Network>,
    /// Leaked addresses, if the controller collects them.
    pub addresses: Option<AddressStatus>,
    /// The last error of a request about the lease.
    pub lease_error: Option<String>,
    /// The last error of the node watch.
    pub watch_error: Option<String>,
}

/// The state of the leak collection.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct AddressStatus {
    /// Addresses of pods that are gone whose grace period has not ended.
    pub suspects: usize,
    /// Addresses that this leader has released.
    pub released: u64,
    /// The last error.
    pub error: Option<String>,
}

/// The usage of a cluster network.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Network {
    pub network: String,
    /// How many node CIDRs the network has.
    pub node_cidrs: f64,
    /// How many of them are assigned or excluded.
    pub taken: f64,
}

/// The shared status.
#[derive(Clone, Debug)]
pub(crate) struct StatusHandle(Arc<Mutex<Status>>);

impl StatusHandle {
    pub fn new(identity: &str) -> StatusHandle {
        StatusHandle(Arc::new(Mutex::new(Status { identity: identity.into(), ..Status::default() })))
    }

    pub fn write(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn read(&self) -> Status {
        self.write().clone()
    }

    /// Another controller leads. What this one knew of nodes is outdated.
    pub fn set_standby(&self, leader: &str) {
        let mut status = self.write();
        let (identity, phase, leader) = (status.identity.clone(), Phase::Standby, Some(leader.into()));
        *status = Status { identity, phase, leader, ..Status::default() };
    }

    /// This controller has lost the lease.
    pub fn set_lease_lost(&self) {
        let mut status = self.write();
        let (identity, lease_error) = (status.identity.clone(), status.lease_error.take());
        *status = Status { identity, lease_error, ..Status::default() };
    }

    /// This controller leads.
    pub fn set_leading(&self) {
        let mut status = self.write();
        status.leader = Some(status.identity.clone());
        (status.phase, status.lease_error) = (Phase::Listing, None);
    }

    /// A request about the lease succeeded.
    pub fn clear_lease_error(&self) {
        self.write().lease_error = None;
    }

    /// A request about the lease failed. Returns whether the error is new.
    pub fn set_lease_error(&self, why: &str) -> bool {
        let mut status = self.write();
        let is_new = status.lease_error.as_deref() != Some(why);
        status.lease_error = Some(why.into());
        is_new
    }
}
