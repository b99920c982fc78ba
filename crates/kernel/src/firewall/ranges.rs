//! Sets whose whole content is desired: compared with the kernel, and changed where they differ.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_netlink::nft::{self, Element, Table, Transaction};
use podwire_netlink::Socket;

use crate::error::Result;

/// How many changes one transaction contains: a socket has a limited send buffer.
const BATCH: usize = 500;

/// A range of addresses as a set contains it: its first address, and the first address after it, if there is one. In
/// other sets, one element.
pub(super) type Range = Vec<Element>;

/// The ranges of networks, joined if they touch: ranges in a set must not overlap or touch.
pub(super) fn of<'a>(nets: impl Iterator<Item = &'a IpNet>) -> Vec<Range> {
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
pub(super) struct Step {
    set: &'static str,
    range: Range,
    is_deletion: bool,
}

impl Step {
    fn add_to(&self, table: &Table, change: &mut Transaction) -> String {
        let Step { set, range, is_deletion } = self;
        let first = range.first().map(|one| one.key.to_string()).unwrap_or_default();
        if *is_deletion {
            // The kernel requires the beginning of a range before its end.
            range.iter().for_each(|one| change.delete_element(table, set, one));
            format!("set {set} of table {table} has an extra element {first}")
        } else {
            range.iter().for_each(|one| change.create_element(table, set, one));
            format!("set {set} of table {table} lacks the element {first}")
        }
    }
}

/// The steps that make a set contain exactly these ranges: deletions first, because ranges must not overlap.
pub(super) fn difference(
    nft: &mut Socket,
    table: &Table,
    set: &'static str,
    desired: &[Range],
) -> Result<Vec<Step>> {
    let found = paired(nft::list_elements(nft, table, set)?);
    let bytes =
        |one: &Element| (one.key.bytes().to_vec(), one.last.as_ref().map(|last| last.bytes().to_vec()));
    let key = |range: &Range| range.iter().map(bytes).collect::<Vec<_>>();
    let without = |those: &[Range], others: &[Range]| -> Vec<Range> {
        let present: HashSet<_> = others.iter().map(key).collect();
        those.iter().filter(|range| !present.contains(&key(range))).cloned().collect()
    };
    let deletions = without(&found, desired).into_iter().map(|range| Step { set, range, is_deletion: true });
    let additions = without(desired, &found).into_iter().map(|range| Step { set, range, is_deletion: false });
    Ok(deletions.chain(additions).collect())
}

/// Commits `change` and the steps, in several transactions if there are many. Returns a text for each step.
pub(super) fn commit(
    nft: &mut Socket,
    table: &Table,
    mut change: Transaction,
    steps: &[Step],
) -> Result<Vec<String>> {
    let mut done = Vec::new();
    for step in steps {
        if change.len() >= BATCH {
            std::mem::take(&mut change).commit(nft)?;
        }
        done.push(step.add_to(table, &mut change));
    }
    change.commit(nft)?;
    Ok(done)
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
        let made = of(nets.iter());
        let keys: Vec<_> = made.iter().flatten().map(|one| (one.key.to_string(), one.ends_range)).collect();
        let wanted = [("10.1.0.0", false), ("10.3.0.0", true), ("10.9.0.0", false), ("10.10.0.0", true)];
        assert_eq!(keys, wanted.map(|(key, ends)| (key.to_string(), ends)));
        let top: Vec<IpNet> = vec!["ff00::/8".parse().unwrap()];
        assert_eq!(of(top.iter())[0].len(), 1, "no address follows the last one");
        let mut mixed: Vec<Element> = made.iter().flatten().rev().cloned().collect();
        mixed.push(Element { ends_range: true, ..Element::key(Value::ip([0, 0, 0, 0].into())) });
        assert_eq!(paired(mixed), made);
    }
}
