//! What the agent knows of itself, for whoever asks.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use podwire_policy_agent::PolicyAgent;
use serde::Serialize;

/// Whoever has more selectors without anybody than these has another problem.
const MOST_UNMATCHED: usize = 20;

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// No range yet, or roads that were never opened.
    #[default]
    Starting,
    /// The roads are open.
    Ready,
    /// The node cannot carry pods' traffic.
    Broken,
}

/// All of it.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// This node.
    pub node: String,
    /// How far it has come.
    pub phase: Phase,
    /// The kind of roads.
    pub backend: String,
    /// The addresses of this node's pods.
    pub ranges: Vec<String>,
    /// Where the others meet it: `eth0 192.168.1.7`.
    pub uplinks: Vec<String>,
    /// The largest packet of a pod.
    pub mtu: u32,
    /// How many other nodes have a road.
    pub peers: usize,
    /// Nodes without a road, and why.
    pub refused: Vec<(String, String)>,
    /// Whether the source of nodes answers: `current`, or since when it does not.
    pub source: String,
    /// What is wrong at the moment, each in a sentence.
    pub problems: Vec<String>,
    /// Who may talk to whom, if anybody keeps pods apart here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<Policies>,
}

/// How policies are enforced.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policies {
    /// Whether what the source told is in the kernel.
    pub enforced: bool,
    /// How many there are.
    pub policies: usize,
    /// How many interfaces of pods.
    pub interfaces: usize,
    /// What the last change took from the news to the kernel, in milliseconds.
    pub last_change_ms: f64,
    /// When the newest change of a file was made that is in the kernel, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_of: Option<String>,
    /// How many selectors nobody fits to at this moment.
    pub unmatched: usize,
    /// The first of those.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmatched_selectors: Vec<String>,
    /// What is wrong, if anything is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Policies {
    pub(crate) fn of(policy_agent: &PolicyAgent) -> Policies {
        let podwire_policy_agent::PolicyStatus {
            enforced,
            policies,
            interfaces,
            last_change,
            unmatched_selectors: mut unmatched,
            as_of,
            problem,
            ..
        } = policy_agent.status();
        let count = unmatched.len();
        unmatched.truncate(MOST_UNMATCHED);
        Policies {
            enforced,
            policies,
            interfaces,
            last_change_ms: last_change.as_secs_f64() * 1000.0,
            as_of: as_of.map(podwire_policy_agent::timestamp),
            unmatched: count,
            unmatched_selectors: unmatched,
            problem,
        }
    }
}

/// The status, shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board {
    status: Arc<Mutex<Status>>,
    policy_agent: Arc<OnceLock<PolicyAgent>>,
}

impl Board {
    pub fn new(node: &str) -> Board {
        let source = "waiting for the first answer".into();
        let status = Status { node: node.into(), source, ..Status::default() };
        Board { status: Arc::new(Mutex::new(status)), policy_agent: Arc::default() }
    }

    /// From now on what this one says of policies stands there too.
    pub fn show_policies(&self, policy_agent: PolicyAgent) {
        let _ = self.policy_agent.set(policy_agent);
    }

    /// Who keeps pods apart, if anybody does.
    pub fn policy_agent(&self) -> Option<&PolicyAgent> {
        self.policy_agent.get()
    }

    pub fn write(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn read(&self) -> Status {
        let policies = self.policy_agent.get().map(Policies::of);
        Status { policies, ..self.write().clone() }
    }
}
