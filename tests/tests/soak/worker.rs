//! A worker: a runtime with a few pods that executes random operations.

mod calls;
mod operations;

use std::process::Command;

use serde_json::Value;

use crate::add_failure::AddFailure;
use crate::networks::Network;
use crate::random::Random;
use crate::world::World;

/// The maximal number of pods of a worker.
const PODS: usize = 4;
/// The maximal number of deleted attachments that a worker remembers, to send another DEL.
const REMEMBERED: usize = 8;
/// Attachments have numbers. Each worker has a range of this size.
const NUMBERS: usize = 1000;

/// The plugins of a call: an index of [`World::folders`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ours,
    Go,
}

/// The operations of a worker.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Add,
    FailingAdd,
    AddAndKill,
    AddAndDeleteNetns,
    Del,
    DelAgain,
    DelAndKill,
    DelAndDeleteNetns,
    DeleteNetns,
    Check,
    Gc,
}

/// The operations with their weights.
const OPERATIONS: &[(usize, Operation)] = &[
    (30, Operation::Add),
    (12, Operation::FailingAdd),
    (8, Operation::AddAndKill),
    (3, Operation::AddAndDeleteNetns),
    (20, Operation::Del),
    (6, Operation::DelAgain),
    (6, Operation::DelAndKill),
    (3, Operation::DelAndDeleteNetns),
    (5, Operation::DeleteNetns),
    (8, Operation::Check),
    (2, Operation::Gc),
];

/// What happens while a chain runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The plugin at this position is killed, and the chain ends there.
    Kill(usize),
    /// The pod's namespace is deleted while the plugin at this position runs.
    DeleteNetns(usize),
}

/// A pod on a network, or what is left of it.
#[derive(Clone, Debug)]
struct Attachment {
    network: usize,
    container: String,
    ifname: &'static str,
    number: usize,
    /// The last result of the chain.
    result: Option<Value>,
    failure: Option<AddFailure>,
    /// A Go plugin took part in it. GC does not find everything that Go plugins leave behind.
    by_go: bool,
    /// The ADD succeeded, and neither a DEL nor the deletion of the namespace followed.
    attached: bool,
}

#[derive(Debug)]
struct Pod {
    name: String,
    /// Its namespace exists.
    has_netns: bool,
    /// Names of interfaces that stay in the namespace until it is deleted.
    blocked_names: Vec<&'static str>,
    attachments: Vec<Attachment>,
}

/// A worker.
#[derive(Debug)]
pub struct Worker<'w> {
    world: &'w World,
    random: Random,
    id: usize,
    pods: Vec<Pod>,
    deleted: Vec<Attachment>,
    numbers: usize,
    names: usize,
}

fn netns(container: &str) -> String {
    format!("/run/netns/{container}")
}

