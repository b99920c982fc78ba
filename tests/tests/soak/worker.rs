//! A worker: a runtime with a few pods of its own, which does now this, now that.

use std::process::Command;

use serde_json::{json, Value};

use crate::call::{Answer, Call};
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
    /// The plugin at this place is killed, and nobody goes on.
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

    /// Does one thing.
    pub fn step(&mut self) {
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
            Act::Gc => self.gc(),
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
        match self.mixed() && self.random.chance(50) {
            true => Kind::Go,
            false => Kind::Ours,
        }
    }

    fn folder(&self, kind: Kind) -> &'w str {
        match kind {
            Kind::Ours => &self.world.folders[0],
            Kind::Go => &self.world.folders[1],
        }
    }

    // Pods and places in them.

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

    // Calls of chains.

    fn note(&self, verb: &str, one: &Attachment, how: &str, said: &str) {
        let network = self.network(one).name;
        self.world
            .note(format!("{} {verb} {network}/{}/{} {how}: {said}", self.id, one.container, one.ifname));
    }

    fn chain(&self, one: &Attachment) -> Vec<Value> {
        let mut chain = self.network(one).chain(one.number);
        if let Some(spoil) = one.spoil {
            spoil.apply(&mut chain);
        }
        chain
    }

    /// Runs one plugin of a chain as `fate` will have it.
    fn call(&mut self, call: &Call<'_>, place: usize, fate: Fate) -> Answer {
        match fate {
            Fate::Kill(at) if at == place => {
                let moment = self.world.moment(call, &mut self.random);
                call.run_and_kill(moment)
            }
            Fate::Vanish(at) if at == place => {
                let moment = self.world.moment(call, &mut self.random);
                call.run_and(moment, || ip_netns("delete", call.container))
            }
            _ if call.folder == self.world.folders[0] => self.world.timed(call),
            _ => call.run(),
        }
    }

    /// ADD through the chain.
    fn run_add(&mut self, one: &mut Attachment, kind: Kind, fate: Fate) -> Answer {
        let world = self.world;
        {
            let _door = world.doors[one.network].read().expect("door");
            world.admit(one.network, &one.container, one.ifname);
        }
        let _turn = world.turns[one.network].read().expect("turn");
        if let Some((ready, _)) = self.network(one).prop {
            sh(&ready.replace("NUMBER", &one.number.to_string()));
        }
        one.gos |= kind == Kind::Go;
        let path = match one.spoil {
            Some(Spoil::NoNamespace) => "/run/netns/nowhere".into(),
            _ => netns(&one.container),
        };
        let mut last = Answer { status: 0, text: String::new(), value: None };
        for (place, mut config) in self.chain(one).into_iter().enumerate() {
            if let Some(result) = &one.result {
                config["prevResult"] = result.clone();
            }
            let name = config["type"].to_string();
            let (folder, container) = (self.folder(kind), one.container.clone());
            let call =
                Call { verb: "ADD", folder, container: &container, ifname: one.ifname, netns: &path, config };
            last = self.call(&call, place, fate);
            if last.is_ok() {
                one.result = last.value.clone();
            }
            if !last.is_ok() || matches!(fate, Fate::Kill(at) if at == place) {
                self.note("ADD", one, &format!("by {kind:?} {name} {fate:?} {:?}", one.spoil), &last.said());
                // A killed runtime does not know that the plugin has ended.
                world.dismiss(one.network, &one.container, one.ifname);
                return Answer { status: if last.is_ok() { -9 } else { last.status }, ..last };
            }
        }
        one.living = !matches!(fate, Fate::Vanish(_));
        if let (true, Some(result)) = (one.living, &one.result) {
            world.claim(one.network, (&one.container, one.ifname), result);
        }
        self.note("ADD", one, &format!("by {kind:?} {fate:?} {:?}", one.spoil), &tell(&one.result));
        last
    }

    /// DEL through the chain, backwards.
    fn run_del(&mut self, one: &mut Attachment, kind: Kind, fate: Fate) -> Answer {
        let world = self.world;
        let _turn = world.turns[one.network].read().expect("turn");
        world.dismiss(one.network, &one.container, one.ifname);
        world.release(one.network, &one.container, one.ifname);
        one.living = false;
        // Go finds less without namespace and record, and so does ours of what Go made.
        let careful = kind == Kind::Go || one.gos;
        let path = if careful || self.random.chance(70) { netns(&one.container) } else { String::new() };
        if let (true, true, Some(pod)) = (
            path.is_empty(),
            self.network(one).within_pod,
            self.pods.iter_mut().find(|pod| pod.name == one.container),
        ) {
            pod.spent.push(one.ifname);
        }
        let told = careful || self.random.chance(60);
        let how = format!(
            "by {kind:?} {fate:?}{}{}",
            if path.is_empty() { ", no netns" } else { "" },
            if told && one.result.is_some() { "" } else { ", no result" }
        );
        let mut last = Answer { status: 0, text: String::new(), value: None };
        for (place, mut config) in self.chain(one).into_iter().enumerate().rev() {
            if let (true, Some(result)) = (told, &one.result) {
                config["prevResult"] = result.clone();
            }
            let name = config["type"].to_string();
            let (folder, container) = (self.folder(kind), one.container.clone());
            let call =
                Call { verb: "DEL", folder, container: &container, ifname: one.ifname, netns: &path, config };
            last = self.call(&call, place, fate);
            let killed = matches!(fate, Fate::Kill(at) if at == place);
            if killed || !last.is_ok() {
                self.note("DEL", one, &format!("{how} {name}"), &last.said());
                return Answer { status: if killed { -9 } else { last.status }, ..last };
            }
        }
        self.note("DEL", one, &how, "done");
        last
    }

    // Acts.

    fn add(&mut self) {
        let pod = self.some_pod();
        let Some(mut one) = self.free_place(pod) else { return self.del() };
        let kind = self.either();
        let answer = self.run_add(&mut one, kind, Fate::Peace);
        if !answer.is_ok() && kind == Kind::Ours {
            self.world.complain(&one.container, &format!("an ADD failed: {}", answer.said()));
        }
        self.pods[pod].attachments.push(one);
    }

    /// An ADD that must fail. Then the runtime sends DEL, or it does so later, or never.
    fn add_in_vain(&mut self) {
        let Some((pod, mut one)) = self.place_in_vain() else { return self.add() };
        let mut kind = self.either();
        // Go gives a taken port to both, and the kernel to the first.
        if matches!(one.spoil, Some(Spoil::TakenPort(_))) {
            kind = Kind::Ours;
        }
        let answer = self.run_add(&mut one, kind, Fate::Peace);
        match answer.status {
            0 => self.world.complain(&one.container, "an ADD should have failed"),
            1 => {}
            _ => self.world.complain(&one.container, &format!("an ADD crashed: {}", answer.said())),
        }
        one.living = false;
        let rival = one.ifname;
        self.pods[pod].attachments.push(one);
        if self.random.chance(70) {
            self.delete((pod, self.pods[pod].attachments.len() - 1));
        }
        // Whoever had the name has it still.
        for (pod, at) in self.places(|_, other| other.living && other.ifname == rival) {
            self.check((pod, at));
        }
    }

    fn place_in_vain(&mut self) -> Option<(usize, Attachment)> {
        let living = |one: &Attachment| one.living && (!one.gos || !self.mixed());
        let named = self.places(|_, one| living(one) && self.network(one).makes_link);
        let mapped = self.places(|_, one| living(one) && Spoil::TakenPort(0).suits(self.network(one)));
        if let (true, Some((pod, at))) = (self.random.chance(40), self.random.pick(&named)) {
            let rival = self.pods[pod].attachments[at].clone();
            let others: Vec<usize> = (0..self.world.networks.len())
                .filter(|one| Spoil::TakenName.suits(self.world.networks[*one]))
                .filter(|one| self.pods[pod].attachments.iter().all(|there| there.network != *one))
                .collect();
            let network = self.random.pick(&others)?;
            let one = self.attachment(pod, network, rival.ifname);
            return Some((pod, Attachment { spoil: Some(Spoil::TakenName), ..one }));
        }
        let pod = self.new_pod();
        let mut ways = vec![Spoil::FullPool, Spoil::BadRoute, Spoil::NoNamespace];
        for (pod, at) in mapped {
            ways.extend([Spoil::TakenPort(self.pods[pod].attachments[at].number); 3]);
        }
        let spoil = self.random.pick(&ways)?;
        let suited: Vec<usize> =
            (0..self.world.networks.len()).filter(|one| spoil.suits(self.world.networks[*one])).collect();
        let network = self.random.pick(&suited)?;
        let ifname = self.world.networks[network].ifnames()[0];
        let one = self.attachment(pod, network, ifname);
        Some((pod, Attachment { spoil: Some(spoil), ..one }))
    }

    fn add_unhappily(&mut self, fate: fn(usize) -> Fate) {
        let pod = self.some_pod();
        let Some(mut one) = self.free_place(pod) else { return self.del() };
        let place = self.random.below(self.chain(&one).len());
        let answer = self.run_add(&mut one, Kind::Ours, fate(place));
        if answer.status < 0 && !answer.was_killed() {
            self.world.complain(&one.container, &format!("an ADD crashed: {}", answer.said()));
        }
        self.pods[pod].attachments.push(one);
        if matches!(fate(place), Fate::Vanish(_)) {
            self.namespace_ended(pod);
        }
    }

    /// The namespace was deleted while a plugin was at work.
    fn namespace_ended(&mut self, pod: usize) {
        let pod = &mut self.pods[pod];
        pod.there = std::path::Path::new(&netns(&pod.name)).exists();
        if pod.there {
            return; // The chain did not come so far.
        }
        for one in &mut pod.attachments {
            self.world.dismiss(one.network, &one.container, one.ifname);
            one.living = false;
        }
    }

    fn some_attachment(&mut self) -> Option<(usize, usize)> {
        let all = self.places(|_, _| true);
        self.random.pick(&all)
    }

    fn del(&mut self) {
        match self.some_attachment() {
            Some(place) => self.delete(place),
            None => self.add(),
        }
    }

    /// DEL of an attachment until it succeeds.
    fn delete(&mut self, (pod, at): (usize, usize)) {
        let mut one = self.pods[pod].attachments.remove(at);
        let kind = self.either();
        let gos_turn =
            kind == Kind::Go && one.spoil.is_none() && one.result.is_some() && self.pods[pod].there;
        if gos_turn {
            one.gos = true;
            // The first may complain of a chain that it did not find, after everything is done.
            let done = self.run_del(&mut one, Kind::Go, Fate::Peace).is_ok()
                || self.run_del(&mut one, Kind::Go, Fate::Peace).is_ok();
            if done {
                return self.bury(one);
            }
        }
        let answer = self.run_del(&mut one, Kind::Ours, Fate::Peace);
        match answer.is_ok() {
            true => self.bury(one),
            false => self.world.complain(&one.container, &format!("a DEL failed: {}", answer.said())),
        }
    }

    fn bury(&mut self, one: Attachment) {
        self.take_prop(&one);
        if self.gone.len() >= REMEMBERED {
            self.gone.remove(0);
        }
        self.gone.push(one);
    }

    /// DEL of what was deleted. In the meantime others may have its address, its port, its name.
    fn del_again(&mut self) {
        if self.gone.is_empty() {
            return self.del();
        }
        let mut one = self.gone[self.random.below(self.gone.len())].clone();
        // The pod may be attached to the same network anew, under the same name: that is the same attachment.
        let is_same = |other: &Attachment| {
            (other.network, &other.container, other.ifname) == (one.network, &one.container, one.ifname)
        };
        // An interface that Go made tells nobody whose it is, and chains that Go made do not tell the interface.
        let is_gos = |other: &Attachment| {
            let near = other.ifname == one.ifname || other.network == one.network;
            other.gos && other.container == one.container && near
        };
        if !self.places(|_, other| is_same(other) || is_gos(other)).is_empty() {
            return self.del();
        }
        let answer = self.run_del(&mut one, Kind::Ours, Fate::Peace);
        if !answer.is_ok() {
            self.world.complain(&one.container, &format!("another DEL failed: {}", answer.said()));
        }
        for place in self.places(|_, other| other.living && other.container == one.container) {
            self.check(place);
        }
    }

    /// A DEL that is killed, or whose pod vanishes meanwhile: the next one finishes it.
    fn del_unhappily(&mut self, fate: fn(usize) -> Fate) {
        let there = self.places(|pod, one| pod.there && !(one.gos && matches!(fate(0), Fate::Vanish(_))));
        let Some((pod, at)) = self.random.pick(&there) else { return self.del() };
        let mut one = self.pods[pod].attachments.remove(at);
        let place = self.random.below(self.chain(&one).len());
        let answer = self.run_del(&mut one, Kind::Ours, fate(place));
        if !answer.is_ok() && !answer.was_killed() {
            self.world.complain(&one.container, &format!("a DEL failed: {}", answer.said()));
        }
        match answer.is_ok() {
            true => self.bury(one),
            false => self.pods[pod].attachments.push(one),
        }
        if matches!(fate(place), Fate::Vanish(_)) {
            self.namespace_ended(pod);
        }
    }

    /// A pod's namespace is taken away. Its attachments are deleted later, or never.
    fn vanish(&mut self) {
        let there: Vec<usize> = (0..self.pods.len()).filter(|pod| self.pods[*pod].there).collect();
        let Some(pod) = self.random.pick(&there) else { return self.add() };
        match self.may_be_forgotten(pod) && self.random.chance(50) {
            true => self.forget(pod),
            false => self.end_namespace(pod),
        }
    }

    fn check_one(&mut self) {
        let living = self.places(|_, one| one.living);
        match self.random.pick(&living) {
            Some(place) => self.check(place),
            None => self.add(),
        }
    }

    /// CHECK by ours: Go's fails on things that its own ADD made.
    fn check(&mut self, (pod, at): (usize, usize)) {
        let one = self.pods[pod].attachments[at].clone();
        if !one.living {
            return;
        }
        let _turn = self.world.turns[one.network].read().expect("turn");
        for mut config in self.chain(&one) {
            config["prevResult"] = one.result.clone().unwrap_or_default();
            let (folder, path) = (self.folder(Kind::Ours), netns(&one.container));
            let call = Call {
                verb: "CHECK",
                folder,
                container: &one.container,
                ifname: one.ifname,
                netns: &path,
                config,
            };
            let answer = call.run();
            if !answer.is_ok() {
                self.note("CHECK", &one, "", &answer.said());
                self.world.complain(&one.container, &format!("a living pod was touched: {}", answer.said()));
                self.pods[pod].attachments[at].living = false;
                return;
            }
        }
        self.note("CHECK", &one, "", "done");
    }

    /// GC of a network, with what is valid now. The spec wants it to be alone there; ours does no harm beside ADDs and DELs
    /// of attachments that were known before it began.
    fn gc(&mut self) {
        let (world, network) = (self.world, self.random.below(self.world.networks.len()));
        let _nobody_new = world.doors[network].write().expect("door");
        let alone = self.random.chance(50);
        let _turn = alone.then(|| world.turns[network].write().expect("turn"));
        let valid = world.valid(network);
        world.release_all_but(network, &valid);
        let name =
            |(container, ifname): &(String, String)| json!({"containerID": container, "ifname": ifname});
        let list: Vec<Value> = valid.iter().map(name).collect();
        let row = world.networks[network];
        for mut config in row.chain(0) {
            config["cniVersion"] = json!("1.1.0");
            config["cni.dev/valid-attachments"] = json!(list);
            let kind = config["type"].to_string();
            let folder = self.folder(Kind::Ours);
            let answer = Call { verb: "GC", folder, container: "", ifname: "", netns: "", config }.run();
            world.note(format!(
                "{} GC {} {kind}, {} valid, alone {alone}: {}",
                self.id,
                row.name,
                list.len(),
                answer.said()
            ));
            if !answer.is_ok() {
                world.complain("", &format!("GC of {} by {kind} failed: {}", row.name, answer.said()));
            }
        }
    }
}

/// What is worth knowing of a result when something is found later: names and addresses.
fn tell(result: &Option<Value>) -> String {
    let Some(result) = result else { return "done".into() };
    let all = |key: &str, field: &str| -> Vec<String> {
        let all = result[key].as_array().into_iter().flatten();
        all.map(|one| one[field].as_str().unwrap_or_default().to_string()).collect()
    };
    format!("done {} {}", all("interfaces", "name").join(" "), all("ips", "address").join(" "))
}
