//! The sets that rules name. Rules with the same selector share a set.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::pod_index::PodIndex;
use crate::api::Pod;
use crate::networks::disjoint;
use crate::program::{Id, Peer, Port, PortRange, Program, Stage};
use crate::rule::{NamedPort, Peers, Ports, Selection};
use crate::selector::Selector;
use crate::Protocol;

/// What a set contains.
#[derive(Clone, Debug)]
enum SetSource {
    Pods(Selection),
    Nodes(Selector),
    NamedPort(NamedPort),
    Networks(Vec<IpNet>),
    PortNumbers(Vec<PortRange>),
}

/// The sets that rules name.
#[derive(Clone, Debug, Default)]
pub(super) struct Sets {
    /// The ids of selections. Looking one up is faster than hashing the selection again.
    ids: HashMap<Selection, Id>,
    sources: BTreeMap<Id, SetSource>,
    /// How many rules of the program name a set. A set is in the program as long as one does.
    uses: HashMap<Id, usize>,
    /// The sets whose content may have changed.
    stale: BTreeSet<Id>,
}

impl Sets {
    /// The peers of a rule as sets; a packet matches if any of them does.
    pub fn peers(&mut self, peers: &Peers) -> Vec<Peer> {
        let Peers::These { pods, nodes, networks } = peers else { return vec![Peer::Anyone] };
        let mut found: Vec<Peer> = Vec::new();
        found.extend(pods.iter().map(|selection| Peer::Addresses(self.of_pods(selection))));
        found.extend(nodes.iter().map(|selector| {
            let id = Id::of('s', &format!("nodes {selector:?}"));
            Peer::Addresses(self.add(id, || SetSource::Nodes(selector.clone())))
        }));
        if !networks.is_empty() {
            let networks = disjoint(networks.iter().copied());
            let id = Id::of('n', &format!("{networks:?}"));
            found.push(Peer::Networks(self.add(id, || SetSource::Networks(networks))));
        }
        found.sort();
        found.dedup();
        found
    }

    /// The ports of a rule as sets; a packet matches if any of them does.
    pub fn ports(&mut self, ports: &Ports) -> Vec<Port> {
        let Ports::These { numbers, names } = ports else { return vec![Port::Any] };
        let mut found: Vec<Port> = Vec::new();
        found.extend(names.iter().map(|name| {
            let id = Id::of('q', &format!("{name:?}"));
            Port::Named(self.add(id, || SetSource::NamedPort(name.clone())))
        }));
        if !numbers.is_empty() {
            let ranges = merged(numbers);
            let id = Id::of('p', &format!("{ranges:?}"));
            found.push(Port::Numbers(self.add(id, || SetSource::PortNumbers(ranges))));
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
        self.add(id, || SetSource::Pods(selection.clone()))
    }

    fn add(&mut self, id: Id, source: impl FnOnce() -> SetSource) -> Id {
        self.sources.entry(id.clone()).or_insert_with(source);
        id
    }

    /// Adds the sets that a new stage names to the program.
    pub fn hold(&mut self, stage: &Stage, index: &PodIndex, program: &mut Program) {
        for id in named(stage) {
            let uses = self.uses.entry(id.clone()).or_insert(0);
            *uses += 1;
            if *uses == 1 {
                self.fill(id, index, program);
            }
        }
    }

    /// Removes the sets that only a removed stage named.
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
                program.descriptions.remove(id);
            }
        }
    }

    /// Removes sets that no rule names.
    pub fn remove_unused(&mut self) {
        self.sources.retain(|id, _| self.uses.contains_key(id));
        self.ids.retain(|_, id| self.uses.contains_key(id));
    }

    /// Marks the sets that contain a pod as stale.
    pub fn mark_stale(&mut self, pod: &Pod, index: &PodIndex) {
        let contains = |source: &SetSource| match source {
            SetSource::Pods(selection) => index.selects(selection, pod),
            SetSource::NamedPort(port) => pod.named_ports(&port.name).next().is_some(),
            SetSource::Nodes(_) | SetSource::Networks(_) | SetSource::PortNumbers(_) => false,
        };
        let affected = self.sources.iter().filter(|(_, source)| contains(source));
        self.stale.extend(affected.map(|(id, _)| id.clone()));
    }

    /// Refills the stale sets.
    pub fn refill_stale(&mut self, index: &PodIndex, program: &mut Program) {
        for id in std::mem::take(&mut self.stale) {
            self.fill(&id, index, program);
        }
    }

    fn fill(&self, id: &Id, index: &PodIndex, program: &mut Program) {
        let Some(source) = self.sources.get(id) else { return };
        match source {
            SetSource::Pods(selection) => {
                let addresses = index.selected(selection).flat_map(|(_, pod)| pod.addresses());
                program.addresses.insert(id.clone(), Arc::new(addresses.collect()));
                program.descriptions.insert(id.clone(), selection.to_string());
            }
            SetSource::Nodes(selector) => {
                let addresses = index.nodes(selector).flat_map(|node| node.addresses());
                program.addresses.insert(id.clone(), Arc::new(addresses.collect()));
                program.descriptions.insert(id.clone(), format!("nodes {selector}"));
            }
            SetSource::NamedPort(port) => {
                program.named_ports.insert(id.clone(), targets(port, index));
                let protocol = port.protocol.map_or("any protocol", Protocol::name);
                program.descriptions.insert(id.clone(), format!("port {:?} of {protocol}", port.name));
            }
            SetSource::Networks(networks) => drop(program.networks.insert(id.clone(), networks.clone())),
            SetSource::PortNumbers(ranges) => drop(program.ports.insert(id.clone(), ranges.clone())),
        }
    }
}

/// The sets that the rules of a stage name, once for each rule.
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

/// The addresses and ports that a port name stands for.
pub(super) fn targets(port: &NamedPort, index: &PodIndex) -> BTreeSet<(IpAddr, Protocol, u16)> {
    let mut targets = BTreeSet::new();
    for pod in index.pods() {
        for (protocol, number) in pod.named_ports(&port.name) {
            if port.protocol.is_none_or(|wanted| wanted == protocol) {
                targets.extend(pod.addresses().into_iter().map(|address| (address, protocol, number)));
            }
        }
    }
    targets
}

/// The same ports as sorted ranges that neither overlap nor touch.
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
    fn adjacent_ranges_are_merged() {
        let range = |protocol, first, last| PortRange { protocol, first, last };
        let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
        let ranges = [range(tcp, 81, 90), range(udp, 80, 80), range(tcp, 80, 80), range(tcp, 85, 100)];
        assert_eq!(merged(&ranges), [range(tcp, 80, 100), range(udp, 80, 80)]);
        assert_eq!(merged(&[range(tcp, 0, u16::MAX), range(tcp, 5, 6)]), [range(tcp, 0, u16::MAX)]);
    }
}