fn sh(script: &str) {
    let output = Command::new("sh").args(["-c", script]).output().expect("sh");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

fn ip_netns(verb: &str, name: &str) {
    let output = Command::new("ip").args(["netns", verb, name]).output().expect("ip");
    assert!(output.status.success(), "ip netns {verb} {name}: {}", String::from_utf8_lossy(&output.stderr));
}

impl<'w> Worker<'w> {
    /// The worker with number `id` of a soak with this seed.
    pub fn new(world: &'w World, seed: u64, id: usize) -> Worker<'w> {
        let random = Random::new(seed, id as u64);
        Worker { world, random, id, pods: Vec::new(), deleted: Vec::new(), numbers: 10, names: 0 }
    }

    /// Executes a random operation. Without `with_gc`, an ADD replaces GC.
    pub fn step(&mut self, with_gc: bool) {
        match self.random.pick_weighted(OPERATIONS) {
            Operation::Add => self.add(),
            Operation::FailingAdd => self.add_failing(),
            Operation::AddAndKill => self.add_with_fault(Fault::Kill),
            Operation::AddAndDeleteNetns => self.add_with_fault(Fault::DeleteNetns),
            Operation::Del => self.del(),
            Operation::DelAgain => self.del_again(),
            Operation::DelAndKill => self.del_with_fault(Fault::Kill),
            Operation::DelAndDeleteNetns => self.del_with_fault(Fault::DeleteNetns),
            Operation::DeleteNetns => self.lose_netns(),
            Operation::Check => self.check_one(),
            Operation::Gc if with_gc => self.gc(),
            Operation::Gc => self.add(),
        }
    }

    /// Checks all attached pods, and removes all pods: by DEL, or by deleting their namespace.
    pub fn finish(mut self) {
        for pod in 0..self.pods.len() {
            for at in 0..self.pods[pod].attachments.len() {
                self.check((pod, at));
            }
        }
        while !self.pods.is_empty() {
            if self.can_be_abandoned(0) && self.random.chance(30) {
                self.remove_pod(0);
                continue;
            }
            while !self.pods[0].attachments.is_empty() {
                let at = self.random.below(self.pods[0].attachments.len());
                self.delete((0, at));
            }
            self.remove_pod(0);
        }
    }

    fn network(&self, attachment: &Attachment) -> &'static Network {
        self.world.networks[attachment.network]
    }

    fn has_both_kinds(&self) -> bool {
        self.world.folders.len() > 1
    }

    fn random_kind(&mut self) -> Kind {
        if self.has_both_kinds() && self.random.chance(50) {
            Kind::Go
        } else {
            Kind::Ours
        }
    }

    fn folder(&self, kind: Kind) -> &'w str {
        match kind {
            Kind::Ours => &self.world.folders[0],
            Kind::Go => &self.world.folders[1],
        }
    }

    fn new_pod(&mut self) -> usize {
        self.names += 1;
        let name = format!("w{}-{}", self.id, self.names);
        ip_netns("add", &name);
        self.pods.push(Pod { name, has_netns: true, blocked_names: Vec::new(), attachments: Vec::new() });
        self.pods.len() - 1
    }

    /// A pod with a namespace, an existing or a new one.
    fn some_pod(&mut self) -> usize {
        let existing: Vec<usize> = (0..self.pods.len()).filter(|pod| self.pods[*pod].has_netns).collect();
        if existing.is_empty() || (self.pods.len() < PODS && self.random.chance(50)) {
            return self.new_pod();
        }
        self.random.pick(&existing).expect("an existing pod")
    }

    /// The indexes (pod, attachment) of the attachments that `matches`.
    fn positions(&self, matches: impl Fn(&Pod, &Attachment) -> bool) -> Vec<(usize, usize)> {
        let of_pod = |(n, pod): (usize, &'_ Pod)| -> Vec<(usize, usize)> {
            let all = pod.attachments.iter().enumerate();
            all.filter(|(_, one)| matches(pod, one)).map(|(at, _)| (n, at)).collect()
        };
        self.pods.iter().enumerate().flat_map(of_pod).collect()
    }

    /// An attachment that `pod` does not have yet, on a random network.
    fn new_attachment(&mut self, pod: usize) -> Option<Attachment> {
        let existing = &self.pods[pod].attachments;
        let has_default = existing.iter().any(|one| self.network(one).default_route);
        let is_possible = |network: usize| {
            let row = self.world.networks[network];
            let is_attached = existing.iter().any(|one| one.network == network);
            (!is_attached || (row.twice && !self.has_both_kinds())) && !(row.default_route && has_default)
        };
        let networks: Vec<usize> = (0..self.world.networks.len()).filter(|one| is_possible(*one)).collect();
        let network = self.random.pick(&networks)?;
        let names = self.world.networks[network].ifnames().iter().copied();
        let Pod { blocked_names, attachments: existing, .. } = &self.pods[pod];
        let is_free =
            |name: &&str| !blocked_names.contains(name) && existing.iter().all(|one| one.ifname != *name);
        let names: Vec<&str> = names.filter(is_free).collect();
        let ifname = self.random.pick(&names)?;
        Some(self.attachment(pod, network, ifname))
    }

    fn attachment(&mut self, pod: usize, network: usize, ifname: &'static str) -> Attachment {
        self.numbers += 1;
        assert!(self.numbers < NUMBERS, "a worker has no number left");
        Attachment {
            network,
            container: self.pods[pod].name.clone(),
            ifname,
            number: self.id * NUMBERS + self.numbers,
            result: None,
            failure: None,
            by_go: false,
            attached: false,
        }
    }

    /// Whether GC alone can clean up all attachments of a pod.
    fn can_be_abandoned(&self, pod: usize) -> bool {
        self.pods[pod].attachments.iter().all(|one| !one.by_go)
    }

    /// Removes a pod with its namespace. Its remaining attachments get no DEL.
    fn remove_pod(&mut self, pod: usize) {
        self.delete_netns(pod);
        let pod = self.pods.remove(pod);
        if !pod.attachments.is_empty() {
            self.world.note(format!("{} abandons {}", self.id, pod.name));
        }
        pod.attachments.iter().for_each(|one| self.clean_up(one));
    }

    fn delete_netns(&mut self, pod: usize) {
        let pod = &mut self.pods[pod];
        if std::mem::replace(&mut pod.has_netns, false) {
            for one in &mut pod.attachments {
                self.world.remove_valid(one.network, &one.container, one.ifname);
                one.attached = false;
            }
            self.world.note(format!("{} deletes the namespace of {}", self.id, pod.name));
            ip_netns("delete", &pod.name);
        }
    }

    fn clean_up(&self, attachment: &Attachment) {
        if let Some((_, cleanup)) = self.network(attachment).fixture {
            sh(&cleanup.replace("NUMBER", &attachment.number.to_string()));
        }
    }
}
