//! Firewall rules for the cluster's pods: between each other they keep their addresses, to external destinations they
//! use the node's address, and their packets pass FORWARD (see [`forward`](super::forward)).
//!
//! The rules are flannel's, in flannel's order, with sets instead of networks: another network of the cluster is
//! another element. [`apply`] compares the whole table with the kernel and sends only the difference.

pub mod flannel;

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_netlink::nft::{
    self, Base, ChainKind, Element, Family, Field, Hook, Rule, Set, Table, Transaction, Type,
};
use podwire_netlink::Socket;

use super::forward::{self, MAY_PASS};
use crate::error::Result;

/// The table.
pub const TABLE: Table = Table::named(Family::Inet, "podwire_overlay");
/// The mark of packets that kube-proxy masquerades itself.
const KUBE_PROXY: u32 = 0x4000;
const POSTROUTING: Base = Base::new(ChainKind::Nat, Hook::Postrouting, 100); // srcnat
/// Before iptables' FORWARD, which is at 0.
const FORWARD: Base = Base::new(ChainKind::Filter, Hook::Forward, -1);
/// After iptables' FORWARD.
const FORWARDED: Base = Base::new(ChainKind::Filter, Hook::Forward, 1);

/// How many changes one transaction contains: a socket has a limited send buffer.
const BATCH: usize = 500;

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
    let mut change = Transaction::new();
    skeleton(&mut change, rules);
    let mut done: Vec<String> = change.absent(nft)?;
    if done.is_empty() {
        change = Transaction::new();
    }
    let mut steps = Vec::new();
    for part in families() {
        for (set, nets) in [(part.cluster, &rules.cluster), (part.local, &rules.local)] {
            let has_family = |net: &&IpNet| net.addr().is_ipv4() == (part.family == Family::Ip);
            steps.extend(difference(nft, set, &ranges(nets.iter().filter(has_family)))?);
        }
    }
    for step in &steps {
        if change.len() >= BATCH {
            std::mem::take(&mut change).commit(nft)?;
        }
        done.push(step.add_to(&mut change));
    }
    change.commit(nft)?;
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

/// A range of addresses as a set contains it: its first address, and the first address after it, if there is one.
type Range = Vec<Element>;

/// The ranges of networks, joined if they touch: ranges in a set must not overlap or touch.
fn ranges<'a>(nets: impl Iterator<Item = &'a IpNet>) -> Vec<Range> {
    let mut joined: Vec<(IpAddr, IpAddr)> = Vec::new();
    for net in IpNet::aggregate(&nets.map(IpNet::trunc).collect()) {
        match joined.last_mut() {
            Some((_, last)) if next(*last) == Some(net.network()) => *last = net.broadcast(),
            _ => joined.push((net.network(), net.broadcast())),
        }
    }
    joined.iter().map(|(first, last)| Element::range(*first, *last)).collect()
}

/// The ranges that the elements of a set describe.
fn paired(mut elements: Vec<Element>) -> Vec<Range> {
    // If one range ends and the next begins with the same key, the end comes first.
    elements.sort_by_key(|one| (one.key.bytes().to_vec(), !one.ends_range));
    let mut ranges: Vec<Range> = Vec::new();
    for one in elements {
        match ranges.last_mut() {
            Some(range) if one.ends_range && range.len() == 1 => range.push(one),
            // The kernel may start a set with an end without a beginning.
            _ if one.ends_range => {}
            _ => ranges.push(vec![one]),
        }
    }
    ranges
}

fn next(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).checked_add(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(ip) => u128::from(ip).checked_add(1).map(|next| IpAddr::V6(next.into())),
    }
}

/// A range to delete or to add.
struct Step {
    set: &'static str,
    range: Range,
    is_deletion: bool,
}

impl Step {
    fn add_to(&self, change: &mut Transaction) -> String {
        let Step { set, range, is_deletion } = self;
        let first = range.first().map(|one| one.key.to_string()).unwrap_or_default();
        if *is_deletion {
            // The kernel requires the beginning of a range before its end.
            range.iter().for_each(|one| change.delete_element(&TABLE, set, one));
            format!("set {set} of table {TABLE} has an extra range from {first}")
        } else {
            range.iter().for_each(|one| change.create_element(&TABLE, set, one));
            format!("set {set} of table {TABLE} lacks the range from {first}")
        }
    }
}

/// The steps that make a set contain exactly these ranges: deletions first, because ranges must not overlap.
fn difference(nft: &mut Socket, set: &'static str, desired: &[Range]) -> Result<Vec<Step>> {
    let found = paired(nft::list_elements(nft, &TABLE, set)?);
    let key = |range: &Range| range.iter().map(|one| one.key.bytes().to_vec()).collect::<Vec<_>>();
    let without = |those: &[Range], others: &[Range]| -> Vec<Range> {
        let present: HashSet<_> = others.iter().map(key).collect();
        those.iter().filter(|range| !present.contains(&key(range))).cloned().collect()
    };
    let deletions = without(&found, desired).into_iter().map(|range| Step { set, range, is_deletion: true });
    let additions = without(desired, &found).into_iter().map(|range| Step { set, range, is_deletion: false });
    Ok(deletions.chain(additions).collect())
}

/// The table with its sets, chains and rules. The result is the same whether or not parts exist.
fn skeleton(change: &mut Transaction, rules: &Rules) {
    change.add_table(&TABLE);
    for part in families() {
        change.add_set(&TABLE, &Set::ranges(part.cluster, part.kind));
        change.add_set(&TABLE, &Set::ranges(part.local, part.kind));
    }
    for (chain, base) in [("postrouting", POSTROUTING), ("forward", FORWARD), ("forwarded", FORWARDED)] {
        change.add_base_chain(&TABLE, chain, &base);
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
    if rules.forward {
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

#[cfg(test)]
mod tests {
    use podwire_netlink::nft::Value;

    use super::*;

    #[test]
    fn adjacent_networks_are_one_range() {
        let nets: Vec<IpNet> = ["10.1.0.0/16", "10.2.0.0/16", "10.2.3.0/24", "10.9.0.0/16"]
            .map(|net| net.parse().unwrap())
            .into();
        let made = ranges(nets.iter());
        let keys: Vec<_> = made.iter().flatten().map(|one| (one.key.to_string(), one.ends_range)).collect();
        let wanted = [("10.1.0.0", false), ("10.3.0.0", true), ("10.9.0.0", false), ("10.10.0.0", true)];
        assert_eq!(keys, wanted.map(|(key, ends)| (key.to_string(), ends)));
        let top: Vec<IpNet> = vec!["ff00::/8".parse().unwrap()];
        assert_eq!(ranges(top.iter())[0].len(), 1, "no address follows the last one");
        let mut mixed: Vec<Element> = made.iter().flatten().rev().cloned().collect();
        mixed.push(Element { ends_range: true, ..Element::key(Value::ip([0, 0, 0, 0].into())) });
        assert_eq!(paired(mixed), made);
    }
}
