//! All nodes with their pod CIDRs: decides which node gets which CIDRs next, and which nodes have a problem. Pure: it
//! receives observed nodes and the outcomes of its assignments, and does no I/O.
//!
//! ```text
//! no pod CIDR ──▶ Queued ──assignment──▶ Patching ──observed with pod CIDRs──▶ Settled
//!                  ▲ │                     │ failed
//!                  │ └─ none left ─▶ Full  └▶ Suspended ──retry──▶ Queued, with the same CIDRs
//!                  └── a CIDR was freed ◀─┘
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ipnet::IpNet;
use podwire_ipam::{CidrProblem, NodeCidrs, Usage};

use crate::events::{NodeEvent, Reason};
use crate::node_object::NodeState;

/// Pod CIDRs to write into a Node object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub name: String,
    pub uid: String,
    pub pod_cidrs: Vec<IpNet>,
}

/// What the caller must do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    Patch(Assignment),
    Report(NodeEvent),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The node has pod CIDRs, or is being deleted without.
    Settled,
    /// The node waits for an assignment.
    Queued,
    /// No CIDR was left for the node.
    Full,
    /// A patch is in flight.
    Patching,
    /// A patch failed and will be retried.
    Suspended,
}

#[derive(Clone, Debug)]
struct Entry {
    uid: String,
    pod_cidrs: Vec<String>,
    stage: Stage,
    /// The problem, if one of the node's `podCIDRs` is not a CIDR.
    unreadable: Option<String>,
}

/// A problem with a node's pod CIDRs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Problem {
    reason: Reason,
    note: String,
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct NodeTable {
    cidrs: NodeCidrs,
    nodes: BTreeMap<String, Entry>,
    queue: VecDeque<String>,
    /// The nodes with a problem, by name.
    quarantine: BTreeMap<String, Problem>,
    /// The nodes for which `CIDRNotAvailable` was reported and that have no CIDR yet.
    reported_full: BTreeSet<String>,
    /// Whether the quarantine may have changed since the last [`review`](NodeTable::review), which visits all nodes.
    needs_review: bool,
    /// Increases with every change of what callers can observe.
    version: u64,
}

impl NodeTable {
    pub fn new(cidrs: NodeCidrs) -> NodeTable {
        let (nodes, queue, quarantine, reported_full) = Default::default();
        NodeTable { cidrs, nodes, queue, quarantine, reported_full, needs_review: false, version: 0 }
    }

