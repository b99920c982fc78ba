//! The requests of a node in a cluster of a thousand nodes.

use std::cell::RefCell;

use podwire_block_ipam::store::{Entry, Memory, Revision, Store, StoreError};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{AffinityOwner, Allocator, Pool, Request, Rules};

const NODES: usize = 1_000;
const BLOCKS: &str = "/calico/ipam/v2/assignment/";

/// A store that records requests.
struct Counting {
    store: Memory,
    /// Each request, with the bytes of block values in its response.
    asked: RefCell<Vec<(String, usize)>>,
}

impl Counting {
    fn count<'a>(&self, request: String, response: impl Iterator<Item = &'a Entry>) {
        let bytes =
            response.filter(|entry| entry.key.starts_with(BLOCKS)).map(|entry| entry.value.len()).sum();
        self.asked.borrow_mut().push((request, bytes));
    }
}

impl Store for Counting {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let found = self.store.get(key)?;
        self.count(format!("get {key}"), found.iter());
        Ok(found)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        let found = self.store.list(prefix)?;
        self.count(format!("list {prefix}"), found.iter());
        Ok(found)
    }

    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.count(format!("keys {prefix}"), std::iter::empty());
        self.store.keys(prefix)
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        self.count(format!("create {key}"), std::iter::empty());
        self.store.create(key, value)
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        self.count(format!("update {key}"), std::iter::empty());
        self.store.update(key, value, revision)
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        self.count(format!("delete {key}"), std::iter::empty());
        self.store.delete(key, revision)
    }
}

fn now() -> Timestamp {
    Timestamp::from_unix_nanos(1_787_405_600_000_000_000)
}

/// A thousand nodes with one full block each.
fn thousand_nodes() -> Counting {
    let store = Memory::new();
    let allocator = Allocator::new(&store, now);
    allocator.add_pool(&Pool::new("pods", "10.0.0.0/12".parse().unwrap())).unwrap();
    let rules = Rules::load(&store).unwrap();
    for node in 0..NODES {
        let mut request = Request::new(AffinityOwner::host(format!("node{node}")), format!("net.{node}"));
        request.count = 64;
        assert_eq!(allocator.assign(&rules, &request).unwrap().addresses.len(), 64);
    }
    drop(allocator);
    Counting { store, asked: RefCell::default() }
}

#[test]
fn a_new_node_claims_a_block_without_reading_others() {
    let crowd = thousand_nodes();
    let rules = Rules::load(&crowd.store).unwrap();
    let given =
        Allocator::new(&crowd, now).assign(&rules, &Request::new(AffinityOwner::host("new"), "net.new"));
    let block = given.unwrap().addresses[0].trunc();
    let asked = crowd.asked.take();
    let of_blocks: Vec<&str> =
        asked.iter().map(|(question, _)| question.as_str()).filter(|asked| asked.contains(BLOCKS)).collect();
    let own = format!("{BLOCKS}ipv4/block/{}-26", block.addr());
    let wanted = [
        format!("keys {BLOCKS}ipv4/"),
        format!("create {own}"),
        format!("get {own}"),
        format!("update {own}"),
    ];
    assert_eq!(of_blocks, wanted, "its own block is created, read and written: {asked:#?}");
    let read: usize = asked.iter().map(|(_, bytes)| bytes).sum();
    let empty = crowd.store.get(&own).unwrap().unwrap().value.len();
    assert!(read <= empty, "{read} bytes of blocks were read");
    assert!(asked.len() <= 10, "{} requests: {asked:#?}", asked.len());
}

#[test]
fn an_address_of_a_deleted_pool_is_released_without_reading_all_blocks() {
    let crowd = thousand_nodes();
    let allocator = Allocator::new(&crowd, now);
    let ip = allocator.addresses_of("net.7").unwrap()[0];
    let size = crowd.asked.take().into_iter().map(|(_, bytes)| bytes).max().unwrap();
    allocator.release(&Rules::default(), &[podwire_block_ipam::Release::of(ip)]).unwrap();
    let read: usize = crowd.asked.take().iter().map(|(_, bytes)| bytes).sum();
    assert!(read <= 2 * size, "{read} bytes of blocks were read, one has {size}");
}
