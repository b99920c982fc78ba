//! What should be in the kernel: a program as sets, maps, chains and rules.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink::nft::{Base, Element, Family, Rule, Set, Type, Value, Verdict};
use policy::program::Id;
use policy::{Direction, Program};

use super::{judge, skeleton};

/// Elements by their key, and whether they end an interval.
pub(super) type Elements = BTreeMap<(Vec<u8>, bool), Element>;

/// What a set holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    Keys(Vec<Type>),
    Intervals(Type),
    Verdicts(Type),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedSet {
    pub holds: Holds,
    pub elements: Elements,
}

impl WantedSet {
    pub fn described<'a>(&'a self, name: &'a str) -> Set<'a> {
        match &self.holds {
            Holds::Keys(types) => Set::of(name, types),
            Holds::Intervals(kind) => Set::ranges(name, std::slice::from_ref(kind)),
            Holds::Verdicts(kind) => Set::verdicts(name, std::slice::from_ref(kind)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedChain {
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
}

/// Everything that should be in the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub sets: BTreeMap<String, WantedSet>,
    pub chains: BTreeMap<String, WantedChain>,
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

    fn has(self, address: &IpAddr) -> bool {
        address.is_ipv4() == (self.number == 4)
    }
}

/// The name of the set of a set of ports that holds single ones.
pub(super) fn single_ports(id: &Id) -> String {
    id.as_str().to_owned()
}

impl Wanted {
    pub fn of(program: &Program, guarded: &[IpNet]) -> Wanted {
        let mut wanted = Wanted::default();
        skeleton::build(&mut wanted);
        for half in HALVES {
            wanted.pods(program, half);
            wanted.peers(program, half);
            let guarded: Vec<IpNet> = guarded.iter().copied().filter(|net| half.has(&net.addr())).collect();
            wanted.set(half.name(skeleton::GUARDED), Holds::Intervals(half.address), intervals(&guarded));
        }
        for (id, ranges) in &program.ports {
            let single = ranges.iter().filter(|range| range.first == range.last);
            let keys = single.map(|range| Value::protocol(range.protocol.number()).and_port(range.first));
            let elements: Vec<Element> = keys.map(Element::key).collect();
            wanted.set(single_ports(id), Holds::Keys(vec![Type::Protocol, Type::Port]), elements);
        }
        for (id, chain) in &program.chains {
            let jumps = chain.stages.iter().map(|stage| Rule::new().jump(stage.as_str()));
            let rules = jumps.chain([Rule::new().accept()]).collect();
            wanted.chains.insert(id.to_string(), WantedChain { base: None, rules });
            for stage in &chain.stages {
                let Some(content) = program.stages.get(stage) else { continue };
                let rules = judge::stage(program, content, chain.direction);
                wanted.chains.insert(stage.to_string(), WantedChain { base: None, rules });
            }
        }
        wanted
    }

    /// The pods: where each one's chain is found by its address.
    fn pods(&mut self, program: &Program, half: Half) {
        let (mut maps, mut itself) = ([Vec::new(), Vec::new()], Vec::new());
        for (pod, endpoint) in &program.endpoints {
            for address in endpoint.addresses.iter().filter(|address| half.has(address)) {
                itself.push(Element::key(Value::ip(*address).and_ip(*address)));
                for (direction, map) in [Direction::Egress, Direction::Ingress].into_iter().zip(&mut maps) {
                    let verdict = match endpoint.chain(direction) {
                        Some(chain) => Verdict::Goto(chain.to_string()),
                        None => Verdict::Accept,
                    };
                    map.push(Element::key(Value::ip(*address)).verdict(verdict).comment(pod));
                }
            }
        }
        let [egress, ingress] = maps;
        self.set(half.name(skeleton::EGRESS), Holds::Verdicts(half.address), egress);
        self.set(half.name(skeleton::INGRESS), Holds::Verdicts(half.address), ingress);
        self.set(half.name(skeleton::ITSELF), Holds::Keys(vec![half.address, half.address]), itself);
    }

    /// The sets that rules name.
    fn peers(&mut self, program: &Program, half: Half) {
        for (id, addresses) in &program.addresses {
            let mine = addresses.iter().filter(|address| half.has(address));
            let elements: Vec<Element> = mine.map(|address| Element::key(Value::ip(*address))).collect();
            self.set(half.name(id.as_str()), Holds::Keys(vec![half.address]), elements);
        }
        for (id, networks) in &program.networks {
            let mine: Vec<IpNet> = networks.iter().copied().filter(|net| half.has(&net.addr())).collect();
            self.set(half.name(id.as_str()), Holds::Intervals(half.address), intervals(&mine));
        }
        for (id, ports) in &program.named_ports {
            let mine = ports.iter().filter(|(address, _, _)| half.has(address));
            let key = |(address, protocol, port): &(IpAddr, policy::Protocol, u16)| {
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

    fn set(&mut self, name: String, holds: Holds, elements: Vec<Element>) {
        let keyed = |element: Element| ((element.key.bytes().to_vec(), element.ends_range), element);
        let elements = elements.into_iter().map(keyed).collect();
        self.sets.insert(name, WantedSet { holds, elements });
    }
}

/// Networks as intervals that neither overlap nor touch: where each begins, and before which address it ends. One that
/// reaches the last address of all has no end.
fn intervals(networks: &[IpNet]) -> Vec<Element> {
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
    let ends = |(first, last): (IpAddr, IpAddr)| {
        let end = next(last).map(|end| Element::end_of_range(Value::ip(end)));
        [Some(Element::key(Value::ip(first))), end].into_iter().flatten().collect::<Vec<_>>()
    };
    ranges.into_iter().flat_map(ends).collect()
}

fn next(address: IpAddr) -> Option<IpAddr> {
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
