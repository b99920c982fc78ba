//! The claim to a node's blocks: one process has it.

use std::time::{Duration, Instant};

use podwire_block_ipam::store::{Memory, Store};
use podwire_block_ipam::{Error, Key, NodeOwner, Ownership};

const DURATION: Duration = Duration::from_millis(400);

fn owner(id: &str, machine_id: &str, pid: u32) -> NodeOwner {
    let (host, since) = ("worker-7".to_owned(), "2026-01-01T00:00:00Z".to_owned());
    NodeOwner { id: id.into(), host, machine_id: machine_id.into(), boot_id: "b".into(), pid, since }
}

fn claim(id: &str, machine_id: &str) -> Ownership {
    Ownership::new("node1", owner(id, machine_id, 4711), DURATION)
}

#[test]
fn a_second_process_is_refused_with_the_identity_of_the_first() {
    let store = Memory::new();
    let (mut first, mut second) = (claim("one", "m1"), claim("two", "m1"));
    first.hold(&store).unwrap();
    let text = second.hold(&store).unwrap_err().to_string();
    for part in ["node1", "process 4711", "worker-7", "m1", "since 2026-01-01T00:00:00Z"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    // While the first renews its claim, the second stays refused.
    let end = Instant::now() + 3 * DURATION;
    while Instant::now() < end {
        first.hold(&store).unwrap();
        assert!(matches!(second.hold(&store), Err(Error::NodeOwned { .. })));
        std::thread::sleep(DURATION / 20);
    }
    let other_node = Ownership::new("node2", owner("two", "m1", 1), DURATION).hold(&store);
    other_node.unwrap();
}

#[test]
fn an_expired_claim_is_taken_over_and_its_former_owner_is_refused() {
    let store = Memory::new();
    let (mut first, mut second) = (claim("one", "m1"), claim("two", "m1"));
    first.hold(&store).unwrap();
    let begun = Instant::now();
    while second.hold(&store).is_err() {
        assert!(begun.elapsed() < 20 * DURATION);
        std::thread::sleep(DURATION / 20);
    }
    assert!(begun.elapsed() >= DURATION, "{:?}", begun.elapsed());
    assert!(matches!(first.hold(&store), Err(Error::NodeOwned { .. })));
    assert!(first.until_renewal().is_zero());
}

#[test]
fn a_process_that_starts_again_has_its_claim_at_once() {
    let store = Memory::new();
    claim("one", "m1").hold(&store).unwrap();
    let mut again = Ownership::new("node1", owner("one", "m1", 99), DURATION);
    again.hold(&store).unwrap();
    assert!(!again.until_renewal().is_zero());
    // Its disk was copied to another machine.
    assert!(claim("one", "m2").hold(&store).is_err());
}

#[test]
fn a_deleted_or_malformed_record_is_replaced() {
    let store = Memory::new();
    let mut first = claim("one", "m1");
    first.hold(&store).unwrap();
    let key = Key::NodeOwner("node1".into()).to_string();
    let entry = store.get(&key).unwrap().unwrap();
    store.delete(&key, entry.revision).unwrap();
    std::thread::sleep(DURATION / 4);
    first.hold(&store).unwrap();
    let entry = store.get(&key).unwrap().unwrap();
    store.update(&key, b"nonsense", entry.revision).unwrap();
    let mut second = claim("two", "m1");
    assert!(second.hold(&store).is_err(), "it may be of a newer version");
    std::thread::sleep(DURATION);
    second.hold(&store).unwrap();
}
