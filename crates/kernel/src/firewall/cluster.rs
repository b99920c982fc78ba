//! Firewall rules for the cluster's pods: between each other they keep their addresses, to external destinations they
//! use the node's address, and their packets pass FORWARD (see [`forward`](super::forward)).
//!
//! The rules are flannel's, in flannel's order, with sets instead of networks: another network of the cluster is
//! another element. [`apply`] compares the whole table with the kernel and sends only the difference.

pub mod flannel;

use ipnet::IpNet;
use podwire_netlink::nft::{self, Base, ChainKind, Family, Field, Hook, Rule, Set, Table, Transaction, Type};
use podwire_netlink::Socket;

use super::forward::{self, MAY_PASS};
use super::ranges;
use crate::error::Result;

/// The table.
pub const TABLE: Table = Table::named(Family::Inet, "podwire_overlay");
/// The mark of packets that kube-proxy masquerades itself.
const KUBE_PROXY: u32 = 0x4000;
/// The chains around iptables' FORWARD.
const MARKING: [(&str, Base); 2] = [("forward", FORWARD), ("forwarded", FORWARDED)];
const POSTROUTING: Base = Base::new(ChainKind::Nat, Hook::Postrouting, 100); // srcnat
/// Before iptables' FORWARD, which is at 0.
const FORWARD: Base = Base::new(ChainKind::Filter, Hook::Forward, -1);
/// After iptables' FORWARD.
const FORWARDED: Base = Base::new(ChainKind::Filter, Hook::Forward, 1);

/// The desired rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The networks of the cluster's pods.
    pub cluster: Vec<IpNet>,
    /// This node's pod CIDRs; with [`MasqueradeScope::Pools`], the pools that are masqueraded.
    pub local: Vec<IpNet>,
    /// Whether pods are masqueraded outside the cluster.
    pub masquerade: bool,
    /// Whether masqueraded connections get random ports.
    pub random_ports: bool,
    /// Whether pod packets pass FORWARD.
    pub forward: bool,
    /// Which connections are masqueraded.
    pub scope: MasqueradeScope,
}

/// Which connections are masqueraded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MasqueradeScope {
    /// As in flannel: each node has a pod CIDR.
    #[default]
    PodCidrs,
    /// As in Calico: pools with natOutgoing, and packets that leave through a tunnel without an address of a pool.
    Pools {
        /// The tunnel devices.
        tunnels: Vec<String>,
    },
}

/// The IPv4 or the IPv6 part of the rules.
struct FamilyPart {
    family: Family,
    kind: &'static [Type],
    cluster: &'static str,
    local: &'static str,
    source: Field,
    destination: Field,
    /// Multicast: packets to groups keep the pod's address.
    groups: IpNet,
}

