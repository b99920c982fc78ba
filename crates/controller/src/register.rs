//! All nodes and what they have: who gets which range next, and what is odd. Pure: it is told what was seen and what became of
//! its orders, and does no I/O.
//!
//! ```text
//! no range ──▶ Queued ──order──▶ Writing ──seen with ranges──▶ Settled
//!                ▲ │               │ it failed
//!                │ └─ none left ─▶ Full        Resting ──later──▶ Queued, with the same range
//!                └── something is free again ◀──┘
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ipnet::IpNet;
use podwire_ipam::{CidrProblem, NodeCidrs, Usage};

use crate::object::Sighting;

/// Ranges to be written into a node's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub name: String,
    pub uid: String,
    pub ranges: Vec<IpNet>,
}

/// Something that the administrator should know of a node, said once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    pub name: String,
    pub uid: String,
    pub reason: Reason,
    pub note: String,
}

/// What events are named after. The first two are Kubernetes' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    CidrNotAvailable,
    CidrAssignmentFailed,
    InvalidPodCidr,
    DuplicatePodCidr,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::CidrNotAvailable => "CIDRNotAvailable",
            Reason::CidrAssignmentFailed => "CIDRAssignmentFailed",
            Reason::InvalidPodCidr => "InvalidPodCIDR",
            Reason::DuplicatePodCidr => "DuplicatePodCIDR",
        }
    }
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Write(Order),
    Tell(Remark),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has ranges, or is about to go without.
    Settled,
    /// It gets the next ones.
    Queued,
    /// There was none left for it.
    Full,
    /// An order is out.
    Writing,
    /// An order failed; a little later there is another.
    Resting,
}

#[derive(Clone, Debug)]
struct Known {
    uid: String,
    cidrs: Vec<String>,
    stage: Stage,
    /// What of its `podCIDRs` is no range.
    unreadable: Option<String>,
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct Register {
    ranges: NodeCidrs,
    nodes: BTreeMap<String, Known>,
    queue: VecDeque<String>,
    /// By node: what is wrong with its ranges, and the sentence about it.
    quarantine: BTreeMap<String, (Reason, String)>,
    /// Who was told that there is no range, and not yet given one.
    told_full: BTreeSet<String>,
    /// Whether the quarantine may be another since the last [`review`](Register::review), which looks at all nodes.
    changed: bool,
    /// Grows with every change of what can be asked here.
    version: u64,
}

impl Register {
    pub fn new(ranges: NodeCidrs) -> Register {
        let (nodes, queue, quarantine, told_full) = Default::default();
        Register { ranges, nodes, queue, quarantine, told_full, changed: false, version: 0 }
    }

    /// These are all nodes that there are.
    pub fn replace(&mut self, all: Vec<Sighting>) {
        let names: BTreeSet<&str> = all.iter().map(|seen| seen.name.as_str()).collect();
        let gone: Vec<String> =
            self.nodes.keys().filter(|name| !names.contains(name.as_str())).cloned().collect();
        gone.iter().for_each(|name| self.remove(name));
        // Who has something comes first: nothing of it must be given to another.
        let (having, lacking): (Vec<_>, Vec<_>) = all.into_iter().partition(|seen| !seen.cidrs.is_empty());
        having.into_iter().chain(lacking).for_each(|seen| self.learn(seen));
    }

    /// A node as it was seen, perhaps some time ago: news may overtake each other. But a node that had ranges once has them as
    /// long as it lives, so one that is seen without was seen earlier.
    pub fn learn(&mut self, seen: Sighting) {
        if self.nodes.get(&seen.name).is_some_and(|known| known.uid != seen.uid) {
            self.remove(&seen.name);
        }
        let known = self.nodes.get(&seen.name);
        match (known, seen.cidrs.is_empty()) {
            (Some(known), false) if known.cidrs == seen.cidrs => {}
            (_, false) => self.settle(seen),
            (Some(known), true) if seen.leaving && known.cidrs.is_empty() => self.let_go(&seen.name),
            (Some(_), true) => {}
            (None, true) => {
                let (stage, name) = (if seen.leaving { Stage::Settled } else { Stage::Queued }, seen.name);
                let known = Known { uid: seen.uid, cidrs: Vec::new(), stage, unreadable: None };
                self.version += 1;
                self.nodes.insert(name.clone(), known);
                if stage == Stage::Queued {
                    self.queue.push_back(name);
                }
            }
        }
    }

