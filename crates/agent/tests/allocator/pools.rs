//! The choice of pools, and the warm pool when pools change.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use podwire_agent::calico::allocator::{direct, PoolWatcher};
use podwire_agent_ipc::addresses::{AddressRequest, Request, Response};
use podwire_agent_ipc::pods::{PodMetadata, StringMap};
use podwire_block_ipam::store::Store;
use podwire_block_ipam::{Allocator, Pool, Rules};

use crate::cluster::{eventually, now, owner, pool, settled, v4, wait_for_idle, Cluster, Mode, TIMEOUT};

/// A cluster with one namespace that has these labels.
#[derive(Default)]
struct Namespaces(Mutex<Option<StringMap>>);

impl Namespaces {
    fn labelled(team: &str) -> Arc<Namespaces> {
        Arc::new(Namespaces(Mutex::new(Some([("team".to_owned(), team.to_owned())].into()))))
    }
}

impl podwire_agent_ipc::pods::Cluster for Namespaces {
    fn pod(&self, _: &str, _: &str, _: &str) -> Result<PodMetadata, String> {
        Err("nothing is known of pods".into())
    }

    fn namespace_labels(&self, namespace: &str) -> Result<StringMap, String> {
        self.0.lock().unwrap().clone().ok_or_else(|| format!("namespaces {namespace:?} not found"))
    }

    fn has_node(&self, _: &str) -> bool {
        false
    }

    fn pod_cidrs(&self, _: &str) -> Result<Vec<IpNet>, String> {
        Ok(Vec::new())
    }
}

fn for_red() -> Pool {
    let cidr = "10.250.0.0/24".parse().unwrap();
    Pool::new("red", cidr).with_block_size(28).for_namespaces("team == 'red'")
}

fn is_red(given: &[IpNet]) -> bool {
    for_red().cidr().contains(&given[0])
}

#[test]
fn a_pool_with_a_namespace_selector_serves_only_those_pods() {
    let cluster = Cluster::new("namespaces", for_red());
    let red = cluster.agent("node1").with_cluster(Namespaces::labelled("red"));
    assert!(is_red(&red.assign(&owner("c1"), &v4(), TIMEOUT).unwrap()));
    let blue = cluster.agent("node2").with_cluster(Namespaces::labelled("blue"));
    let error = blue.assign(&owner("c2"), &v4(), TIMEOUT).unwrap_err().to_string();
    assert!(error.contains("selects this node and namespace"), "{error}");
    // The warm pool has addresses of pools that a pod requested.
    eventually("the warm pool is filled", || red.status().warm_pool >= 3);
    eventually("the sync is idle", || red.status().unsynced == 0);
    let asked = cluster.store.asked();
    assert!(is_red(&red.assign(&owner("c3"), &v4(), TIMEOUT).unwrap()));
    drop(blue);
    eventually("the store has it", || cluster.held().len() == 2);
    assert!(cluster.store.asked() > asked, "the store is updated later");
    cluster.assert_sound();
}

#[test]
fn warm_addresses_of_other_namespaces_are_not_assigned() {
    let cluster = Cluster::new("apart", for_red());
    Allocator::new(&cluster.store, now).add_pool(&pool()).unwrap();
    let cast = Arc::new(Namespaces::default());
    let agent = cluster.agent("node1").with_cluster(cast.clone());
    eventually("the pools are read", || agent.status().warm_pool == 4);
    let error = agent.assign(&owner("c0"), &v4(), TIMEOUT).unwrap_err();
    assert_eq!(error.code(), 11, "{error}");
    assert!(error.to_string().contains("namespace shop"), "{error}");
    // Red pods may use both pools.
    *cast.0.lock().unwrap() = Some([("team".to_owned(), "red".to_owned())].into());
    for number in 0..20 {
        agent.assign(&owner(&format!("red{number}")), &v4(), TIMEOUT).unwrap();
    }
    *cast.0.lock().unwrap() = Some(StringMap::new());
    for number in 0..20 {
        let given = agent.assign(&owner(&format!("other{number}")), &v4(), TIMEOUT).unwrap();
        assert!(!is_red(&given), "{given:?}");
    }
    cluster.assert_sound();
}

#[test]
fn namespace_selectors_apply_without_an_agent() {
    let cluster = Cluster::new("direct-namespaces", for_red());
    let (red, blue) = (Namespaces::labelled("red"), Namespaces::labelled("blue"));
    let ask = |container: &str, cast: &dyn podwire_agent_ipc::pods::Cluster| {
        let question = podwire_agent_ipc::addresses::Request::Assign {
            owner: owner(container),
            addresses: v4(),
            timeout_ms: 1000,
        };
        podwire_agent::calico::allocator::direct::respond(
            &cluster.store,
            Some(cast),
            "node1",
            &cluster.state("node1"),
            &question,
        )
    };
    let podwire_agent_ipc::addresses::Response::Assigned { addresses } = ask("c1", &*red) else {
        panic!("red is selected")
    };
    assert!(is_red(&addresses));
    let podwire_agent_ipc::addresses::Response::Failed { msg, .. } = ask("c2", &*blue) else {
        panic!("blue is not")
    };
    assert!(msg.contains("selects this node and namespace"), "{msg}");
}

