//! The chains and rules of host ports, which no pod changes.

use ipnet::IpNet;
use podwire_netlink::nft::{Base, ChainKind, Family, Field, Hook, Rule, Set, Table, Transaction, Type};

use super::super::{family, is_alone, named_for};
use super::{Options, PortMap, ANY, HOST, SELF, SNAT_ALL};

const GUARD: Base = Base::new(ChainKind::Filter, Hook::Prerouting, -300); // raw
const PREROUTING: Base = Base::new(ChainKind::Nat, Hook::Prerouting, -100); // dstnat
const OUTPUT: Base = Base::new(ChainKind::Nat, Hook::Output, -100);
const POSTROUTING: Base = Base::new(ChainKind::Nat, Hook::Postrouting, 100); // srcnat

/// One half of each table: IPv4 or IPv6.
struct Half {
    family: Family,
    /// Index into ANY, HOST and SNAT_ALL.
    at: usize,
    address: Type,
    destination: Field,
    chain: &'static str,
}

const HALVES: [Half; 2] = [
    Half {
        family: Family::Ip,
        at: 0,
        address: Type::Ipv4,
        destination: Field::Ip4Destination,
        chain: "ports4",
    },
    Half {
        family: Family::Ip6,
        at: 1,
        address: Type::Ipv6,
        destination: Field::Ip6Destination,
        chain: "ports6",
    },
];

impl Half {
    fn at_address(&self) -> [Field; 3] {
        [self.destination, Field::Protocol, Field::PortDestination]
    }
}

/// All of a table but for its networks: the same whether or not parts of it are there.
pub(super) fn whole(change: &mut Transaction, table: &Table, options: &Options) {
    change.add_table(table);
    for half in &HALVES {
        sets(change, table, half);
        ports(change, table, half);
    }
    guard(change, table);
    for (chain, base) in [("prerouting", PREROUTING), ("output", OUTPUT)] {
        change.add_base_chain(table, chain, &base);
        change.flush_chain(table, chain);
        for half in &HALVES {
            change.add_rule(table, chain, &entrance(half, options));
        }
    }
    change.add_base_chain(table, "postrouting", &POSTROUTING);
    change.flush_chain(table, "postrouting");
    for half in &HALVES {
        let mapped = Rule::new().any_bit(Field::CtStatus, Rule::DNAT).family(half.family);
        let hidden = mapped.in_set(&half.at_address(), SNAT_ALL[half.at]);
        change.add_rule(table, "postrouting", &hidden.masquerade());
    }
}

fn sets(change: &mut Transaction, table: &Table, half: &Half) {
    let port = [Type::Protocol, Type::Port];
    let at_address = [half.address, Type::Protocol, Type::Port];
    let pod = [half.address, Type::Port];
    change.add_set(table, &Set::map(ANY[half.at], &port, &pod));
    change.add_set(table, &Set::map(HOST[half.at], &at_address, &pod));
    change.add_set(table, &Set::of(SNAT_ALL[half.at], &at_address));
}

/// Where a port leads: what was mapped for the one address comes before what was mapped for any.
fn ports(change: &mut Transaction, table: &Table, half: &Half) {
    change.add_chain(table, half.chain);
    change.flush_chain(table, half.chain);
    let at_address = half.at_address();
    for (key, map) in [(&at_address[..], HOST[half.at]), (&at_address[1..], ANY[half.at])] {
        let rule = Rule::new().family(half.family).dnat_map(half.family, key, map);
        change.add_rule(table, half.chain, &rule);
    }
}

/// Only what is addressed to this node: a packet on its way through to the same port of some other machine is
/// none of ours, also when a pod sends it.
fn entrance(half: &Half, options: &Options) -> Rule {
    let conditions = if half.at == 0 { &options.conditions_v4 } else { &options.conditions_v6 };
    let rule =
        conditions.iter().fold(Rule::new().family(half.family), |rule, condition| condition.narrow(rule));
    rule.to_this_host().jump(half.chain)
}

/// Maps for 127.0.0.1 need `route_localnet` on the pods' device. With it the kernel would take packets for,
/// and from, its loopback addresses off the wire; here they end.
fn guard(change: &mut Transaction, table: &Table) {
    change.add_base_chain(table, "guard", &GUARD);
    change.flush_chain(table, "guard");
    for field in [Field::Ip4Destination, Field::Ip4Source] {
        let outside = Rule::new().interface(Field::InterfaceIn, "lo", false).family(Family::Ip);
        change.add_rule(table, "guard", &outside.prefix(field, [127, 0, 0, 0].into(), 8, true).drop());
    }
}

/// A set and a chain for each of the pods' networks. A pod that answers a neighbour answers it directly, past
/// the translation: so to a mapped pod its neighbours, and itself, must look like the node. So must the
/// node's loopback.
pub(super) fn networks(change: &mut Transaction, table: &Table, maps: &[PortMap]) {
    let mut nets: Vec<(String, IpNet)> =
        maps.iter().map(|map| (named_for("local", &map.pod), map.pod.trunc())).collect();
    nets.sort();
    nets.dedup_by(|(one, _), (other, _)| one == other);
    for (name, net) in nets {
        let half = &HALVES[usize::from(net.addr().is_ipv6())];
        change.add_set(table, &Set::of(&name, &[half.address, Type::Protocol, Type::Port]));
        change.add_base_chain(table, &name, &POSTROUTING);
        change.flush_chain(table, &name);
        let loopback = net.addr().is_ipv4().then(|| IpNet::new_assert([127, 0, 0, 0].into(), 8));
        let mapped = || Rule::new().any_bit(Field::CtStatus, Rule::DNAT).family(family(&net));
        if is_alone(&net) {
            let (set, address) = (SELF[half.at], half.address);
            change.add_set(table, &Set::of(set, &[address, address, Type::Protocol, Type::Port]));
            let [to, protocol, port] = half.at_address();
            let itself = mapped().in_set(&[Field::source(&net.addr()), to, protocol, port], set);
            change.add_rule(table, &name, &itself.masquerade());
        }
        let neighbours = Some(net).filter(|net| !is_alone(net));
        for inside in [neighbours, loopback].into_iter().flatten() {
            let from = Field::source(&inside.addr());
            let near = mapped().prefix(from, inside.addr(), inside.prefix_len(), true);
            change.add_rule(table, &name, &near.in_set(&half.at_address(), &name).masquerade());
        }
    }
}
