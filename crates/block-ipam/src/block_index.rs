//! The block_index: which node has which block, as far as roads follow from it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::record::Value;
use super::{key, Affinity, AffinityOwner, Block, Handle, Key, Node, Pool, State};
use crate::store::{Change, Entry};

/// What is known of a cluster's pools, nodes and blocks. It is told what changes in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockIndex {
    /// All pools, by their names.
    pub pools: BTreeMap<String, Pool>,
    /// All nodes, by their names.
    pub nodes: BTreeMap<String, Node>,
    /// Objects about BGP, by their keys, as they were written.
    pub bgp: BTreeMap<String, Vec<u8>>,
    /// What makes no sense, by its key, and why.
    pub malformed: BTreeMap<String, String>,
    /// Whose a block is, and who else has addresses of it.
    blocks: BTreeMap<IpNet, BlockEntry>,
    /// The claims that are confirmed.
    claims: BTreeSet<(IpNet, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct BlockEntry {
    owner: Option<String>,
    borrowed: BTreeMap<IpAddr, String>,
    /// The ends of tunnels, by their handles.
    ends: BTreeSet<(String, IpAddr)>,
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
        let ends = handles.filter(|(handle, _)| Handle::is_of_tunnel(handle)).collect();
        BlockEntry { borrowed: borrowers.collect(), owner, ends }
    }
}

impl BlockIndex {
    /// The keys that it has to be told about, those about BGP if it matters.
    pub fn prefixes(with_bgp: bool) -> Vec<&'static str> {
        let fixed = [key::POOLS, key::NODES, key::AFFINITIES[0], key::BLOCKS];
        fixed.into_iter().chain(key::BGP.into_iter().filter(|_| with_bgp)).collect()
    }

    /// Learns what has changed. Returns whether any road, or what is told of them, may be another now: most pods come and go without.
    pub fn apply(&mut self, changes: Vec<Change>) -> bool {
        // Each of them, also after the first that matters.
        changes.into_iter().filter_map(|change| self.apply_one(change).then_some(())).count() > 0
    }

    fn apply_one(&mut self, change: Change) -> bool {
        let (key, value) = match change {
            Change::Put(Entry { key, value, .. }) => (key, Some(value)),
            Change::Gone(key) => (key, None),
        };
        let wrong_before = self.malformed.remove(&key);
        let learned = match Key::parse(&key) {
            Some(Key::Pool(name)) => note(&mut self.pools, name, read::<Pool>(value)),
            Some(Key::Node(name)) => note(&mut self.nodes, name, read::<Node>(value)),
            Some(Key::Block(cidr)) => {
                let block = read::<Block>(value);
                note(&mut self.blocks, cidr, block.map(|found| found.map(|block| BlockEntry::of(&block))))
            }
            Some(Key::Affinity(AffinityOwner::Host(node), cidr)) => read::<Affinity>(value).map(|affinity| {
                match affinity.is_some_and(|affinity| affinity.state == State::Confirmed) {
                    true => self.claims.insert((cidr, node)),
                    false => self.claims.remove(&(cidr, node)),
                }
            }),
            Some(Key::BgpConfiguration(_) | Key::BgpPeer(_) | Key::BgpFilter(_)) => {
                note(&mut self.bgp, key.clone(), Ok(value))
            }
            _ => return wrong_before.is_some(),
        };
        match learned {
            Ok(news) => news || wrong_before.is_some(),
            // What was known of it before still holds.
            Err(why) => {
                let is_news = wrong_before.as_ref() != Some(&why);
                self.malformed.insert(key, why);
                is_news
            }
        }
    }

    /// Takes over what an earlier block_index knew of records that make no sense here: that still holds.
    pub fn inherit(&mut self, before: &BlockIndex) {
        for key in self.malformed.keys() {
            match Key::parse(key) {
                Some(Key::Pool(name)) => take_over(&mut self.pools, &before.pools, name),
                Some(Key::Node(name)) => take_over(&mut self.nodes, &before.nodes, name),
                Some(Key::Block(cidr)) => take_over(&mut self.blocks, &before.blocks, cidr),
                Some(Key::Affinity(AffinityOwner::Host(node), cidr)) => {
                    self.claims.extend(before.claims.get(&(cidr, node)).cloned());
                }
                _ => {}
            }
        }
    }

    /// Each stretch of addresses that a node has, and the node: blocks that the node has claimed and that say so themselves, and single
    /// addresses that another has of them. The larger come first.
    pub fn routes(&self) -> Vec<(IpNet, &str)> {
        let mut all = Vec::new();
        for (cidr, block) in &self.blocks {
            let is_claimed = |owner: &&String| self.claims.contains(&(*cidr, (*owner).clone()));
            all.extend(block.owner.as_ref().filter(is_claimed).map(|owner| (*cidr, owner.as_str())));
            all.extend(block.borrowed.iter().map(|(ip, node)| (IpNet::from(*ip), node.as_str())));
        }
        all
    }

    /// Whether the block of an address says that it is this end of a tunnel.
    pub fn is_tunnel_address(&self, handle: &str, ip: IpAddr) -> bool {
        let end = (handle.to_owned(), ip);
        self.blocks.values().any(|block| block.ends.contains(&end))
    }

    /// The pool that a stretch lies in.
    pub fn pool_of(&self, cidr: &IpNet) -> Option<&Pool> {
        self.pools.values().find(|pool| pool.cidr().contains(cidr))
    }
}

