//! One cluster network, divided into node CIDRs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ipnet::IpNet;
use podwire_ip::to_u128;

use crate::error::NodeCidrsError;
use crate::range::address;
use crate::span::Span;

/// The node CIDRs of one network: which are held, and in which order the others are assigned.
///
/// CIDRs that were never assigned come first, from the lowest; then released ones, the one that was released first
/// first. Pods and firewalls may still know the last owner of a CIDR, so it rests as long as possible. There is no
/// bitmap, so an IPv6 network may be arbitrarily large.
#[derive(Clone, Debug)]
pub(crate) struct NodePool {
    network: IpNet,
    /// The prefix length of node CIDRs.
    len: u8,
    /// The first address of the first CIDR that was never assigned.
    fresh: Option<u128>,
    /// Released CIDRs, the first released first. Adjacent CIDRs that were released together are one span.
    released: VecDeque<Span>,
    /// The nodes that hold a CIDR, by first address and prefix length. The length may differ from `len`: people and
    /// older settings assign other sizes.
    holders: BTreeMap<(u128, u8), BTreeSet<String>>,
    /// Networks that no node gets, such as the service range.
    excluded: Vec<IpNet>,
    /// The number of candidates that the last search examined.
    tries: u32,
    allocations: u64,
    releases: u64,
}

impl NodePool {
    pub(crate) fn new(network: IpNet, len: u8) -> Result<NodePool, NodeCidrsError> {
        if network != network.trunc() {
            return Err(NodeCidrsError::HostBits { network });
        }
        if len < network.prefix_len() || len > network.max_prefix_len() {
            return Err(NodeCidrsError::Mask { network, len });
        }
        Ok(NodePool {
            network,
            len,
            fresh: Some(to_u128(network.network())),
            released: VecDeque::new(),
            holders: BTreeMap::new(),
            excluded: Vec::new(),
            tries: 0,
            allocations: 0,
            releases: 0,
        })
    }

    pub(crate) fn network(&self) -> IpNet {
        self.network
    }

    pub(crate) fn exclude(&mut self, network: IpNet) {
        if overlap(network, self.network) && !self.excluded.contains(&network) {
            self.excluded.push(network);
        }
    }

    /// Whether this network contains a whole CIDR.
    pub(crate) fn contains(&self, cidr: IpNet) -> bool {
        self.network.contains(&cidr)
    }

    /// An excluded network that overlaps a CIDR.
    pub(crate) fn excluded_in(&self, cidr: IpNet) -> Option<IpNet> {
        self.excluded.iter().copied().find(|excluded| overlap(*excluded, cidr))
    }

    /// The nodes that hold exactly this CIDR.
    pub(crate) fn holders(&self, cidr: IpNet) -> impl Iterator<Item = &str> {
        self.holders.get(&key(cidr)).into_iter().flatten().map(String::as_str)
    }

    /// The nodes other than `node` that hold any address of a CIDR.
    pub(crate) fn other_holders(&self, node: &str, cidr: IpNet) -> BTreeSet<String> {
        let all = self.wider(cidr).chain(self.narrower(cidr));
        all.flat_map(|(_, holders)| holders).filter(|holder| *holder != node).cloned().collect()
    }

    /// Records that a node holds a CIDR, whichever controller assigned it.
    pub(crate) fn hold(&mut self, node: &str, cidr: IpNet) {
        let holders = self.holders.entry(key(cidr)).or_default();
        self.allocations += u64::from(holders.is_empty());
        holders.insert(node.into());
    }

    /// Records that a node does not hold a CIDR any more. The CIDR becomes free when its last holder is gone.
    pub(crate) fn release(&mut self, node: &str, cidr: IpNet) {
        let key = key(cidr);
        let Some(holders) = self.holders.get_mut(&key) else { return };
        if holders.remove(node) && holders.is_empty() {
            self.holders.remove(&key);
            self.releases += 1;
        }
        self.queue_released(cidr);
    }

    /// Puts a released CIDR at the end of the queue. CIDRs that were never assigned are not queued: they come first
    /// anyway.
    fn queue_released(&mut self, cidr: IpNet) {
        let (first, mut last) = self.span_in_network(cidr);
        if let Some(fresh) = self.fresh {
            last = last.min(fresh.saturating_sub(1));
        }
        if first > last {
            return;
        }
        // Parts that are queued already move to the end.
        let without = |(a, b): Span| {
            let before = (first > a).then(|| (a, b.min(first.saturating_sub(1))));
            let after = (b > last).then(|| (a.max(last.saturating_add(1)), b));
            before.into_iter().chain(after)
        };
        self.released = std::mem::take(&mut self.released).into_iter().flat_map(without).collect();
        self.released.push_back((first, last));
    }

