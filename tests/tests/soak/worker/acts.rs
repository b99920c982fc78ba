//! The operations of a worker.

use super::{netns, Attachment, Fate, Kind, Worker, REMEMBERED};
use crate::spoil::Spoil;

impl Worker<'_> {
    pub(super) fn add(&mut self) {
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
    pub(super) fn add_in_vain(&mut self) {
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
        let taken = one.ifname;
        self.pods[pod].attachments.push(one);
        if self.random.chance(70) {
            self.delete((pod, self.pods[pod].attachments.len() - 1));
        }
        // The previous owner of the name still has it.
        for (pod, at) in self.places(|_, other| other.living && other.ifname == taken) {
            self.check((pod, at));
        }
    }

    pub(super) fn place_in_vain(&mut self) -> Option<(usize, Attachment)> {
        let living = |one: &Attachment| one.living && (!one.gos || !self.mixed());
        let named = self.places(|_, one| living(one) && self.network(one).makes_link);
        let mapped = self.places(|_, one| living(one) && Spoil::TakenPort(0).suits(self.network(one)));
        if let (true, Some((pod, at))) = (self.random.chance(40), self.random.pick(&named)) {
            let taken = self.pods[pod].attachments[at].clone();
            let others: Vec<usize> = (0..self.world.networks.len())
                .filter(|one| Spoil::TakenName.suits(self.world.networks[*one]))
                .filter(|one| self.pods[pod].attachments.iter().all(|there| there.network != *one))
                .collect();
            let network = self.random.pick(&others)?;
            let one = self.attachment(pod, network, taken.ifname);
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

    pub(super) fn add_unhappily(&mut self, fate: fn(usize) -> Fate) {
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
    pub(super) fn namespace_ended(&mut self, pod: usize) {
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

    pub(super) fn some_attachment(&mut self) -> Option<(usize, usize)> {
        let all = self.places(|_, _| true);
        self.random.pick(&all)
    }

    pub(super) fn del(&mut self) {
        match self.some_attachment() {
            Some(place) => self.delete(place),
            None => self.add(),
        }
    }

    /// DEL of an attachment until it succeeds.
    pub(super) fn delete(&mut self, (pod, at): (usize, usize)) {
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
        if answer.is_ok() {
            self.bury(one)
        } else {
            self.world.complain(&one.container, &format!("a DEL failed: {}", answer.said()))
        }
    }

    pub(super) fn bury(&mut self, one: Attachment) {
        self.take_prop(&one);
        if self.gone.len() >= REMEMBERED {
            self.gone.remove(0);
        }
        self.gone.push(one);
    }

    /// DEL of what was deleted. In the meantime others may have its address, its port, its name.
    pub(super) fn del_again(&mut self) {
        if self.gone.is_empty() {
            return self.del();
        }
        let mut one = self.gone[self.random.below(self.gone.len())].clone();
        // The pod may be attached to the same network anew, under the same name: that is the same attachment.
        let is_same = |other: &Attachment| {
            (other.network, &other.container, other.ifname) == (one.network, &one.container, one.ifname)
        };
        // An interface of Go's plugins does not name its owner, and iptables chains of Go do not name the interface.
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
    pub(super) fn del_unhappily(&mut self, fate: fn(usize) -> Fate) {
        let there = self.places(|pod, one| pod.there && !(one.gos && matches!(fate(0), Fate::Vanish(_))));
        let Some((pod, at)) = self.random.pick(&there) else { return self.del() };
        let mut one = self.pods[pod].attachments.remove(at);
        let place = self.random.below(self.chain(&one).len());
        let answer = self.run_del(&mut one, Kind::Ours, fate(place));
        if !answer.is_ok() && !answer.was_killed() {
            self.world.complain(&one.container, &format!("a DEL failed: {}", answer.said()));
        }
        if answer.is_ok() {
            self.bury(one)
        } else {
            self.pods[pod].attachments.push(one)
        }
        if matches!(fate(place), Fate::Vanish(_)) {
            self.namespace_ended(pod);
        }
    }

    /// A pod's namespace is taken away. Its attachments are deleted later, or never.
    pub(super) fn vanish(&mut self) {
        let there: Vec<usize> = (0..self.pods.len()).filter(|pod| self.pods[*pod].there).collect();
        let Some(pod) = self.random.pick(&there) else { return self.add() };
        if self.may_be_forgotten(pod) && self.random.chance(50) {
            self.forget(pod)
        } else {
            self.end_namespace(pod)
        }
    }

    pub(super) fn check_one(&mut self) {
        let living = self.places(|_, one| one.living);
        match self.random.pick(&living) {
            Some(place) => self.check(place),
            None => self.add(),
        }
    }
}
