//! The state of a lab, as it is stored in its directory.

use std::collections::BTreeMap;

use podwire_sandbox::Process;
use serde::{Deserialize, Serialize};

use crate::service_addresses::Allocation;
use crate::{Fault, LabSpec};

/// The progress of a lab's creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// A process creates the lab, or died while doing so.
    Starting,
    /// The lab is complete.
    Up,
}

/// An injected fault that the agents cannot repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveFault {
    /// The fault.
    pub fault: Fault,
    /// The node that has it.
    pub node: String,
}

/// The state of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub spec: LabSpec,
    pub stage: Stage,
    /// The process that holds each machine.
    pub machines: BTreeMap<String, Process>,
    /// The agent of each node.
    pub agents: BTreeMap<String, Process>,
    pub etcd: Option<Process>,
    pub faults: Vec<ActiveFault>,
    /// The pods of the files, each with its node.
    pub pod_nodes: BTreeMap<String, String>,
    /// What Services of the files got, by `namespace/name`.
    #[serde(default)]
    pub services: BTreeMap<String, Allocation>,
}

impl State {
    pub fn new(spec: LabSpec) -> State {
        State {
            spec,
            stage: Stage::Starting,
            machines: BTreeMap::new(),
            agents: BTreeMap::new(),
            etcd: None,
            faults: Vec::new(),
            pod_nodes: BTreeMap::new(),
            services: BTreeMap::new(),
        }
    }

    pub fn has_fault(&self, fault: Fault, node: &str) -> bool {
        self.faults.iter().any(|one| one.fault == fault && one.node == node)
    }
}
