//! The scenarios.

use podwire_block_ipam::{
    AffinityOwner, Allocator, Config, Error, Pool, Refill, Release, Request, Rules, Transfer,
};

use crate::explorer::{Diary, Scenario, BEGINNING};
use crate::stepwise::Counted;

/// Rules with one pool.
fn rules(cidr: &str, length: u8, config: Config) -> Rules {
    let pool = Pool::new("pool", cidr.parse().unwrap()).with_block_size(length);
    Rules { config, pools: vec![pool], ..Rules::default() }
}

fn borrowing() -> Config {
    Config::default()
}

fn strict() -> Config {
    Config { strict_affinity: true, ..Config::default() }
}

fn cooling() -> Config {
    Config { ip_cooldown_seconds: 30, ..Config::default() }
}

/// Starts a pod.
fn add(
    allocator: &Allocator<'_>,
    rules: &Rules,
    diary: &mut Diary,
    node: &str,
    handle: &'static str,
) -> Result<(), Error> {
    let assigned = allocator.assign(rules, &Request::new(AffinityOwner::host(node), handle))?;
    diary.holds.extend(assigned.ips().map(|ip| (ip, handle)));
    Ok(())
}

/// Stops a pod. It does not use its address from the beginning on.
fn del(
    allocator: &Allocator<'_>,
    rules: &Rules,
    diary: &mut Diary,
    handle: &'static str,
) -> Result<(), Error> {
    diary.holds.retain(|(_, holder)| *holder != handle);
    allocator.release_handle(rules, handle).map(drop)
}

/// An ADD that the runtime retries after a DEL if it fails.
fn insist(
    allocator: &Allocator<'_>,
    rules: &Rules,
    diary: &mut Diary,
    node: &str,
    handle: &'static str,
) -> Result<(), Error> {
    if add(allocator, rules, diary, node, handle).is_err() {
        del(allocator, rules, diary, handle)?;
        add(allocator, rules, diary, node, handle)?;
    }
    Ok(())
}

fn nothing(_: &Allocator<'_>, _: &Rules, _: &mut Diary) -> Result<(), Error> {
    Ok(())
}

/// Explores a scenario on both kinds of stores.
fn explore(scenario: Scenario) {
    for counted in [Counted::Writes, Counted::Changes] {
        let begin = std::time::Instant::now();
        let worlds = scenario.explore(counted);
        println!("{}, by {counted:?}: {worlds} worlds in {:?}", scenario.name, begin.elapsed());
        assert!(worlds > 100, "{}: only {worlds} worlds", scenario.name);
    }
}

const HANDLES: &[&str] = &["net.a", "net.b", "net.c"];

#[test]
fn two_nodes_start_their_first_pods_in_a_pool_of_one_block() {
    explore(Scenario {
        name: "one block for two",
        rules: rules("10.0.0.0/31", 31, borrowing()),
        left_behind: &[],
        before: nothing,
        nodes: vec![
            |allocator, rules, diary| {
                add(allocator, rules, diary, "node1", "net.a")?;
                del(allocator, rules, diary, "net.a")
            },
            |allocator, rules, diary| add(allocator, rules, diary, "node2", "net.b"),
        ],
        deaths: 2,
        lost_answers: 1,
        interruptions: 2,
        handles: HANDLES,
    });
}

#[test]
fn two_processes_of_one_node() {
    explore(Scenario {
        name: "two processes of a node",
        rules: rules("10.0.0.0/30", 31, strict()),
        left_behind: &[],
        before: nothing,
        nodes: vec![
            |allocator, rules, diary| add(allocator, rules, diary, "node1", "net.a"),
            |allocator, rules, diary| {
                add(allocator, rules, diary, "node1", "net.b")?;
                del(allocator, rules, diary, "net.b")
            },
        ],
        deaths: 1,
        lost_answers: 0,
        interruptions: 3,
        handles: HANDLES,
    });
}

fn one_block_of_node1(allocator: &Allocator<'_>, _: &Rules, _: &mut Diary) -> Result<(), Error> {
    allocator.claim(&AffinityOwner::host("node1"), "10.0.0.0/31".parse().unwrap())
}

#[test]
fn an_empty_block_is_reclaimed_while_its_owner_returns() {
    explore(Scenario {
        name: "theft",
        rules: rules("10.0.0.0/31", 31, strict()),
        left_behind: &[],
        before: one_block_of_node1,
        nodes: vec![
            |allocator, rules, diary| add(allocator, rules, diary, "node1", "net.a"),
            |allocator, rules, diary| add(allocator, rules, diary, "node2", "net.b"),
        ],
        deaths: 1,
        lost_answers: 0,
        interruptions: 3,
        handles: HANDLES,
    });
}

