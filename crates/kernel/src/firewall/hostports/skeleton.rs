//! The chains and rules of host ports, which do not change with pods.

use ipnet::IpNet;
use podwire_netlink::nft::{Base, ChainKind, Family, Field, Hook, Rule, Set, Table, Transaction, Type};

use super::super::naming::{is_single_address, nft_family, set_name};
use super::mapping::{PortMap, ANY, HOST, SELF, SNAT_ALL};
use super::options::Options;

const GUARD: Base = Base::new(ChainKind::Filter, Hook::Prerouting, -300); // raw
const PREROUTING: Base = Base::new(ChainKind::Nat, Hook::Prerouting, -100); // dstnat
const OUTPUT: Base = Base::new(ChainKind::Nat, Hook::Output, -100);
const POSTROUTING: Base = Base::new(ChainKind::Nat, Hook::Postrouting, 100); // srcnat

/// The IPv4 or the IPv6 part of a table.
struct FamilyPart {
    family: Family,
    /// Index into ANY, HOST and SNAT_ALL.
    at: usize,
    address: Type,
    destination: Field,
    chain: &'static str,
}

const FAMILIES: [FamilyPart; 2] = [
    FamilyPart {
        family: Family::Ip,
        at: 0,
        address: Type::Ipv4,
        destination: Field::Ip4Destination,
        chain: "ports4",
    },
    FamilyPart {
        family: Family::Ip6,
        at: 1,
        address: Type::Ipv6,
        destination: Field::Ip6Destination,
        chain: "ports6",
    },
];

impl FamilyPart {
    fn at_address(&self) -> [Field; 3] {
        [self.destination, Field::Protocol, Field::PortDestination]
    }
}

/// The table without the rules of single networks. The result is the same whether or not parts exist.
pub(super) fn whole(change: &mut Transaction, table: &Table, options: &Options) {
    change.add_table(table);
    for part in &FAMILIES {
        sets(change, table, part);
        ports(change, table, part);
    }
    for (chain, base) in [("prerouting", PREROUTING), ("output", OUTPUT)] {
        change.add_base_chain(table, chain, &base);
        change.flush_chain(table, chain);
        for part in &FAMILIES {
            change.add_rule(table, chain, &entry_rule(part, options));
        }
    }
    change.add_base_chain(table, "postrouting", &POSTROUTING);
    change.flush_chain(table, "postrouting");
    for part in &FAMILIES {
        let mapped = Rule::new().any_bit(Field::CtStatus, Rule::DNAT).family(part.family);
        let masqueraded = mapped.in_set(&part.at_address(), SNAT_ALL[part.at]);
        change.add_rule(table, "postrouting", &masqueraded.masquerade());
    }
}

fn sets(change: &mut Transaction, table: &Table, part: &FamilyPart) {
    let port = [Type::Protocol, Type::Port];
    let at_address = [part.address, Type::Protocol, Type::Port];
    let pod = [part.address, Type::Port];
    change.add_set(table, &Set::map(ANY[part.at], &port, &pod));
    change.add_set(table, &Set::map(HOST[part.at], &at_address, &pod));
    change.add_set(table, &Set::of(SNAT_ALL[part.at], &at_address));
}

/// The DNAT rules. Mappings for one address take precedence over mappings for any address.
fn ports(change: &mut Transaction, table: &Table, part: &FamilyPart) {
    change.add_chain(table, part.chain);
    change.flush_chain(table, part.chain);
    let at_address = part.at_address();
    for (key, map) in [(&at_address[..], HOST[part.at]), (&at_address[1..], ANY[part.at])] {
        let rule = Rule::new().family(part.family).dnat_map(part.family, key, map);
        change.add_rule(table, part.chain, &rule);
    }
}

/// The jump for packets to this node's addresses. Forwarded packets to the same port of another host do not match, even
/// if a pod sends them.
fn entry_rule(part: &FamilyPart, options: &Options) -> Rule {
    let conditions = if part.at == 0 { &options.conditions_v4 } else { &options.conditions_v6 };
    let rule =
        conditions.iter().fold(Rule::new().family(part.family), |rule, condition| condition.add_to(rule));
    rule.to_this_host().jump(part.chain)
}

/// Mappings for 127.0.0.1 need `route_localnet` on the pods' device. With it the kernel accepts packets from and to
/// loopback addresses on that device; these rules drop them. Every packet passes them, so the device's name, which takes
/// longest to compare, is compared last.
pub(super) fn guard(change: &mut Transaction, table: &Table) {
    change.add_base_chain(table, "guard", &GUARD);
    change.flush_chain(table, "guard");
    for field in [Field::Ip4Destination, Field::Ip4Source] {
        let loopback = Rule::new().family(Family::Ip).prefix(field, [127, 0, 0, 0].into(), 8, true);
        change.add_rule(table, "guard", &loopback.interface(Field::InterfaceIn, "lo", false).drop());
    }
}

/// A set and a chain for each pod network. A pod replies to pods of its network directly, without the address
/// translation. So connections from its network, from itself and from the node's loopback are masqueraded.
pub(super) fn networks(change: &mut Transaction, table: &Table, maps: &[PortMap]) {
    let mut nets: Vec<(String, IpNet)> =
        maps.iter().map(|map| (set_name("local", &map.pod), map.pod.trunc())).collect();
    nets.sort();
    nets.dedup_by(|(one, _), (other, _)| one == other);
    for (name, net) in nets {
        let part = &FAMILIES[usize::from(net.addr().is_ipv6())];
        change.add_set(table, &Set::of(&name, &[part.address, Type::Protocol, Type::Port]));
        change.add_base_chain(table, &name, &POSTROUTING);
        change.flush_chain(table, &name);
        let loopback = net.addr().is_ipv4().then(|| IpNet::new_assert([127, 0, 0, 0].into(), 8));
        let mapped = || Rule::new().any_bit(Field::CtStatus, Rule::DNAT).family(nft_family(&net));
        if is_single_address(&net) {
            let (set, address) = (SELF[part.at], part.address);
            change.add_set(table, &Set::of(set, &[address, address, Type::Protocol, Type::Port]));
            let [to, protocol, port] = part.at_address();
            let itself = mapped().in_set(&[Field::source(&net.addr()), to, protocol, port], set);
            change.add_rule(table, &name, &itself.masquerade());
        }
        let neighbours = Some(net).filter(|net| !is_single_address(net));
        for inside in [neighbours, loopback].into_iter().flatten() {
            let from = Field::source(&inside.addr());
            let local = mapped().prefix(from, inside.addr(), inside.prefix_len(), true);
            change.add_rule(table, &name, &local.in_set(&part.at_address(), &name).masquerade());
        }
    }
}
