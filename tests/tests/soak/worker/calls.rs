//! The verbs of a worker, through the chain of an attachment.

use serde_json::{json, Value};

use super::{ip_netns, netns, sh, Attachment, Fate, Kind, Worker};
use crate::call::{Answer, Call};
use crate::spoil::Spoil;

impl Worker<'_> {
    pub(super) fn note(&self, verb: &str, one: &Attachment, how: &str, said: &str) {
        let network = self.network(one).name;
        self.world
            .note(format!("{} {verb} {network}/{}/{} {how}: {said}", self.id, one.container, one.ifname));
    }

    pub(super) fn chain(&self, one: &Attachment) -> Vec<Value> {
        let mut chain = self.network(one).chain(one.number);
        if let Some(spoil) = one.spoil {
            spoil.apply(&mut chain);
        }
        chain
    }

    /// Runs one plugin of a chain as `fate` will have it.
    pub(super) fn call(&mut self, call: &Call<'_>, place: usize, fate: Fate) -> Answer {
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
    pub(super) fn run_add(&mut self, one: &mut Attachment, kind: Kind, fate: Fate) -> Answer {
        let world = self.world;
        {
            let _lock = world.gc_locks[one.network].read().expect("lock");
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
        self.note("ADD", one, &format!("by {kind:?} {fate:?} {:?}", one.spoil), &describe(&one.result));
        last
    }

    /// DEL through the chain, backwards.
    pub(super) fn run_del(&mut self, one: &mut Attachment, kind: Kind, fate: Fate) -> Answer {
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
        let reported = careful || self.random.chance(60);
        let how = format!(
            "by {kind:?} {fate:?}{}{}",
            if path.is_empty() { ", no netns" } else { "" },
            if reported && one.result.is_some() { "" } else { ", no result" }
        );
        let mut last = Answer { status: 0, text: String::new(), value: None };
        for (place, mut config) in self.chain(one).into_iter().enumerate().rev() {
            if let (true, Some(result)) = (reported, &one.result) {
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

    /// CHECK by ours: Go's fails on things that its own ADD made.
    pub(super) fn check(&mut self, (pod, at): (usize, usize)) {
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

    /// GC of a network, with what is valid now. The spec wants it to be alone there; ours does no harm beside ADDs and
    /// DELs of attachments that were known before it began.
    pub(super) fn gc(&mut self) {
        let (world, network) = (self.world, self.random.below(self.world.networks.len()));
        let _no_new_adds = world.gc_locks[network].write().expect("lock");
        let alone = self.random.chance(50);
        let _turn = alone.then(|| world.turns[network].write().expect("turn"));
        let valid = world.valid(network);
        world.release_all_but(network, &valid);
        let name =
            |(container, ifname): &(String, String)| json!({"containerID": container, "ifname": ifname});
        let list: Vec<Value> = valid.iter().map(name).collect();
        let row = world.networks[network];
        let how = if alone { "alone" } else { "beside others" };
        world.note(format!("{} GC {} {how}, {} valid", self.id, row.name, list.len()));
        for mut config in row.chain(0) {
            config["cniVersion"] = json!("1.1.0");
            config["cni.dev/valid-attachments"] = json!(list);
            let kind = config["type"].to_string();
            let folder = self.folder(Kind::Ours);
            let answer = Call { verb: "GC", folder, container: "", ifname: "", netns: "", config }.run();
            if !answer.is_ok() {
                world.complain("", &format!("GC of {} by {kind} failed: {}", row.name, answer.said()));
            }
        }
    }
}

/// What is worth knowing of a result when something is found later: names and addresses.
fn describe(result: &Option<Value>) -> String {
    let Some(result) = result else { return "done".into() };
    let all = |key: &str, field: &str| -> Vec<String> {
        let all = result[key].as_array().into_iter().flatten();
        all.map(|one| one[field].as_str().unwrap_or_default().to_string()).collect()
    };
    format!("done {} {}", all("interfaces", "name").join(" "), all("ips", "address").join(" "))
}
