use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp::from_unix_nanos(1_787_405_600_100_000_000);

fn later(seconds: u64) -> Timestamp {
    Timestamp::from_unix_nanos(NOW.unix_nanos() + seconds * 1_000_000_000)
}

fn block(cidr: &str) -> Block {
    Block::new(cidr.parse().unwrap(), &AffinityOwner::host("node1"), NOW)
}

fn holder(handle: &str) -> Attribute {
    let pairs = [("pod", "p"), ("namespace", "d"), ("node", "node1")];
    let secondary = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    Attribute::new(handle, secondary)
}

fn text(block: &Block) -> String {
    String::from_utf8(block.encode().unwrap()).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn none() -> Reservations {
    Reservations::default()
}

#[test]
fn the_bytes_are_calicos() {
    let mut block = block("10.244.1.0/30");
    assert_eq!(
        text(&block),
        r#"{"cidr":"10.244.1.0/30","affinity":"host:node1","affinity_claim_time":"2026-08-22T13:33:20Z","allocations":[null,null,null,null],"unallocated":[0,1,2,3],"attributes":[],"sequenceNumber":1787405600100000000,"sequenceNumberForAllocation":{},"deleted":false}"#
    );
    block.assign(2, &holder("k8s-pod-network.4711"), &none());
    block.increment_sequence();
    assert_eq!(
        text(&block),
        r#"{"cidr":"10.244.1.0/30","affinity":"host:node1","affinity_claim_time":"2026-08-22T13:33:20Z","allocations":[0,0,null,null],"unallocated":[2,3],"attributes":[{"handle_id":"k8s-pod-network.4711","secondary":{"namespace":"d","node":"node1","pod":"p"}}],"sequenceNumber":1787405600100000001,"sequenceNumberForAllocation":{"0":1787405600100000000,"1":1787405600100000000},"deleted":false}"#
    );
    assert_eq!(Block::decode(text(&block).as_bytes()).unwrap(), block);
}

/// As Calico 3.31, 3.32 and its next release write it: maps with sorted keys, `null` for nil values, unknown fields.
#[test]
fn calicos_records_are_kept_byte_by_byte() {
    let written = [
        r#"{"cidr":"fd00::40/126","affinity":null,"allocations":[null,0,null,1],"unallocated":[2,0],"attributes":[{"handle_id":"vxlan-v6-tunnel-addr-n","secondary":{"node":"n","type":"vxlanV6TunnelAddress"},"alternateOwnerAttrs":{"pod":"next"}},{"releasedAt":"2026-08-22T13:33:20Z"}],"sequenceNumber":7,"sequenceNumberForAllocation":{"1":6},"deleted":false,"fromTheFuture":{"a":[1,2.5,null]}}"#,
        r#"{"cidr":"10.0.0.0/31","affinity":"virtual:load-balancer","allocations":[0,null],"unallocated":[1],"attributes":[{"handle_id":"a\u003cb"}],"sequenceNumber":7,"sequenceNumberForAllocation":{},"deleted":false,"hostAffinity":"old"}"#,
    ];
    for json in written {
        assert_eq!(text(&Block::decode(json.as_bytes()).unwrap()), json);
    }
    let fresh = r#"{"cidr":"10.0.0.0/32","affinity":"host:n","allocations":[null],"unallocated":[0],"attributes":null,"sequenceNumber":1,"sequenceNumberForAllocation":null,"deleted":false}"#;
    assert!(Block::decode(fresh.as_bytes()).unwrap().is_empty());
    let legacy = r#"{"cidr":"10.0.0.0/32","affinity":null,"hostAffinity":"n","allocations":[null],"unallocated":[0],"attributes":[]}"#;
    assert_eq!(Block::decode(legacy.as_bytes()).unwrap().owner(), Some(AffinityOwner::host("n")));
}

#[test]
fn an_inconsistent_block_is_rejected() {
    let block = |cidr: &str, allocations: &str, unallocated: &str| {
        let json = format!(
            r#"{{"cidr":"{cidr}","affinity":null,"allocations":{allocations},"unallocated":{unallocated},"attributes":[{{}}]}}"#
        );
        Block::decode(json.as_bytes()).map(drop)
    };
    assert_eq!(block("10.0.0.0/31", "[null,0]", "[0]"), Ok(()));
    for (cidr, allocations, unallocated) in [
        ("10.0.0.1/31", "[null,0]", "[0]"),
        ("10.0.0.0/30", "[null,0]", "[0]"),
        ("0.0.0.0/0", "[null,0]", "[0]"),
        ("10.0.0.0/31", "[null,1]", "[0]"),
        ("10.0.0.0/31", "[null,0]", "[]"),
        ("10.0.0.0/31", "[null,0]", "[0,0]"),
        ("10.0.0.0/31", "[null,0]", "[0,1]"),
        ("10.0.0.0/31", "[null,0]", "[0,2]"),
        ("10.0.0.0/31", "[null,-1]", "[0]"),
    ] {
        assert!(block(cidr, allocations, unallocated).is_err(), "{cidr} {allocations} {unallocated}");
    }
}

#[test]
fn the_address_that_was_free_longest_is_assigned_next() {
    let mut block = block("10.0.0.0/30");
    let first = block.assign(1, &holder("a"), &none());
    block.release(&first, NOW, 0);
    let next: Vec<_> = (0..4).flat_map(|_| block.assign(1, &holder("b"), &none())).collect();
    assert_eq!(next, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.0"].map(ip));
    assert!(block.assign(1, &holder("c"), &none()).is_empty());
}

#[test]
fn reserved_addresses_are_assigned_only_on_request() {
    let reserved = Reservations::new(["10.0.0.0/31".parse().unwrap()]);
    let mut block = block("10.0.0.0/30");
    assert_eq!(block.free(&reserved), 2);
    assert_eq!(block.assign(9, &holder("a"), &reserved), ["10.0.0.2", "10.0.0.3"].map(ip));
    assert!(
        block.assign_address(ip("10.0.0.1"), &holder("b"))
            && !block.assign_address(ip("10.0.0.1"), &holder("c"))
    );
    assert!(!block.assign_address(ip("10.9.0.1"), &holder("b")));
    assert_eq!(block.allocation(ip("10.0.0.1")).unwrap().attribute.handle(), Some("b"));
}

#[test]
fn attributes_are_shared_and_removed_with_their_last_address() {
    let mut block = block("10.0.0.0/30");
    for handle in ["a", "b", "a"] {
        block.assign(1, &holder(handle), &none());
    }
    assert_eq!(block.attributes.len(), 2);
    block.release(&[ip("10.0.0.0")], NOW, 0);
    assert_eq!((block.attributes.len(), block.of_handle("a")), (2, vec![ip("10.0.0.2")]));
    block.release(&[ip("10.0.0.2")], NOW, 0);
    assert_eq!((block.attributes.len(), block.of_handle("b")), (1, vec![ip("10.0.0.1")]));
}

#[test]
fn an_address_that_cools_down_has_no_holder_and_is_not_free() {
    let mut block = block("10.0.0.0/31");
    let assigned = block.assign(2, &holder("a"), &none());
    block.release(&assigned[..1], NOW, 30);
    assert!(block.of_handle("a") == assigned[1..] && block.free(&none()) == 0 && !block.is_empty());
    block.release(&assigned[1..], later(10), 30);
    assert_eq!(block.attributes.len(), 2, "each has its own release time");
    block.free_cooled_down(later(29), 30);
    assert_eq!(block.free(&none()), 0);
    block.free_cooled_down(later(30), 30);
    assert_eq!(block.free(&none()), 1);
    block.free_cooled_down(later(40), 30);
    assert!(block.is_empty() && block.attributes.is_empty());
}

#[test]
fn addresses_of_the_block_itself_do_not_count_as_in_use() {
    let mut block = block("10.0.0.0/30");
    block.assign(1, &holder("windows-reserved-ipam-handle"), &none());
    assert!(block.is_empty());
}

proptest! {
    #[test]
    fn every_address_is_always_free_or_in_use(acts in prop::collection::vec((0..4u8, 0..8u8, 0..3u8), 0..60)) {
        let mut block = block("fd00::/125");
        for (act, address, handle) in acts {
            let address = ip(&format!("fd00::{address}"));
            let handle = holder(&handle.to_string());
            match act {
                0 => drop(block.assign(1 + usize::from(handle.handle_id == Some("1".into())), &handle, &none())),
                1 => drop(block.assign_address(address, &handle)),
                2 => block.release(&[address], NOW, 0),
                _ => block.release(&[address], NOW, 5),
            }
            block.increment_sequence();
            prop_assert_eq!(block.validate(), Ok(()));
            prop_assert_eq!(Block::decode(&block.encode().unwrap()), Ok(block.clone()));
            let used: std::collections::BTreeSet<_> = block.allocations.iter().flatten().collect();
            prop_assert_eq!(used.len(), block.attributes.len(), "no attribute without an address");
        }
        block.free_cooled_down(later(5), 5);
        let all: Vec<IpAddr> = block.allocations().map(|allocation| allocation.ip).collect();
        block.release(&all, NOW, 0);
        prop_assert!(block.is_empty() && block.free(&none()) == 8);
    }

    #[test]
    fn the_parser_never_panics(allocations in prop::collection::vec(prop::option::of(0..3i32), 0..5), free in prop::collection::vec(-1..6i32, 0..5)) {
        let json = serde_json::json!({"cidr": "10.0.0.0/30", "affinity": null, "allocations": allocations, "unallocated": free, "attributes": [{}, {}]});
        let _ = Block::decode(json.to_string().as_bytes()).map(|mut block| block.free_cooled_down(NOW, 0));
    }
}
