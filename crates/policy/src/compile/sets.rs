//! Sets: whatever several rules may name, made once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::population::Population;
use crate::api::Pod;
use crate::program::{Id, Peer, Port, PortRange, Program, Stage};
use crate::rule::{NamedPort, Peers, Ports, Selection};
use crate::selector::Selector;
use crate::subtract::disjoint;
use crate::Protocol;

/// What a set stands for.
#[derive(Clone, Debug)]
enum Meaning {
    Pods(Selection),
    Nodes(Selector),
    Name(NamedPort),
    Networks(Vec<IpNet>),
    Numbers(Vec<PortRange>),
}

/// The sets that rules name.
#[derive(Clone, Debug, Default)]
pub(super) struct Sets {
    /// The sets of selections that were asked for before: their names take longer to make than to find.
    ids: HashMap<Selection, Id>,
    meanings: BTreeMap<Id, Meaning>,
    /// How many of the program's rules name a set. It is in the program as long as one does.
    uses: HashMap<Id, usize>,
    /// Those in which perhaps others are now.
    stale: BTreeSet<Id>,
}

impl Sets {
    /// What a rule's peers are in a program: any of these.
    pub fn peers(&mut self, peers: &Peers) -> Vec<Peer> {
        let Peers::These { pods, nodes, networks } = peers else { return vec![Peer::Anyone] };
        let mut found: Vec<Peer> = Vec::new();
        found.extend(pods.iter().map(|selection| Peer::Addresses(self.of_pods(selection))));
        found.extend(nodes.iter().map(|selector| {
            let id = Id::of('s', &format!("nodes {selector:?}"));
            Peer::Addresses(self.meaning(id, || Meaning::Nodes(selector.clone())))
        }));
        if !networks.is_empty() {
            let networks = disjoint(networks.iter().copied());
            let id = Id::of('n', &format!("{networks:?}"));
            found.push(Peer::Networks(self.meaning(id, || Meaning::Networks(networks))));
        }
        found.sort();
        found.dedup();
        found
    }

    /// What a rule's ports are in a program: any of these.
    pub fn ports(&mut self, ports: &Ports) -> Vec<Port> {
        let Ports::These { numbers, names } = ports else { return vec![Port::Any] };
        let mut found: Vec<Port> = Vec::new();
        found.extend(names.iter().map(|name| {
            let id = Id::of('q', &format!("{name:?}"));
            Port::Named(self.meaning(id, || Meaning::Name(name.clone())))
        }));
        if !numbers.is_empty() {
            let ranges = merged(numbers);
            let id = Id::of('p', &format!("{ranges:?}"));
            found.push(Port::Numbers(self.meaning(id, || Meaning::Numbers(ranges))));
        }
        found.sort();
        found.dedup();
        found
    }

    fn of_pods(&mut self, selection: &Selection) -> Id {
        if let Some(id) = self.ids.get(selection) {
            return id.clone();
        }
        let id = Id::of('s', &format!("{selection:?}"));
        self.ids.insert(selection.clone(), id.clone());
        self.meaning(id, || Meaning::Pods(selection.clone()))
    }

    fn meaning(&mut self, id: Id, meaning: impl FnOnce() -> Meaning) -> Id {
        self.meanings.entry(id.clone()).or_insert_with(meaning);
        id
    }

    /// The program has a new stage: it needs the sets that the stage names.
    pub fn hold(&mut self, stage: &Stage, population: &Population, program: &mut Program) {
        for id in named(stage) {
            let uses = self.uses.entry(id.clone()).or_insert(0);
            *uses += 1;
            if *uses == 1 {
                self.fill(id, population, program);
            }
        }
    }

