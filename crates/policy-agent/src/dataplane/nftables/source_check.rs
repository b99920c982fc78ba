//! Checks of what pods send: a pod may use its own addresses, the prefixes granted to it, and no other source address.
//! Policies identify pods by their addresses.
//!
//! Packets of routed pods are checked here, in the policy table. Packets of bridge ports are checked in the
//! [bridge table](super::bridge_table), which sees the ports, ARP and MAC addresses.

use std::net::{IpAddr, Ipv6Addr};

use podwire_ip::IpFamily;
use podwire_kernel::Mac;
use podwire_netlink::nft::{Base, ChainKind, Element, Field, Hook, IpTerms, Rule, Type, Value};

use super::drop_chains::{build_spoofed, SPOOFED};
use super::family::NftFamily;
use super::model::{DesiredTable, SetKind};
use super::{granted_prefixes, intervals};
use crate::dataplane::node_input::{NodeInput, PodPort};

/// Before conntrack: a spoofed packet must not count as part of another pod's connection.
pub(super) const PREROUTING: Base = Base::new(ChainKind::Filter, Hook::Prerouting, -300);
pub(super) const CHAIN: &str = "from_pods";
/// The devices whose packets are checked.
pub(super) const PORTS: &str = "ports";
/// Device and own address.
pub(super) const SOURCES: &str = "sources";
/// The usual ends of packets: the index of a pod's device, on a bridge the pod's MAC address, and an own address. The first
/// rules accept what is from or to them, so that only unusual packets are looked up by the device's name, of 16 bytes, and
/// several times.
pub(super) const KNOWN: &str = "known";
/// Device and granted prefix. The set exists only if a pod has a prefix.
const PREFIXES: &str = "prefixes";

/// `fe80::/10`.
pub(super) const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
pub(super) const LINK_LOCAL_BITS: u8 = 10;
/// `ff00::/8`.
const GROUPS: IpAddr = IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0));
const GROUP_BITS: u8 = 8;
pub(super) const ICMPV6: u8 = 58; // IPPROTO_ICMPV6
pub(super) const UDP: u8 = 17; // IPPROTO_UDP

// Types of ICMPv6 messages: RFC 2710, RFC 4861 and RFC 3810.
const MULTICAST_QUERY: u8 = 130;
const MULTICAST_REPORT: u8 = 131;
const MULTICAST_DONE: u8 = 132;
const ROUTER_SOLICITATION: u8 = 133;
pub(super) const ROUTER_ADVERTISEMENT: u8 = 134;
pub(super) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
pub(super) const REDIRECT: u8 = 137;
const MULTICAST_REPORT_V2: u8 = 143;

/// The checks for routed pods, in the policy table. Without such a pod there is no chain, which every packet would pass.
pub(super) fn build_routed(table: &mut DesiredTable, input: &NodeInput) {
    let ports: Vec<&PodPort> = input.ports.iter().filter(|port| !port.bridged).collect();
    build_spoofed(table, &ports, input);
    if ports.is_empty() {
        return;
    }
    add_sets(table, &ports);
    let of = |family: IpFamily| Rule::new().family(family.packet_family());
    let known = |family: IpFamily| {
        of(family).in_set(&[Field::IndexIn, family.source()], &family.set_name(KNOWN)).accept()
    };
    let not_allowed =
        |rule: Rule, family: IpFamily| not_allowed(rule, family.source(), family, &ports).goto(SPOOFED);
    let mut rules = vec![
        known(IpFamily::V4),
        not_allowed(from_ports(of(IpFamily::V4)), IpFamily::V4),
        of(IpFamily::V4).accept(),
        known(IpFamily::V6),
        from_others(Rule::new()).accept(),
    ];
    rules.extend(without_own_address(&Rule::new));
    rules.push(not_allowed(Rule::new(), IpFamily::V6));
    rules.extend(from_own_link_local(&Rule::new));
    for family in IpFamily::ALL {
        let known = own_addresses(&ports, family, |_, index| Some(Value::ifindex(index)));
        let key = vec![Type::IfIndex, family.address_type()];
        table.add_set(family.set_name(KNOWN), SetKind::Keys(key), known);
    }
    table.add_base_chain(CHAIN, PREROUTING, rules);
}

/// An element for each address of a port: what `start` makes of the port and its index, and the address.
pub(super) fn own_addresses(
    ports: &[&PodPort],
    family: IpFamily,
    start: impl Fn(&PodPort, u32) -> Option<Value>,
) -> Vec<Element> {
    let starts = ports.iter().filter_map(|port| Some((port, start(port, port.index?)?)));
    let of_port = |(port, start): (&&PodPort, Value)| {
        let own: Vec<IpAddr> = port.addresses.iter().copied().filter(|address| family.has(address)).collect();
        own.into_iter().map(move |address| Element::key(start.clone().and_ip(address)))
    };
    starts.flat_map(of_port).collect()
}

/// Accepts what a pod may send from an address that is not in [`SOURCES`]: from the unspecified address duplicate address
/// detection and router solicitations; multicast memberships also from any link-local address, because a pod may have
/// another one than the one that follows from its MAC address.
pub(super) fn without_own_address(rule: &dyn Fn() -> Rule) -> Vec<Rule> {
    let message = |kind: u8| icmpv6(rule(), kind);
    let from = |rule: Rule, ip: Ipv6Addr, bits| rule.prefix(IpFamily::V6.source(), ip.into(), bits, true);
    let mut rules = Vec::new();
    for (kind, any_link_local) in [
        (NEIGHBOUR_SOLICITATION, false),
        (ROUTER_SOLICITATION, false),
        (MULTICAST_REPORT, true),
        (MULTICAST_DONE, true),
        (MULTICAST_REPORT_V2, true),
    ] {
        rules.push(from(message(kind), Ipv6Addr::UNSPECIFIED, 128).accept());
        if any_link_local {
            rules.push(from(message(kind), LINK_LOCAL, LINK_LOCAL_BITS).accept());
        }
    }
    rules
}

