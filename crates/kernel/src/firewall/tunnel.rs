//! The guard of the tunnels between nodes. VXLAN and IPIP do not authenticate: without a guard, every host that reaches
//! the node's tunnel port can send a packet with any inner source, past every policy. So the node unwraps a packet only
//! if
//!
//! - it is addressed to the address of this node that peers use,
//! - it comes from the address of a peer, and from the device that leads to this peer, so not from a pod, and
//! - its inner source is in the peer's networks.
//!
//! No link-local source passes, so no router advertisement comes out of a tunnel: the kernel accepts them only from
//! link-local addresses.
//!
//! A pod could also send to another node's tunnel, with the address of this node if it is masqueraded. So this node
//! forwards no packet to the tunnel of a peer.
//!
//! conntrack ignores the outer packets of VXLAN: nothing translates them, and it would keep an entry for each inner
//! connection, because a VXLAN device derives the source port from it.
//!
//! WireGuard needs no guard: it authenticates packets, and its allowed IPs are the same check of the inner
//! source.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podwire_ip::IpFamily;
use podwire_netlink::nft::{
    self, Base, ChainKind, Element, Family, Field, Hook, Rule, Set, Table, Transaction, Type, Value,
};
use podwire_netlink::Socket;

use super::ranges::{self, Range};
use crate::error::Result;

/// The table.
pub const TABLE: Table = Table::named(Family::Inet, "podwire_tunnel");
/// Before everything else that might accept the packet.
const PRIORITY: i32 = -300;

/// Addresses that no router forwards, so they are no outside sources.
const LINK_LOCAL: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)),
];

const IPIP: u8 = 4; // IPPROTO_IPIP
const UDP: u8 = 17; // IPPROTO_UDP

/// The tunnels of a node and what may come out of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelGuard {
    /// The UDP ports of VXLAN devices.
    pub vxlan_ports: BTreeSet<u16>,
    /// Whether there is an IPIP device.
    pub has_ipip: bool,
    /// The addresses of this node that the tunnels use.
    pub local: BTreeSet<IpAddr>,
    /// The addresses of peers, each with the networks from which it may send.
    pub peers: BTreeMap<IpAddr, Vec<IpNet>>,
    /// The usual outer packets: the index of the link that leads to a peer, this node's address, and the peer's address.
    /// With the inner source's network, one lookup finds what takes four checks otherwise. A packet from a link that was
    /// created again, and one from a network of another size than most, is found by the checks.
    pub usual: BTreeSet<(u32, IpAddr, IpAddr)>,
    /// The pod networks of the cluster.
    pub pod_networks: Vec<IpNet>,
    /// Whether an inner source outside the pod networks passes, unless it is link-local: without masquerading, peers
    /// forward external packets unchanged.
    pub allow_outside_sources: bool,
}

/// The names of the IPv4 or the IPv6 sets, and the fields that they are looked up by.
struct FamilyPart {
    ip: IpFamily,
    family: Family,
    kind: Type,
    usual: &'static str,
    local: &'static str,
    peers: &'static str,
    sources: &'static str,
    pods: &'static str,
    source: Field,
    destination: Field,
    ether_type: [u8; 2],
    vxlan_source: Field,
}

const PARTS: [FamilyPart; 2] = [
    FamilyPart {
        ip: IpFamily::V4,
        family: Family::Ip,
        kind: Type::Ipv4,
        usual: "usual_networks4",
        local: "local4",
        peers: "peers4",
        sources: "sources4",
        pods: "pods4",
        source: Field::Ip4Source,
        destination: Field::Ip4Destination,
        ether_type: [0x08, 0x00],
        vxlan_source: Field::VxlanIp4Source,
    },
    FamilyPart {
        ip: IpFamily::V6,
        family: Family::Ip6,
        kind: Type::Ipv6,
        usual: "usual_networks6",
        local: "local6",
        peers: "peers6",
        sources: "sources6",
        pods: "pods6",
        source: Field::Ip6Source,
        destination: Field::Ip6Destination,
        ether_type: [0x86, 0xdd],
        vxlan_source: Field::VxlanIp6Source,
    },
];