/// Its owner died between creating the block and confirming its affinity, and the affinity was deleted.
#[test]
fn a_block_without_an_affinity_is_claimed_again_and_reclaimed() {
    explore(Scenario {
        name: "stranded",
        rules: rules("10.0.0.0/31", 31, strict()),
        left_behind: &[(
            "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-31",
            r#"{"cidr":"10.0.0.0/31","affinity":"host:node1","allocations":[null,null],"unallocated":[0,1],"attributes":[],"sequenceNumber":7,"sequenceNumberForAllocation":{},"deleted":false}"#,
        )],
        before: nothing,
        nodes: vec![
            |allocator, rules, diary| add(allocator, rules, diary, "node1", "net.a"),
            |allocator, _, _| allocator.release_all_affinities(&AffinityOwner::host("node1"), false),
        ],
        deaths: 1,
        lost_answers: 0,
        interruptions: 3,
        handles: HANDLES,
    });
}

#[test]
fn two_nodes_reclaim_an_empty_block() {
    explore(Scenario {
        name: "two thieves",
        rules: rules("10.0.0.0/31", 31, strict()),
        left_behind: &[],
        before: one_block_of_node1,
        nodes: vec![
            |allocator, rules, diary| add(allocator, rules, diary, "node1", "net.a"),
            |allocator, rules, diary| add(allocator, rules, diary, "node2", "net.b"),
            |allocator, rules, diary| add(allocator, rules, diary, "node3", "net.c"),
        ],
        deaths: 1,
        lost_answers: 0,
        interruptions: 1,
        handles: HANDLES,
    });
}

#[test]
fn a_node_is_drained_while_it_claims_and_another_reclaims() {
    explore(Scenario {
        name: "drain",
        rules: rules("10.0.0.0/31", 31, borrowing()),
        left_behind: &[],
        before: nothing,
        nodes: vec![
            |allocator, rules, diary| add(allocator, rules, diary, "node1", "net.a"),
            |allocator, _, _| allocator.release_all_affinities(&AffinityOwner::host("node1"), false),
            |allocator, rules, diary| add(allocator, rules, diary, "node2", "net.b"),
        ],
        deaths: 1,
        lost_answers: 0,
        interruptions: 1,
        handles: HANDLES,
    });
}

#[test]
fn an_add_and_dels_of_the_same_container_run_concurrently() {
    explore(Scenario {
        name: "add beside del",
        rules: rules("10.0.0.0/31", 31, borrowing()),
        left_behind: &[],
        before: |allocator, _, _| {
            allocator.claim(&AffinityOwner::host("node1"), "10.0.0.0/31".parse().unwrap())
        },
        nodes: vec![
            // The runtime has timed out: no pod uses the address.
            |allocator, rules, _| add(allocator, rules, &mut Diary::default(), "node1", "net.a"),
            |allocator, rules, diary| {
                del(allocator, rules, diary, "net.a")?;
                add(allocator, rules, &mut Diary::default(), "node1", "net.a")
            },
            |allocator, rules, diary| del(allocator, rules, diary, "net.a"),
        ],
        deaths: 1,
        lost_answers: 0,
        interruptions: 2,
        handles: HANDLES,
    });
}

#[test]
fn a_release_by_address_is_late() {
    explore(Scenario {
        name: "late release",
        rules: rules("10.0.0.0/32", 32, borrowing()),
        left_behind: &[],
        before: |allocator, rules, diary| add(allocator, rules, diary, "node1", "net.a"),
        nodes: vec![
            // A sweep has found that net.a has 10.0.0.0 and that its container is gone.
            |allocator, rules, _| {
                let (ip, sequence) = ("10.0.0.0".parse().unwrap(), Some(BEGINNING.unix_nanos()));
                let release = Release { ip, handle: Some("net.a".into()), sequence };
                match allocator.release(rules, &[release]) {
                    Err(Error::Stale { .. }) => Ok(()),
                    done => done.map(drop),
                }
            },
            // Meanwhile the runtime deletes it too, and the address goes to another container, and to one with the same
            // name.
            |allocator, rules, diary| {
                del(allocator, rules, diary, "net.a")?;
                add(allocator, rules, diary, "node2", "net.a")
            },
            |allocator, rules, diary| add(allocator, rules, diary, "node1", "net.b"),
        ],
        deaths: 1,
        lost_answers: 0,
        interruptions: 1,
        handles: HANDLES,
    });
}

#[test]
fn responses_are_lost() {
    explore(Scenario {
        name: "lost answers",
        rules: rules("10.0.0.0/30", 31, cooling()),
        left_behind: &[],
        before: nothing,
        nodes: vec![
            |allocator, rules, diary| {
                insist(allocator, rules, diary, "node1", "net.a")?;
                del(allocator, rules, diary, "net.a")
            },
            |allocator, rules, diary| insist(allocator, rules, diary, "node2", "net.b"),
        ],
        deaths: 1,
        lost_answers: 2,
        interruptions: 1,
        handles: HANDLES,
    });
}

const WARM_POOL: &str = "podwire-warm-node1";

