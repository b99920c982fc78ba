//! The table for pods on a bridge. Only a table of the family bridge sees the ports, so that it can check what each pod
//! sends, ARP and MAC addresses included, and what a pod receives that is not addressed to it.

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Base, ChainKind, Element, Field, Hook, IpTerms, Rule, Type, Value};
use podwire_policy::{Direction, Program};

use super::drop_chains::{build_spoofed, SPOOFED};
use super::family::NftFamily;
use super::model::{DesiredTable, SetKind};
use super::names::BRIDGE_TABLE;
use super::source_check::{
    add_sets, from_link_local, from_others, from_own_link_local, from_ports, icmpv6, link_messages,
    not_allowed, not_own, own_addresses, udp, udp_to, without_own_address, CHAIN, ICMPV6, KNOWN, LINK_LOCAL,
    LINK_LOCAL_BITS, NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, PREROUTING, REDIRECT,
    ROUTER_ADVERTISEMENT, SOURCES,
};
use crate::dataplane::node_input::{NodeInput, PodPort};

/// Device and MAC address.
const MACS: &str = "macs";
/// The devices of pods that may send tagged frames and other protocols than IP and ARP.
const TRUNKS: &str = "trunks";
/// The devices of pods that use DHCP.
const DHCP: &str = "dhcp";
/// The devices of pods with ingress policies.
const ISOLATED: &str = "isolated";

/// The chains for IP packets that enter the bridge.
const SENT_4: &str = "sent_4";
const SENT_6: &str = "sent_6";

const FORWARD: Base = Base::new(ChainKind::Filter, Hook::Forward, 0);
const ARP: [u8; 2] = [0x08, 0x06]; // ETH_P_ARP, linux/if_ether.h
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const IGMP: u8 = 2; // IPPROTO_IGMP
/// Server and client.
const DHCPV4: (u16, u16) = (67, 68);
const DHCPV6: (u16, u16) = (547, 546);

pub(super) fn build(program: &Program, input: &NodeInput) -> DesiredTable {
    let mut table = DesiredTable::empty(BRIDGE_TABLE);
    let ports: Vec<&PodPort> = input.ports.iter().filter(|port| port.bridged).collect();
    let with_mac = ports.iter().filter_map(|port| Some((port, port.mac?)));
    let keys = with_mac.map(|(port, mac)| Element::key(Value::ifname(&port.device).and_mac(mac)));
    table.add_set(MACS.into(), SetKind::Keys(vec![Type::IfName, Type::Mac]), keys.collect());
    // A pod that is not in the program yet is isolated.
    let is_isolated = |port: &&&PodPort| {
        program.endpoints.get(&port.pod).is_none_or(|pod| pod.chain(Direction::Ingress).is_some())
    };
    let isolated: Vec<&PodPort> = ports.iter().filter(is_isolated).copied().collect();
    let has_isolated = !isolated.is_empty();
    let trunks: Vec<&PodPort> = ports.iter().filter(|port| port.is_trunk).copied().collect();
    let dhcp: Vec<&PodPort> = ports.iter().filter(|port| port.uses_dhcp).copied().collect();
    for (name, ports) in [(ISOLATED, isolated), (TRUNKS, trunks), (DHCP, dhcp)] {
        let names = ports.iter().map(|port| Element::key(Value::ifname(&port.device)));
        table.add_set(name.into(), SetKind::Keys(vec![Type::IfName]), names.collect());
    }
    add_sets(&mut table, &ports);
    build_spoofed(&mut table, &ports, input);
    for family in IpFamily::ALL {
        let known =
            own_addresses(&ports, family, |port, index| Some(Value::ifindex(index).and_mac(port.mac?)));
        let key = vec![Type::IfIndex, Type::Mac, family.address_type()];
        table.add_set(family.set_name(KNOWN), SetKind::Keys(key), known);
    }
    table.add_chain(SENT_4, check_ipv4(&ports));
    table.add_chain(SENT_6, check_ipv6(&ports));
    table.add_base_chain(CHAIN, PREROUTING, check_sent(&ports));
    if has_isolated {
        table.add_base_chain("to_pods", FORWARD, check_received(&ports));
    }
    table
}

fn of_type(ether_type: &[u8]) -> Rule {
    Rule::new().is(Field::EtherType, ether_type)
}

/// Rules that accept frames of other ports, and drop those that a pod does not send from its own MAC address.
fn only_own_mac() -> [Rule; 2] {
    let wrong_mac = Rule::new().not_in_set(&[Field::InterfaceIn, Field::MacSource], MACS);
    [from_others(Rule::new()).accept(), wrong_mac.goto(SPOOFED)]
}

/// The base chain. Frames that are neither IP nor ARP, or that have a VLAN tag, would bypass the IP rules: they pass only
/// from trunks, and what is in them is checked too.
fn check_sent(ports: &[&PodPort]) -> Vec<Rule> {
    let on_wire = |ether_type: &[u8]| Rule::new().is(Field::EtherTypeOnWire, ether_type);
    let mut rules = vec![on_wire(&IPV4).goto(SENT_4), on_wire(&IPV6).goto(SENT_6)];
    rules.extend(only_own_mac());
    let no_arp = Rule::new().is_not(Field::EtherTypeOnWire, &ARP);
    rules.push(no_arp.not_in_set(&[Field::InterfaceIn], TRUNKS).goto(SPOOFED));
    rules.extend(check_arp(ports));
    rules.extend([of_type(&IPV4).goto(SENT_4), of_type(&IPV6).goto(SENT_6)]);
    rules
}

