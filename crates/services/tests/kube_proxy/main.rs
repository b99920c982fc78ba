//! The real kube-proxy in nftables mode and ours with the same objects, in twin testbeds: the same packets must reach the
//! same endpoints with the same source addresses, or be refused in the same way.
//!
//! A failure prints the world's objects and, for each probe that differs, what both sides saw. `PODWIRE_TEST_SEED` repeats
//! the random worlds of a run; `PODWIRE_WORLDS=3,17` selects some of them.
//!
//! kube-proxy is built from Go modules, so only `make test-all` runs this. Its API server is a stand-in. Needs root, `ip`,
//! `nft` and `sysctl`.

#![allow(clippy::unwrap_used)]

mod by_hand;
mod differences;
mod peer;
mod probes;
mod random;
#[allow(dead_code)]
#[path = "../packets/testbed.rs"]
mod testbed;
mod twins;
mod world;

use std::time::Instant;

use podwire_tests::seed;

use twins::Twins;
use world::World;

/// The number of random worlds.
const WORLDS: usize = 300;
/// A world that differs takes minutes, so the comparison ends after this number of them.
const MAX_FAILURES: usize = 5;

#[test]
fn worlds_written_by_hand_are_the_same() {
    check(by_hand::worlds());
}

#[test]
fn random_worlds_are_the_same() {
    let numbers = match std::env::var("PODWIRE_WORLDS") {
        Ok(text) => text.split(',').map(|number| number.parse().unwrap()).collect(),
        Err(_) => (0..WORLDS).collect::<Vec<_>>(),
    };
    check(numbers.into_iter().map(|number| random::world(seed(), number)).collect());
}

/// Compares all worlds and reports every one that differs.
fn check(worlds: Vec<World>) {
    let Some(program) = peer::program() else { return };
    let mut twins = Twins::start(&program);
    let mut failures = Vec::new();
    for world in &worlds {
        let begin = Instant::now();
        let differences = twins.compare(world);
        println!("{}: {} differences, {:.1?}", world.name, differences.len(), begin.elapsed());
        if !differences.is_empty() {
            failures.push(format!("{}\n{}\n{}", world.name, differences.join("\n"), world.text()));
        }
        if failures.len() == MAX_FAILURES {
            break;
        }
    }
    let failed = failures.len();
    assert_eq!(failed, 0, "{failed} worlds differ, seed {}:\n{}", seed(), failures.join("\n\n"));
}
