//! The claim to a node's blocks: one process has it.

use std::time::{Duration, Instant};

use podwire_block_ipam::store::{Memory, Store};
use podwire_block_ipam::{Error, Key, NodeOwner, Ownership};

const DURATION: Duration = Duration::from_millis(400);

fn owner(id: &str, machine_id: &str, pid: u32) -> NodeOwner {
    NodeOwner {
        id: id.into(),
        host: "worker-7".into(),
        machine_id: machine_id.into(),
        boot_id: "b".into(),
        run_id: format!("run {pid}"),
        pid,
        since: "2026-01-01T00:00:00Z".into(),
    }
}

/// A process with the same state directory, or a copy of it, as that of `claim("one", "m1")`.
fn same_directory(pid: u32, boot_id: &str, duration: Duration) -> Ownership {
    let own = NodeOwner { boot_id: boot_id.into(), ..owner("one", "m1", pid) };
    Ownership::new("node1", own, duration)
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

/// A copy of the state directory on a machine with the same id, for example of a container. The former owner stops with
/// the identity of the other, and does not take the node back while the other one runs.
#[test]
fn an_owner_stands_down_when_a_clone_claims_the_node() {
    let store = Memory::new();
    let (mut original, mut clone) = (claim("one", "m1"), same_directory(99, "b", DURATION));
    original.hold(&store).unwrap();
    clone.hold(&store).unwrap();
    std::thread::sleep(original.until_renewal());
    let text = original.hold(&store).unwrap_err().to_string();
    assert!(text.contains("node1") && text.contains("process 99"), "{text}");
    let end = Instant::now() + 3 * DURATION;
    while Instant::now() < end {
        clone.hold(&store).unwrap();
        assert!(matches!(original.hold(&store), Err(Error::NodeOwned { .. })));
        std::thread::sleep(DURATION / 20);
    }
    // The clone ends.
    let begun = Instant::now();
    while original.hold(&store).is_err() {
        assert!(begun.elapsed() < 20 * DURATION);
        std::thread::sleep(DURATION / 20);
    }
    assert!(clone.hold(&store).unwrap_err().to_string().contains("process 4711"));
}

/// A machine with a copied disk must not release the addresses of the pods of the machine that still runs.
#[test]
fn a_clone_of_another_boot_is_refused_while_the_owner_runs() {
    let store = Memory::new();
    // The time in a record has whole seconds.
    let duration = Duration::from_secs(6);
    let mut original = Ownership::new("node1", owner("one", "m1", 4711), duration);
    let mut clone = same_directory(99, "other", duration);
    let end = Instant::now() + duration;
    while Instant::now() < end {
        original.hold(&store).unwrap();
        assert!(matches!(clone.hold(&store), Err(Error::NodeOwned { .. })));
        std::thread::sleep(DURATION / 20);
    }
    let begun = Instant::now();
    while clone.hold(&store).is_err() {
        assert!(begun.elapsed() < duration, "it waits for half of the duration");
        std::thread::sleep(DURATION / 20);
    }
}

#[test]
fn a_machine_that_was_down_has_its_claim_at_once_after_the_boot() {
    let store = Memory::new();
    claim("one", "m1").hold(&store).unwrap();
    let key = Key::NodeOwner("node1".into()).to_string();
    let entry = store.get(&key).unwrap().unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
    record["renewed"] = "2026-01-01T00:00:00Z".into();
    store.update(&key, record.to_string().as_bytes(), entry.revision).unwrap();
    same_directory(99, "other", DURATION).hold(&store).unwrap();
}