/// Makes the kernel's rules as desired; returns a text for each difference. Without a tunnel there is no table.
pub fn apply(nft: &mut Socket, guard: &TunnelGuard) -> Result<Vec<String>> {
    if guard.vxlan_ports.is_empty() && !guard.has_ipip {
        let removed = remove(nft)?;
        return Ok(removed.then(|| format!("table {TABLE} is not needed")).into_iter().collect());
    }
    let mut sets = Transaction::new();
    add_sets(&mut sets);
    let mut done = sets.absent(nft)?;
    if !done.is_empty() {
        sets.commit(nft)?;
    }
    // The elements before the rules: a table without them would drop the packets of all peers.
    let mut steps = Vec::new();
    for (set, desired) in guard.contents() {
        steps.extend(ranges::difference(nft, &TABLE, set, &desired)?);
    }
    done.extend(ranges::commit(nft, &TABLE, Transaction::new(), &steps)?);
    let mut chains = Transaction::new();
    guard.add_chains(&mut chains);
    let missing = chains.absent(nft)?;
    if !missing.is_empty() {
        chains.commit(nft)?;
        done.extend(missing);
    }
    Ok(done)
}

/// Deletes the table; returns whether it existed.
pub fn remove(nft: &mut Socket) -> Result<bool> {
    Ok(nft::remove_table(nft, &TABLE)?)
}

fn add_sets(change: &mut Transaction) {
    change.add_table(&TABLE);
    for part in &PARTS {
        change.add_set(&TABLE, &Set::of(part.usual, &[Type::IfIndex, part.kind, part.kind, part.kind]));
        change.add_set(&TABLE, &Set::of(part.local, &[part.kind]));
        change.add_set(&TABLE, &Set::of(part.peers, &[part.kind]));
        change.add_set(&TABLE, &Set::ranges(part.sources, &[part.kind, part.kind]));
        change.add_set(&TABLE, &Set::ranges(part.pods, &[part.kind]));
    }
}

impl TunnelGuard {
    /// The desired content of each set.
    fn contents(&self) -> Vec<(&'static str, Vec<Range>)> {
        let mut contents = Vec::new();
        let address = |ip: &IpAddr| vec![Element::key(Value::ip(*ip))];
        for part in &PARTS {
            let has_family = |ip: &&IpAddr| IpFamily::of(**ip) == part.ip;
            contents.push((part.usual, self.usual(part.ip)));
            contents.push((part.local, self.local.iter().filter(has_family).map(address).collect()));
            contents.push((part.peers, self.peers.keys().filter(has_family).map(address).collect()));
            contents.push((part.sources, self.sources(part.ip)));
            let no_outside = self.pod_networks.iter().chain(&LINK_LOCAL);
            let no_outside = no_outside.filter(|net| IpFamily::of_net(**net) == part.ip);
            contents.push((part.pods, ranges::of(no_outside)));
        }
        contents
    }

