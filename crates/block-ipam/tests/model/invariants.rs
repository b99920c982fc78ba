//! The invariants of every world.

use std::collections::BTreeMap;
use std::net::IpAddr;

use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{AffinityOwner, Block, State};

use crate::explorer::{allocator, Scenario};
use crate::stepwise::{StoreState, Whole};

/// `holds` are the addresses that pods use.
pub fn hold(scenario: &Scenario, state: &StoreState, holds: &[(IpAddr, &str)]) {
    let whole = Whole(state.clone().into());
    let now = || Timestamp::from_unix_nanos(1_787_405_700_000_000_000);
    let allocator = allocator(&whole, now);
    let name = scenario.name;
    // A malformed block has an address that is both free and in use, or neither.
    let blocks: Vec<Block> =
        allocator.blocks().unwrap().into_iter().map(|block| block.expect(name)).collect();

    let mut claimed = BTreeMap::new();
    for (owner, cidr, affinity) in allocator.affinities(None).unwrap() {
        if affinity.state == State::Confirmed {
            let block = blocks.iter().find(|block| block.cidr() == cidr);
            let holder = block.and_then(Block::owner);
            assert_eq!(holder, Some(owner.clone()), "{name}: a confirmed claim to {cidr} lies");
            assert_eq!(claimed.insert(cidr, owner), None, "{name}: two claims to {cidr}");
        }
    }

    let handles: BTreeMap<_, _> = allocator.handles().unwrap().into_iter().collect();
    for block in &blocks {
        for allocation in block.allocations() {
            let Some(handle) = allocation.attribute.handle() else { continue };
            let counted = handles.get(handle).map_or(0, |record| record.count(block.cidr()));
            let held = block.of_handle(handle).len();
            assert!(counted >= held, "{name}: {handle} counts {counted} of {held} in {}", block.cidr());
        }
    }

    let mut users: BTreeMap<IpAddr, &str> = BTreeMap::new();
    for (ip, handle) in holds {
        let other = users.insert(*ip, handle);
        assert_eq!(other, None, "{name}: {ip} has two owners");
        let allocation = blocks.iter().find_map(|block| block.allocation(*ip));
        let holder = allocation.and_then(|allocation| allocation.attribute.handle());
        assert_eq!(holder, Some(*handle), "{name}: {ip} was taken from its pod");
    }
}

/// Releases all handles, once as DEL does and once as a sweep does. Nothing may be left.
pub fn nothing_is_lost(scenario: &Scenario, state: &StoreState) {
    let (name, rules) = (scenario.name, &scenario.rules);
    let whole = &Whole(state.clone().into());
    let later = || Timestamp::from_unix_nanos(1_787_409_200_000_000_000);
    let much_later = || Timestamp::from_unix_nanos(1_787_412_800_000_000_000);
    let clean = |how: &str| {
        let allocator = allocator(whole, much_later);
        allocator.free_cooled_down(rules).expect(name);
        for owner in ["node1", "node2", "node3"].map(AffinityOwner::host) {
            allocator.release_all_affinities(&owner, true).expect(name);
        }
        let left: Vec<_> = whole.0.borrow().entries("").into_iter().map(|entry| entry.key).collect();
        assert!(left.is_empty(), "{name}: {how} leaves {left:?}");
    };
    for handle in scenario.handles {
        allocator(whole, later).release_handle(rules, handle).expect(name);
    }
    clean("release by handle");
    *whole.0.borrow_mut() = state.clone();
    let swept = allocator(whole, later).sweep(rules, |_| false).expect(name);
    assert!(swept.errors.is_empty(), "{name}: {:?}", swept.errors);
    clean("a sweep");
}
