//! The conformance suite of all stores.
//!
//! A store's tests call [`run`] with a function that opens the *same* store as a new client each time: another
//! connection, or another process.

mod following;
mod sample;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use crate::store::{Revision, StoreError};
use crate::timestamp::Timestamp;
use crate::{AffinityOwner, Allocator, Config, Error, Pool, Release, Request, Rules};
pub use sample::Open;
use sample::Sample;

/// Runs the whole suite on a store of arbitrary keys and values. Panics on a failure. The store must be empty, and is
/// empty afterwards.
pub fn run(open: Open<'_>) {
    basic_operations(open, &sample::PLAIN);
    one_of_many_writers_wins(open, &sample::PLAIN);
    concurrent_counting_loses_nothing(open, &sample::PLAIN);
    an_unchanged_value_gets_a_new_revision(open);
    lists_are_sorted_and_filtered_by_prefix(open);
    arbitrary_keys_and_values_are_kept(open);
    run_on_records(open);
}

/// Runs the part of the suite for stores that keep only Calico's records, such as the Kubernetes API.
pub fn run_on_records(open: Open<'_>) {
    sample::RECORDS.iter().for_each(|sample| basic_operations(open, sample));
    one_of_many_writers_wins(open, &sample::HANDLE);
    concurrent_counting_loses_nothing(open, &sample::BLOCK);
    a_key_has_one_creator_at_a_time(open, &sample::AFFINITY);
    records_are_listed_by_key(open);
    following::changes_of_other_clients_are_reported(open, &sample::BLOCK, &sample::HANDLE);
    following::changes_of_other_clients_are_reported(open, &sample::AFFINITY, &sample::BLOCK);
    following::changes_of_other_clients_are_reported(open, &sample::POOL, &sample::BLOCK);
    a_large_block_is_kept(open);
    pods_start_and_stop(open);
    concurrent_nodes_never_share_an_address(open);
    empty(open);
}

fn basic_operations(open: Open<'_>, sample: &Sample) {
    a_value_is_read_as_written(open, sample);
    a_key_is_created_once(open, sample);
    a_stale_write_is_refused(open, sample);
    a_revision_is_never_used_twice(open, sample);
}

fn empty(open: Open<'_>) {
    let store = open();
    for entry in store.list("").expect("a list of everything") {
        store.delete(&entry.key, entry.revision).expect("cleaning up");
    }
    assert_eq!(store.list("").expect("a list of everything"), []);
}

fn a_value_is_read_as_written(open: Open<'_>, sample: &Sample) {
    let (one, other, key) = (open(), open(), (sample.key)(0));
    assert_eq!(one.get(&key).expect("nothing"), None);
    let first = one.create(&key, &sample.value(1)).expect("create");
    let entry = other.get(&key).expect("get").expect("what another client has created");
    assert_eq!((&entry.key, sample.number(&entry.value), entry.revision), (&key, 1, first));
    let second = other.update(&key, &sample.value(2), first).expect("update");
    let entry = one.get(&key).expect("get").expect("what another client has updated");
    assert_eq!((sample.number(&entry.value), entry.revision), (2, second));
    one.delete(&key, second).expect("delete");
    assert_eq!(other.get(&key).expect("get"), None);
    empty(open);
}

fn a_key_is_created_once(open: Open<'_>, sample: &Sample) {
    let (one, other, key) = (open(), open(), (sample.key)(0));
    let revision = one.create(&key, &sample.value(1)).expect("create");
    assert_eq!(other.create(&key, &sample.value(2)), Err(StoreError::Exists { key: key.clone() }));
    let entry = one.get(&key).expect("get").expect("the first");
    assert_eq!((sample.number(&entry.value), entry.revision), (1, revision));
    empty(open);
}

fn a_stale_write_is_refused(open: Open<'_>, sample: &Sample) {
    let (one, other, key) = (open(), open(), (sample.key)(0));
    let (changed, missing) =
        (Err(StoreError::Changed { key: key.clone() }), Err(StoreError::Missing { key: key.clone() }));
    let old = one.create(&key, &sample.value(1)).expect("create");
    let new = other.update(&key, &sample.value(2), old).expect("update");
    assert_eq!(one.update(&key, &sample.value(3), old), changed.clone());
    assert_eq!(one.delete(&key, old), changed.map(|_: Revision| ()));
    let entry = one.get(&key).expect("get").expect("entry");
    assert_eq!(sample.number(&entry.value), 2);
    other.delete(&key, new).expect("delete");
    assert_eq!(one.update(&key, &sample.value(3), new), missing.clone());
    assert_eq!(one.delete(&key, new), missing.map(|_: Revision| ()));
    assert_eq!(one.get(&key).expect("get"), None, "an update does not create");
    empty(open);
}