#[test]
fn warm_addresses_of_a_disabled_pool_are_released() {
    let cluster = Cluster::new("disabled", pool());
    let agent = cluster.agent("node1");
    eventually("the warm pool is filled", || agent.status().warm_pool == 4);
    let entry = cluster.store.get(&pool().key()).unwrap().unwrap();
    let other = Pool::new("other", "10.251.0.0/24".parse().unwrap()).with_block_size(28);
    Allocator::new(&cluster.store, now).add_pool(&other).unwrap();
    let mut object: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
    object["spec"]["disabled"] = true.into();
    cluster.store.update(&entry.key, object.to_string().as_bytes(), entry.revision).unwrap();
    let mut number = 0;
    let allocator = Allocator::new(&cluster.store, now);
    let taken = || {
        let blocks = allocator.blocks().unwrap().into_iter().flatten();
        let old: Vec<_> = blocks.filter(|block| pool().cidr().contains(&block.cidr())).collect();
        old.iter().map(|block| block.allocations().count()).sum::<usize>()
    };
    assert_eq!(taken(), 4);
    // Pods are attached and detached meanwhile.
    let until = std::time::Instant::now() + TIMEOUT;
    while taken() > 0 {
        assert!(std::time::Instant::now() < until, "{} addresses are still taken", taken());
        number += 1;
        let owner = owner(&format!("c{number}"));
        agent.assign(&owner, &v4(), TIMEOUT).unwrap();
        agent.release(&owner, None).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(other.cidr().contains(&agent.assign(&owner("last"), &v4(), TIMEOUT).unwrap()[0]));
    cluster.assert_sound();
}

/// A pool that selects other nodes serves a pod that names it, and keeps warm addresses for the next one.
#[test]
fn a_pool_that_a_pod_named_keeps_warm_addresses() {
    let cluster = Cluster::new("named", pool());
    let special = Pool::new("special", "10.250.0.0/24".parse().unwrap()).with_block_size(28);
    Allocator::new(&cluster.store, now).add_pool(&special.for_nodes("has(nothing)")).unwrap();
    let agent = cluster.agent("node1");
    let named = AddressRequest { ipv4_pools: Some(vec!["special".into()]), ..v4() };
    let given = agent.assign(&owner("c1"), &named, TIMEOUT).unwrap();
    assert!(given[0].to_string().starts_with("10.250.0."), "{given:?}");
    let revisions = || {
        let all = cluster.store.list("").unwrap();
        let of_special = all.iter().filter(|entry| entry.key.contains("/assignment/ipv4/block/10.250."));
        of_special.map(|entry| entry.revision).collect::<Vec<_>>()
    };
    // Four of each; or three, if the pod took its address after the refill.
    eventually("both are warm", || agent.status().warm_pool >= 7 && agent.status().unsynced == 0);
    let before = revisions();
    assert_eq!(before.len(), 1, "a block");
    // Other pods are attached and detached meanwhile, and the sync runs.
    for number in 2..12 {
        let owner = owner(&format!("c{number}"));
        agent.assign(&owner, &v4(), TIMEOUT).unwrap();
        agent.release(&owner, None).unwrap();
        eventually("it is synced or reported", || settled(&agent, &cluster.state("node1")));
    }
    assert_eq!(revisions(), before, "the block is unchanged");
    cluster.assert_sound();
}

/// Reserved addresses are assigned to a pod that names them, and are never warm. One that is assigned waits for the
/// other.
#[test]
fn a_pod_gets_named_addresses_that_may_not_be_warm() {
    let cluster = Cluster::new("both", pool().for_nodes("has(nothing)"));
    let six = Pool::new("six", "fd44::/64".parse().unwrap()).for_nodes("has(nothing)");
    Allocator::new(&cluster.store, now).add_pool(&six).unwrap();
    let agent = cluster.agent("node1");
    let ips = ["10.244.0.200", "fd44::c8"].map(|ip| ip.parse().unwrap());
    let given = agent.assign(&owner("c1"), &AddressRequest { ips: ips.to_vec(), ..v4() }, TIMEOUT).unwrap();
    assert_eq!(given.iter().map(IpNet::addr).collect::<Vec<_>>(), ips);
    cluster.assert_sound();
}

#[test]
fn an_unreadable_pool_at_the_first_start_is_skipped() {
    let cluster = Cluster::new("senseless", pool());
    let key = Pool::new("bad", "10.252.0.0/24".parse().unwrap()).key();
    cluster.store.create(&key, b"{\"spec\": {\"cidr\": 7}}").unwrap();
    assert!(Rules::load(&cluster.store).is_err());
    let agent = cluster.agent("node1");
    agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap();
    // An idle sync clears its reports, so it gets something to do.
    eventually("it is synced or reported", || {
        agent.release(&owner("unknown"), None).unwrap();
        agent.status().unreadable.iter().any(|one| one.contains(&key))
    });
}

#[test]
fn an_agent_without_a_pool_is_not_ready() {
    let cluster = Cluster::new("poolless", pool());
    let entry = cluster.store.get(&pool().key()).unwrap().unwrap();
    cluster.store.delete(&entry.key, entry.revision).unwrap();
    let agent = cluster.agent("node1");
    eventually("the reason is known", || {
        agent.check_ready().is_err_and(|error| error.to_string().contains("no configured Calico pools"))
    });
    assert_eq!(agent.check_ready().unwrap_err().code(), 11);
    Allocator::new(&cluster.store, now).add_pool(&pool()).unwrap();
    agent.pools_changed();
    eventually("it is ready", || agent.check_ready().is_ok());
    agent.assign(&owner("c1"), &v4(), std::time::Duration::ZERO).unwrap();
}

/// `podwire ipam serve`. Without the watch, the pools are read again after up to a minute.
#[test]
fn an_allocator_that_follows_the_pools_uses_a_new_one_at_once() {
    let cluster = Cluster::new("followed", pool().for_nodes("has(nothing)"));
    let agent = cluster.agent("node1");
    eventually("there is no pool", || {
        agent.check_ready().is_err_and(|error| error.to_string().contains("no configured Calico pools"))
    });
    // The store fails at first.
    cluster.store.set(Mode::Down);
    let (store, asked) = (cluster.store.clone(), cluster.store.asked());
    let opener = Box::new(move || Ok(Box::new(store.clone()) as Box<dyn Store>));
    let _watcher = PoolWatcher::start(agent.clone(), opener).unwrap();
    eventually("the store was asked twice", || cluster.store.asked() >= asked + 2);
    cluster.store.set(Mode::Working);
    // The allocator reads the pools again soon after its start.
    std::thread::sleep(Duration::from_secs(3));
    wait_for_idle(&cluster);
    let changed = Instant::now();
    Allocator::new(&cluster.store, now)
        .add_pool(&Pool::new("new", "10.250.0.0/24".parse().unwrap()).with_block_size(28))
        .unwrap();
    eventually("it is ready", || agent.check_ready().is_ok());
    assert!(changed.elapsed() < Duration::from_secs(5), "{:?}", changed.elapsed());
    agent.assign(&owner("c1"), &v4(), Duration::ZERO).unwrap();
}

/// Three blocks for two nodes: a node borrows the other's addresses when it has used its own, and when all are used
/// none is ready.
#[test]
fn an_agent_is_ready_while_its_pods_can_get_or_borrow_an_address() {
    let small = Pool::new("small", "10.244.0.0/29".parse().unwrap()).with_block_size(30);
    let cluster = Cluster::new("small", small);
    let (one, other) = (cluster.agent("node1"), cluster.agent("node2"));
    eventually("both are ready", || one.check_ready().is_ok() && other.check_ready().is_ok());
    let mut assigned = 0;
    while let Ok(_address) = one.assign(&owner(&format!("c{assigned}")), &v4(), TIMEOUT) {
        assigned += 1;
        assert!(assigned <= 8, "there are 8 addresses");
    }
    // The other node keeps one or more warm addresses, so it is ready, and this node is not.
    assert!(assigned >= 4, "{assigned} addresses");
    eventually("it is not ready", || one.check_ready().is_err());
    assert_eq!(one.check_ready().unwrap_err().code(), 11);
    other.check_ready().unwrap();
    one.release(&owner("c0"), None).unwrap();
    eventually("it is ready again", || one.check_ready().is_ok());
    one.assign(&owner("again"), &v4(), TIMEOUT).unwrap();
    cluster.assert_sound();
}

/// As host-local: a runtime that gets code 11 tries again, and STATUS reports the shortage.
#[test]
fn a_pod_without_a_pool_is_to_try_again() {
    let cluster = Cluster::new("none", pool().for_nodes("has(nothing)"));
    let agent = cluster.agent("node1");
    let error = agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap_err();
    assert_eq!(error.code(), 11, "{error}");
    eventually("the node is not ready, and the reason is known", || {
        let error = agent.check_ready().map_err(|error| error.to_string());
        error.is_err_and(|error| error.starts_with("no configured Calico pools for node node1"))
    });
}

#[test]
fn a_pod_without_a_free_address_is_to_try_again() {
    let small = || Pool::new("pods", "10.244.0.0/28".parse().unwrap()).with_block_size(28);
    let cluster = Cluster::new("full", small());
    let agent = cluster.agent("node1");
    eventually("the agent has read the pools", || agent.check_ready().is_ok());
    for number in 0..16 {
        agent.check_ready().unwrap();
        agent.assign(&owner(&format!("c{number}")), &v4(), TIMEOUT).unwrap();
    }
    let error = agent.assign(&owner("late"), &v4(), TIMEOUT).unwrap_err();
    assert_eq!(error.code(), 11, "{error}");
    assert!(error.to_string().starts_with("No Free Blocks"), "{error}");
    eventually("the node is not ready", || agent.check_ready().is_err());
    let other = cluster.agent("node2");
    let error = other.assign(&owner("elsewhere"), &v4(), TIMEOUT).unwrap_err();
    assert_eq!(error.code(), 11, "{error}");
    agent.release(&owner("c0"), None).unwrap();
    eventually("the node is ready again", || agent.check_ready().is_ok());
    agent.assign(&owner("late"), &v4(), TIMEOUT).unwrap();
    cluster.assert_sound();
}

/// The answer to STATUS without an agent.
fn direct_status(cluster: &Cluster, node: &str) -> Response {
    direct::respond(&cluster.store, None, node, &cluster.state(node), &Request::Ping)
}

#[test]
fn without_an_agent_status_fails_without_a_pool_and_when_all_addresses_are_used() {
    let refused = |cluster: &Cluster, node: &str, words: &str| match direct_status(cluster, node) {
        Response::Failed { code, msg, .. } => assert!(code == 11 && msg.starts_with(words), "{code}: {msg}"),
        other => panic!("{other:?}"),
    };
    let cluster = Cluster::new("direct-none", pool().for_nodes("has(nothing)"));
    refused(&cluster, "node1", "no configured Calico pools for node node1");

    let small = Pool::new("pods", "10.244.0.0/30".parse().unwrap()).with_block_size(31);
    let cluster = Cluster::new("direct-full", small);
    let assign = |node: &str, container: &str| {
        let (owner, addresses) = (owner(container), v4());
        let request = Request::Assign { owner, addresses, timeout_ms: 1000 };
        direct::respond(&cluster.store, None, node, &cluster.state(node), &request)
    };
    for (node, container) in [("node1", "a"), ("node1", "b"), ("node2", "c"), ("node1", "d")] {
        assert_eq!(direct_status(&cluster, "node1"), Response::Done, "before {container}");
        let assigned = assign(node, container);
        assert!(matches!(assigned, Response::Assigned { .. }), "{assigned:?}");
    }
    for node in ["node1", "node2", "node3"] {
        refused(&cluster, node, "No Free Blocks");
        let late = assign(node, "late");
        assert!(matches!(late, Response::Failed { code: 11, .. }), "{late:?}");
    }
    let strict = |config: &mut podwire_block_ipam::Config| config.strict_affinity = true;
    let allocator = Allocator::new(&cluster.store, now);
    allocator.release_handle(&Rules::load(&cluster.store).unwrap(), "net.c").unwrap();
    assert_eq!(direct_status(&cluster, "node1"), Response::Done, "it can borrow");
    allocator.configure(strict).unwrap();
    assert!(matches!(direct_status(&cluster, "node1"), Response::Failed { code: 11, .. }));
    assert_eq!(direct_status(&cluster, "node2"), Response::Done, "it is its own block");
}

/// A node without free blocks is ready while other nodes' blocks have addresses that its pods can borrow.
#[test]
fn a_node_that_can_borrow_is_ready() {
    let cluster =
        Cluster::new("lent", Pool::new("pods", "10.244.0.0/28".parse().unwrap()).with_block_size(28));
    let lender = cluster.agent("node1");
    eventually("the lender has a block", || lender.status().warm_pool == 4);
    let agent = cluster.agent("node2");
    agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap();
    eventually("the sync is idle", || settled(&agent, &cluster.state("node2")));
    agent.check_ready().unwrap();
    agent.assign(&owner("c2"), &v4(), TIMEOUT).unwrap();
    let strict = |config: &mut podwire_block_ipam::Config| config.strict_affinity = true;
    Allocator::new(&cluster.store, now).configure(strict).unwrap();
    let third = cluster.agent("node3");
    eventually("a node that may not borrow is not ready", || third.check_ready().is_err());
    assert_eq!(third.assign(&owner("c3"), &v4(), TIMEOUT).unwrap_err().code(), 11);
}
