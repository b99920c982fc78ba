//! An index of pools, nodes and blocks, from which routes are computed.

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
    /// The owners and borrowers of blocks.
    blocks: BTreeMap<IpNet, BlockEntry>,
    /// The confirmed affinities: block and node.
    affinities: BTreeSet<(IpNet, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct BlockEntry {
    owner: Option<String>,
    borrowed: BTreeMap<IpAddr, String>,
    /// Tunnel addresses: handle and address.
    tunnel_addresses: BTreeSet<(String, IpAddr)>,
}

impl BlockEntry {
    fn of(block: &Block) -> BlockEntry {
        let owner = match block.owner() {
            Some(AffinityOwner::Host(name)) => Some(name),
            _ => None,
        };
        let holders = || block.allocations().filter(|allocation| !allocation.attribute.is_cooling());
        let borrowers = holders().filter_map(|allocation| {
            let node = allocation.attribute.secondary.get("node")?;
            (Some(node) != owner.as_ref()).then(|| (allocation.ip, node.clone()))
        });
        let handles = holders()
            .filter_map(|allocation| Some((allocation.attribute.handle()?.to_owned(), allocation.ip)));
        let tunnel_addresses = handles.filter(|(handle, _)| Handle::is_of_tunnel(handle)).collect();
        BlockEntry { borrowed: borrowers.collect(), owner, tunnel_addresses }
    }
}

impl BlockIndex {
    /// The prefixes of the keys that it needs, with those of BGP objects if requested.
    pub fn prefixes(with_bgp: bool) -> Vec<&'static str> {
        let fixed = [key::POOLS, key::NODES, key::AFFINITIES[0], key::BLOCKS];
        fixed.into_iter().chain(key::BGP.into_iter().filter(|_| with_bgp)).collect()
    }

    /// Applies changes of the store. Returns whether routes, or reports about them, may have changed. Most pods start
    /// and stop without such a change.
    pub fn apply(&mut self, changes: Vec<Change>) -> bool {
        // `any` would stop at the first relevant change.
        changes.into_iter().filter_map(|change| self.apply_one(change).then_some(())).count() > 0
    }

    fn apply_one(&mut self, change: Change) -> bool {
        let (key, value) = match change {
            Change::Put(Entry { key, value, .. }) => (key, Some(value)),
            Change::Deleted(key) => (key, None),
        };
        let error_before = self.malformed.remove(&key);
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
            _ => return error_before.is_some(),
        };
        match applied {
            Ok(has_changed) => has_changed || error_before.is_some(),
            // The last valid record stays in effect.
            Err(why) => {
                let is_new = error_before.as_ref() != Some(&why);
                self.malformed.insert(key, why);
                is_new
            }
        }
    }

    /// Takes the last valid records from an earlier index for records that are malformed here.
    pub fn inherit(&mut self, before: &BlockIndex) {
        for key in self.malformed.keys() {
            match Key::parse(key) {
                Some(Key::Pool(name)) => inherit_entry(&mut self.pools, &before.pools, name),
                Some(Key::Node(name)) => inherit_entry(&mut self.nodes, &before.nodes, name),
                Some(Key::Block(cidr)) => inherit_entry(&mut self.blocks, &before.blocks, cidr),
                Some(Key::Affinity(AffinityOwner::Host(node), cidr)) => {
                    self.affinities.extend(before.affinities.get(&(cidr, node)).cloned());
                }
                _ => {}
            }
        }
    }

    /// The CIDRs of each node: blocks with a confirmed affinity whose record names the same node, and single addresses
    /// that a node has borrowed. A block comes before its borrowed addresses.
    pub fn routes(&self) -> Vec<(IpNet, &str)> {
        let mut all = Vec::new();
        for (cidr, block) in &self.blocks {
            let is_confirmed = |owner: &&String| self.affinities.contains(&(*cidr, (*owner).clone()));
            all.extend(block.owner.as_ref().filter(is_confirmed).map(|owner| (*cidr, owner.as_str())));
            all.extend(block.borrowed.iter().map(|(ip, node)| (IpNet::from(*ip), node.as_str())));
        }
        all
    }

    /// Whether a block assigns an address to this tunnel handle.
    pub fn is_tunnel_address(&self, handle: &str, ip: IpAddr) -> bool {
        let entry = (handle.to_owned(), ip);
        self.blocks.values().any(|block| block.tunnel_addresses.contains(&entry))
    }

    /// The pool that contains a CIDR.
    pub fn pool_of(&self, cidr: &IpNet) -> Option<&Pool> {
        self.pools.values().find(|pool| pool.cidr().contains(cidr))
    }
}

/// Parses a value, if there is one and it is not marked as deleted.
fn parse<T: Value>(value: Option<Vec<u8>>) -> Result<Option<T>, String> {
    let found = value.map(|bytes| T::decode(&bytes)).transpose()?;
    Ok(found.filter(|value| !value.is_deleted()))
}

fn inherit_entry<K: Ord, T: Clone>(into: &mut BTreeMap<K, T>, from: &BTreeMap<K, T>, key: K) {
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
            "a tunnel address matters"
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
        // Also in a new index.
        let mut anew = BlockIndex::default();
        anew.apply(put(&key, "{", 3));
        anew.inherit(&index);
        assert_eq!(anew, index);
        assert!(index.apply(put(&key, good, 4)), "the repair is reported");
        assert!(index.malformed.is_empty());
        assert!(index.apply(vec![Change::Deleted(key)]) && index.nodes.is_empty());
    }
}