/// Reads a value, if there is one and nobody marked it as deleted.
fn read<T: Value>(value: Option<Vec<u8>>) -> Result<Option<T>, String> {
    let found = value.map(|bytes| T::decode(&bytes)).transpose()?;
    Ok(found.filter(|value| !value.is_deleted()))
}

fn take_over<K: Ord, T: Clone>(into: &mut BTreeMap<K, T>, from: &BTreeMap<K, T>, key: K) {
    if let Some(value) = from.get(&key) {
        into.insert(key, value.clone());
    }
}

/// Notes what stands under a key now. Whether that is new.
fn note<K: Ord, T: PartialEq>(
    there: &mut BTreeMap<K, T>,
    key: K,
    value: Result<Option<T>, String>,
) -> Result<bool, String> {
    Ok(match value? {
        Some(value) if there.get(&key) == Some(&value) => false,
        Some(value) => {
            there.insert(key, value);
            true
        }
        None => there.remove(&key).is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Known, Memory, Store};
    use crate::timestamp::Timestamp;
    use crate::{Allocator, Request, Rules};

    /// An block_index that follows a store by comparing.
    #[derive(Default)]
    struct Reader {
        block_index: BlockIndex,
        known: Known,
    }

    impl Reader {
        fn read(&mut self, store: &Memory) -> bool {
            let prefixes = BlockIndex::prefixes(true);
            let entries = prefixes.iter().flat_map(|prefix| store.list(prefix).unwrap()).collect();
            self.block_index.apply(self.known.compare(&prefixes, entries))
        }

        fn routes(&self) -> Vec<(String, String)> {
            let all = self.block_index.routes().into_iter();
            all.map(|(cidr, node)| (cidr.to_string(), node.to_owned())).collect()
        }
    }

    fn request(node: &str, handle: &str) -> Request {
        Request::new(AffinityOwner::host(node), handle)
    }

    #[test]
    fn roads_follow_from_blocks_and_from_addresses_that_are_borrowed() {
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
        assert!(!reader.read(&store), "another pod of a changes no road");
        allocator.assign(&rules, &request("b", "3")).unwrap();
        assert!(reader.read(&store));
        let borrowed = ("10.0.0.2/32".to_owned(), "b".to_owned());
        assert_eq!(reader.routes(), [block, borrowed]);
        allocator.release_handle(&rules, "3").unwrap();
        assert!(reader.read(&store));
        assert_eq!(reader.routes().len(), 1);
        let end = "vxlan-tunnel-addr-a";
        let ip = allocator.assign(&rules, &request("a", end)).unwrap().addresses[0].addr();
        assert!(reader.read(&store) && reader.block_index.is_tunnel_address(end, ip));
        allocator.release_handle(&rules, end).unwrap();
        assert!(
            reader.read(&store) && !reader.block_index.is_tunnel_address(end, ip),
            "whose end it is matters"
        );
    }

    #[test]
    fn a_claim_alone_and_a_block_alone_lead_nowhere() {
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
    fn of_what_makes_no_sense_the_last_that_did_holds() {
        let mut block_index = BlockIndex::default();
        let put = |key: &str, value: &str, revision| {
            let value = value.as_bytes().to_vec();
            vec![Change::Put(Entry { key: key.into(), value, revision: crate::store::Revision(revision) })]
        };
        let key = Node::key("a");
        let good = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"a"},"spec":{}}"#;
        assert!(block_index.apply(put(&key, good, 1)));
        assert!(block_index.apply(put(&key, "{", 2)) && !block_index.apply(put(&key, "{", 3)));
        assert!(block_index.nodes.contains_key("a") && block_index.malformed.contains_key(&key));
        // Also for who reads all anew.
        let mut anew = BlockIndex::default();
        anew.apply(put(&key, "{", 3));
        anew.inherit(&block_index);
        assert_eq!(anew, block_index);
        assert!(block_index.apply(put(&key, good, 4)), "it is told that all is well again");
        assert!(block_index.malformed.is_empty());
        assert!(block_index.apply(vec![Change::Gone(key)]) && block_index.nodes.is_empty());
    }
}
