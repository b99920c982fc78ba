//! An index of pools, nodes and blocks, from which routes are computed. Of a block it keeps only what matters for
//! routing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::record::Value;
use super::{key, Affinity, AffinityOwner, Block, Handle, Key, Node, Pool, State};
use crate::store::{Change, Entry};

/// The pools, nodes and blocks of a cluster. It is updated with the changes of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockIndex {
    /// All pools, by name.
    pub pools: BTreeMap<String, Pool>,
    /// All nodes, by name.
    pub nodes: BTreeMap<String, Node>,
    /// BGP objects, by key, unparsed.
    pub bgp: BTreeMap<String, Vec<u8>>,
    /// Malformed records: key and reason.
    pub malformed: BTreeMap<String, String>,
    /// For each block: its node, the addresses that other nodes use, and the tunnel addresses.
    blocks: BTreeMap<IpNet, BlockEntry>,
    /// The confirmed affinities: block and node.
    affinities: BTreeSet<(IpNet, String)>,
}

/// The parts of a block that matter for routing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct BlockEntry {
    /// The node of the block. A virtual owner (not a host) counts as none.
    owner: Option<String>,
    /// The addresses that other nodes use, each with its node. In a block without an owner: every address
    /// in use whose node is known.
    borrowed: BTreeMap<IpAddr, String>,
    /// The addresses allocated to tunnel handles: handle and address.
    tunnel_addresses: BTreeSet<(String, IpAddr)>,
}

impl BlockEntry {
    fn of(block: &Block) -> BlockEntry {
        let owner = match block.owner() {
            Some(AffinityOwner::Host(name)) => Some(name),
            _ => None,
        };
        let active_allocations =
            || block.allocations().filter(|allocation| !allocation.attribute.is_in_cooldown());
        let borrowed = active_allocations().filter_map(|allocation| {
            // The node that uses the address. An allocation without it is skipped: its next hop is unknown.
            let node = allocation.attribute.secondary.get("node")?;
            (Some(node) != owner.as_ref()).then(|| (allocation.ip, node.clone()))
        });
        let handles = active_allocations()
            .filter_map(|allocation| Some((allocation.attribute.handle()?.to_owned(), allocation.ip)));
        let tunnel_addresses = handles.filter(|(handle, _)| Handle::is_tunnel_handle(handle)).collect();
        BlockEntry { borrowed: borrowed.collect(), owner, tunnel_addresses }
    }
}

