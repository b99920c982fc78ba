//! The cluster's pods, as a node's firewall sees them: among each other they show their own addresses, to the world the
//! node's; and what they send or get passes through the node, whatever its firewall says of forwarding in general (see
//! [`forward`](super::forward) for how).
//!
//! The rules are flannel's, in its order, with sets in the place of networks. So they are written once: another network of
//! the cluster is another element. The whole is compared with what the kernel has, and only the difference is sent.

pub mod flannel;

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_netlink::nft::{
    self, Base, ChainKind, Element, Family, Field, Hook, Rule, Set, Table, Transaction, Type,
};
use podwire_netlink::Socket;

use super::forward::{self, MAY_PASS};
use crate::Result;

/// Where it all is.
pub const TABLE: Table = Table::named(Family::Inet, "podwire_overlay");
/// kube-proxy marks what it will masquerade itself: that is not ours to decide.
const KUBE_PROXY: u32 = 0x4000;
const POSTROUTING: Base = Base::new(ChainKind::Nat, Hook::Postrouting, 100); // srcnat
/// Before iptables' FORWARD, which is at 0.
const FORWARD: Base = Base::new(ChainKind::Filter, Hook::Forward, -1);
/// After it.
const FORWARDED: Base = Base::new(ChainKind::Filter, Hook::Forward, 1);

/// How many changes go together: a socket takes only so much at once.
const AT_ONCE: usize = 500;

/// What the rules are to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The networks that the cluster's pods are in.
    pub cluster: Vec<IpNet>,
    /// This node's pod CIDRs; with [`MasqueradeScope::Pools`], the pools that are masqueraded.
    pub local: Vec<IpNet>,
    /// Whether pods reach the world with the node's address.
    pub masquerade: bool,
    /// Whether a masqueraded connection gets a random port.
    pub random_ports: bool,
    /// Whether pods' packets pass FORWARD.
    pub forward: bool,
    /// What is hidden from whom.
    pub scope: MasqueradeScope,
}

/// What is hidden from whom, if anything is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MasqueradeScope {
    /// flannel's: each node has a range.
    #[default]
    PodCidrs,
    /// Calico's: some pools are hidden (nat-outgoing), and what leaves by a tunnel without an address of a pool gets one.
    Pools {
        /// The devices of tunnels.
        tunnels: Vec<String>,
    },
}

/// One half of the rules, for one family.
struct Half {
    family: Family,
    kind: &'static [Type],
    cluster: &'static str,
    own: &'static str,
    source: Field,
    destination: Field,
    /// Groups keep the pod's address.
    groups: IpNet,
}

