//! A worker: a runtime with a few pods that executes random operations.

mod acts;
mod calls;

use std::process::Command;

use serde_json::Value;

use crate::networks::Network;
use crate::random::Random;
use crate::spoil::Spoil;
use crate::world::World;

/// How many pods a worker has at a time.
const PODS: usize = 4;
/// How many attachments that are gone it remembers, to delete them again.
const REMEMBERED: usize = 8;
/// Attachments have numbers; each worker has this many for its own.
const NUMBERS: usize = 1000;

/// Where the plugins of a call come from: a place in [`World::folders`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ours,
    Go,
}

/// What a worker does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Add,
    AddInVain,
    AddAndKill,
    AddAndVanish,
    Del,
    DelAgain,
    DelAndKill,
    DelAndVanish,
    Vanish,
    Check,
    Gc,
}

/// How often.
const ACTS: &[(usize, Act)] = &[
    (30, Act::Add),
    (12, Act::AddInVain),
    (8, Act::AddAndKill),
    (3, Act::AddAndVanish),
    (20, Act::Del),
    (6, Act::DelAgain),
    (6, Act::DelAndKill),
    (3, Act::DelAndVanish),
    (5, Act::Vanish),
    (8, Act::Check),
    (2, Act::Gc),
];

/// What happens to a chain on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Peace,
    /// The plugin at this position is killed, and the chain ends there.
    Kill(usize),
    /// While the plugin at this place works, the pod's namespace is deleted.
    Vanish(usize),
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
    spoil: Option<Spoil>,
    /// A plugin of Go's had a part in it. What Go leaves behind, a GC cannot find in every case.
    gos: bool,
    /// The ADD succeeded, and nothing has happened to it since.
    living: bool,
}

#[derive(Debug)]
struct Pod {
    name: String,
    /// Its namespace is there.
    there: bool,
    /// Interfaces that stay in it until it ends.
    spent: Vec<&'static str>,
    attachments: Vec<Attachment>,
}

/// A worker.
#[derive(Debug)]
pub struct Worker<'w> {
    world: &'w World,
    random: Random,
    id: usize,
    pods: Vec<Pod>,
    gone: Vec<Attachment>,
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
    /// Number `id` of the workers who share a seed.
    pub fn new(world: &'w World, seed: u64, id: usize) -> Worker<'w> {
        let random = Random::new(seed, id as u64);
        Worker { world, random, id, pods: Vec::new(), gone: Vec::new(), numbers: 10, names: 0 }
    }

    /// Does one thing; a GC only if it may.
    pub fn step(&mut self, with_gc: bool) {
        match self.random.weighed(ACTS) {
            Act::Add => self.add(),
            Act::AddInVain => self.add_in_vain(),
            Act::AddAndKill => self.add_unhappily(Fate::Kill),
            Act::AddAndVanish => self.add_unhappily(Fate::Vanish),
            Act::Del => self.del(),
            Act::DelAgain => self.del_again(),
            Act::DelAndKill => self.del_unhappily(Fate::Kill),
            Act::DelAndVanish => self.del_unhappily(Fate::Vanish),
            Act::Vanish => self.vanish(),
            Act::Check => self.check_one(),
            Act::Gc if with_gc => self.gc(),
            Act::Gc => self.add(),
        }
    }

    /// Looks at every living pod once more, and ends them all: by DEL, or by taking their namespace away.
    pub fn finish(mut self) {
        for pod in 0..self.pods.len() {
            for at in 0..self.pods[pod].attachments.len() {
                self.check((pod, at));
            }
        }
        while !self.pods.is_empty() {
            if self.may_be_forgotten(0) && self.random.chance(30) {
                self.forget(0);
                continue;
            }
            while !self.pods[0].attachments.is_empty() {
                let at = self.random.below(self.pods[0].attachments.len());
                self.delete((0, at));
            }
            self.forget(0);
        }
    }

    fn network(&self, attachment: &Attachment) -> &'static Network {
        self.world.networks[attachment.network]
    }

    fn mixed(&self) -> bool {
        self.world.folders.len() > 1
    }

    fn either(&mut self) -> Kind {
        if self.mixed() && self.random.chance(50) {
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
        self.pods.push(Pod { name, there: true, spent: Vec::new(), attachments: Vec::new() });
        self.pods.len() - 1
    }

    /// A pod that is there, old or new.
    fn some_pod(&mut self) -> usize {
        let there: Vec<usize> = (0..self.pods.len()).filter(|pod| self.pods[*pod].there).collect();
        if there.is_empty() || (self.pods.len() < PODS && self.random.chance(50)) {
            return self.new_pod();
        }
        self.random.pick(&there).expect("one is there")
    }

    /// Places (pod, attachment) that are as wanted.
    fn places(&self, wanted: impl Fn(&Pod, &Attachment) -> bool) -> Vec<(usize, usize)> {
        let of_pod = |(n, pod): (usize, &'_ Pod)| -> Vec<(usize, usize)> {
            let all = pod.attachments.iter().enumerate();
            all.filter(|(_, one)| wanted(pod, one)).map(|(at, _)| (n, at)).collect()
        };
        self.pods.iter().enumerate().flat_map(of_pod).collect()
    }

    /// An attachment that could be made now in `pod`.
    fn free_place(&mut self, pod: usize) -> Option<Attachment> {
        let there = &self.pods[pod].attachments;
        let has_default = there.iter().any(|one| self.network(one).default_route);
        let free = |network: usize| {
            let row = self.world.networks[network];
            let again = there.iter().any(|one| one.network == network);
            (!again || (row.twice && !self.mixed())) && !(row.default_route && has_default)
        };
        let networks: Vec<usize> = (0..self.world.networks.len()).filter(|one| free(*one)).collect();
        let network = self.random.pick(&networks)?;
        let names = self.world.networks[network].ifnames().iter().copied();
        let Pod { spent, attachments: there, .. } = &self.pods[pod];
        let is_free = |name: &&str| !spent.contains(name) && there.iter().all(|one| one.ifname != *name);
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
            spoil: None,
            gos: false,
            living: false,
        }
    }

    /// A pod is left to GC, with all that is on it.
    fn may_be_forgotten(&self, pod: usize) -> bool {
        self.pods[pod].attachments.iter().all(|one| !one.gos)
    }

    /// Takes the namespace away, and never asks again.
    fn forget(&mut self, pod: usize) {
        self.end_namespace(pod);
        let pod = self.pods.remove(pod);
        if !pod.attachments.is_empty() {
            self.world.note(format!("{} forgets {}", self.id, pod.name));
        }
        pod.attachments.iter().for_each(|one| self.take_prop(one));
    }

    fn end_namespace(&mut self, pod: usize) {
        let pod = &mut self.pods[pod];
        if std::mem::replace(&mut pod.there, false) {
            for one in &mut pod.attachments {
                self.world.dismiss(one.network, &one.container, one.ifname);
                one.living = false;
            }
            self.world.note(format!("{} ends {}", self.id, pod.name));
            ip_netns("delete", &pod.name);
        }
    }

    fn take_prop(&self, attachment: &Attachment) {
        if let Some((_, away)) = self.network(attachment).prop {
            sh(&away.replace("NUMBER", &attachment.number.to_string()));
        }
    }
}