/// A key that is created again after a deletion has a new revision: otherwise a suspended client would mistake it for
/// the old one.
fn a_revision_is_never_used_twice(open: Open<'_>, sample: &Sample) {
    let (store, key, value) = (open(), (sample.key)(0), sample.value(1));
    let mut last = None;
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let made = store.create(&key, &value).expect("create");
        assert!(seen.insert(made), "a revision was used twice");
        if let Some(last) = last {
            assert_eq!(store.update(&key, &value, last), Err(StoreError::Changed { key: key.clone() }));
        }
        let other = store.update(&key, &sample.value(2), made).expect("update");
        assert!(seen.insert(other), "a revision was used twice");
        assert_eq!(store.update(&key, &value, made), Err(StoreError::Changed { key: key.clone() }));
        store.delete(&key, other).expect("delete");
        last = Some(other);
    }
    empty(open);
}

fn an_unchanged_value_gets_a_new_revision(open: Open<'_>) {
    let store = open();
    let made = store.create("/a", b"same").expect("create");
    let same = store.update("/a", b"same", made).expect("update");
    assert_ne!(made, same);
    assert_eq!(store.update("/a", b"same", made), Err(StoreError::Changed { key: "/a".into() }));
    empty(open);
}

fn lists_are_sorted_and_filtered_by_prefix(open: Open<'_>) {
    let store = open();
    for key in ["/x/b", "/x/a", "/x/a/deep", "/x", "/xy", "/y/a", "/x/ä", "/x/%", "/x/_"] {
        store.create(key, key.as_bytes()).expect("create");
    }
    let keys = |prefix: &str| -> Vec<String> {
        store.list(prefix).expect("list").into_iter().map(|entry| entry.key).collect()
    };
    assert_eq!(keys("/x/"), ["/x/%", "/x/_", "/x/a", "/x/a/deep", "/x/b", "/x/ä"]);
    assert_eq!(keys("/x/a"), ["/x/a", "/x/a/deep"]);
    assert_eq!(keys("/x/%"), ["/x/%"], "a prefix is not a pattern");
    assert_eq!(keys("/X"), Vec::<String>::new(), "keys are case-sensitive");
    assert_eq!(keys("").len(), 9);
    for prefix in ["", "/x", "/x/", "/x/a", "/X"] {
        assert_eq!(store.keys(prefix).expect("keys"), keys(prefix), "keys and list agree");
    }
    let entry = &store.list("/y").expect("list")[0];
    assert_eq!(Some(entry), store.get("/y/a").expect("get").as_ref(), "list and get agree");
    empty(open);
}

fn arbitrary_keys_and_values_are_kept(open: Open<'_>) {
    let store = open();
    let large: Vec<u8> = (0..200_000u32).map(|number| number as u8).collect();
    for (key, value) in
        [("/empty", &b""[..]), ("/zero", b"\0\xff\xfe"), ("/large", &large), ("/'; --\n\"", b"x")]
    {
        let revision = store.create(key, value).expect("create");
        assert_eq!(store.get(key).expect("get").expect("entry").value, value);
        store.update(key, value, revision).expect("update");
    }
    empty(open);
}

fn one_of_many_writers_wins(open: Open<'_>, sample: &Sample) {
    const WRITERS: usize = 4;
    for round in 0..5 {
        let barrier = Barrier::new(WRITERS);
        let won = std::thread::scope(|scope| {
            let write = |number: usize| {
                let (store, barrier) = (open(), &barrier);
                move || {
                    let create = |key| store.create(&(sample.key)(key), &(sample.write)(key, number)).is_ok();
                    barrier.wait();
                    match round % 2 {
                        0 => create(0),
                        _ => create(number + 1) && create(0),
                    }
                }
            };
            let writers: Vec<_> = (0..WRITERS).map(|number| scope.spawn(write(number))).collect();
            writers.into_iter().map(|writer| writer.join().expect("a writer")).filter(|won| *won).count()
        });
        assert_eq!(won, 1, "one of {WRITERS} writers creates the key");
        empty(open);
    }
}

