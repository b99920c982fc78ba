//! The operations of a worker.

use super::{netns, Attachment, Fault, Kind, Worker, REMEMBERED};
use crate::add_failure::AddFailure;

impl Worker<'_> {
    pub(super) fn add(&mut self) {
        let pod = self.some_pod();
        let Some(mut one) = self.new_attachment(pod) else { return self.del() };
        let kind = self.random_kind();
        let output = self.run_add(&mut one, kind, Fault::None);
        if !output.is_ok() && kind == Kind::Ours {
            self.world.record_failure(&one.container, &format!("an ADD failed: {}", output.summary()));
        }
        self.pods[pod].attachments.push(one);
    }

    /// An ADD that must fail. Then the runtime sends DEL, or it does so later, or never.
    pub(super) fn add_failing(&mut self) {
        let Some((pod, mut one)) = self.failing_attachment() else { return self.add() };
        let mut kind = self.random_kind();
        // Go's portmap accepts a port that another pod has; the kernel then uses the first one.
        if matches!(one.failure, Some(AddFailure::TakenPort(_))) {
            kind = Kind::Ours;
        }
        let output = self.run_add(&mut one, kind, Fault::None);
        match output.status {
            0 => self.world.record_failure(&one.container, "an ADD should have failed"),
            1 => {}
            _ => self.world.record_failure(&one.container, &format!("an ADD crashed: {}", output.summary())),
        }
        one.attached = false;
        let taken = one.ifname;
        self.pods[pod].attachments.push(one);
        if self.random.chance(70) {
            self.delete((pod, self.pods[pod].attachments.len() - 1));
        }
        // The attachments with the same interface name are unchanged.
        for (pod, at) in self.positions(|_, other| other.attached && other.ifname == taken) {
            self.check((pod, at));
        }
    }

    pub(super) fn failing_attachment(&mut self) -> Option<(usize, Attachment)> {
        let attached = |one: &Attachment| one.attached && (!one.by_go || !self.has_both_kinds());
        let named = self.positions(|_, one| attached(one) && self.network(one).makes_link);
        let mapped =
            self.positions(|_, one| attached(one) && AddFailure::TakenPort(0).applies_to(self.network(one)));
        if let (true, Some((pod, at))) = (self.random.chance(40), self.random.pick(&named)) {
            let taken = self.pods[pod].attachments[at].clone();
            let others: Vec<usize> = (0..self.world.networks.len())
                .filter(|one| AddFailure::TakenName.applies_to(self.world.networks[*one]))
                .filter(|one| self.pods[pod].attachments.iter().all(|there| there.network != *one))
                .collect();
            let network = self.random.pick(&others)?;
            let one = self.attachment(pod, network, taken.ifname);
            return Some((pod, Attachment { failure: Some(AddFailure::TakenName), ..one }));
        }
        let pod = self.new_pod();
        let mut failures = vec![AddFailure::FullPool, AddFailure::BadRoute, AddFailure::NoNamespace];
        for (pod, at) in mapped {
            failures.extend([AddFailure::TakenPort(self.pods[pod].attachments[at].number); 3]);
        }
        let failure = self.random.pick(&failures)?;
        let possible: Vec<usize> = (0..self.world.networks.len())
            .filter(|one| failure.applies_to(self.world.networks[*one]))
            .collect();
        let network = self.random.pick(&possible)?;
        let ifname = self.world.networks[network].ifnames()[0];
        let one = self.attachment(pod, network, ifname);
        Some((pod, Attachment { failure: Some(failure), ..one }))
    }

    pub(super) fn add_with_fault(&mut self, fault: fn(usize) -> Fault) {
        let pod = self.some_pod();
        let Some(mut one) = self.new_attachment(pod) else { return self.del() };
        let position = self.random.below(self.chain(&one).len());
        let output = self.run_add(&mut one, Kind::Ours, fault(position));
        if output.status < 0 && !output.was_killed() {
            self.world.record_failure(&one.container, &format!("an ADD crashed: {}", output.summary()));
        }
        self.pods[pod].attachments.push(one);
        if matches!(fault(position), Fault::DeleteNetns(_)) {
            self.after_netns_deletion(pod);
        }
    }

    /// Updates a pod whose namespace was to be deleted while a plugin ran.
    pub(super) fn after_netns_deletion(&mut self, pod: usize) {
        let pod = &mut self.pods[pod];
        pod.has_netns = std::path::Path::new(&netns(&pod.name)).exists();
        if pod.has_netns {
            return; // The chain failed before.
        }
        for one in &mut pod.attachments {
            self.world.remove_valid(one.network, &one.container, one.ifname);
            one.attached = false;
        }
    }

    pub(super) fn some_attachment(&mut self) -> Option<(usize, usize)> {
        let all = self.positions(|_, _| true);
        self.random.pick(&all)
    }

    pub(super) fn del(&mut self) {
        match self.some_attachment() {
            Some(position) => self.delete(position),
            None => self.add(),
        }
    }

    /// DEL of an attachment until it succeeds.
    pub(super) fn delete(&mut self, (pod, at): (usize, usize)) {
        let mut one = self.pods[pod].attachments.remove(at);
        let kind = self.random_kind();
        let uses_go =
            kind == Kind::Go && one.failure.is_none() && one.result.is_some() && self.pods[pod].has_netns;
        if uses_go {
            one.by_go = true;
            // The first DEL may do everything and still fail because of a missing chain.
            let done = self.run_del(&mut one, Kind::Go, Fault::None).is_ok()
                || self.run_del(&mut one, Kind::Go, Fault::None).is_ok();
            if done {
                return self.remember_deleted(one);
            }
        }
        let output = self.run_del(&mut one, Kind::Ours, Fault::None);
        if output.is_ok() {
            self.remember_deleted(one)
        } else {
            self.world.record_failure(&one.container, &format!("a DEL failed: {}", output.summary()))
        }
    }

    pub(super) fn remember_deleted(&mut self, one: Attachment) {
        self.clean_up(&one);
        if self.deleted.len() >= REMEMBERED {
            self.deleted.remove(0);
        }
        self.deleted.push(one);
    }

    /// Another DEL of a deleted attachment. In the meantime others may have its address, its port, its name.
    pub(super) fn del_again(&mut self) {
        if self.deleted.is_empty() {
            return self.del();
        }
        let mut one = self.deleted[self.random.below(self.deleted.len())].clone();
        // The pod may be attached to the same network again, with the same interface name: the same attachment.
        let is_same = |other: &Attachment| {
            (other.network, &other.container, other.ifname) == (one.network, &one.container, one.ifname)
        };
        // Interfaces of the Go plugins do not name their owner, and their iptables chains do not name the interface.
        let is_of_go = |other: &Attachment| {
            let is_similar = other.ifname == one.ifname || other.network == one.network;
            other.by_go && other.container == one.container && is_similar
        };
        if !self.positions(|_, other| is_same(other) || is_of_go(other)).is_empty() {
            return self.del();
        }
        let output = self.run_del(&mut one, Kind::Ours, Fault::None);
        if !output.is_ok() {
            self.world.record_failure(&one.container, &format!("another DEL failed: {}", output.summary()));
        }
        for position in self.positions(|_, other| other.attached && other.container == one.container) {
            self.check(position);
        }
    }

    /// A DEL that is killed, or whose pod loses its namespace meanwhile. A later DEL finishes it.
    pub(super) fn del_with_fault(&mut self, fault: fn(usize) -> Fault) {
        let existing = self
            .positions(|pod, one| pod.has_netns && !(one.by_go && matches!(fault(0), Fault::DeleteNetns(_))));
        let Some((pod, at)) = self.random.pick(&existing) else { return self.del() };
        let mut one = self.pods[pod].attachments.remove(at);
        let position = self.random.below(self.chain(&one).len());
        let output = self.run_del(&mut one, Kind::Ours, fault(position));
        if !output.is_ok() && !output.was_killed() {
            self.world.record_failure(&one.container, &format!("a DEL failed: {}", output.summary()));
        }
        if output.is_ok() {
            self.remember_deleted(one)
        } else {
            self.pods[pod].attachments.push(one)
        }
        if matches!(fault(position), Fault::DeleteNetns(_)) {
            self.after_netns_deletion(pod);
        }
    }

    /// Deletes the namespace of a pod. Its attachments get a DEL later, or never.
    pub(super) fn lose_netns(&mut self) {
        let existing: Vec<usize> = (0..self.pods.len()).filter(|pod| self.pods[*pod].has_netns).collect();
        let Some(pod) = self.random.pick(&existing) else { return self.add() };
        if self.can_be_abandoned(pod) && self.random.chance(50) {
            self.remove_pod(pod)
        } else {
            self.delete_netns(pod)
        }
    }

    pub(super) fn check_one(&mut self) {
        let attached = self.positions(|_, one| one.attached);
        match self.random.pick(&attached) {
            Some(position) => self.check(position),
            None => self.add(),
        }
    }
}