/// With its link-local address, which policies do not know, a pod may only do neighbour discovery and look for routers.
pub(super) fn from_own_link_local(rule: &dyn Fn() -> Rule) -> Vec<Rule> {
    let kinds = [NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT, ROUTER_SOLICITATION];
    let accepted = kinds.into_iter().map(|kind| icmpv6(rule(), kind).accept());
    accepted.chain([from_link_local(rule()).goto(SPOOFED)]).collect()
}

/// Matches the messages that every IPv6 link needs, and completes each rule with `end`: neighbour and router discovery
/// (133 to 137), which no router forwards, and multicast listener messages (130 to 132, 143), which are sent to groups.
/// Anything else with these types is data, and policies decide about it.
pub(super) fn link_messages(rule: &dyn Fn() -> Rule, end: impl Fn(Rule) -> Rule) -> Vec<Rule> {
    let message =
        |first, last| rule().is(Field::Protocol, &[ICMPV6]).between(Field::IcmpType, &[first], &[last]);
    let to_group = |rule: Rule| rule.prefix(IpFamily::V6.destination(), GROUPS, GROUP_BITS, true);
    vec![
        end(message(ROUTER_SOLICITATION, REDIRECT).is(Field::HopLimit, &[u8::MAX])),
        end(to_group(message(MULTICAST_QUERY, MULTICAST_DONE))),
        end(to_group(message(MULTICAST_REPORT_V2, MULTICAST_REPORT_V2))),
    ]
}

/// Matches an ICMPv6 message.
pub(super) fn icmpv6(rule: Rule, kind: u8) -> Rule {
    rule.is(Field::Protocol, &[ICMPV6]).is(Field::IcmpType, &[kind])
}

/// Matches UDP to a port, from any port.
pub(super) fn udp_to(rule: Rule, to: u16) -> Rule {
    rule.is(Field::Protocol, &[UDP]).is(Field::PortDestination, &to.to_be_bytes())
}

/// Matches UDP from one port to another.
pub(super) fn udp(rule: Rule, from: u16, to: u16) -> Rule {
    let rule = rule.is(Field::Protocol, &[UDP]).is(Field::PortSource, &from.to_be_bytes());
    rule.is(Field::PortDestination, &to.to_be_bytes())
}

pub(super) fn from_ports(rule: Rule) -> Rule {
    rule.in_set(&[Field::InterfaceIn], PORTS)
}

pub(super) fn from_others(rule: Rule) -> Rule {
    rule.not_in_set(&[Field::InterfaceIn], PORTS)
}

pub(super) fn from_link_local(rule: Rule) -> Rule {
    rule.prefix(IpFamily::V6.source(), LINK_LOCAL.into(), LINK_LOCAL_BITS, true)
}

/// Matches packets in which `field` is an address that the port may not use.
pub(super) fn not_allowed(rule: Rule, field: Field, family: IpFamily, ports: &[&PodPort]) -> Rule {
    not_own(rule, &[Field::InterfaceIn, field], family, ports)
}

/// Matches packets in which the pair of a device and an address is not one of a pod's port and its address.
pub(super) fn not_own(rule: Rule, pair: &[Field; 2], family: IpFamily, ports: &[&PodPort]) -> Rule {
    let rule = rule.not_in_set(pair, &family.set_name(SOURCES));
    if ports.iter().any(|port| !granted_prefixes::of_port(port, family).is_empty()) {
        rule.not_in_set(pair, &family.set_name(PREFIXES))
    } else {
        rule
    }
}

fn prefix_elements(port: &PodPort, family: IpFamily) -> Vec<Element> {
    let at = |address: IpAddr| Value::ifname(&port.device).and_ip(address);
    let prefixes = intervals::ranges(&granted_prefixes::of_port(port, family));
    prefixes.into_iter().map(|(first, last)| Element::key(at(first)).up_to(at(last))).collect()
}

/// The sets of devices and of the addresses that may be used behind each.
pub(super) fn add_sets(table: &mut DesiredTable, ports: &[&PodPort]) {
    let names = ports.iter().map(|port| Element::key(Value::ifname(&port.device))).collect();
    table.add_set(PORTS.into(), SetKind::Keys(vec![Type::IfName]), names);
    for family in IpFamily::ALL {
        let key = vec![Type::IfName, family.address_type()];
        let pairs = ports.iter().flat_map(|port| {
            let macs = [port.mac, port.first_mac].into_iter().flatten();
            let link_local = macs.map(|mac| IpAddr::from(Mac(mac).link_local()));
            let own = port.addresses.iter().copied().chain(link_local).filter(|address| family.has(address));
            own.map(|address| Element::key(Value::ifname(&port.device).and_ip(address)))
        });
        table.add_set(family.set_name(SOURCES), SetKind::Keys(key.clone()), pairs.collect());
        let prefixes: Vec<Element> = ports.iter().flat_map(|port| prefix_elements(port, family)).collect();
        if !prefixes.is_empty() {
            table.add_set(family.set_name(PREFIXES), SetKind::RangedKeys(key), prefixes);
        }
    }
}