impl BlockIndex {
    /// The prefixes of the keys that the index needs, with those of BGP objects if requested.
    pub fn prefixes(with_bgp: bool) -> Vec<&'static str> {
        let fixed = [key::POOLS, key::NODES, key::HOST_AFFINITIES, key::BLOCKS];
        fixed.into_iter().chain(key::BGP.into_iter().filter(|_| with_bgp)).collect()
    }

    /// Applies changes of the store. Returns whether the index, including `malformed`, has changed. Most pods start and
    /// stop without a change of the index.
    pub fn apply(&mut self, changes: Vec<Change>) -> bool {
        let mut has_changed = false;
        for change in changes {
            has_changed |= self.apply_one(change);
        }
        has_changed
    }

    fn apply_one(&mut self, change: Change) -> bool {
        let (key, value) = match change {
            Change::Put(Entry { key, value, .. }) => (key, Some(value)),
            Change::Deleted(key) => (key, None),
        };
        let previous_error = self.malformed.remove(&key);
        let applied = match Key::parse(&key) {
            Some(Key::Pool(name)) => update(&mut self.pools, name, parse::<Pool>(value)),
            Some(Key::Node(name)) => update(&mut self.nodes, name, parse::<Node>(value)),
            Some(Key::Block(cidr)) => {
                let block = parse::<Block>(value);
                update(&mut self.blocks, cidr, block.map(|found| found.map(|block| BlockEntry::of(&block))))
            }
            Some(Key::Affinity(AffinityOwner::Host(node), cidr)) => {
                parse::<Affinity>(value).map(|affinity| {
                    if affinity.is_some_and(|affinity| affinity.state == State::Confirmed) {
                        self.affinities.insert((cidr, node))
                    } else {
                        self.affinities.remove(&(cidr, node))
                    }
                })
            }
            Some(Key::BgpConfiguration(_) | Key::BgpPeer(_) | Key::BgpFilter(_)) => {
                update(&mut self.bgp, key.clone(), Ok(value))
            }
            // Other keys are ignored, so `malformed` has none of them.
            _ => return false,
        };
        match applied {
            Ok(has_changed) => has_changed || previous_error.is_some(),
            Err(why) => {
                // The last valid record stays in effect.
                let is_new = previous_error.as_ref() != Some(&why);
                self.malformed.insert(key, why);
                is_new
            }
        }
    }

    /// For each malformed record, copies the last valid one from the previous index. Call it on a newly built index.
    pub fn keep_last_valid_from(&mut self, previous: &BlockIndex) {
        for key in self.malformed.keys() {
            match Key::parse(key) {
                Some(Key::Pool(name)) => copy_entry(&mut self.pools, &previous.pools, name),
                Some(Key::Node(name)) => copy_entry(&mut self.nodes, &previous.nodes, name),
                Some(Key::Block(cidr)) => copy_entry(&mut self.blocks, &previous.blocks, cidr),
                Some(Key::Affinity(AffinityOwner::Host(node), cidr)) => {
                    self.affinities.extend(previous.affinities.get(&(cidr, node)).cloned());
                }
                _ => {}
            }
        }
    }

    /// The CIDRs to route, each with its node: blocks whose owner has a confirmed affinity for them, and borrowed
    /// addresses. A block comes before its borrowed addresses.
    pub fn routes(&self) -> Vec<(IpNet, &str)> {
        let mut all = Vec::new();
        for (cidr, block) in &self.blocks {
            let is_confirmed = |owner: &&String| self.affinities.contains(&(*cidr, (*owner).clone()));
            all.extend(block.owner.as_ref().filter(is_confirmed).map(|owner| (*cidr, owner.as_str())));
            all.extend(block.borrowed.iter().map(|(ip, node)| (IpNet::from(*ip), node.as_str())));
        }
        all
    }

    /// Whether any block allocates the address to this tunnel handle.
    pub fn is_tunnel_address(&self, handle: &str, ip: IpAddr) -> bool {
        let entry = (handle.to_owned(), ip);
        self.blocks.values().any(|block| block.tunnel_addresses.contains(&entry))
    }

    /// The pool that contains a CIDR.
    pub fn pool_of(&self, cidr: &IpNet) -> Option<&Pool> {
        self.pools.values().find(|pool| pool.cidr().contains(cidr))
    }
}

/// Parses a value, if there is one and it is not marked as deleted. The Kubernetes store deletes in two steps: the mark
/// counts as the deletion, and the removal follows.
fn parse<T: Value>(value: Option<Vec<u8>>) -> Result<Option<T>, String> {
    let found = value.map(|bytes| T::decode(&bytes)).transpose()?;
    Ok(found.filter(|value| !value.is_deleted()))
}

fn copy_entry<K: Ord, T: Clone>(into: &mut BTreeMap<K, T>, from: &BTreeMap<K, T>, key: K) {
    if let Some(value) = from.get(&key) {
        into.insert(key, value.clone());
    }
}