    /// Replaces the table by a list of all nodes.
    pub fn replace(&mut self, all: Vec<NodeState>) {
        let names: BTreeSet<&str> = all.iter().map(|node| node.name.as_str()).collect();
        let gone: Vec<String> =
            self.nodes.keys().filter(|name| !names.contains(name.as_str())).cloned().collect();
        gone.iter().for_each(|name| self.remove(name));
        // Nodes with pod CIDRs first, so that none of these is assigned to another node.
        let (having, lacking): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|node| !node.pod_cidrs.is_empty());
        having.into_iter().chain(lacking).for_each(|node| self.update(node));
    }

    /// Takes in an observed node. Observations may arrive out of order. A node that once had pod CIDRs has them as long
    /// as it exists, so an observation without is older.
    pub fn update(&mut self, node: NodeState) {
        if self.nodes.get(&node.name).is_some_and(|entry| entry.uid != node.uid) {
            self.remove(&node.name);
        }
        let entry = self.nodes.get(&node.name);
        if !node.pod_cidrs.is_empty() {
            if entry.is_none_or(|entry| entry.pod_cidrs != node.pod_cidrs) {
                self.settle(node);
            }
        } else if let Some(entry) = entry {
            if node.is_deleting && entry.pod_cidrs.is_empty() {
                self.stop_assigning(&node.name);
            }
        } else {
            let stage = if node.is_deleting { Stage::Settled } else { Stage::Queued };
            let entry = Entry { uid: node.uid, pod_cidrs: Vec::new(), stage, unreadable: None };
            self.version += 1;
            self.nodes.insert(node.name.clone(), entry);
            if stage == Stage::Queued {
                self.queue.push_back(node.name);
            }
        }
    }

    /// Removes a deleted node, if the entry is about that node.
    pub fn delete(&mut self, name: &str, uid: &str) {
        if self.nodes.get(name).is_some_and(|entry| entry.uid == uid) {
            self.remove(name);
        }
    }

    /// The next assignment, or a report that none is left for a node.
    pub fn next_step(&mut self) -> Option<NextStep> {
        while let Some(name) = self.queue.pop_front() {
            let Some(entry) = self.nodes.get_mut(&name).filter(|entry| entry.stage == Stage::Queued) else {
                continue;
            };
            let uid = entry.uid.clone();
            self.version += 1;
            match self.cidrs.assign(&name) {
                Ok(pod_cidrs) => {
                    entry.stage = Stage::Patching;
                    self.reported_full.remove(&name);
                    return Some(NextStep::Patch(Assignment { name, uid, pod_cidrs }));
                }
                Err(error) => {
                    entry.stage = Stage::Full;
                    // Once, not with every retry.
                    if self.reported_full.insert(name.clone()) {
                        let note = format!("Node {name} status is now: CIDRNotAvailable: {error}");
                        let reason = Reason::CidrNotAvailable;
                        return Some(NextStep::Report(NodeEvent { name, uid, reason, note }));
                    }
                }
            }
        }
        None
    }

    /// Takes in the node as it was observed after a patch. Returns whether it still has no pod CIDRs, so that the
    /// caller must [retry](NodeTable::retry) later.
    pub fn patched(&mut self, assignment: &Assignment, node: NodeState) -> bool {
        self.suspend(assignment);
        self.update(node);
        self.find_mut(assignment).is_some_and(|entry| entry.stage == Stage::Suspended)
    }

    /// Notes that the outcome of a patch is unknown. The CIDRs stay reserved for the node, because they may have been
    /// written. Returns whether the caller must [retry](NodeTable::retry) later.
    pub fn suspend(&mut self, assignment: &Assignment) -> bool {
        match self.find_mut(assignment) {
            Some(entry) if entry.stage == Stage::Patching => {
                entry.stage = Stage::Suspended;
                true
            }
            _ => false,
        }
    }

    /// Queues a suspended assignment again. Returns whether it is still needed.
    pub fn retry(&mut self, assignment: &Assignment) -> bool {
        let Some(entry) = self.find_mut(assignment).filter(|entry| entry.stage == Stage::Suspended) else {
            return false;
        };
        entry.stage = Stage::Queued;
        self.queue.push_back(assignment.name.clone());
        true
    }

    /// Whether the node has the assigned CIDRs.
    pub fn is_done(&self, assignment: &Assignment) -> bool {
        let entry = self.nodes.get(&assignment.name).filter(|entry| entry.uid == assignment.uid);
        entry.is_some_and(|entry| !entry.pod_cidrs.is_empty())
            && self.cidrs.find(&assignment.name) == Some(&assignment.pod_cidrs)
    }

    /// Updates the quarantine. Returns the problems that are new since the last call.
    pub fn review(&mut self) -> Vec<NodeEvent> {
        if !std::mem::take(&mut self.needs_review) {
            return Vec::new();
        }
        self.version += 1;
        let mut found: BTreeMap<String, Problem> = BTreeMap::new();
        for problem in self.cidrs.problems() {
            found.entry(problem.node().to_owned()).or_insert_with(|| describe(&problem));
        }
        for (name, entry) in &self.nodes {
            if let Some(note) = &entry.unreadable {
                let problem = Problem { reason: Reason::InvalidPodCidr, note: note.clone() };
                found.insert(name.clone(), problem);
            }
        }
        let new = found.iter().filter(|(name, problem)| self.quarantine.get(*name) != Some(problem));
        let event = |(name, problem): (&String, &Problem)| {
            let uid = self.nodes.get(name)?.uid.clone();
            Some(NodeEvent { name: name.clone(), uid, reason: problem.reason, note: problem.note.clone() })
        };
        let events = new.filter_map(event).collect();
        self.quarantine = found;
        events
    }

    /// The nodes with invalid or duplicate pod CIDRs, with the reason.
    pub fn quarantine(&self) -> impl Iterator<Item = (&str, &str)> {
        self.quarantine.iter().map(|(name, problem)| (name.as_str(), problem.note.as_str()))
    }

    /// Changes with every observable change. Most node updates are heartbeats, which change nothing here.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes without pod CIDRs.
    pub fn waiting(&self) -> Vec<&str> {
        let is_waiting = |entry: &Entry| entry.stage != Stage::Settled;
        self.nodes.iter().filter(|(_, entry)| is_waiting(entry)).map(|(name, _)| name.as_str()).collect()
    }

    pub fn usage(&self) -> Vec<Usage> {
        self.cidrs.usage()
    }

    /// The number of candidates that the last search examined in each network.
    pub fn tries(&self) -> impl Iterator<Item = (IpNet, u32)> + '_ {
        self.cidrs.tries()
    }

    fn find_mut(&mut self, assignment: &Assignment) -> Option<&mut Entry> {
        self.nodes.get_mut(&assignment.name).filter(|entry| entry.uid == assignment.uid)
    }

    /// Records a node's pod CIDRs, whichever controller assigned them. CIDRs that were reserved for it instead become
    /// free.
    fn settle(&mut self, node: NodeState) {
        let parsed: Vec<Result<IpNet, String>> =
            node.pod_cidrs.iter().map(|text| text.parse().map_err(|_| text.clone())).collect();
        let bad = parsed.iter().find_map(|one| one.as_ref().err());
        let unreadable = bad.map(|text| {
            format!("podCIDR {text:?} of node {} is not a CIDR, and the node gets no other as long as it has this: delete the Node object and let kubelet create it again", node.name)
        });
        let cidrs: Vec<IpNet> = parsed.into_iter().flatten().collect();
        let had_others = self.cidrs.find(&node.name).is_some_and(|had| had != cidrs);
        let has_problem = !self.cidrs.observe(&node.name, &cidrs).is_empty() || unreadable.is_some();
        let entry = Entry { uid: node.uid, pod_cidrs: node.pod_cidrs, stage: Stage::Settled, unreadable };
        self.nodes.insert(node.name.clone(), entry);
        self.version += 1;
        self.reported_full.remove(&node.name);
        self.needs_review |= has_problem || !self.quarantine.is_empty();
        if had_others {
            self.requeue_full();
        }
    }

    /// Assigns nothing to a node that is being deleted. CIDRs that may have been written stay reserved until it is
    /// gone.
    fn stop_assigning(&mut self, name: &str) {
        if let Some(entry) = self.nodes.get_mut(name).filter(|entry| entry.stage != Stage::Patching) {
            entry.stage = Stage::Settled;
            self.version += 1;
        }
    }

    fn remove(&mut self, name: &str) {
        self.nodes.remove(name);
        self.version += 1;
        self.reported_full.remove(name);
        self.cidrs.release(name);
        self.needs_review |= !self.quarantine.is_empty();
        self.requeue_full();
    }

    /// Queues the nodes for which no CIDR was left again, in the order of their names.
    fn requeue_full(&mut self) {
        for (name, entry) in self.nodes.iter_mut().filter(|(_, entry)| entry.stage == Stage::Full) {
            entry.stage = Stage::Queued;
            self.queue.push_back(name.clone());
        }
    }
}

fn describe(problem: &CidrProblem) -> Problem {
    const FIX: &str = "delete the Node object and let kubelet create it again when its pods may move";
    match problem {
        CidrProblem::OutsideNetworks { node, cidr } => Problem {
            reason: Reason::InvalidPodCidr,
            note: format!("podCIDR {cidr} of node {node} is not in the cluster networks (--cluster-cidr); it stays, and no other node gets it: {FIX}"),
        },
        CidrProblem::Excluded { node, cidr, excluded } => Problem {
            reason: Reason::InvalidPodCidr,
            note: format!("podCIDR {cidr} of node {node} overlaps the service range {excluded} (--service-cluster-ip-range): {FIX}"),
        },
        CidrProblem::Duplicate { node, cidr, with } => Problem {
            reason: Reason::DuplicatePodCidr,
            note: format!("podCIDR {cidr} of node {node} overlaps that of {}: packets for one node go to the other; no other node gets it until all of them are deleted: on one of them, {FIX}", with.join(", ")),
        },
    }
}

#[cfg(test)]
mod tests;
