//! The status of a lab: its nodes, their agents and pods.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use podwire_agent_ipc::status::{Phase, UnreachableNode};
use serde::Serialize;

use crate::pods::Pod;
use crate::{agents, ActiveFault, Lab, LabService, LabSpec};

/// The status of a lab.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LabStatus {
    /// The specification of the lab.
    pub spec: LabSpec,
    /// Whether every node and pod runs, and every agent is ready, knows all others and reports no problem.
    pub healthy: bool,
    /// Whether the creation of the lab was interrupted.
    pub unfinished: bool,
    /// The nodes.
    pub nodes: Vec<NodeStatus>,
    /// The Services in the files of the lab.
    pub services: Vec<LabService>,
    /// The first node whose kernel does not have them as the files say, and why.
    pub services_problem: Option<String>,
    /// The injected faults that are not healed.
    pub faults: Vec<ActiveFault>,
}

/// The status of a node.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// The name of the node.
    pub name: String,
    /// The process that holds the node, if it runs.
    pub process: Option<u32>,
    /// The addresses that other nodes use to reach this node.
    pub addresses: Vec<IpAddr>,
    /// `ready`, `starting` or `broken`; `silent` if the agent does not answer, `gone` if the node does not run.
    pub agent: String,
    /// The pod CIDRs of the node; with the network calico, its blocks.
    pub pod_cidrs: Vec<String>,
    /// The number of other nodes that this node has routes to.
    pub peers: usize,
    /// The nodes that this node has no route to.
    pub unreachable: Vec<UnreachableNode>,
    /// The problems that the agent reports, and those of the pods.
    pub problems: Vec<String>,
    /// The pods of the node, also those that should run and do not.
    pub pods: Vec<PodStatus>,
    /// The log of the agent.
    pub log: PathBuf,
}

/// The status of a pod.
#[derive(Clone, Debug, Serialize)]
pub struct PodStatus {
    /// The name of the pod.
    pub name: String,
    /// `ready`, or another state of `podwire pod list`; `missing` if the pod should run and does not exist.
    pub state: String,
    /// The addresses of the pod.
    pub ips: Vec<IpAddr>,
}

impl Lab {
    /// The status of the lab.
    pub fn status(&self) -> LabStatus {
        let mut listed: BTreeMap<_, _> = self.list_pods().into_iter().collect();
        let mut node = |name: String| {
            let pods = self.pods_of(&name, listed.remove(&name).unwrap_or_else(|| Ok(Vec::new())));
            let problem = |pod: &Pod| Some(format!("pod {}: {}", pod.status.name, pod.problem.as_ref()?));
            let problems: Vec<String> = pods.iter().filter_map(problem).collect();
            let mut status = self.node_status(name, pods.into_iter().map(|pod| pod.status).collect());
            status.problems.extend(problems);
            status
        };
        let nodes: Vec<NodeStatus> = self.state.spec.node_names().map(&mut node).collect();
        let (services, unread) = match self.services() {
            Ok(services) => (services, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let is_up = self.state.stage == crate::Stage::Up;
        LabStatus {
            spec: self.state.spec.clone(),
            healthy: is_up
                && nodes.iter().all(|node| node.process.is_some() && node.problems.is_empty())
                && self.first_problem().is_none(),
            unfinished: !is_up,
            nodes,
            services,
            services_problem: unread.or_else(|| self.services_problem()),
            faults: self.state.faults.clone(),
        }
    }

    fn node_status(&self, name: String, pods: Vec<PodStatus>) -> NodeStatus {
        let Ok(process) = self.process(&name) else {
            let log = self.log(&name);
            return NodeStatus { log, agent: "gone".into(), name, pods, ..NodeStatus::default() };
        };
        let addresses = self.uplink(&name).map(|uplink| uplink.ips()).unwrap_or_default();
        let known = NodeStatus {
            process: Some(process.pid),
            addresses,
            agent: "silent".into(),
            pods,
            log: self.log(&name),
            ..NodeStatus::default()
        };
        let Some(status) = self.agent_status(&name) else { return NodeStatus { name, ..known } };
        let agent = match status.phase {
            Phase::Broken => "broken",
            _ if agents::is_ready(&status) => "ready",
            Phase::Starting | Phase::Ready => "starting",
        };
        NodeStatus {
            name,
            agent: agent.into(),
            problems: agents::problems(&status),
            pod_cidrs: status.pod_cidrs,
            peers: status.peers,
            unreachable: status.unreachable,
            ..known
        }
    }
}
