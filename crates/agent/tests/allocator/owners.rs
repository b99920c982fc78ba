//! One agent owns a node's blocks. A second one with the same node name gives no address.

use std::collections::BTreeSet;
use std::time::Duration;

use podwire_block_ipam::store::Store;
use podwire_block_ipam::{Key, NodeOwner, Ownership};

use crate::cluster::{eventually, owner, pool, v4, Cluster, Mode, TIMEOUT};

/// The claim of an agent that does not run any more.
fn claim_of_a_dead_agent(cluster: &Cluster) {
    let dead = NodeOwner { id: "dead".into(), host: "worker-7".into(), pid: 4711, ..NodeOwner::default() };
    Ownership::new("node1", dead, Ownership::DURATION).hold(&cluster.store).unwrap();
}

#[test]
fn two_agents_with_one_node_name_give_no_address_twice() {
    let cluster = Cluster::new("twins", pool());
    let first = cluster.agent("node1");
    eventually("the first has its warm pool", || first.status().warm_pool == 4);
    let second = cluster.agent_in("other-machine", "node1", Ownership::DURATION);
    let (mut given, mut refused) = (BTreeSet::new(), 0);
    for number in 0..20 {
        let address = first.assign(&owner(&format!("a{number}")), &v4(), TIMEOUT).unwrap();
        assert!(given.insert(address[0]), "{address:?} was given twice");
        match second.assign(&owner(&format!("b{number}")), &v4(), TIMEOUT) {
            Ok(address) => assert!(given.insert(address[0]), "{address:?} was given twice"),
            Err(error) => {
                refused += 1;
                assert_eq!(error.code(), 11, "{error}");
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
                for part in [host.trim(), &format!("process {}", std::process::id()), "node1", "since 20"] {
                    assert!(error.to_string().contains(part), "{part:?} is not in {error}");
                }
            }
        }
    }
    assert_eq!(refused, 20);
    assert!(second.check_ready().is_err());
    assert!(second.status().problem.unwrap().contains("another agent"));
    first.check_ready().unwrap();
    cluster.assert_sound();
}

/// A copy of the state directory on the same machine: the newer agent has the node, and the older one stops.
#[test]
fn an_agent_stands_down_when_its_clone_claims_the_node() {
    let cluster = Cluster::new("clone", pool());
    let claim = Duration::from_secs(2);
    let original = cluster.agent_in("original", "node1", claim);
    eventually("the original has its warm pool", || original.status().warm_pool == 4);
    let kept = original.assign(&owner("c1"), &v4(), TIMEOUT).unwrap();
    eventually("the store has it", || !cluster.held().is_empty());
    std::fs::create_dir_all(cluster.state("clone")).unwrap();
    std::fs::copy(cluster.state("original").join("id"), cluster.state("clone").join("id")).unwrap();
    let clone = cluster.agent_in("clone", "node1", claim);
    eventually("the clone has the node", || clone.check_ready().is_ok());
    eventually("the original stands down", || {
        original.check_ready().is_err_and(|error| error.to_string().contains("belong to another agent"))
    });
    let problem = original.status().problem.unwrap();
    assert!(problem.contains(&format!("process {}", std::process::id())), "{problem}");
    assert_eq!(original.status().warm_pool, 0);
    assert_eq!(original.assign(&owner("c2"), &v4(), TIMEOUT).unwrap_err().code(), 11);
    assert_ne!(clone.assign(&owner("c3"), &v4(), TIMEOUT).unwrap(), kept);
    // It does not take the node back.
    std::thread::sleep(2 * claim);
    original.check_ready().unwrap_err();
    clone.check_ready().unwrap();
    cluster.assert_sound();
}

#[test]
fn the_node_is_taken_over_when_the_claim_has_ended() {
    let cluster = Cluster::new("heir", pool());
    claim_of_a_dead_agent(&cluster);
    let agent = cluster.agent_in("new-machine", "node1", Duration::from_secs(2));
    let error = agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap_err().to_string();
    assert!(error.contains("process 4711 on host \"worker-7\""), "{error}");
    eventually("the node is taken over", || agent.assign(&owner("c1"), &v4(), TIMEOUT).is_ok());
    eventually("it is ready", || agent.check_ready().is_ok());
    cluster.assert_sound();
}

/// An agent that loses its node to another one, because it could not renew its claim, gives no more addresses. While
/// the store does not answer, it does not know, and pods start.
#[test]
fn an_agent_that_lost_its_node_stops() {
    let cluster = Cluster::new("lost", pool());
    let agent = cluster.agent_in("node1", "node1", Duration::from_secs(20));
    eventually("the warm pool is filled", || agent.status().warm_pool == 4);
    cluster.store.set(Mode::Down);
    let address = agent.assign(&owner("c1"), &v4(), Duration::ZERO).unwrap();
    eventually("the store fails", || agent.status().problem.is_some());
    cluster.store.set(Mode::Working);
    eventually("the store has it", || cluster.held().contains(&("net.c1".to_owned(), address[0].addr())));
    let key = Key::NodeOwner("node1".into()).to_string();
    let replaced = || {
        let entry = cluster.store.get(&key).unwrap().unwrap();
        cluster.store.update(&key, br#"{"id": "other", "pid": 7, "host": "h"}"#, entry.revision).is_ok()
    };
    eventually("another agent has the node", replaced);
    eventually("it is not ready", || agent.check_ready().is_err());
    assert_eq!(agent.status().warm_pool, 0);
    let error = agent.assign(&owner("c2"), &v4(), TIMEOUT).unwrap_err().to_string();
    assert!(error.contains("process 7 on host \"h\""), "{error}");
    // The pod keeps its address, also when its ADD is repeated.
    assert_eq!(agent.assign(&owner("c1"), &v4(), Duration::ZERO).unwrap(), address);
}