/// The node's agent adds an address to its warm pool.
fn fill_warm_pool(allocator: &Allocator<'_>, rules: &Rules, diary: &mut Diary) -> Result<(), Error> {
    add(allocator, rules, diary, "node1", WARM_POOL)
}

/// A pod gets the first address of the warm pool, and the agent transfers it. With `rules`, the warm pool gets another one
/// in its place.
fn transfer(
    allocator: &Allocator<'_>,
    rules: Option<&Rules>,
    diary: &mut Diary,
    handle: &'static str,
) -> Result<(), Error> {
    let address = "10.0.0.0/31".parse().unwrap();
    let transfer = Transfer { address, handle: handle.into(), attributes: Default::default() };
    // During the transfer, the store may name either handle.
    diary.holds.retain(|(_, holder)| *holder != WARM_POOL);
    let requests = [Request::new(AffinityOwner::host("node1"), WARM_POOL)];
    let refill = rules.map(|rules| Refill { rules, requests: &requests });
    let outcome = allocator.transfer(WARM_POOL, &[transfer], refill)?;
    if outcome.lost.is_empty() {
        diary.holds.push((address.addr(), handle));
    }
    diary.holds.extend(outcome.refilled.into_iter().map(|warm| (warm.addr(), WARM_POOL)));
    Ok(())
}

/// The agent fills its warm pool, and if another node did not take the first address, a pod gets it from there and ends.
fn use_warm_address(
    allocator: &Allocator<'_>,
    rules: &Rules,
    refill: Option<&Rules>,
    diary: &mut Diary,
) -> Result<(), Error> {
    fill_warm_pool(allocator, rules, diary)?;
    if diary.holds.first().is_some_and(|(ip, _)| ip.to_string() == "10.0.0.0") {
        transfer(allocator, refill, diary, "net.a")?;
        del(allocator, rules, diary, "net.a")?;
    }
    Ok(())
}

#[test]
fn a_transfer_while_another_node_borrows_and_the_pod_stops() {
    explore(Scenario {
        name: "warm pool",
        rules: rules("10.0.0.0/31", 31, borrowing()),
        left_behind: &[],
        before: nothing,
        nodes: vec![
            |allocator, rules, diary| use_warm_address(allocator, rules, None, diary),
            |allocator, rules, diary| add(allocator, rules, diary, "node2", "net.b"),
        ],
        deaths: 1,
        lost_answers: 1,
        interruptions: 2,
        handles: &["net.a", "net.b", WARM_POOL],
    });
}

/// An agent was killed. Its last writes are still in flight when the new agent repeats them and the runtime deletes the
/// pod.
#[test]
fn a_transfer_is_repeated() {
    explore(Scenario {
        name: "repeated transfer",
        rules: rules("10.0.0.0/31", 31, borrowing()),
        left_behind: &[],
        before: |allocator, rules, _| fill_warm_pool(allocator, rules, &mut Diary::default()),
        nodes: vec![
            // The pod is gone when the late transfers arrive: it does not use the address.
            |allocator, _, _| transfer(allocator, None, &mut Diary::default(), "net.a"),
            |allocator, _, _| transfer(allocator, None, &mut Diary::default(), "net.a"),
            |allocator, rules, diary| del(allocator, rules, diary, "net.a"),
        ],
        deaths: 1,
        lost_answers: 1,
        interruptions: 2,
        handles: &["net.a", WARM_POOL],
    });
}

#[test]
fn a_transfer_refills_the_warm_pool_while_another_node_borrows() {
    explore(Scenario {
        name: "refill",
        rules: rules("10.0.0.0/31", 31, borrowing()),
        left_behind: &[],
        before: nothing,
        nodes: vec![
            |allocator, rules, diary| use_warm_address(allocator, rules, Some(rules), diary),
            |allocator, rules, diary| add(allocator, rules, diary, "node2", "net.b"),
        ],
        deaths: 1,
        lost_answers: 1,
        interruptions: 2,
        handles: &["net.a", "net.b", WARM_POOL],
    });
}

/// An administrator releases the warm pool by its handle meanwhile: neither may leave an address that no handle counts.
#[test]
fn a_transfer_refills_a_warm_pool_that_is_released() {
    explore(Scenario {
        name: "refill of a released warm pool",
        rules: rules("10.0.0.0/31", 31, borrowing()),
        left_behind: &[],
        before: |allocator, rules, _| fill_warm_pool(allocator, rules, &mut Diary::default()),
        nodes: vec![
            |allocator, rules, _| transfer(allocator, Some(rules), &mut Diary::default(), "net.a"),
            |allocator, rules, _| transfer(allocator, Some(rules), &mut Diary::default(), "net.a"),
            |allocator, rules, diary| del(allocator, rules, diary, WARM_POOL),
        ],
        deaths: 1,
        lost_answers: 1,
        interruptions: 2,
        handles: &["net.a", WARM_POOL],
    });
}