fn concurrent_counting_loses_nothing(open: Open<'_>, sample: &Sample) {
    const CLIENTS: usize = 3;
    const TIMES: usize = 15;
    let (first, key) = (open(), (sample.key)(0));
    first.create(&key, &sample.value(0)).expect("create");
    std::thread::scope(|scope| {
        for store in (0..CLIENTS).map(|_| open()) {
            let key = &key;
            scope.spawn(move || {
                let mut done = 0;
                while done < TIMES {
                    let entry = store.get(key).expect("get").expect("the count");
                    let count = sample.number(&entry.value);
                    match store.update(key, &sample.value(count + 1), entry.revision) {
                        Ok(_) => done += 1,
                        Err(StoreError::Changed { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let entry = first.get(&key).expect("get").expect("the count");
    assert_eq!(sample.number(&entry.value), CLIENTS * TIMES);
    empty(open);
}

/// A deletion is atomic, even if a store needs two steps.
fn a_key_has_one_creator_at_a_time(open: Open<'_>, sample: &Sample) {
    const CLIENTS: usize = 3;
    const TIMES: usize = 8;
    let (key, is_held) = ((sample.key)(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for store in (0..CLIENTS).map(|_| open()) {
            let (key, is_held) = (&key, &is_held);
            scope.spawn(move || {
                let mut done = 0;
                while done < TIMES {
                    match store.create(key, &sample.value(done)) {
                        Ok(revision) => {
                            assert!(!is_held.swap(true, Ordering::SeqCst), "two clients have created it");
                            let entry = store.get(key).expect("get").expect("the new key");
                            assert_eq!((entry.revision, sample.number(&entry.value)), (revision, done));
                            is_held.store(false, Ordering::SeqCst);
                            store.delete(key, revision).expect("no other client changes it");
                            done += 1;
                        }
                        Err(StoreError::Exists { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(open().get(&key).expect("get"), None);
    empty(open);
}

fn records_are_listed_by_key(open: Open<'_>) {
    let store = open();
    let affinities = [
        "/calico/ipam/v2/host/node1/ipv4/block/10.0.0.0-32",
        "/calico/ipam/v2/host/node1/ipv6/block/fd00::-122",
        "/calico/ipam/v2/host/node10/ipv4/block/10.0.0.1-32",
        "/calico/ipam/v2/virtual/node1/ipv4/block/10.0.0.2-32",
    ];
    for key in affinities.iter().rev() {
        store.create(key, br#"{"state":"pending","deleted":false}"#).expect("create");
    }
    let others = || sample::RECORDS.iter().filter(|sample| !(sample.key)(0).contains("/host/"));
    for sample in others() {
        store.create(&(sample.key)(0), &sample.value(1)).expect("create");
    }
    let keys = |prefix: &str| -> Vec<String> {
        store.list(prefix).expect("list").into_iter().map(|entry| entry.key).collect()
    };
    assert_eq!(keys("/calico/ipam/v2/host/node1/"), affinities[..2]);
    assert_eq!(keys("/calico/ipam/v2/host/node1/ipv6/"), affinities[1..2]);
    assert_eq!(keys("/calico/ipam/v2/host/node1"), affinities[..3]);
    assert_eq!(keys("/calico/ipam/v2/host/"), affinities[..3]);
    assert_eq!(keys("/calico/ipam/v2/virtual/"), affinities[3..]);
    assert_eq!(keys("/calico/ipam/v2/assignment/"), [(sample::BLOCK.key)(0)]);
    assert_eq!(keys("/calico/ipam/v2/handle/"), [(sample::HANDLE.key)(0)]);
    assert_eq!(keys("/calico/ipam/v2/assignment/ipv6/"), Vec::<String>::new());
    for prefix in
        ["", "/calico/ipam/v2/assignment/", "/calico/ipam/v2/assignment/ipv4/", "/calico/ipam/v2/handle/"]
    {
        assert_eq!(store.keys(prefix).expect("keys"), keys(prefix), "keys and list agree");
    }
    assert_eq!(store.keys("/calico/ipam/v2/assignment/ipv6/"), Ok(vec![]));
    let all = keys("");
    assert_eq!(all.len(), affinities.len() + others().count());
    assert!(all.is_sorted(), "{all:?}");
    for entry in store.list("").expect("list") {
        assert_eq!(Some(&entry), store.get(&entry.key).expect("get").as_ref(), "list and get agree");
    }
    empty(open);
}

fn a_large_block_is_kept(open: Open<'_>) {
    let (store, key) = (open(), "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-20");
    let value = sample::block("10.0.0.0/20", 4096, 1);
    store.create(key, &value).expect("create");
    let entry = store.get(key).expect("get").expect("the block");
    assert_eq!(entry.value, value, "byte for byte");
    empty(open);
}

fn now() -> Timestamp {
    Timestamp::from_unix_nanos(1_787_405_600_000_000_000)
}

/// Two pods on two nodes start and stop. The records are Calico's.
fn pods_start_and_stop(open: Open<'_>) {
    let store = open();
    let allocator = Allocator::new(&*store, now);
    allocator
        .add_pool(&Pool::new("pods", "10.244.1.0/29".parse().expect("a network")).with_block_size(30))
        .expect("a pool");
    let rules = Rules::load(&*store).expect("rules");
    let first =
        allocator.assign(&rules, &Request::new(AffinityOwner::host("node1"), "net.one")).expect("an address");
    let [address] = first.addresses[..] else { panic!("{first:?}") };
    let block = address.trunc();
    let tail = format!("ipv4/block/{}-30", block.addr());
    let keys: Vec<String> =
        store.list("/calico/ipam/").expect("list").into_iter().map(|entry| entry.key).collect();
    let wanted = [
        format!("/calico/ipam/v2/assignment/{tail}"),
        "/calico/ipam/v2/handle/net.one".into(),
        format!("/calico/ipam/v2/host/node1/{tail}"),
    ];
    assert_eq!(keys, wanted);
    let handle = store.get(&keys[1]).expect("get").expect("the handle").value;
    assert_eq!(String::from_utf8_lossy(&handle), format!(r#"{{"block":{{"{block}":1}},"deleted":false}}"#));
    assert_eq!(allocator.addresses_of("net.one").expect("by handle"), [address.addr()]);

    let other = open();
    let theirs = Allocator::new(&*other, now);
    let conflict =
        theirs.assign_address(&rules, &Request::new(AffinityOwner::host("node2"), "net.two"), address.addr());
    assert!(matches!(conflict, Err(Error::Taken { .. })), "{conflict:?}");
    let second =
        theirs.assign(&rules, &Request::new(AffinityOwner::host("node2"), "net.two")).expect("an address");
    assert_ne!(second.addresses[0].trunc(), block, "another node gets another block");
    let stale = Release { handle: Some("net.two".into()), ..Release::of(address.addr()) };
    assert!(matches!(theirs.release(&rules, &[stale]), Err(Error::Stale { .. })));
    assert_eq!(theirs.release(&rules, &[Release::of(second.addresses[0].addr())]), Ok(vec![]));
    assert_eq!(allocator.release_handle(&rules, "net.one"), Ok(vec![address.addr()]));
    assert_eq!(allocator.release_handle(&rules, "net.one"), Ok(vec![]), "DEL may be repeated");
    assert_eq!(allocator.check(&rules).expect("check").problems, []);
    allocator.release_all_affinities(&AffinityOwner::host("node1"), true).expect("drain");
    allocator.release_all_affinities(&AffinityOwner::host("node2"), true).expect("drain");
    assert_eq!(store.list("/calico/ipam/").expect("list"), []);
    empty(open);
}

fn concurrent_nodes_never_share_an_address(open: Open<'_>) {
    const NODES: usize = 3;
    const PODS: usize = 6;
    let store = open();
    let allocator = Allocator::new(&*store, now);
    allocator
        .add_pool(&Pool::new("pods", "fd00::/123".parse().expect("a network")).with_block_size(126))
        .expect("a pool");
    let rules = Arc::new(Rules { config: Config::default(), ..Rules::load(&*store).expect("rules") });
    let all: Vec<IpAddr> = std::thread::scope(|scope| {
        let node = |number: usize| {
            let (store, rules) = (open(), Arc::clone(&rules));
            move || {
                let allocator = Allocator::new(&*store, now);
                let pod = |pod: usize| {
                    let mut request = Request::new(
                        AffinityOwner::host(format!("node{number}")),
                        format!("net.{number}-{pod}"),
                    );
                    request.family = crate::IpFamily::V6;
                    let assigned = allocator.assign(&rules, &request).expect("an address");
                    assert_eq!(assigned.shortage, None);
                    assigned.addresses[0].addr()
                };
                (0..PODS).map(pod).collect::<Vec<_>>()
            }
        };
        let nodes: Vec<_> = (0..NODES).map(|number| scope.spawn(node(number))).collect();
        nodes.into_iter().flat_map(|node| node.join().expect("a node")).collect()
    });
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), NODES * PODS, "{all:?}");
    assert_eq!(allocator.check(&rules).expect("check").problems, []);
    let swept = allocator.sweep(&rules, |handle| handle.starts_with("net.0")).expect("sweep");
    assert_eq!((swept.addresses.len(), swept.errors), ((NODES - 1) * PODS, vec![]));
    assert_eq!(allocator.handles().expect("handles").len(), PODS);
    empty(open);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;

    #[test]
    fn memory_passes_the_suite() {
        let memory = Arc::new(Memory::new());
        run(&|| Box::new(Arc::clone(&memory)));
    }
}
