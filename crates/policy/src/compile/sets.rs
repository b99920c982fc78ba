//! Sets: whatever several rules may name, made once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::api::{Labels, Pod};
use crate::program::{Id, Peer, Port, PortRange, Program};
use crate::rule::{NamedPort, Namespaces, Peers, Policy, Ports, Selection};
use crate::selector::Selector;
use crate::subtract::disjoint;
use crate::warning::Warner;
use crate::{Direction, Kind, Protocol, Snapshot, Warning};

/// The sets that rules have named so far.
pub(super) struct Sets<'a> {
    snapshot: &'a Snapshot,
    /// Labels of the namespaces that pods live in.
    namespaces: BTreeMap<&'a str, Labels>,
    addresses: BTreeMap<Id, BTreeSet<IpAddr>>,
    networks: BTreeMap<Id, Vec<IpNet>>,
    ports: BTreeMap<Id, Vec<PortRange>>,
    named_ports: BTreeMap<Id, BTreeSet<(IpAddr, Protocol, u16)>>,
    meanings: BTreeMap<Id, String>,
}

impl<'a> Sets<'a> {
    pub fn new(snapshot: &'a Snapshot) -> Sets<'a> {
        let names: BTreeSet<&str> = snapshot.pods.iter().map(|pod| pod.metadata.namespace.as_str()).collect();
        Sets {
            snapshot,
            namespaces: names.into_iter().map(|name| (name, snapshot.labels_of(name))).collect(),
            addresses: BTreeMap::new(),
            networks: BTreeMap::new(),
            ports: BTreeMap::new(),
            named_ports: BTreeMap::new(),
            meanings: BTreeMap::new(),
        }
    }

    /// Whether the selection is about the pod.
    pub fn is_in(&self, pod: &Pod, selection: &Selection) -> bool {
        let in_namespace = match &selection.namespaces {
            Namespaces::Named(name) => *name == pod.metadata.namespace,
            Namespaces::Labelled(selector) => self
                .namespaces
                .get(pod.metadata.namespace.as_str())
                .is_some_and(|labels| selector.matches(labels)),
        };
        in_namespace && pod.is_wired() && selection.pods.matches(&pod.metadata.labels)
    }

    /// Whether there is no pod that the selection is about.
    pub fn selects_nothing(&self, selection: &Selection) -> bool {
        !self.snapshot.pods.iter().any(|pod| self.is_in(pod, selection))
    }

    /// What a rule's peers are in a program: any of these.
    pub fn peers(&mut self, peers: &Peers) -> Vec<Peer> {
        let Peers::These { pods, nodes, networks } = peers else { return vec![Peer::Anyone] };
        let mut found: Vec<Peer> = Vec::new();
        found.extend(pods.iter().map(|selection| Peer::Addresses(self.of_pods(selection))));
        found.extend(nodes.iter().map(|selector| Peer::Addresses(self.of_nodes(selector))));
        if !networks.is_empty() {
            let networks = disjoint(networks.iter().copied());
            let id = Id::of('n', &format!("{networks:?}"));
            self.networks.insert(id.clone(), networks);
            found.push(Peer::Networks(id));
        }
        found.sort();
        found.dedup();
        found
    }

    /// What a rule's ports are in a program: any of these.
    pub fn ports(&mut self, ports: &Ports) -> Vec<Port> {
        let Ports::These { numbers, names } = ports else { return vec![Port::Any] };
        let mut found: Vec<Port> = names.iter().map(|name| Port::Named(self.of_name(name))).collect();
        if !numbers.is_empty() {
            let ranges = merged(numbers);
            let id = Id::of('p', &format!("{ranges:?}"));
            self.ports.insert(id.clone(), ranges);
            found.push(Port::Numbers(id));
        }
        found.sort();
        found.dedup();
        found
    }

    fn of_pods(&mut self, selection: &Selection) -> Id {
        let words = selection.to_string();
        let id = Id::of('s', &format!("{selection:?}"));
        if !self.addresses.contains_key(&id) {
            let selected = self.snapshot.pods.iter().filter(|pod| self.is_in(pod, selection));
            let addresses = selected.flat_map(Pod::addresses).collect();
            self.addresses.insert(id.clone(), addresses);
            self.meanings.insert(id.clone(), words);
        }
        id
    }

    fn of_nodes(&mut self, selector: &Selector) -> Id {
        let id = Id::of('s', &format!("nodes {selector:?}"));
        let selected = self.snapshot.nodes.iter().filter(|node| selector.matches(&node.metadata.labels));
        let addresses = selected.flat_map(|node| node.addresses()).collect();
        self.addresses.insert(id.clone(), addresses);
        self.meanings.insert(id.clone(), format!("nodes {selector}"));
        id
    }

    fn of_name(&mut self, port: &NamedPort) -> Id {
        let id = Id::of('q', &format!("{port:?}"));
        if self.named_ports.contains_key(&id) {
            return id;
        }
        let mut known = BTreeSet::new();
        for pod in self.snapshot.pods.iter().filter(|pod| pod.is_wired()) {
            for (protocol, number) in pod.named_ports(&port.name) {
                if port.protocol.is_none_or(|wanted| wanted == protocol) {
                    known.extend(pod.addresses().into_iter().map(|address| (address, protocol, number)));
                }
            }
        }
        self.named_ports.insert(id.clone(), known);
        let protocol = port.protocol.map_or("any protocol", Protocol::name);
        self.meanings.insert(id.clone(), format!("port {:?} of {protocol}", port.name));
        id
    }

    /// A word about each selector to which nobody fits.
    pub fn empty_selectors(&mut self, policies: &[Policy]) -> Vec<Warning> {
        let mut warnings = Vec::new();
        for policy in policies {
            let mut warner = Warner::about(&policy.object, &mut warnings);
            for direction in [Direction::Ingress, Direction::Egress] {
                for rule in policy.rules(direction).unwrap_or_default() {
                    let place = format!("spec.{direction}[{}]", rule.origin.index);
                    if let Peers::These { pods, .. } = &rule.peers {
                        for selection in pods.iter().filter(|selection| self.selects_nothing(selection)) {
                            warner.say(
                                &place,
                                Kind::Nothing,
                                format!("{selection}: there are none at this moment"),
                            );
                        }
                    }
                    if let Ports::These { names, .. } = &rule.ports {
                        for port in names {
                            let id = self.of_name(port);
                            if self.named_ports.get(&id).is_some_and(BTreeSet::is_empty) {
                                let text =
                                    format!("no container has a port named {:?} at this moment", port.name);
                                warner.say(&place, Kind::Nothing, text);
                            }
                        }
                    }
                }
            }
        }
        warnings
    }

    /// Puts those sets that the program's rules name into it.
    pub fn fill(self, mut program: Program) -> Program {
        let rules: Vec<_> = program.stages.values().flat_map(|stage| &stage.rules).cloned().collect();
        for rule in rules {
            match &rule.peer {
                Peer::Addresses(id) => take(&self.addresses, id, &mut program.addresses),
                Peer::Networks(id) => take(&self.networks, id, &mut program.networks),
                Peer::Anyone | Peer::OwnNode => {}
            }
            match &rule.port {
                Port::Numbers(id) => take(&self.ports, id, &mut program.ports),
                Port::Named(id) => take(&self.named_ports, id, &mut program.named_ports),
                Port::Any => {}
            }
        }
        let named = |id: &Id| program.addresses.contains_key(id) || program.named_ports.contains_key(id);
        program.meanings = self.meanings.into_iter().filter(|(id, _)| named(id)).collect();
        program
    }
}

fn take<T: Clone>(from: &BTreeMap<Id, T>, id: &Id, to: &mut BTreeMap<Id, T>) {
    if let Some(set) = from.get(id) {
        to.entry(id.clone()).or_insert_with(|| set.clone());
    }
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
