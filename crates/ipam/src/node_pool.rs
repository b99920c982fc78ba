//! One cluster network, cut into ranges for nodes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ipnet::IpNet;

use crate::node_cidrs::NodeCidrsError;
use crate::range::address;
use podwire_ip::to_u128 as number;

/// The ranges of one network: which are somebody's, and in which order the others are handed out.
///
/// First those that nobody ever had, from the lowest; then those that were given back, the longest free first. A pod or a
/// firewall somewhere may still know the last owner of a range: the longer it rests, the better. There is no bitmap, so an IPv6
/// network may be as large as it likes.
#[derive(Clone, Debug)]
pub(crate) struct NodePool {
    network: IpNet,
    len: u8,
    /// Where those begin that nobody has had: a multiple of the ranges' size, from the network's first address.
    fresh: Option<u128>,
    /// Given back, the longest ago first: the first and last address of neighbours that were given back together.
    rested: VecDeque<(u128, u128)>,
    /// Who has what, by first address and prefix length: of any length, since people and older settings made some.
    holders: BTreeMap<(u128, u8), BTreeSet<String>>,
    /// What no node gets: the services' addresses.
    kept_out: Vec<IpNet>,
    /// How many places the last search looked at.
    tries: u32,
    /// How many ranges became somebody's, and nobody's again.
    turnover: (u64, u64),
}

impl NodePool {
    pub(crate) fn new(network: IpNet, len: u8) -> Result<NodePool, NodeCidrsError> {
        if network != network.trunc() {
            return Err(NodeCidrsError::HostBits { network });
        }
        if len < network.prefix_len() || len > network.max_prefix_len() {
            return Err(NodeCidrsError::Mask { network, len });
        }
        let (rested, holders, kept_out) = Default::default();
        let fresh = Some(number(network.network()));
        Ok(NodePool { fresh, network, len, rested, holders, kept_out, tries: 0, turnover: (0, 0) })
    }

    pub(crate) fn network(&self) -> IpNet {
        self.network
    }

    pub(crate) fn exclude(&mut self, range: IpNet) {
        if meet(range, self.network) && !self.kept_out.contains(&range) {
            self.kept_out.push(range);
        }
    }

    /// Whether a range is all in this network.
    pub(crate) fn contains(&self, range: IpNet) -> bool {
        self.network.contains(&range)
    }

    /// What is kept out of this network and shares an address with a range.
    pub(crate) fn kept_of(&self, range: IpNet) -> Option<IpNet> {
        self.kept_out.iter().copied().find(|kept| meet(*kept, range))
    }

    /// Those who have exactly this range.
    pub(crate) fn holders(&self, range: IpNet) -> impl Iterator<Item = &str> {
        self.holders.get(&key(range)).into_iter().flatten().map(String::as_str)
    }

    /// Those other than `node` who have any address of a range.
    pub(crate) fn other_holders(&self, node: &str, range: IpNet) -> BTreeSet<String> {
        let all = self.wider(range).chain(self.narrower(range));
        all.flat_map(|(_, holders)| holders).filter(|holder| *holder != node).cloned().collect()
    }

    /// Notes that a node has a range, whoever gave it.
    pub(crate) fn hold(&mut self, node: &str, range: IpNet) {
        let holders = self.holders.entry(key(range)).or_default();
        self.turnover.0 += u64::from(holders.is_empty());
        holders.insert(node.into());
    }

    /// Notes that a node has a range no more. It rests if nobody has any of it now, else when the last one goes.
    pub(crate) fn release(&mut self, node: &str, range: IpNet) {
        let key = key(range);
        let Some(holders) = self.holders.get_mut(&key) else { return };
        if holders.remove(node) && holders.is_empty() {
            self.holders.remove(&key);
            self.turnover.1 += 1;
        }
        self.rest(range);
    }

    /// What nobody has any more goes to the end of the queue. Ranges that were never handed out do not: they come first anyhow.
    fn rest(&mut self, range: IpNet) {
        let (first, mut last) = self.within_network(range);
        if let Some(fresh) = self.fresh {
            last = last.min(fresh.saturating_sub(1));
        }
        if first > last {
            return;
        }
        // Whatever of it waits already, waits again from the end.
        let apart = |(a, b): (u128, u128)| {
            let before = (first > a).then(|| (a, b.min(first.saturating_sub(1))));
            let behind = (b > last).then(|| (a.max(last.saturating_add(1)), b));
            before.into_iter().chain(behind)
        };
        self.rested = std::mem::take(&mut self.rested).into_iter().flat_map(apart).collect();
        self.rested.push_back((first, last));
    }

