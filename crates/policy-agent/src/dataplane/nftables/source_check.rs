//! Source address checks: a pod may use its own addresses, the prefixes granted to it, and no other source address.
//! Policies identify pods by their addresses.
//!
//! Packets of routed pods are checked in the policy table. Packets of bridge ports must be checked by port, which only
//! a table of the family bridge sees; there ARP and the source MAC are checked too.

use std::net::{IpAddr, Ipv6Addr};

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Base, ChainKind, Element, Field, Hook, Rule, Type, Value};

use super::drop_chains::{build_spoofed, SPOOFED};
use super::family::NftFamily;
use super::model::{DesiredTable, SetKind};
use super::names::BRIDGE_TABLE;
use super::{granted_prefixes, intervals};
use crate::dataplane::node_input::{NodeInput, PodPort};

/// Before conntrack: a spoofed packet must not count as part of another pod's connection.
const PREROUTING: Base = Base::new(ChainKind::Filter, Hook::Prerouting, -300);
const CHAIN: &str = "from_pods";
/// The devices whose packets are checked.
const PORTS: &str = "ports";
/// Device and own address.
const SOURCES: &str = "sources";
/// Device and granted prefix. The set exists only if a pod has a prefix.
const PREFIXES: &str = "prefixes";
/// Device and MAC address.
const MACS: &str = "macs";

const ARP: [u8; 2] = [0x08, 0x06]; // ETH_P_ARP, linux/if_ether.h
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// `fe80::/10`.
const LINK_LOCAL: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0));
const LINK_LOCAL_BITS: u8 = 10;
const ICMPV6: u8 = 58; // IPPROTO_ICMPV6
const UDP: u8 = 17; // IPPROTO_UDP
const DHCPV6_CLIENT: [u8; 2] = 546u16.to_be_bytes();
const DHCPV6_SERVER: [u8; 2] = 547u16.to_be_bytes();

/// The checks for routed pods, in the policy table.
pub(super) fn build_routed(table: &mut DesiredTable, input: &NodeInput) {
    let ports: Vec<&PodPort> = input.ports.iter().filter(|port| !port.bridged).collect();
    let mut rules = Vec::new();
    for family in IpFamily::ALL {
        let rule = Rule::new().family(family.packet_family());
        // No router forwards link-local addresses: a routed pod reaches only its node with them.
        if family.is_v6() {
            rules.push(from_link_local(rule.clone()).accept());
        }
        rules.push(not_allowed(from_ports(rule), family.source(), family, &ports).goto(SPOOFED));
    }
    build_spoofed(table, &ports, input);
    add_sets_and_chain(table, &ports, rules);
}

/// The table for bridge ports.
pub(super) fn bridge_table(input: &NodeInput) -> DesiredTable {
    let mut table = DesiredTable::empty(BRIDGE_TABLE);
    let ports: Vec<&PodPort> = input.ports.iter().filter(|port| port.bridged).collect();
    let with_mac = ports.iter().filter_map(|port| Some((port, port.mac?)));
    let keys = with_mac.map(|(port, mac)| Element::key(Value::ifname(&port.device).and_mac(mac)));
    table.add_set(MACS.into(), SetKind::Keys(vec![Type::IfName, Type::Mac]), keys.collect());
    let of_type = |ether_type: &[u8]| from_ports(Rule::new().is(Field::EtherType, ether_type));
    let (v4, v6) = (IpFamily::V4, IpFamily::V6);
    let wrong_mac = from_ports(Rule::new()).not_in_set(&[Field::InterfaceIn, Field::MacSource], MACS);
    let mut rules = vec![wrong_mac.goto(SPOOFED)];
    // A pod uses a granted address in ARP requests too.
    rules.push(not_allowed(of_type(&ARP), Field::ArpSource, v4, &ports).goto(SPOOFED));
    rules.push(not_allowed(of_type(&IPV4), v4.source(), v4, &ports).goto(SPOOFED));
    rules.extend(link_local_on_bridge());
    rules.push(not_allowed(of_type(&IPV6), v6.source(), v6, &ports).goto(SPOOFED));
    build_spoofed(&mut table, &ports, input);
    add_sets_and_chain(&mut table, &ports, rules);
    table
}

/// A pod needs its link-local address for neighbour and router discovery and multicast groups (ICMPv6 130 to 137, 143)
/// and for DHCPv6. Any other use on a bridge would bypass the policies, which identify pods by their global addresses.
fn link_local_on_bridge() -> Vec<Rule> {
    let sent = || from_link_local(Rule::new().is(Field::EtherType, &IPV6));
    let message = |first, last| {
        sent().is(Field::Protocol, &[ICMPV6]).between(Field::IcmpType, &[first], &[last]).accept()
    };
    let client = sent().is(Field::Protocol, &[UDP]).is(Field::PortSource, &DHCPV6_CLIENT);
    vec![message(130, 137), message(143, 143), client.is(Field::PortDestination, &DHCPV6_SERVER).accept()]
}

fn from_ports(rule: Rule) -> Rule {
    rule.in_set(&[Field::InterfaceIn], PORTS)
}

fn from_link_local(rule: Rule) -> Rule {
    from_ports(rule).prefix(IpFamily::V6.source(), LINK_LOCAL, LINK_LOCAL_BITS, true)
}

/// Matches packets in which `field` is an address that the port may not use.
fn not_allowed(rule: Rule, field: Field, family: IpFamily, ports: &[&PodPort]) -> Rule {
    let rule = rule.not_in_set(&[Field::InterfaceIn, field], &family.set_name(SOURCES));
    if ports.iter().any(|port| !granted_prefixes::of_port(port, family).is_empty()) {
        rule.not_in_set(&[Field::InterfaceIn, field], &family.set_name(PREFIXES))
    } else {
        rule
    }
}

fn prefix_elements(port: &PodPort, family: IpFamily) -> Vec<Element> {
    let at = |address: IpAddr| Value::ifname(&port.device).and_ip(address);
    let prefixes = intervals::ranges(&granted_prefixes::of_port(port, family));
    prefixes.into_iter().map(|(first, last)| Element::key(at(first)).up_to(at(last))).collect()
}

fn add_sets_and_chain(table: &mut DesiredTable, ports: &[&PodPort], rules: Vec<Rule>) {
    let names = ports.iter().map(|port| Element::key(Value::ifname(&port.device))).collect();
    table.add_set(PORTS.into(), SetKind::Keys(vec![Type::IfName]), names);
    for family in IpFamily::ALL {
        let key = vec![Type::IfName, family.address_type()];
        // The unspecified address is the source of duplicate address detection and of DHCP clients without an address.
        let pairs = ports.iter().flat_map(|port| {
            let own = port.addresses.iter().copied().filter(|address| family.has(address));
            own.chain([family.unspecified()])
                .map(|address| Element::key(Value::ifname(&port.device).and_ip(address)))
        });
        table.add_set(family.set_name(SOURCES), SetKind::Keys(key.clone()), pairs.collect());
        let prefixes: Vec<Element> = ports.iter().flat_map(|port| prefix_elements(port, family)).collect();
        if !prefixes.is_empty() {
            table.add_set(family.set_name(PREFIXES), SetKind::RangedKeys(key), prefixes);
        }
    }
    table.add_base_chain(CHAIN, PREROUTING, rules);
}
