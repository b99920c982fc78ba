//! What the controller knows of itself, for whoever asks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// What it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// It does not know yet who leads.
    #[default]
    Starting,
    /// Another works; this one takes over when that one is gone.
    StandingBy,
    /// It leads, and is learning which nodes there are.
    Learning,
    /// It leads, and gives ranges to nodes.
    Leading,
}

/// All of it.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    /// This controller.
    pub identity: String,
    pub phase: Phase,
    /// Who leads, if it is known.
    pub leader: Option<String>,
    /// How many nodes there are.
    pub nodes: usize,
    /// Nodes without a range.
    pub waiting: Vec<String>,
    /// Nodes with ranges that make no sense or are others' too, and why.
    pub quarantined: Vec<(String, String)>,
    /// How full the networks are.
    pub networks: Vec<Network>,
    /// Leaked addresses, if they are looked for.
    pub addresses: Option<AddressStatus>,
    /// Why the API server does not answer questions about the lease, if it does not.
    pub trouble: Option<String>,
    /// Why nodes are not heard of, if they are not.
    pub watch_trouble: Option<String>,
}

/// How the search for leaked addresses goes.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct AddressStatus {
    /// LeakCollection that seem to be nobody's, and wait for the end of the grace period.
    pub suspects: usize,
    /// LeakCollection that were released since this one leads.
    pub released: u64,
    /// Why they are not looked for, if they are not.
    pub trouble: Option<String>,
}

/// How full a network is.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Network {
    pub network: String,
    pub ranges: f64,
    pub taken: f64,
}

/// The status, shared.
#[derive(Clone, Debug)]
pub(crate) struct Board(Arc<Mutex<Status>>);

impl Board {
    pub fn new(identity: &str) -> Board {
        Board(Arc::new(Mutex::new(Status { identity: identity.into(), ..Status::default() })))
    }

    pub fn write(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn read(&self) -> Status {
        self.write().clone()
    }

    /// Another leads. What this one knew of nodes is old.
    pub fn stand_by(&self, leader: &str) {
        let mut status = self.write();
        let (identity, phase, leader) = (status.identity.clone(), Phase::StandingBy, Some(leader.into()));
        *status = Status { identity, phase, leader, ..Status::default() };
    }

    /// This one leads no more.
    pub fn lost(&self) {
        let mut status = self.write();
        let (identity, trouble) = (status.identity.clone(), status.trouble.take());
        *status = Status { identity, trouble, ..Status::default() };
    }

    /// This one leads.
    pub fn lead(&self) {
        let mut status = self.write();
        status.leader = Some(status.identity.clone());
        (status.phase, status.trouble) = (Phase::Learning, None);
    }

    /// The API server has answered a question about the lease.
    pub fn reached(&self) {
        self.write().trouble = None;
    }

    /// It has not. Returns whether that is news.
    pub fn trouble(&self, why: &str) -> bool {
        let mut status = self.write();
        let news = status.trouble.as_deref() != Some(why);
        status.trouble = Some(why.into());
        news
    }
}