/// Updates an entry. Returns whether it has changed.
fn update<K: Ord, T: PartialEq>(
    entries: &mut BTreeMap<K, T>,
    key: K,
    value: Result<Option<T>, String>,
) -> Result<bool, String> {
    Ok(match value? {
        Some(value) if entries.get(&key) == Some(&value) => false,
        Some(value) => {
            entries.insert(key, value);
            true
        }
        None => entries.remove(&key).is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Known, Memory, Store};
    use crate::timestamp::Timestamp;
    use crate::{Allocator, Request, Rules};

    /// An index that is updated from lists of a store.
    #[derive(Default)]
    struct Reader {
        index: BlockIndex,
        known: Known,
    }

    impl Reader {
        fn read(&mut self, store: &Memory) -> bool {
            let prefixes = BlockIndex::prefixes(true);
            let entries = prefixes.iter().flat_map(|prefix| store.list(prefix).unwrap()).collect();
            self.index.apply(self.known.compare(&prefixes, entries))
        }

        fn routes(&self) -> Vec<(String, String)> {
            let all = self.index.routes().into_iter();
            all.map(|(cidr, node)| (cidr.to_string(), node.to_owned())).collect()
        }
    }

    fn request(node: &str, handle: &str) -> Request {
        Request::new(AffinityOwner::host(node), handle)
    }

    #[test]
    fn routes_follow_from_blocks_and_borrowed_addresses() {
        let store = Memory::new();
        let allocator = Allocator::new(&store, || Timestamp::from_unix_nanos(1));
        let pool = Pool::new("p", "10.0.0.0/30".parse().unwrap()).with_block_size(30);
        allocator.add_pool(&pool).unwrap();
        let rules = Rules::load(&store).unwrap();
        let mut reader = Reader::default();
        assert!(reader.read(&store) && !reader.read(&store));
        assert_eq!(reader.routes(), []);

        allocator.assign(&rules, &request("a", "1")).unwrap();
        assert!(reader.read(&store), "a has a block");
        let block = ("10.0.0.0/30".to_owned(), "a".to_owned());
        assert_eq!(reader.routes(), std::slice::from_ref(&block));
        allocator.assign(&rules, &request("a", "2")).unwrap();
        assert!(!reader.read(&store), "another pod of a changes no route");
        allocator.assign(&rules, &request("b", "3")).unwrap();
        assert!(reader.read(&store));
        let borrowed = ("10.0.0.2/32".to_owned(), "b".to_owned());
        assert_eq!(reader.routes(), [block, borrowed]);
        allocator.release_handle(&rules, "3").unwrap();
        assert!(reader.read(&store));
        assert_eq!(reader.routes().len(), 1);
        let handle = "vxlan-tunnel-addr-a";
        let ip = allocator.assign(&rules, &request("a", handle)).unwrap().addresses[0].addr();
        assert!(reader.read(&store) && reader.index.is_tunnel_address(handle, ip));
        allocator.release_handle(&rules, handle).unwrap();
        assert!(
            reader.read(&store) && !reader.index.is_tunnel_address(handle, ip),
            "the release of a tunnel address changes the index"
        );
    }

    #[test]
    fn an_affinity_alone_or_a_block_alone_is_no_route() {
        let store = Memory::new();
        let allocator = Allocator::new(&store, || Timestamp::from_unix_nanos(1));
        allocator.add_pool(&Pool::new("p", "10.0.0.0/24".parse().unwrap())).unwrap();
        let block: IpNet = "10.0.0.0/26".parse().unwrap();
        allocator.claim(&AffinityOwner::host("a"), block).unwrap();
        let mut reader = Reader::default();
        reader.read(&store);
        assert_eq!(reader.routes().len(), 1);
        let key = Key::Affinity(AffinityOwner::host("a"), block).to_string();
        let entry = store.get(&key).unwrap().unwrap();
        let revision =
            store.update(&key, br#"{"state":"pendingDeletion","deleted":false}"#, entry.revision).unwrap();
        reader.read(&store);
        assert_eq!(reader.routes(), []);
        store.update(&key, br#"{"state":"confirmed","deleted":false}"#, revision).unwrap();
        let key = Key::Block(block).to_string();
        let entry = store.get(&key).unwrap().unwrap();
        store.delete(&key, entry.revision).unwrap();
        reader.read(&store);
        assert_eq!(reader.routes(), []);
    }

    #[test]
    fn the_last_valid_record_stays_in_effect() {
        let mut index = BlockIndex::default();
        let put = |key: &str, value: &str, revision| {
            let value = value.as_bytes().to_vec();
            vec![Change::Put(Entry { key: key.into(), value, revision: crate::store::Revision(revision) })]
        };
        let key = Node::key("a");
        let good = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"a"},"spec":{}}"#;
        assert!(index.apply(put(&key, good, 1)));
        assert!(index.apply(put(&key, "{", 2)) && !index.apply(put(&key, "{", 3)));
        assert!(index.nodes.contains_key("a") && index.malformed.contains_key(&key));
        // Also in an index that is built again.
        let mut rebuilt = BlockIndex::default();
        rebuilt.apply(put(&key, "{", 3));
        rebuilt.keep_last_valid_from(&index);
        assert_eq!(rebuilt, index);
        assert!(index.apply(put(&key, good, 4)), "the repair is reported");
        assert!(index.malformed.is_empty());
        assert!(index.apply(vec![Change::Deleted(key)]) && index.nodes.is_empty());
    }
}