    /// The program has lost a stage: sets that no other names go with it.
    pub fn release(&mut self, stage: &Stage, program: &mut Program) {
        for id in named(stage) {
            let Some(uses) = self.uses.get_mut(id) else { continue };
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(id);
                program.addresses.remove(id);
                program.networks.remove(id);
                program.ports.remove(id);
                program.named_ports.remove(id);
                program.meanings.remove(id);
            }
        }
    }

    /// Forgets what no rule names.
    pub fn forget_unused(&mut self) {
        self.meanings.retain(|id, _| self.uses.contains_key(id));
        self.ids.retain(|_, id| self.uses.contains_key(id));
    }

    /// A pod has come or gone: the sets that it is in are not what they were.
    pub fn touch(&mut self, pod: &Pod, population: &Population) {
        let concerns = |meaning: &Meaning| match meaning {
            Meaning::Pods(selection) => population.selects(selection, pod),
            Meaning::Name(port) => pod.named_ports(&port.name).next().is_some(),
            Meaning::Nodes(_) | Meaning::Networks(_) | Meaning::Numbers(_) => false,
        };
        let touched = self.meanings.iter().filter(|(_, meaning)| concerns(meaning));
        self.stale.extend(touched.map(|(id, _)| id.clone()));
    }

    /// Fills those anew in which perhaps others are now.
    pub fn refresh(&mut self, population: &Population, program: &mut Program) {
        for id in std::mem::take(&mut self.stale) {
            self.fill(&id, population, program);
        }
    }

    fn fill(&self, id: &Id, population: &Population, program: &mut Program) {
        let Some(meaning) = self.meanings.get(id) else { return };
        match meaning {
            Meaning::Pods(selection) => {
                let addresses = population.selected(selection).flat_map(|(_, pod)| pod.addresses());
                program.addresses.insert(id.clone(), Arc::new(addresses.collect()));
                program.meanings.insert(id.clone(), selection.to_string());
            }
            Meaning::Nodes(selector) => {
                let addresses = population.nodes(selector).flat_map(|node| node.addresses());
                program.addresses.insert(id.clone(), Arc::new(addresses.collect()));
                program.meanings.insert(id.clone(), format!("nodes {selector}"));
            }
            Meaning::Name(port) => {
                program.named_ports.insert(id.clone(), served(port, population));
                let protocol = port.protocol.map_or("any protocol", Protocol::name);
                program.meanings.insert(id.clone(), format!("port {:?} of {protocol}", port.name));
            }
            Meaning::Networks(networks) => drop(program.networks.insert(id.clone(), networks.clone())),
            Meaning::Numbers(ranges) => drop(program.ports.insert(id.clone(), ranges.clone())),
        }
    }
}

/// The sets that a stage's rules name, each as often as they do.
fn named(stage: &Stage) -> impl Iterator<Item = &Id> {
    stage.rules.iter().flat_map(|rule| {
        let peer = match &rule.peer {
            Peer::Addresses(id) | Peer::Networks(id) => Some(id),
            Peer::Anyone | Peer::OwnNode => None,
        };
        let port = match &rule.port {
            Port::Numbers(id) | Port::Named(id) => Some(id),
            Port::Any => None,
        };
        peer.into_iter().chain(port)
    })
}

/// Where a port's name leads.
pub(super) fn served(port: &NamedPort, population: &Population) -> BTreeSet<(IpAddr, Protocol, u16)> {
    let mut known = BTreeSet::new();
    for pod in population.pods() {
        for (protocol, number) in pod.named_ports(&port.name) {
            if port.protocol.is_none_or(|wanted| wanted == protocol) {
                known.extend(pod.addresses().into_iter().map(|address| (address, protocol, number)));
            }
        }
    }
    known
}

/// The same ports as ranges that neither overlap nor touch, in order.
fn merged(ranges: &[PortRange]) -> Vec<PortRange> {
    let mut sorted = ranges.to_vec();
    sorted.sort();
    let mut merged: Vec<PortRange> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if last.protocol == range.protocol && range.first <= last.last.saturating_add(1) => {
                last.last = last.last.max(range.last);
            }
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let range = |protocol, first, last| PortRange { protocol, first, last };
        let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
        let ranges = [range(tcp, 81, 90), range(udp, 80, 80), range(tcp, 80, 80), range(tcp, 85, 100)];
        assert_eq!(merged(&ranges), [range(tcp, 80, 100), range(udp, 80, 80)]);
        assert_eq!(merged(&[range(tcp, 0, u16::MAX), range(tcp, 5, 6)]), [range(tcp, 0, u16::MAX)]);
    }
}