/// A pod announces only its own addresses, with its own MAC address. It may ask with a granted address, and before it
/// uses an address, with 0.0.0.0.
fn check_arp(ports: &[&PodPort]) -> Vec<Rule> {
    let arp = || of_type(&ARP);
    vec![
        arp().not_in_set(&[Field::InterfaceIn, Field::ArpSourceMac], MACS).goto(SPOOFED),
        arp().is(Field::ArpSource, &[0; 4]).accept(),
        not_allowed(arp(), Field::ArpSource, IpFamily::V4, ports).goto(SPOOFED),
    ]
}

/// Accepts what pods usually send.
fn known(rule: Rule, family: IpFamily) -> Rule {
    rule.in_set(&[Field::IndexIn, Field::MacSource, family.source()], &family.set_name(KNOWN)).accept()
}

fn check_ipv4(ports: &[&PodPort]) -> Vec<Rule> {
    let (server, client) = DHCPV4;
    let request = udp(Rule::new(), client, server).in_set(&[Field::InterfaceIn], DHCP);
    let mut rules = vec![
        // A DHCP client looks at its own port, not at that of the sender.
        from_ports(udp_to(Rule::new(), client)).goto(SPOOFED),
        known(Rule::new(), IpFamily::V4),
    ];
    rules.extend(only_own_mac());
    rules.push(request.is(IpFamily::V4.source(), &[0; 4]).accept());
    rules.push(not_allowed(Rule::new(), IpFamily::V4.source(), IpFamily::V4, ports).goto(SPOOFED));
    rules
}

fn check_ipv6(ports: &[&PodPort]) -> Vec<Rule> {
    let (server, client) = DHCPV6;
    let sources = IpFamily::V6.set_name(SOURCES);
    let mut rules = vec![
        from_ports(udp_to(Rule::new(), client)).goto(SPOOFED),
        known(Rule::new().is_not(Field::Protocol, &[ICMPV6]), IpFamily::V6),
    ];
    rules.extend(only_own_mac());
    // Only routers send these. A pod's duplicate address detection, and its advertisements, are about its own addresses.
    rules.push(icmpv6(Rule::new(), ROUTER_ADVERTISEMENT).goto(SPOOFED));
    rules.push(icmpv6(Rule::new(), REDIRECT).goto(SPOOFED));
    let of_another = |rule: Rule| rule.not_in_set(&[Field::InterfaceIn, Field::NeighbourTarget], &sources);
    rules.push(of_another(icmpv6(Rule::new(), NEIGHBOUR_ADVERTISEMENT)).goto(SPOOFED));
    let probe = icmpv6(Rule::new(), NEIGHBOUR_SOLICITATION).is(IpFamily::V6.source(), &[0; 16]);
    rules.push(of_another(probe).goto(SPOOFED));
    rules.extend(without_own_address(&Rule::new));
    let request = udp(Rule::new(), client, server).in_set(&[Field::InterfaceIn], DHCP);
    rules.push(from_link_local(request).accept());
    rules.push(not_allowed(Rule::new(), IpFamily::V6.source(), IpFamily::V6, ports).goto(SPOOFED));
    rules.extend(from_own_link_local(&Rule::new));
    rules
}

/// Checks what a pod with ingress policies receives from other ports: frames to multicast, broadcast and link-local
/// addresses, and to addresses that are not the pod's own, which it may have on another interface. Policies know only the
/// pods' own addresses, so of these frames only those that a network needs pass.
fn check_received(ports: &[&PodPort]) -> Vec<Rule> {
    let to_dhcp = |rule: Rule| rule.in_set(&[Field::InterfaceOut], DHCP);
    let to_group = || Rule::new().any_bit(Field::MacDestinationFirst, 1);
    let (server4, client4) = DHCPV4;
    let (server6, client6) = DHCPV6;
    let to_link_local =
        |rule: Rule| rule.prefix(IpFamily::V6.destination(), LINK_LOCAL.into(), LINK_LOCAL_BITS, true);
    let both = [(IpFamily::V4, IPV4), (IpFamily::V6, IPV6)];
    let usual = |(family, ether_type): (IpFamily, [u8; 2])| {
        let ends = [Field::IndexOut, Field::MacDestination, family.destination()];
        of_type(&ether_type).in_set(&ends, &family.set_name(KNOWN)).accept()
    };
    let mut rules: Vec<Rule> = both.map(usual).into();
    rules.push(Rule::new().not_in_set(&[Field::InterfaceOut], ISOLATED).accept());
    rules.push(to_group().is(Field::EtherType, &ARP).accept());
    rules.extend(link_messages(&|| of_type(&IPV6), Rule::accept));
    rules.extend([
        to_group().is(Field::EtherType, &IPV4).is(Field::Protocol, &[IGMP]).accept(),
        to_dhcp(udp(of_type(&IPV4), server4, client4)).accept(),
        to_dhcp(udp(of_type(&IPV6), server6, client6)).accept(),
        to_group().counter().drop(),
        to_link_local(of_type(&IPV6)).counter().drop(),
    ]);
    for (family, ether_type) in both {
        let to = [Field::InterfaceOut, family.destination()];
        rules.push(not_own(of_type(&ether_type), &to, family, ports).counter().drop());
    }
    rules
}