    /// The next free range; nobody has it yet.
    pub(crate) fn next(&mut self) -> Option<IpNet> {
        self.tries = 0;
        let end = number(self.network.broadcast());
        while let Some(at) = self.fresh.filter(|at| *at <= end) {
            self.tries += 1;
            let (free, behind) = self.look(at);
            self.fresh = behind;
            if free {
                return self.range(at);
            }
        }
        self.fresh = None;
        while let Some((at, last)) = self.rested.pop_front() {
            self.tries += 1;
            let (free, behind) = self.look(at);
            // What somebody has is not waiting; it will be when it is given back.
            if let Some(behind) = behind.filter(|behind| *behind <= last) {
                self.rested.push_front((behind, last));
            }
            if free {
                return self.range(at);
            }
        }
        None
    }

    /// Whether the range at a place is free, and where the next one is: behind it, or behind what is in its way.
    fn look(&self, at: u128) -> (bool, Option<u128>) {
        let within = self.within();
        let obstacle = self.obstacle(at);
        let last = obstacle.map_or(at, |range| number(range.broadcast())).max(at) | within;
        (obstacle.is_none(), last.checked_add(1))
    }

    pub(crate) fn tries(&self) -> u32 {
        self.tries
    }

    pub(crate) fn turnover(&self) -> (u64, u64) {
        self.turnover
    }

    /// How many ranges the network is cut into.
    pub(crate) fn capacity(&self) -> f64 {
        f64::from(self.len - self.network.prefix_len()).exp2()
    }

    /// How many of them cannot be given to anybody: each counts once, however many have some of it.
    pub(crate) fn taken(&self) -> f64 {
        let held = self
            .holders
            .keys()
            .filter_map(|(first, len)| IpNet::new(address(*first, self.network), *len).ok());
        let mut spans: Vec<(u128, u128)> =
            held.chain(self.kept_out.iter().copied()).map(|range| self.within_network(range)).collect();
        spans.sort_unstable();
        let (mut taken, mut behind) = (0.0, None);
        for (first, last) in spans {
            let first = behind.map_or(first, |behind: u128| first.max(behind));
            if first <= last {
                taken += ((last - first) as f64 / (self.within() as f64 + 1.0)).ceil().max(1.0);
            }
            behind = behind.max(last.checked_add(1));
        }
        taken
    }

    /// The first and last address of all ranges of this network that share an address with something.
    fn within_network(&self, range: IpNet) -> (u128, u128) {
        let (start, end) = (number(self.network.network()), number(self.network.broadcast()));
        let within = self.within();
        ((number(range.network()) & !within).max(start), (number(range.broadcast()) | within).min(end))
    }

    /// How many ranges are free: counted, so for small networks and tests only.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        let (mut at, end) = (number(self.network.network()), number(self.network.broadcast()));
        let mut free = 0;
        while at <= end {
            free += usize::from(!self.is_taken(at));
            match at.checked_add(self.within()).and_then(|last| last.checked_add(1)) {
                Some(next) => at = next,
                None => break,
            }
        }
        free
    }

    /// A range's last address, less its first.
    fn within(&self) -> u128 {
        let bits = u32::from(self.network.max_prefix_len() - self.len);
        u128::MAX.checked_shr(128 - bits).unwrap_or(0)
    }

    fn range(&self, at: u128) -> Option<IpNet> {
        IpNet::new(address(at, self.network), self.len).ok()
    }

    #[cfg(test)]
    fn is_taken(&self, at: u128) -> bool {
        self.obstacle(at).is_some()
    }

    /// Something that is in the way of a range: somebody's, or the services'.
    fn obstacle(&self, at: u128) -> Option<IpNet> {
        let range = self.range(at)?;
        let kept_out = self.kept_out.iter().copied().find(|kept| meet(*kept, range));
        let held = || {
            let key = self.wider(range).chain(self.narrower(range)).next().map(|(key, _)| *key);
            key.and_then(|(first, len)| IpNet::new(address(first, self.network), len).ok())
        };
        kept_out.or_else(held)
    }

    /// What is held of ranges that a range is in, itself included: at most one for each length.
    fn wider(&self, range: IpNet) -> impl Iterator<Item = (&(u128, u8), &BTreeSet<String>)> {
        let around = (0..=range.prefix_len()).filter_map(move |len| IpNet::new(range.network(), len).ok());
        around.filter_map(|wide| self.holders.get_key_value(&key(wide.trunc())))
    }

    /// What is held of ranges inside of a range.
    fn narrower(&self, range: IpNet) -> impl Iterator<Item = (&(u128, u8), &BTreeSet<String>)> {
        let (first, last) = (number(range.network()), number(range.broadcast()));
        self.holders
            .range((first, 0)..=(last, u8::MAX))
            .filter(move |((_, len), _)| *len > range.prefix_len())
    }
}

fn key(range: IpNet) -> (u128, u8) {
    (number(range.network()), range.prefix_len())
}

/// Whether two networks share an address: one then contains the other.
pub(crate) fn meet(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}
