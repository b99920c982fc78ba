//! What is known of a lab, as it stands in its folder.

use std::collections::BTreeMap;

use podwire_sandbox::Process;
use serde::{Deserialize, Serialize};

use crate::{Fault, Plan};

/// How far a lab has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Somebody makes it, or died while doing so.
    Starting,
    /// It is there.
    Up,
}

/// Something that was broken and does not heal by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// What.
    pub fault: Fault,
    /// Where.
    pub node: String,
}

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub plan: Plan,
    pub stage: Stage,
    /// The process that holds each machine.
    pub machines: BTreeMap<String, Process>,
    /// Each node's agent.
    pub agents: BTreeMap<String, Process>,
    pub etcd: Option<Process>,
    pub broken: Vec<Broken>,
    /// The pods that files describe, and on which node each runs.
    pub settled: BTreeMap<String, String>,
}

impl State {
    pub fn new(plan: Plan) -> State {
        State {
            plan,
            stage: Stage::Starting,
            machines: BTreeMap::new(),
            agents: BTreeMap::new(),
            etcd: None,
            broken: Vec::new(),
            settled: BTreeMap::new(),
        }
    }

    pub fn is_broken(&self, fault: Fault, node: &str) -> bool {
        self.broken.iter().any(|one| one.fault == fault && one.node == node)
    }
}