    /// The length of most networks of peers. Single addresses do not count: each peer has its own one.
    fn usual_length(&self, family: IpFamily) -> u8 {
        let mut counts = BTreeMap::new();
        let nets = self.peers.values().flatten().filter(|net| IpFamily::of_net(**net) == family);
        for net in nets.filter(|net| net.prefix_len() < net.max_prefix_len()) {
            *counts.entry(net.prefix_len()).or_insert(0) += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map_or(32, |(length, _)| length)
    }

    /// The outer headers of usual packets, each with an inner source's network.
    fn usual(&self, family: IpFamily) -> Vec<Range> {
        let length = self.usual_length(family);
        let mut usual = Vec::new();
        for (link, local, peer) in self.usual.iter().filter(|(_, _, peer)| IpFamily::of(*peer) == family) {
            let nets = self.peers.get(peer).into_iter().flatten();
            let nets: BTreeSet<IpAddr> = nets
                .filter(|net| IpFamily::of_net(**net) == family && net.prefix_len() == length)
                .map(IpNet::network)
                .collect();
            let outer = Value::ifindex(*link).and_ip(*local).and_ip(*peer);
            usual.extend(nets.into_iter().map(|net| vec![Element::key(outer.clone().and_ip(net))]));
        }
        usual
    }

    /// The inner sources of each peer: the peer's address and a range.
    fn sources(&self, family: IpFamily) -> Vec<Range> {
        let mut sources = Vec::new();
        for (peer, nets) in self.peers.iter().filter(|(peer, _)| IpFamily::of(**peer) == family) {
            let nets: Vec<IpNet> =
                nets.iter().filter(|net| IpFamily::of_net(**net) == family).copied().collect();
            for net in IpNet::aggregate(&nets) {
                let at = |ip: IpAddr| Value::ip(*peer).and_ip(ip);
                sources.push(vec![Element::key(at(net.network())).up_to(at(net.broadcast()))]);
            }
        }
        sources
    }

    fn add_chains(&self, change: &mut Transaction) {
        let mut add = |chain: &str, rules: Vec<Rule>| {
            change.add_chain(&TABLE, chain);
            change.flush_chain(&TABLE, chain);
            rules.iter().for_each(|rule| change.add_rule(&TABLE, chain, rule));
        };
        let [part4, part6] = &PARTS;
        let both = |rules: &dyn Fn(&FamilyPart) -> Vec<Rule>| [rules(part4), rules(part6)].concat();
        add("to_node", both(&|part| vec![part.to(part.local).no_track()]));
        add("to_peer", both(&|part| vec![part.to(part.peers).no_track()]));
        add("forwarded", both(&|part| vec![part.to(part.peers).counter().drop()]));
        add("vxlan", [both(&|part| self.vxlan_rules(part)), vec![Rule::new().counter().drop()]].concat());
        add("ipip", if self.has_ipip { self.ipip_rules(part4) } else { Vec::new() });
        for (chain, hook, of_vxlan) in [
            // The hooks of conntrack come later.
            ("prerouting", Hook::Prerouting, "to_node"),
            ("output", Hook::Output, "to_peer"),
            ("input", Hook::Input, "vxlan"),
            ("forward", Hook::Forward, "forwarded"),
        ] {
            change.add_base_chain(&TABLE, chain, &Base::new(ChainKind::Filter, hook, PRIORITY));
            change.flush_chain(&TABLE, chain);
            // All packets of the node pass here. A set of ports would take longer than the one port that most nodes have.
            for port in &self.vxlan_ports {
                let vxlan = Rule::new().is(Field::Protocol, &[UDP]);
                let vxlan = vxlan.is(Field::PortDestination, &port.to_be_bytes());
                change.add_rule(&TABLE, chain, &vxlan.jump(of_vxlan));
            }
        }
        if self.has_ipip {
            let sent = part4.ipip().in_set(&[part4.destination], part4.peers).counter().drop();
            change.add_rule(&TABLE, "forward", &sent);
            change.add_rule(&TABLE, "input", &part4.ipip().jump("ipip"));
        }
    }

    fn vxlan_rules(&self, part: &FamilyPart) -> Vec<Rule> {
        let carries = |rule: Rule| rule.is(Field::VxlanEtherType, &part.ether_type);
        let from_peer =
            |rule: Rule| carries(rule).in_set(&[part.source, part.vxlan_source], part.sources).accept();
        let mut rules = vec![carries(self.usual_rule(part, part.vxlan_source)).accept()];
        rules.extend(part.outer_rules());
        rules.push(from_peer(part.rule()));
        if self.allow_outside_sources {
            rules.push(carries(part.rule()).not_in_set(&[part.vxlan_source], part.pods).accept());
        }
        rules
    }

    /// For packets of a peer to this node, by the link that leads to the peer, with an inner source of the peer.
    fn usual_rule(&self, part: &FamilyPart, inner_source: Field) -> Rule {
        let fields = [Field::IndexIn, part.destination, part.source, inner_source];
        part.rule().in_set_of_networks(&fields, self.usual_length(part.ip), part.usual)
    }

    fn ipip_rules(&self, part: &FamilyPart) -> Vec<Rule> {
        let from_peer = |rule: Rule| rule.in_set(&[part.source, Field::IpipSource], part.sources).accept();
        let mut rules = vec![self.usual_rule(part, Field::IpipSource).accept()];
        rules.extend(part.outer_rules());
        rules.push(from_peer(Rule::new()));
        if self.allow_outside_sources {
            rules.push(Rule::new().not_in_set(&[Field::IpipSource], part.pods).accept());
        }
        rules.push(Rule::new().counter().drop());
        rules
    }
}

impl FamilyPart {
    fn rule(&self) -> Rule {
        Rule::new().family(self.family)
    }

    /// For packets to one of these addresses.
    fn to(&self, addresses: &str) -> Rule {
        self.rule().in_set(&[self.destination], addresses)
    }

    fn ipip(&self) -> Rule {
        self.rule().is(Field::Protocol, &[IPIP])
    }

    /// Drops packets whose outer header is not that of a peer's packet to this node.
    fn outer_rules(&self) -> Vec<Rule> {
        let no_path = 0u32.to_ne_bytes();
        vec![
            self.rule().not_in_set(&[self.destination], self.local).counter().drop(),
            self.rule().not_in_set(&[self.source], self.peers).counter().drop(),
            self.rule().is(Field::ReversePath, &no_path).counter().drop(),
        ]
    }
}