    /// The next free CIDR. It stays free until [`hold`](NodePool::hold).
    pub(crate) fn next(&mut self) -> Option<IpNet> {
        self.tries = 0;
        let end = to_u128(self.network.broadcast());
        while let Some(at) = self.fresh.filter(|at| *at <= end) {
            self.tries += 1;
            let obstacle = self.obstacle(at);
            self.fresh = self.next_candidate(at, obstacle);
            if obstacle.is_none() {
                return self.cidr_at(at);
            }
        }
        self.fresh = None;
        while let Some((at, last)) = self.released.pop_front() {
            self.tries += 1;
            let obstacle = self.obstacle(at);
            // A CIDR that is held is queued again when it is released.
            if let Some(next) = self.next_candidate(at, obstacle).filter(|next| *next <= last) {
                self.released.push_front((next, last));
            }
            if obstacle.is_none() {
                return self.cidr_at(at);
            }
        }
        None
    }

    /// The first address of the next candidate: after the CIDR at `at`, or after the network that overlaps it.
    fn next_candidate(&self, at: u128, obstacle: Option<IpNet>) -> Option<u128> {
        let last = obstacle.map_or(at, |network| to_u128(network.broadcast())).max(at) | self.host_mask();
        last.checked_add(1)
    }

    pub(crate) fn tries(&self) -> u32 {
        self.tries
    }

    pub(crate) fn allocations(&self) -> u64 {
        self.allocations
    }

    pub(crate) fn releases(&self) -> u64 {
        self.releases
    }

    /// The number of node CIDRs in the network.
    pub(crate) fn capacity(&self) -> f64 {
        f64::from(self.len - self.network.prefix_len()).exp2()
    }

    /// The number of node CIDRs that cannot be assigned. Each counts once, however many nodes hold some of it.
    pub(crate) fn taken(&self) -> f64 {
        let held = self.holders.keys().filter_map(|key| self.held_network(key));
        let mut spans: Vec<Span> =
            held.chain(self.excluded.iter().copied()).map(|network| self.span_in_network(network)).collect();
        spans.sort_unstable();
        let (mut taken, mut counted_until) = (0.0, None);
        for (first, last) in spans {
            let first = counted_until.map_or(first, |until: u128| first.max(until));
            if first <= last {
                taken += ((last - first) as f64 / (self.host_mask() as f64 + 1.0)).ceil().max(1.0);
            }
            counted_until = counted_until.max(last.checked_add(1));
        }
        taken
    }

    /// The first and the last address of all node CIDRs of this network that overlap `network`.
    fn span_in_network(&self, network: IpNet) -> Span {
        let (start, end) = (to_u128(self.network.network()), to_u128(self.network.broadcast()));
        let mask = self.host_mask();
        ((to_u128(network.network()) & !mask).max(start), (to_u128(network.broadcast()) | mask).min(end))
    }

    /// The number of free CIDRs. It examines each of them, so it is for small networks only.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        let (mut at, end) = (to_u128(self.network.network()), to_u128(self.network.broadcast()));
        let mut free = 0;
        while at <= end {
            free += usize::from(self.obstacle(at).is_none());
            match at.checked_add(self.host_mask()).and_then(|last| last.checked_add(1)) {
                Some(next) => at = next,
                None => break,
            }
        }
        free
    }

    /// The host part of a node CIDR: its last address minus its first.
    fn host_mask(&self) -> u128 {
        let bits = u32::from(self.network.max_prefix_len() - self.len);
        u128::MAX.checked_shr(128 - bits).unwrap_or(0)
    }

    fn cidr_at(&self, at: u128) -> Option<IpNet> {
        IpNet::new(address(at, self.network), self.len).ok()
    }

    fn held_network(&self, (first, len): &(u128, u8)) -> Option<IpNet> {
        IpNet::new(address(*first, self.network), *len).ok()
    }

    /// An excluded or held network that overlaps the CIDR at an address.
    fn obstacle(&self, at: u128) -> Option<IpNet> {
        let cidr = self.cidr_at(at)?;
        let held = || {
            let (key, _) = self.wider(cidr).chain(self.narrower(cidr)).next()?;
            self.held_network(key)
        };
        self.excluded_in(cidr).or_else(held)
    }

    /// The held networks that contain a CIDR, itself included: at most one for each prefix length.
    fn wider(&self, cidr: IpNet) -> impl Iterator<Item = (&(u128, u8), &BTreeSet<String>)> {
        let containing = (0..=cidr.prefix_len()).filter_map(move |len| IpNet::new(cidr.network(), len).ok());
        containing.filter_map(|network| self.holders.get_key_value(&key(network.trunc())))
    }

    /// The held networks inside a CIDR.
    fn narrower(&self, cidr: IpNet) -> impl Iterator<Item = (&(u128, u8), &BTreeSet<String>)> {
        let (first, last) = (to_u128(cidr.network()), to_u128(cidr.broadcast()));
        self.holders.range((first, 0)..=(last, u8::MAX)).filter(move |((_, len), _)| *len > cidr.prefix_len())
    }
}

fn key(cidr: IpNet) -> (u128, u8) {
    (to_u128(cidr.network()), cidr.prefix_len())
}

/// Whether two networks have an address in common: one contains the other.
pub(crate) fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}