fn families() -> [FamilyPart; 2] {
    [
        FamilyPart {
            family: Family::Ip,
            kind: &[Type::Ipv4],
            cluster: "cluster4",
            local: "own4",
            source: Field::Ip4Source,
            destination: Field::Ip4Destination,
            groups: IpNet::new_assert([224, 0, 0, 0].into(), 4),
        },
        FamilyPart {
            family: Family::Ip6,
            kind: &[Type::Ipv6],
            cluster: "cluster6",
            local: "own6",
            source: Field::Ip6Source,
            destination: Field::Ip6Destination,
            groups: IpNet::new_assert([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8),
        },
    ]
}

/// Makes the kernel's rules as desired; returns a text for each difference.
pub fn apply(nft: &mut Socket, rules: &Rules) -> Result<Vec<String>> {
    // Every forwarded packet passes these chains, so they exist only if iptables has a chain FORWARD.
    let marks = rules.forward && forward::is_filtered(nft)?;
    let mut change = Transaction::new();
    skeleton(&mut change, rules, marks);
    let mut done: Vec<String> = change.absent(nft)?;
    if done.is_empty() {
        change = Transaction::new();
    }
    for (chain, _) in MARKING.iter().filter(|_| !marks) {
        if nft::get_chain(nft, &TABLE, chain)?.is_some() {
            change.flush_chain(&TABLE, chain);
            change.delete_chain(&TABLE, chain);
            done.push(format!("chain {chain} of table {TABLE} is not needed"));
        }
    }
    let mut steps = Vec::new();
    for part in families() {
        for (set, nets) in [(part.cluster, &rules.cluster), (part.local, &rules.local)] {
            let has_family = |net: &&IpNet| net.addr().is_ipv4() == (part.family == Family::Ip);
            steps.extend(ranges::difference(nft, &TABLE, set, &ranges::of(nets.iter().filter(has_family)))?);
        }
    }
    done.extend(ranges::commit(nft, &TABLE, change, &steps)?);
    if rules.forward {
        let missing = forward::missing_accept_rules(nft)?;
        if !missing.is_empty() {
            forward::ensure_accept_rule(nft)?;
            done.extend(missing);
        }
    }
    Ok(done)
}

/// Deletes the table; returns whether it existed.
pub fn remove(nft: &mut Socket) -> Result<bool> {
    let mut change = Transaction::new();
    change.delete_table(&TABLE);
    if !nft::has_table(nft, &forward::TABLE)? {
        forward::remove_accept_rule(nft, &mut change)?;
    }
    match change.commit(nft) {
        Err(error) if error.is_gone() => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

/// The table with its sets, chains and rules. The result is the same whether or not parts exist. `marks`: whether packets
/// that pass iptables' FORWARD are marked.
fn skeleton(change: &mut Transaction, rules: &Rules, marks: bool) {
    change.add_table(&TABLE);
    for part in families() {
        change.add_set(&TABLE, &Set::ranges(part.cluster, part.kind));
        change.add_set(&TABLE, &Set::ranges(part.local, part.kind));
    }
    let marking: &[_] = if marks { &MARKING } else { &[] };
    for (chain, base) in [("postrouting", POSTROUTING)].iter().chain(marking) {
        change.add_base_chain(&TABLE, chain, base);
        change.flush_chain(&TABLE, chain);
    }
    if rules.masquerade {
        change.add_rule(&TABLE, "postrouting", &Rule::new().all_bits(Field::Mark, KUBE_PROXY).leave());
        for part in families() {
            match &rules.scope {
                MasqueradeScope::PodCidrs => part.masquerade(change, rules.random_ports),
                MasqueradeScope::Pools { tunnels } => {
                    part.masquerade_pools(change, rules.random_ports, tunnels)
                }
            }
        }
    }
    if marks {
        families().iter().for_each(|part| part.accept(change));
        let marked = Rule::new().all_bits(Field::Mark, MAY_PASS);
        change.add_rule(&TABLE, "forwarded", &marked.clear_mark_bits(MAY_PASS));
    }
}

impl FamilyPart {
    fn masquerade(&self, change: &mut Transaction, random: bool) {
        let FamilyPart { cluster, local, .. } = *self;
        let (from, to) = (&[self.source][..], &[self.destination][..]);
        let rule = || Rule::new().family(self.family);
        let masquerade = |rule: Rule| if random { rule.masquerade_randomly() } else { rule.masquerade() };
        let rules = [
            // Between pods.
            rule().in_set(from, local).in_set(to, cluster).leave(),
            rule().in_set(from, cluster).in_set(to, local).leave(),
            // External clients of pods on this node keep their address.
            rule().not_in_set(from, cluster).in_set(to, local).leave(),
            // From pods to external destinations.
            masquerade(rule().in_set(from, cluster).prefix(
                self.destination,
                self.groups.addr(),
                self.groups.prefix_len(),
                false,
            )),
            // From external clients and this node to pods of other nodes: replies must return through this node.
            masquerade(rule().not_in_set(from, cluster).in_set(to, cluster)),
        ];
        rules.iter().for_each(|rule| change.add_rule(&TABLE, "postrouting", rule));
    }

    fn masquerade_pools(&self, change: &mut Transaction, random: bool, tunnels: &[String]) {
        let FamilyPart { cluster, local, .. } = *self;
        let (from, to) = (&[self.source][..], &[self.destination][..]);
        let rule = || Rule::new().family(self.family);
        let masquerade = |rule: Rule| if random { rule.masquerade_randomly() } else { rule.masquerade() };
        let (groups, length) = (self.groups.addr(), self.groups.prefix_len());
        let outgoing = rule().in_set(from, local).not_in_set(to, cluster);
        change.add_rule(
            &TABLE,
            "postrouting",
            &masquerade(outgoing.prefix(self.destination, groups, length, false)),
        );
        for tunnel in tunnels {
            // Replies must return through the tunnel.
            let foreign = rule().interface(Field::InterfaceOut, tunnel, true).not_in_set(from, cluster);
            change.add_rule(&TABLE, "postrouting", &masquerade(foreign.in_set(to, cluster)));
        }
    }

    fn accept(&self, change: &mut Transaction) {
        for field in [self.source, self.destination] {
            let pods = Rule::new().family(self.family).in_set(&[field], self.cluster);
            change.add_rule(&TABLE, "forward", &pods.set_mark_bits(MAY_PASS).accept());
        }
    }
}