    /// A node that is gone, if it is still that one.
    pub fn forget(&mut self, name: &str, uid: &str) {
        if self.nodes.get(name).is_some_and(|known| known.uid == uid) {
            self.remove(name);
        }
    }

    /// The next order, or the news that there is none for a node.
    pub fn next(&mut self) -> Option<Next> {
        while let Some(name) = self.queue.pop_front() {
            let Some(known) = self.nodes.get_mut(&name).filter(|known| known.stage == Stage::Queued) else {
                continue;
            };
            let uid = known.uid.clone();
            self.version += 1;
            match self.ranges.assign(&name) {
                Ok(ranges) => {
                    known.stage = Stage::Writing;
                    self.told_full.remove(&name);
                    return Some(Next::Write(Order { name, uid, ranges }));
                }
                Err(error) => {
                    known.stage = Stage::Full;
                    // Once; not again with each of its retries.
                    if self.told_full.insert(name.clone()) {
                        let note = format!("Node {name} status is now: CIDRNotAvailable: {error}");
                        return Some(Next::Tell(Remark {
                            name,
                            uid,
                            reason: Reason::CidrNotAvailable,
                            note,
                        }));
                    }
                }
            }
        }
        None
    }

    /// An order was carried out, or somebody else was faster: the node was seen like this after it. Returns whether it has no
    /// ranges all the same, and must be [tried again](Register::retry) later.
    pub fn answered(&mut self, order: &Order, seen: Sighting) -> bool {
        self.rest(order);
        self.learn(seen);
        self.find_mut(order).is_some_and(|known| known.stage == Stage::Resting)
    }

    /// Nobody knows what became of an order. The range stays the node's: it may have been written. Returns whether to
    /// [try again](Register::retry) later.
    pub fn rest(&mut self, order: &Order) -> bool {
        match self.find_mut(order) {
            Some(known) if known.stage == Stage::Writing => {
                known.stage = Stage::Resting;
                true
            }
            _ => false,
        }
    }

    /// The pause after a failure is over. Returns whether the order is still of interest.
    pub fn retry(&mut self, order: &Order) -> bool {
        let Some(known) = self.find_mut(order).filter(|known| known.stage == Stage::Resting) else {
            return false;
        };
        known.stage = Stage::Queued;
        self.queue.push_back(order.name.clone());
        true
    }

    /// Whether the node has what was ordered for it.
    pub fn is_done(&self, order: &Order) -> bool {
        let known = self.nodes.get(&order.name).filter(|known| known.uid == order.uid);
        known.is_some_and(|known| !known.cidrs.is_empty())
            && self.ranges.find(&order.name) == Some(&order.ranges)
    }

    /// What has become odd since the last time. What is odd no more is forgotten.
    pub fn review(&mut self) -> Vec<Remark> {
        if !std::mem::take(&mut self.changed) {
            return Vec::new();
        }
        self.version += 1;
        let mut found = BTreeMap::new();
        for problem in self.ranges.problems() {
            let (reason, why) = verdict(&problem);
            found.entry(problem.node().to_owned()).or_insert((reason, why));
        }
        for (name, known) in &self.nodes {
            if let Some(why) = &known.unreadable {
                found.insert(name.clone(), (Reason::InvalidPodCidr, why.clone()));
            }
        }
        let news = found.iter().filter(|(name, odd)| self.quarantine.get(*name) != Some(odd));
        let remark = |(name, (reason, note)): (&String, &(Reason, String))| {
            let uid = self.nodes.get(name)?.uid.clone();
            Some(Remark { name: name.clone(), uid, reason: *reason, note: note.clone() })
        };
        let news = news.filter_map(remark).collect();
        self.quarantine = found;
        news
    }

