//! What should be in the kernel: a program as sets, maps, chains and rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use podwire_netlink::nft::{Base, Element, Family, Rule, Set, Table, Type, Value, Verdict};
use podwire_policy::program::{Endpoint, Id, PortRange};
use podwire_policy::{Direction, Program};

use super::drop_chains::{self, Reasons};
use super::{base_chains, closed_connections, granted_prefixes, source_check, stage_rules};
use crate::dataplane::Premises;

/// Elements by their key, and whether they end an interval.
pub(super) type Elements = BTreeMap<(Vec<u8>, bool), Arc<Element>>;

/// What a set holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    Keys(Vec<Type>),
    Intervals(Type),
    /// Keys of several fields, of which the last has a range.
    Ranges(Vec<Type>),
    Verdicts(Type),
    VerdictsOfRanges(Type),
    /// Keys, and how often each was found.
    Counts(Type),
    /// Keys that others put there, each for so long.
    Passing(Vec<Type>, Duration),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedSet {
    pub holds: Holds,
    pub elements: Arc<Elements>,
}

impl WantedSet {
    pub fn described<'a>(&'a self, name: &'a str) -> Set<'a> {
        match &self.holds {
            Holds::Keys(types) => Set::of(name, types),
            Holds::Intervals(kind) => Set::ranges(name, std::slice::from_ref(kind)),
            Holds::Counts(kind) => Set::of(name, std::slice::from_ref(kind)).counting(),
            Holds::Ranges(types) => Set::ranges(name, types),
            Holds::VerdictsOfRanges(kind) => Set::verdicts(name, std::slice::from_ref(kind)).of_ranges(),
            Holds::Passing(types, lifetime) => Set::of(name, types).forgetting(*lifetime),
            Holds::Verdicts(kind) => Set::verdicts(name, std::slice::from_ref(kind)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedChain {
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
}

/// Everything that should be in a table. What stays from one program to the next is shared between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub table: Table,
    pub sets: BTreeMap<String, WantedSet>,
    pub chains: BTreeMap<String, Arc<WantedChain>>,
    pods: BTreeMap<String, Arc<Wiring>>,
}

/// A pod, and its elements of sets, which are named and of one family.
#[derive(Debug, PartialEq, Eq)]
struct Wiring {
    endpoint: Endpoint,
    elements: Vec<(&'static str, Half, Arc<Element>)>,
}

/// The selectors' addresses of a program, and what was made of it all: what the next program has in common with it need not be
/// made again.
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub addresses: BTreeMap<Id, Arc<BTreeSet<IpAddr>>>,
    pub wanted: Arc<Wanted>,
}

/// IPv4 or IPv6: the end of a set's name, the family of its packets, the type of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Half {
    pub number: u8,
    pub family: Family,
    pub address: Type,
}

pub(super) const HALVES: [Half; 2] = [
    Half { number: 4, family: Family::Ip, address: Type::Ipv4 },
    Half { number: 6, family: Family::Ip6, address: Type::Ipv6 },
];

impl Half {
    pub fn name(self, id: &str) -> String {
        format!("{id}_{}", self.number)
    }

    pub fn has(self, address: &IpAddr) -> bool {
        address.is_ipv4() == (self.number == 4)
    }
}

/// The single ones among ports, which are looked up in a set if there are several; one alone is compared.
pub(super) fn single_ports(ranges: &[PortRange]) -> Vec<PortRange> {
    let single: Vec<PortRange> = ranges.iter().filter(|range| range.first == range.last).copied().collect();
    if single.len() > 1 {
        single
    } else {
        Vec::new()
    }
}

impl Wanted {
    /// Nothing yet.
    pub fn in_table(table: Table) -> Wanted {
        Wanted { table, sets: BTreeMap::new(), chains: BTreeMap::new(), pods: BTreeMap::new() }
    }

    /// What judges packets.
    pub fn of(program: &Program, premises: &Premises, reasons: &Reasons, before: Option<&Before>) -> Wanted {
        let mut wanted = Wanted::in_table(base_chains::TABLE);
        base_chains::build(&mut wanted, premises, reasons);
        if premises.ends {
            closed_connections::build(&mut wanted);
        }
        drop_chains::build(&mut wanted, premises, reasons);
        source_check::on_cables(premises, &mut wanted);
        granted_prefixes::build(&mut wanted, program, premises);
        wanted.pods(program, before);
        for half in HALVES {
            wanted.peers(program, half, before);
            let guarded: Vec<IpNet> =
                premises.guarded.iter().copied().filter(|net| half.has(&net.addr())).collect();
            wanted.set(half.name(base_chains::GUARDED), Holds::Intervals(half.address), intervals(&guarded));
        }
        for (id, ranges) in &program.ports {
            let single = single_ports(ranges);
            let keys =
                single.iter().map(|range| Value::protocol(range.protocol.number()).and_port(range.first));
            let elements: Vec<Element> = keys.map(Element::key).collect();
            if !elements.is_empty() {
                wanted.set(id.as_str().to_owned(), Holds::Keys(vec![Type::Protocol, Type::Port]), elements);
            }
        }
        for (id, chain) in &program.chains {
            let jumps = chain.stages.iter().map(|stage| Rule::new().jump(stage.as_str()));
            wanted.chain(id, before, || jumps.chain([Rule::new().accept()]).collect());
            for stage in &chain.stages {
                let Some(content) = program.stages.get(stage) else { continue };
                wanted
                    .chain(stage, before, || stage_rules::stage(program, content, chain.direction, reasons));
            }
        }
        wanted
    }

    /// The pods: where each one's chain is found by its address.
    fn pods(&mut self, program: &Program, before: Option<&Before>) {
        for (pod, endpoint) in &program.endpoints {
            let same = before.and_then(|before| before.wanted.pods.get(pod));
            let wiring = same.filter(|same| same.endpoint == *endpoint).cloned();
            self.pods.insert(pod.clone(), wiring.unwrap_or_else(|| Arc::new(Wiring::of(pod, endpoint))));
        }
        for half in HALVES {
            for (name, holds) in [
                (base_chains::EGRESS, Holds::Verdicts(half.address)),
                (base_chains::INGRESS, Holds::Verdicts(half.address)),
                (base_chains::ITSELF, Holds::Keys(vec![half.address, half.address])),
                (drop_chains::pods_set(Direction::Egress), Holds::Counts(half.address)),
                (drop_chains::pods_set(Direction::Ingress), Holds::Counts(half.address)),
            ] {
                let all = self.pods.values().flat_map(|wiring| &wiring.elements);
                let mine = all.filter(|(of, its, _)| *of == name && *its == half);
                let elements = mine.map(|(_, _, element)| keyed(element.clone())).collect();
                self.sets.insert(half.name(name), WantedSet { holds, elements: Arc::new(elements) });
            }
        }
    }

    /// A chain that is named after what is in it: one of that name that was made before is the same.
    fn chain(&mut self, id: &Id, before: Option<&Before>, rules: impl FnOnce() -> Vec<Rule>) {
        let same = before.and_then(|before| before.wanted.chains.get(id.as_str())).cloned();
        let chain = same.unwrap_or_else(|| Arc::new(WantedChain { base: None, rules: rules() }));
        self.chains.insert(id.to_string(), chain);
    }

    /// The sets that rules name.
    fn peers(&mut self, program: &Program, half: Half, before: Option<&Before>) {
        for (id, addresses) in &program.addresses {
            let name = half.name(id.as_str());
            let same = before.filter(|before| before.addresses.get(id) == Some(addresses));
            if let Some(set) = same.and_then(|before| before.wanted.sets.get(&name)) {
                self.sets.insert(name, set.clone());
                continue;
            }
            let mine = addresses.iter().filter(|address| half.has(address));
            let elements: Vec<Element> = mine.map(|address| Element::key(Value::ip(*address))).collect();
            self.set(name, Holds::Keys(vec![half.address]), elements);
        }
        for (id, networks) in &program.networks {
            let mine: Vec<IpNet> = networks.iter().copied().filter(|net| half.has(&net.addr())).collect();
            self.set(half.name(id.as_str()), Holds::Intervals(half.address), intervals(&mine));
        }
        for (id, ports) in &program.named_ports {
            let mine = ports.iter().filter(|(address, _, _)| half.has(address));
            let key = |(address, protocol, port): &(IpAddr, podwire_policy::Protocol, u16)| {
                Value::ip(*address).and_protocol(protocol.number()).and_port(*port)
            };
            let elements: Vec<Element> = mine.map(|port| Element::key(key(port))).collect();
            self.set(
                half.name(id.as_str()),
                Holds::Keys(vec![half.address, Type::Protocol, Type::Port]),
                elements,
            );
        }
    }

    pub fn set(&mut self, name: String, holds: Holds, elements: Vec<Element>) {
        let elements = elements.into_iter().map(|element| keyed(Arc::new(element))).collect();
        self.sets.insert(name, WantedSet { holds, elements: Arc::new(elements) });
    }
}

impl Wiring {
    fn of(pod: &str, endpoint: &Endpoint) -> Wiring {
        let mut elements = Vec::new();
        for (half, address) in
            endpoint.addresses.iter().flat_map(|address| HALVES.map(|half| (half, *address)))
        {
            if !half.has(&address) {
                continue;
            }
            let itself = Element::key(Value::ip(address).and_ip(address));
            elements.push((base_chains::ITSELF, half, Arc::new(itself)));
            for (name, direction) in
                [(base_chains::EGRESS, Direction::Egress), (base_chains::INGRESS, Direction::Ingress)]
            {
                let verdict = match endpoint.chain(direction) {
                    Some(chain) => Verdict::Goto(chain.to_string()),
                    None => Verdict::Accept,
                };
                let found = Element::key(Value::ip(address)).verdict(verdict).comment(pod);
                elements.push((name, half, Arc::new(found)));
                let counted = Element::key(Value::ip(address)).comment(pod);
                elements.push((drop_chains::pods_set(direction), half, Arc::new(counted)));
            }
        }
        Wiring { endpoint: endpoint.clone(), elements }
    }
}

/// An element with what it is found by.
pub(super) fn keyed(element: Arc<Element>) -> ((Vec<u8>, bool), Arc<Element>) {
    ((element.key.bytes().to_vec(), element.ends_range), element)
}

/// Networks as intervals that neither overlap nor touch: where each begins, and before which address it ends. One that
/// reaches the last address of all has no end.
fn intervals(networks: &[IpNet]) -> Vec<Element> {
    let ends = |(first, last): (IpAddr, IpAddr)| {
        let end = next(last).map(|end| Element::end_of_range(Value::ip(end)));
        [Some(Element::key(Value::ip(first))), end].into_iter().flatten().collect::<Vec<_>>()
    };
    ranges(networks).into_iter().flat_map(ends).collect()
}

/// The first and the last address of each.
pub(super) fn ranges(networks: &[IpNet]) -> Vec<(IpAddr, IpAddr)> {
    let mut sorted: Vec<IpNet> = networks.iter().map(IpNet::trunc).collect();
    sorted.sort();
    let mut ranges: Vec<(IpAddr, IpAddr)> = Vec::new();
    for network in sorted {
        let (first, last) = (network.network(), network.broadcast());
        match ranges.last_mut() {
            Some((_, end)) if first <= *end || next(*end) == Some(first) => *end = last.max(*end),
            _ => ranges.push((first, last)),
        }
    }
    ranges
}

pub(super) fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => v4.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(v6) => v6.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(networks: &str) -> Vec<(String, bool)> {
        let networks: Vec<IpNet> = networks.split_whitespace().map(|net| net.parse().unwrap()).collect();
        intervals(&networks).into_iter().map(|e| (e.key.to_string(), e.ends_range)).collect()
    }

    #[test]
    fn networks_that_touch_are_one_interval() {
        let one = [("10.0.0.2".to_owned(), false), ("10.0.0.8".to_owned(), true)];
        assert_eq!(told("10.0.0.2/31 10.0.0.4/30"), one);
        assert_eq!(told("10.0.0.4/30 10.0.0.2/31 10.0.0.5/32"), one);
    }

    #[test]
    fn all_addresses_have_no_end() {
        assert_eq!(told("0.0.0.0/0"), [("0.0.0.0".to_owned(), false)]);
        assert_eq!(told("::/0 fd00::/8"), [("::".to_owned(), false)]);
    }
}
