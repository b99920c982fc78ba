//! A pod sends with its own addresses, perhaps some more that were granted to it, and no other: policies know pods by them.
//!
//! What comes out of a cable of its own is looked at in the table of all rules. What comes into a bridge must be looked at by
//! port, which only a table for bridges sees; there ARP has to tell the truth too, and the hardware address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use podwire_netlink::nft::{Base, ChainKind, Element, Family, Field, Hook, Rule, Table, Type, Value};

use super::desired::{ranges, Half, Holds, Wanted, WantedChain, HALVES};
use super::drop_chains::{self, SPOOFED};
use super::granted_prefixes;
use crate::dataplane::{Port, Premises};

pub(super) const BRIDGES: Table = Table::named(Family::Bridge, "podwire_policy");
/// Before connections are tracked: nobody else's connection may be spoken into.
const PREROUTING: Base = Base::new(ChainKind::Filter, Hook::Prerouting, -300);
const CHAIN: &str = "from_pods";
/// The devices that are looked at.
const PORTS: &str = "ports";
/// Device and address.
const SOURCES: &str = "sources";
/// Device and granted addresses; where nobody has any, there is no such set.
const PREFIXES: &str = "prefixes";
/// Device and hardware address.
const MACS: &str = "macs";

const ARP: [u8; 2] = [0x08, 0x06]; // ETH_P_ARP, linux/if_ether.h
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const OF_THE_WIRE: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0));
const ICMPV6: u8 = 58; // IPPROTO_ICMPV6
const UDP: u8 = 17; // IPPROTO_UDP
const DHCPV6_CLIENT: [u8; 2] = 546u16.to_be_bytes();
const DHCPV6_SERVER: [u8; 2] = 547u16.to_be_bytes();

/// Rules for pods that have a cable of their own.
pub(super) fn on_cables(premises: &Premises, wanted: &mut Wanted) {
    let mine: Vec<&Port> = premises.ports.iter().filter(|port| !port.bridged).collect();
    let mut rules = Vec::new();
    for half in HALVES {
        rules.extend(liars(Rule::new().family(half.family), half, &mine));
    }
    drop_chains::spoofed(&mine, premises, wanted);
    fill(&mine, wanted, rules);
}

/// Rules for pods on bridges.
pub(super) fn on_bridges(premises: &Premises) -> Wanted {
    let mut wanted = Wanted::in_table(BRIDGES);
    let mine: Vec<&Port> = premises.ports.iter().filter(|port| port.bridged).collect();
    let with_mac = mine.iter().filter_map(|port| Some((port, port.mac?)));
    let keys = with_mac.map(|(port, mac)| Element::key(Value::ifname(&port.name).and_mac(mac)));
    wanted.set(MACS.into(), Holds::Keys(vec![Type::IfName, Type::Mac]), keys.collect());
    let [v4, v6] = HALVES;
    let stranger = among_ports(Rule::new()).not_in_set(&[Field::InterfaceIn, Field::MacSource], MACS);
    let mut rules = vec![stranger.goto(SPOOFED)];
    let arp = among_ports(Rule::new().is(Field::EtherType, &ARP));
    // Who sends with a granted address asks for its neighbours with it, too.
    rules.push(not_granted(arp, Field::ArpSource, v4, &mine).goto(SPOOFED));
    rules.extend(liars(Rule::new().is(Field::EtherType, &IPV4), v4, &mine));
    rules.extend(on_the_wire(v6));
    rules.push(
        not_granted(among_ports(Rule::new().is(Field::EtherType, &IPV6)), v6.source(), v6, &mine)
            .goto(SPOOFED),
    );
    drop_chains::spoofed(&mine, premises, &mut wanted);
    fill(&mine, &mut wanted, rules);
    wanted
}

/// In IPv6 everybody has an address for the wire alone, by which it finds its neighbours and its router (ICMPv6 130 to 137, 143) and
/// asks for other addresses (DHCPv6). For anything else it would be a way around policies, which know pods by their addresses.
fn on_the_wire(half: Half) -> Vec<Rule> {
    let sent =
        || among_ports(Rule::new().is(Field::EtherType, &IPV6)).prefix(half.source(), OF_THE_WIRE, 10, true);
    let message = |first, last| {
        sent().is(Field::Protocol, &[ICMPV6]).between(Field::IcmpType, &[first], &[last]).accept()
    };
    let client = sent().is(Field::Protocol, &[UDP]).is(Field::PortSource, &DHCPV6_CLIENT);
    vec![message(130, 137), message(143, 143), client.is(Field::PortDestination, &DHCPV6_SERVER).accept()]
}

fn among_ports(rule: Rule) -> Rule {
    rule.in_set(&[Field::InterfaceIn], PORTS)
}

/// DropCounts what comes with another address. In IPv6 everybody has addresses for the wire alone, which no router forwards: on a cable
/// of its own a pod reaches the node by it, and nobody else.
fn liars(of_family: Rule, half: Half, ports: &[&Port]) -> Vec<Rule> {
    let mut rules = Vec::new();
    if half.number == 6 {
        rules.push(among_ports(of_family.clone()).prefix(half.source(), OF_THE_WIRE, 10, true).accept());
    }
    rules.push(not_granted(among_ports(of_family), half.source(), half, ports).goto(SPOOFED));
    rules
}

/// Whose field is an address that its port has not.
fn not_granted(rule: Rule, field: Field, half: Half, ports: &[&Port]) -> Rule {
    let rule = rule.not_in_set(&[Field::InterfaceIn, field], &half.name(SOURCES));
    match ports.iter().any(|port| !granted_prefixes::of_port(port, half).is_empty()) {
        true => rule.not_in_set(&[Field::InterfaceIn, field], &half.name(PREFIXES)),
        false => rule,
    }
}

fn granted(port: &Port, half: Half) -> Vec<Element> {
    let at = |address: IpAddr| Value::ifname(&port.name).and_ip(address);
    let prefixes = ranges(&granted_prefixes::of_port(port, half));
    prefixes.into_iter().map(|(first, last)| Element::key(at(first)).up_to(at(last))).collect()
}

fn fill(ports: &[&Port], wanted: &mut Wanted, rules: Vec<Rule>) {
    let names = ports.iter().map(|port| Element::key(Value::ifname(&port.name))).collect();
    wanted.set(PORTS.into(), Holds::Keys(vec![Type::IfName]), names);
    for half in HALVES {
        // Who has no address yet, and asks whether one is taken, speaks as nobody.
        let nobody: IpAddr = match half.number {
            4 => Ipv4Addr::UNSPECIFIED.into(),
            _ => Ipv6Addr::UNSPECIFIED.into(),
        };
        let pairs = ports.iter().flat_map(|port| {
            let own = port.addresses.iter().copied().filter(|address| half.has(address));
            own.chain([nobody]).map(|address| Element::key(Value::ifname(&port.name).and_ip(address)))
        });
        wanted.set(half.name(SOURCES), Holds::Keys(vec![Type::IfName, half.address]), pairs.collect());
        let granted: Vec<Element> = ports.iter().flat_map(|port| granted(port, half)).collect();
        if !granted.is_empty() {
            wanted.set(half.name(PREFIXES), Holds::Ranges(vec![Type::IfName, half.address]), granted);
        }
    }
    wanted.chains.insert(CHAIN.into(), Arc::new(WantedChain { base: Some(PREROUTING), rules }));
}