    /// Nodes whose ranges make no sense or are others' too, with the reason.
    pub fn quarantine(&self) -> impl Iterator<Item = (&str, &str)> {
        self.quarantine.iter().map(|(name, (_, why))| (name.as_str(), why.as_str()))
    }

    /// Another one after every change: most of what is heard of nodes are heartbeats, which change nothing here.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Nodes that have no range yet.
    pub fn waiting(&self) -> Vec<&str> {
        let waits = |known: &Known| known.stage != Stage::Settled;
        self.nodes.iter().filter(|(_, known)| waits(known)).map(|(name, _)| name.as_str()).collect()
    }

    pub fn usage(&self) -> Vec<Usage> {
        self.ranges.usage()
    }

    /// How many places were looked at for the last order, by network.
    pub fn tries(&self) -> impl Iterator<Item = (IpNet, u32)> + '_ {
        self.ranges.tries()
    }

    fn find_mut(&mut self, order: &Order) -> Option<&mut Known> {
        self.nodes.get_mut(&order.name).filter(|known| known.uid == order.uid)
    }

    /// A node has these, whoever gave them. What it was to get instead is free again.
    fn settle(&mut self, seen: Sighting) {
        let parsed: Vec<Result<IpNet, String>> =
            seen.cidrs.iter().map(|text| text.parse().map_err(|_| text.clone())).collect();
        let bad = parsed.iter().find_map(|one| one.as_ref().err());
        let unreadable = bad.map(|text| {
            format!("podCIDR {text:?} of node {} is no range of addresses; it gets no other as long as it has this: delete the Node object and let kubelet make a new one", seen.name)
        });
        let ranges: Vec<IpNet> = parsed.into_iter().flatten().collect();
        let had = self.ranges.find(&seen.name).is_some_and(|had| had != ranges);
        let odd = !self.ranges.observe(&seen.name, &ranges).is_empty() || unreadable.is_some();
        let known = Known { uid: seen.uid, cidrs: seen.cidrs, stage: Stage::Settled, unreadable };
        self.nodes.insert(seen.name.clone(), known);
        self.version += 1;
        self.told_full.remove(&seen.name);
        self.changed |= odd || !self.quarantine.is_empty();
        if had {
            self.something_is_free();
        }
    }

    /// A node that is being deleted gets nothing more. What was perhaps written stays its own until it is gone.
    fn let_go(&mut self, name: &str) {
        if let Some(known) = self.nodes.get_mut(name).filter(|known| known.stage != Stage::Writing) {
            known.stage = Stage::Settled;
            self.version += 1;
        }
    }

    fn remove(&mut self, name: &str) {
        self.nodes.remove(name);
        self.version += 1;
        self.told_full.remove(name);
        self.ranges.release(name);
        self.changed |= !self.quarantine.is_empty();
        self.something_is_free();
    }

    /// Those who got nothing are asked again, in the order of their names.
    fn something_is_free(&mut self) {
        for (name, known) in self.nodes.iter_mut().filter(|(_, known)| known.stage == Stage::Full) {
            known.stage = Stage::Queued;
            self.queue.push_back(name.clone());
        }
    }
}

fn verdict(problem: &CidrProblem) -> (Reason, String) {
    const WAY_OUT: &str = "delete the Node object and let kubelet make a new one, when its pods may move";
    match problem {
        CidrProblem::Outside { node, range } => {
            let why = format!("podCIDR {range} of node {node} is not of the cluster's networks (--cluster-cidr); it is left alone and not given to others: {WAY_OUT}");
            (Reason::InvalidPodCidr, why)
        }
        CidrProblem::KeptOut { node, range, kept } => {
            let why = format!("podCIDR {range} of node {node} has addresses of the services ({kept}, --service-cluster-ip-range): {WAY_OUT}");
            (Reason::InvalidPodCidr, why)
        }
        CidrProblem::Shared { node, range, with } => {
            let others = with.join(", ");
            let why = format!("podCIDR {range} of node {node} is also of {others}: packets for one go to the other; nobody else gets it until all of them are gone: on one of them, {WAY_OUT}");
            (Reason::DuplicatePodCidr, why)
        }
    }
}

#[cfg(test)]
mod tests;