fn halves() -> [Half; 2] {
    [
        Half {
            family: Family::Ip,
            kind: &[Type::Ipv4],
            cluster: "cluster4",
            own: "own4",
            source: Field::Ip4Source,
            destination: Field::Ip4Destination,
            groups: IpNet::new_assert([224, 0, 0, 0].into(), 4),
        },
        Half {
            family: Family::Ip6,
            kind: &[Type::Ipv6],
            cluster: "cluster6",
            own: "own6",
            source: Field::Ip6Source,
            destination: Field::Ip6Destination,
            groups: IpNet::new_assert([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8),
        },
    ]
}

/// Makes the kernel's rules these; says in words what it did.
pub fn apply(nft: &mut Socket, rules: &Rules) -> Result<Vec<String>> {
    let mut change = Transaction::new();
    skeleton(&mut change, rules);
    let mut done: Vec<String> = change.absent(nft)?;
    if done.is_empty() {
        change = Transaction::new();
    }
    let mut steps = Vec::new();
    for half in halves() {
        for (set, nets) in [(half.cluster, &rules.cluster), (half.own, &rules.local)] {
            let of_half = |net: &&IpNet| net.addr().is_ipv4() == (half.family == Family::Ip);
            steps.extend(difference(nft, set, &ranges(nets.iter().filter(of_half)))?);
        }
    }
    for step in &steps {
        if change.len() >= AT_ONCE {
            std::mem::take(&mut change).commit(nft)?;
        }
        done.push(step.put_into(&mut change));
    }
    change.commit(nft)?;
    if rules.forward {
        let lacking = forward::lacks_pass(nft)?;
        if !lacking.is_empty() {
            forward::ensure_pass(nft)?;
            done.extend(lacking);
        }
    }
    Ok(done)
}

/// Takes it all away; says whether there was anything.
pub fn remove(nft: &mut Socket) -> Result<bool> {
    let mut change = Transaction::new();
    change.delete_table(&TABLE);
    if !nft::has_table(nft, &forward::TABLE)? {
        forward::withdraw(nft, &mut change)?;
    }
    match change.commit(nft) {
        Err(error) if error.is_gone() => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

/// A range of addresses as a set holds it: where it begins, and where what is behind it does, if anything is.
type Range = Vec<Element>;

/// The ranges of some networks, joined where they meet: a set takes none that touch or overlap.
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

/// The ranges that a set's elements make.
fn paired(mut elements: Vec<Element>) -> Vec<Range> {
    // Where one range ends and the next begins with the same key, the end comes first.
    elements.sort_by_key(|one| (one.key.bytes().to_vec(), !one.ends_range));
    let mut ranges: Vec<Range> = Vec::new();
    for one in elements {
        match ranges.last_mut() {
            Some(range) if one.ends_range && range.len() == 1 => range.push(one),
            // The kernel may begin a set with the end of nothing.
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

/// A range that is to go or to come.
struct Step {
    set: &'static str,
    range: Range,
    goes: bool,
}

impl Step {
    fn put_into(&self, change: &mut Transaction) -> String {
        let Step { set, range, goes } = self;
        let first = range.first().map(|one| one.key.to_string()).unwrap_or_default();
        if *goes {
            // The kernel wants to see a range's beginning before its end.
            range.iter().for_each(|one| change.delete_element(&TABLE, set, one));
            format!("the range from {first} is not for set {set} of table {TABLE}")
        } else {
            range.iter().for_each(|one| change.create_element(&TABLE, set, one));
            format!("the range from {first} is missing from set {set} of table {TABLE}")
        }
    }
}

/// What makes a set hold exactly these ranges: first what goes, since ranges must not overlap.
fn difference(nft: &mut Socket, set: &'static str, wanted: &[Range]) -> Result<Vec<Step>> {
    let found = paired(nft::list_elements(nft, &TABLE, set)?);
    let key = |range: &Range| range.iter().map(|one| one.key.bytes().to_vec()).collect::<Vec<_>>();
    let lacking = |those: &[Range], others: &[Range]| -> Vec<Range> {
        let there: HashSet<_> = others.iter().map(key).collect();
        those.iter().filter(|range| !there.contains(&key(range))).cloned().collect()
    };
    let goes = lacking(&found, wanted).into_iter().map(|range| Step { set, range, goes: true });
    let comes = lacking(wanted, &found).into_iter().map(|range| Step { set, range, goes: false });
    Ok(goes.chain(comes).collect())
}

/// Tables, sets, chains and rules: the same whether or not parts of it are there.
fn skeleton(change: &mut Transaction, rules: &Rules) {
    change.add_table(&TABLE);
    for half in halves() {
        change.add_set(&TABLE, &Set::ranges(half.cluster, half.kind));
        change.add_set(&TABLE, &Set::ranges(half.own, half.kind));
    }
    for (chain, base) in [("postrouting", POSTROUTING), ("forward", FORWARD), ("forwarded", FORWARDED)] {
        change.add_base_chain(&TABLE, chain, &base);
        change.flush_chain(&TABLE, chain);
    }
    if rules.masquerade {
        change.add_rule(&TABLE, "postrouting", &Rule::new().all_bits(Field::Mark, KUBE_PROXY).leave());
        for half in halves() {
            match &rules.scope {
                MasqueradeScope::PodCidrs => half.masquerade(change, rules.random_ports),
                MasqueradeScope::Pools { tunnels } => half.hide_pools(change, rules.random_ports, tunnels),
            }
        }
    }
    if rules.forward {
        halves().iter().for_each(|half| half.pass(change));
        let marked = Rule::new().all_bits(Field::Mark, MAY_PASS);
        change.add_rule(&TABLE, "forwarded", &marked.clear_mark_bits(MAY_PASS));
    }
}

impl Half {
    fn masquerade(&self, change: &mut Transaction, random: bool) {
        let Half { cluster, own, .. } = *self;
        let (from, to) = (&[self.source][..], &[self.destination][..]);
        let rule = || Rule::new().family(self.family);
        let hide = |rule: Rule| if random { rule.masquerade_randomly() } else { rule.masquerade() };
        let rules = [
            // Pods among each other.
            rule().in_set(from, own).in_set(to, cluster).leave(),
            rule().in_set(from, cluster).in_set(to, own).leave(),
            // Whoever reaches a pod of this node is seen by it as who he is.
            rule().not_in_set(from, cluster).in_set(to, own).leave(),
            // Pods to the world.
            hide(rule().in_set(from, cluster).prefix(
                self.destination,
                self.groups.addr(),
                self.groups.prefix_len(),
                false,
            )),
            // The world, and this node, to pods of other nodes: answers must come back through here.
            hide(rule().not_in_set(from, cluster).in_set(to, cluster)),
        ];
        rules.iter().for_each(|rule| change.add_rule(&TABLE, "postrouting", rule));
    }

    fn hide_pools(&self, change: &mut Transaction, random: bool, tunnels: &[String]) {
        let Half { cluster, own, .. } = *self;
        let (from, to) = (&[self.source][..], &[self.destination][..]);
        let rule = || Rule::new().family(self.family);
        let hide = |rule: Rule| if random { rule.masquerade_randomly() } else { rule.masquerade() };
        let (groups, length) = (self.groups.addr(), self.groups.prefix_len());
        let world = rule().in_set(from, own).not_in_set(to, cluster);
        change.add_rule(&TABLE, "postrouting", &hide(world.prefix(self.destination, groups, length, false)));
        for tunnel in tunnels {
            // Answers must come back through the tunnel.
            let foreign = rule().interface(Field::InterfaceOut, tunnel, true).not_in_set(from, cluster);
            change.add_rule(&TABLE, "postrouting", &hide(foreign.in_set(to, cluster)));
        }
    }

    fn pass(&self, change: &mut Transaction) {
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
    fn networks_that_meet_are_one_range() {
        let nets: Vec<IpNet> = ["10.1.0.0/16", "10.2.0.0/16", "10.2.3.0/24", "10.9.0.0/16"]
            .map(|net| net.parse().unwrap())
            .into();
        let made = ranges(nets.iter());
        let keys: Vec<_> = made.iter().flatten().map(|one| (one.key.to_string(), one.ends_range)).collect();
        let wanted = [("10.1.0.0", false), ("10.3.0.0", true), ("10.9.0.0", false), ("10.10.0.0", true)];
        assert_eq!(keys, wanted.map(|(key, ends)| (key.to_string(), ends)));
        let top: Vec<IpNet> = vec!["ff00::/8".parse().unwrap()];
        assert_eq!(ranges(top.iter())[0].len(), 1, "behind the last address there is nothing");
        let mut mixed: Vec<Element> = made.iter().flatten().rev().cloned().collect();
        mixed.push(Element { ends_range: true, ..Element::key(Value::ip([0, 0, 0, 0].into())) });
        assert_eq!(paired(mixed), made);
    }
}
