//! The verbs of a worker, through the chain of an attachment.

use serde_json::{json, Value};

use super::{ip_netns, netns, sh, Attachment, Fault, Kind, Worker};
use crate::add_failure::AddFailure;
use crate::call::{Call, Output};

impl Worker<'_> {
    pub(super) fn note(&self, verb: &str, one: &Attachment, how: &str, result: &str) {
        let network = self.network(one).name;
        self.world
            .note(format!("{} {verb} {network}/{}/{} {how}: {result}", self.id, one.container, one.ifname));
    }

    pub(super) fn chain(&self, one: &Attachment) -> Vec<Value> {
        let mut chain = self.network(one).chain(one.number);
        if let Some(failure) = one.failure {
            failure.apply(&mut chain);
        }
        chain
    }

    /// Runs one plugin of a chain, with a fault.
    pub(super) fn call(&mut self, call: &Call<'_>, position: usize, fault: Fault) -> Output {
        match fault {
            Fault::Kill(at) if at == position => {
                let moment = self.world.moment(call, &mut self.random);
                call.run_and_kill(moment)
            }
            Fault::DeleteNetns(at) if at == position => {
                let moment = self.world.moment(call, &mut self.random);
                call.run_and(moment, || ip_netns("delete", call.container))
            }
            _ if call.folder == self.world.folders[0] => self.world.timed(call),
            _ => call.run(),
        }
    }

    /// ADD through the chain.
    pub(super) fn run_add(&mut self, one: &mut Attachment, kind: Kind, fault: Fault) -> Output {
        let world = self.world;
        {
            let _lock = world.gc_locks[one.network].read().expect("lock");
            world.add_valid(one.network, &one.container, one.ifname);
        }
        let _lock = world.locks[one.network].read().expect("turn");
        if let Some((setup, _)) = self.network(one).fixture {
            sh(&setup.replace("NUMBER", &one.number.to_string()));
        }
        one.by_go |= kind == Kind::Go;
        let path = match one.failure {
            Some(AddFailure::NoNamespace) => "/run/netns/nowhere".into(),
            _ => netns(&one.container),
        };
        let mut last = Output { status: 0, text: String::new(), value: None };
        for (position, mut config) in self.chain(one).into_iter().enumerate() {
            if let Some(result) = &one.result {
                config["prevResult"] = result.clone();
            }
            let name = config["type"].to_string();
            let (folder, container) = (self.folder(kind), one.container.clone());
            let call =
                Call { verb: "ADD", folder, container: &container, ifname: one.ifname, netns: &path, config };
            last = self.call(&call, position, fault);
            if last.is_ok() {
                one.result = last.value.clone();
            }
            if !last.is_ok() || matches!(fault, Fault::Kill(at) if at == position) {
                self.note(
                    "ADD",
                    one,
                    &format!("by {kind:?} {name} {fault:?} {:?}", one.failure),
                    &last.summary(),
                );
                // As after a crash of the runtime, GC may remove the attachment from now on.
                world.remove_valid(one.network, &one.container, one.ifname);
                return Output { status: if last.is_ok() { -9 } else { last.status }, ..last };
            }
        }
        one.attached = !matches!(fault, Fault::DeleteNetns(_));
        if let (true, Some(result)) = (one.attached, &one.result) {
            world.claim(one.network, (&one.container, one.ifname), result);
        }
        self.note("ADD", one, &format!("by {kind:?} {fault:?} {:?}", one.failure), &describe(&one.result));
        last
    }

    /// DEL through the chain, in reverse.
    pub(super) fn run_del(&mut self, one: &mut Attachment, kind: Kind, fault: Fault) -> Output {
        let world = self.world;
        let _lock = world.locks[one.network].read().expect("turn");
        world.remove_valid(one.network, &one.container, one.ifname);
        world.release(one.network, &one.container, one.ifname);
        one.attached = false;
        // Without namespace and result, Go's DEL finds less, and so does Podwire's DEL of what a Go plugin created.
        let needs_all = kind == Kind::Go || one.by_go;
        let path = if needs_all || self.random.chance(70) { netns(&one.container) } else { String::new() };
        if let (true, true, Some(pod)) = (
            path.is_empty(),
            self.network(one).within_pod,
            self.pods.iter_mut().find(|pod| pod.name == one.container),
        ) {
            pod.blocked_names.push(one.ifname);
        }
        let with_result = needs_all || self.random.chance(60);
        let how = format!(
            "by {kind:?} {fault:?}{}{}",
            if path.is_empty() { ", no netns" } else { "" },
            if with_result && one.result.is_some() { "" } else { ", no result" }
        );
        let mut last = Output { status: 0, text: String::new(), value: None };
        for (position, mut config) in self.chain(one).into_iter().enumerate().rev() {
            if let (true, Some(result)) = (with_result, &one.result) {
                config["prevResult"] = result.clone();
            }
            let name = config["type"].to_string();
            let (folder, container) = (self.folder(kind), one.container.clone());
            let call =
                Call { verb: "DEL", folder, container: &container, ifname: one.ifname, netns: &path, config };
            last = self.call(&call, position, fault);
            let killed = matches!(fault, Fault::Kill(at) if at == position);
            if killed || !last.is_ok() {
                self.note("DEL", one, &format!("{how} {name}"), &last.summary());
                return Output { status: if killed { -9 } else { last.status }, ..last };
            }
        }
        self.note("DEL", one, &how, "done");
        last
    }

    /// CHECK by Podwire's plugins: those of Go fail on objects that their own ADD created.
    pub(super) fn check(&mut self, (pod, at): (usize, usize)) {
        let one = self.pods[pod].attachments[at].clone();
        if !one.attached {
            return;
        }
        let _lock = self.world.locks[one.network].read().expect("turn");
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
            let output = call.run();
            if !output.is_ok() {
                self.note("CHECK", &one, "", &output.summary());
                self.world.record_failure(
                    &one.container,
                    &format!("an attached pod was changed: {}", output.summary()),
                );
                self.pods[pod].attachments[at].attached = false;
                return;
            }
        }
        self.note("CHECK", &one, "", "done");
    }

    /// GC of a network with the valid attachments. By the specification no ADD or DEL may run meanwhile. Podwire's GC
    /// also tolerates ADDs and DELs of attachments that are in its list.
    pub(super) fn gc(&mut self) {
        let (world, network) = (self.world, self.random.below(self.world.networks.len()));
        let _no_new_adds = world.gc_locks[network].write().expect("lock");
        let alone = self.random.chance(50);
        let _lock = alone.then(|| world.locks[network].write().expect("turn"));
        let valid = world.valid(network);
        world.release_all_but(network, &valid);
        let name =
            |(container, ifname): &(String, String)| json!({"containerID": container, "ifname": ifname});
        let list: Vec<Value> = valid.iter().map(name).collect();
        let row = world.networks[network];
        let how = if alone { "alone" } else { "with others" };
        world.note(format!("{} GC {} {how}, {} valid", self.id, row.name, list.len()));
        for mut config in row.chain(0) {
            config["cniVersion"] = json!("1.1.0");
            config["cni.dev/valid-attachments"] = json!(list);
            let kind = config["type"].to_string();
            let folder = self.folder(Kind::Ours);
            let output = Call { verb: "GC", folder, container: "", ifname: "", netns: "", config }.run();
            if !output.is_ok() {
                world.record_failure(
                    "",
                    &format!("GC of {} by {kind} failed: {}", row.name, output.summary()),
                );
            }
        }
    }
}

/// A summary of a result for the journal: interface names and addresses.
fn describe(result: &Option<Value>) -> String {
    let Some(result) = result else { return "done".into() };
    let all = |key: &str, field: &str| -> Vec<String> {
        let all = result[key].as_array().into_iter().flatten();
        all.map(|one| one[field].as_str().unwrap_or_default().to_string()).collect()
    };
    format!("done {} {}", all("interfaces", "name").join(" "), all("ips", "address").join(" "))
}
