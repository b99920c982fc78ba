//! How a lab is: its machines, their agents, their pods.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Serialize;

use crate::{Broken, Lab, Plan};

/// All of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// What was asked for.
    pub plan: Plan,
    /// Whether every agent is ready, knows of all the others and complains of nothing.
    pub whole: bool,
    /// Whether whoever made it died before all was done.
    pub unfinished: bool,
    /// The nodes.
    pub nodes: Vec<NodeStatus>,
    /// What was broken and not healed.
    pub broken: Vec<Broken>,
}

/// A node.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// The process that holds it, if it lives.
    pub process: Option<u32>,
    /// Where the others meet it.
    pub addresses: Vec<IpAddr>,
    /// `ready`, `starting`, `broken`, `silent` if its agent does not answer, `gone` if there is no node.
    pub agent: String,
    /// The addresses of its pods.
    pub ranges: Vec<String>,
    /// How many other nodes it has roads to.
    pub peers: usize,
    /// Nodes without a road, and why.
    pub refused: Vec<(String, String)>,
    /// What its agent complains of.
    pub problems: Vec<String>,
    /// Its pods.
    pub pods: Vec<PodStatus>,
    /// What its agent said.
    pub log: PathBuf,
}

/// A pod.
#[derive(Clone, Debug, Serialize)]
pub struct PodStatus {
    /// Its name.
    pub name: String,
    /// `ready`, or what it is instead.
    pub state: String,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
}

impl Lab {
    /// How it is.
    pub fn status(&self) -> Status {
        let mut pods: BTreeMap<_, _> = self.list_pods().into_iter().collect();
        let mut node = |name: String| {
            let (pods, why) = match pods.remove(&name).transpose() {
                Ok(pods) => (pods.into_iter().flatten().map(|pod| pod.status).collect(), None),
                Err(error) => (Vec::new(), Some(error.to_string())),
            };
            let mut status = self.node_status(name, pods);
            status.problems.extend(why);
            status
        };
        let nodes: Vec<NodeStatus> = self.state.plan.node_names().map(&mut node).collect();
        let is_up = self.state.stage == crate::Stage::Up;
        Status {
            plan: self.state.plan.clone(),
            whole: is_up && self.flaw().is_none(),
            unfinished: !is_up,
            nodes,
            broken: self.state.broken.clone(),
        }
    }

    fn node_status(&self, name: String, pods: Vec<PodStatus>) -> NodeStatus {
        let Ok(process) = self.process(&name) else {
            return NodeStatus { log: self.log(&name), agent: "gone".into(), name, ..NodeStatus::default() };
        };
        let word = self.word(&name);
        let agent = word.as_ref().map_or("silent".into(), |word| word.phase.clone());
        let word = word.unwrap_or_default();
        let seat = self.seat(&name).ok();
        let mut problems = word.problems;
        problems.extend(Some(word.source).filter(|source| !source.is_empty() && source != "current"));
        NodeStatus {
            process: Some(process.pid),
            addresses: seat.into_iter().flat_map(|seat| seat.sides).map(|side| side.0).collect(),
            agent,
            ranges: word.ranges,
            peers: word.peers,
            refused: word.refused,
            problems,
            pods,
            log: self.log(&name),
            name,
        }
    }
}
