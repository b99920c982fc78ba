//! Which pool a pod's address is of, and what becomes of the stock when pools change.

use std::sync::{Arc, Mutex};

use ipnet::IpNet;
use podwire_agent_ipc::addresses::AddressRequest;
use podwire_agent_ipc::pods::{PodMetadata, StringMap};
use podwire_block_ipam::store::Store;
use podwire_block_ipam::{Allocator, Pool, Rules};

use crate::stage::{eventually, now, owner, pool, settled, v4, Cluster, PATIENCE};

/// A cluster with one namespace, whose labels are these.
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
fn a_pool_for_some_namespaces_is_for_their_pods_only() {
    let cluster = Cluster::new("namespaces", for_red());
    let red = cluster.steward("node1").knowing(Namespaces::labelled("red"));
    assert!(is_red(&red.assign(&owner("c1"), &v4(), PATIENCE).unwrap()));
    let blue = cluster.steward("node2").knowing(Namespaces::labelled("blue"));
    let error = blue.assign(&owner("c2"), &v4(), PATIENCE).unwrap_err().to_string();
    assert!(error.contains("selects this node and namespace"), "{error}");
    // What one pod has asked for is in stock for the next.
    eventually("a stock", || red.state().stock >= 3);
    eventually("the clerk rests", || red.state().untold == 0);
    let asked = cluster.store.asked();
    assert!(is_red(&red.assign(&owner("c3"), &v4(), PATIENCE).unwrap()));
    drop(blue);
    eventually("the store knows", || cluster.held().len() == 2);
    assert!(cluster.store.asked() > asked, "afterwards it is told");
    cluster.assert_sound();
}

#[test]
fn who_is_not_selected_gets_nothing_of_the_stock_of_others() {
    let cluster = Cluster::new("apart", for_red());
    Allocator::new(&cluster.store, now).add_pool(&pool()).unwrap();
    let cast = Arc::new(Namespaces::default());
    let steward = cluster.steward("node1").knowing(cast.clone());
    eventually("the pools are known", || steward.state().stock == 4);
    let error = steward.assign(&owner("c0"), &v4(), PATIENCE).unwrap_err();
    assert_eq!(error.code(), 11, "{error}");
    assert!(error.to_string().contains("namespace shop"), "{error}");
    // Red pods may have both.
    *cast.0.lock().unwrap() = Some([("team".to_owned(), "red".to_owned())].into());
    for number in 0..20 {
        steward.assign(&owner(&format!("red{number}")), &v4(), PATIENCE).unwrap();
    }
    *cast.0.lock().unwrap() = Some(StringMap::new());
    for number in 0..20 {
        let given = steward.assign(&owner(&format!("other{number}")), &v4(), PATIENCE).unwrap();
        assert!(!is_red(&given), "{given:?}");
    }
    cluster.assert_sound();
}

#[test]
fn without_an_agent_namespaces_count_as_well() {
    let cluster = Cluster::new("direct-namespaces", for_red());
    let (red, blue) = (Namespaces::labelled("red"), Namespaces::labelled("blue"));
    let ask = |container: &str, cast: &dyn podwire_agent_ipc::pods::Cluster| {
        let question = podwire_agent_ipc::addresses::Request::Assign {
            owner: owner(container),
            addresses: v4(),
            timeout_ms: 1000,
        };
        podwire_steward::direct::answer(
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
fn the_stock_of_a_pool_that_is_disabled_is_given_back() {
    let cluster = Cluster::new("disabled", pool());
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
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
    // Pods come and go meanwhile.
    let until = std::time::Instant::now() + PATIENCE;
    while taken() > 0 {
        assert!(std::time::Instant::now() < until, "{} addresses are still taken", taken());
        number += 1;
        let owner = owner(&format!("c{number}"));
        steward.assign(&owner, &v4(), PATIENCE).unwrap();
        steward.release(&owner, None).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(other.cidr().contains(&steward.assign(&owner("last"), &v4(), PATIENCE).unwrap()[0]));
    cluster.assert_sound();
}

/// A pool of other nodes gives to whoever names it. What is in stock of it for the next one stays there.
#[test]
fn the_stock_of_a_pool_that_a_pod_has_named_is_kept_wherever_the_pool_is_for() {
    let cluster = Cluster::new("named", pool());
    let special = Pool::new("special", "10.250.0.0/24".parse().unwrap()).with_block_size(28);
    Allocator::new(&cluster.store, now).add_pool(&special.for_nodes("has(nothing)")).unwrap();
    let steward = cluster.steward("node1");
    let named = AddressRequest { ipv4_pools: Some(vec!["special".into()]), ..v4() };
    let given = steward.assign(&owner("c1"), &named, PATIENCE).unwrap();
    assert!(given[0].to_string().starts_with("10.250.0."), "{given:?}");
    let revisions = || {
        let all = cluster.store.list("").unwrap();
        let of_special = all.iter().filter(|entry| entry.key.contains("/assignment/ipv4/block/10.250."));
        of_special.map(|entry| entry.revision).collect::<Vec<_>>()
    };
    // Four of each; or three, if the pod took its own only when the others had been fetched.
    eventually("stocks of both", || steward.state().stock >= 7 && steward.state().untold == 0);
    let before = revisions();
    assert_eq!(before.len(), 1, "a block");
    // Others come and go meanwhile, and the clerk goes his rounds.
    for number in 2..12 {
        let owner = owner(&format!("c{number}"));
        steward.assign(&owner, &v4(), PATIENCE).unwrap();
        steward.release(&owner, None).unwrap();
        eventually("it is told", || settled(&steward, &cluster.state("node1")));
    }
    assert_eq!(revisions(), before, "nobody touched the block");
    cluster.assert_sound();
}

/// Addresses that are reserved are given to whoever names them, and are nobody's stock. One that has come waits for the other.
#[test]
fn a_pod_that_names_addresses_of_both_families_gets_them_where_neither_may_be_stocked() {
    let cluster = Cluster::new("both", pool().for_nodes("has(nothing)"));
    let six = Pool::new("six", "fd44::/64".parse().unwrap()).for_nodes("has(nothing)");
    Allocator::new(&cluster.store, now).add_pool(&six).unwrap();
    let steward = cluster.steward("node1");
    let ips = ["10.244.0.200", "fd44::c8"].map(|ip| ip.parse().unwrap());
    let given =
        steward.assign(&owner("c1"), &AddressRequest { ips: ips.to_vec(), ..v4() }, PATIENCE).unwrap();
    assert_eq!(given.iter().map(IpNet::addr).collect::<Vec<_>>(), ips);
    cluster.assert_sound();
}

#[test]
fn a_pool_that_makes_no_sense_at_the_first_start_stops_nobody() {
    let cluster = Cluster::new("senseless", pool());
    let key = Pool::new("bad", "10.252.0.0/24".parse().unwrap()).key();
    cluster.store.create(&key, b"{\"spec\": {\"cidr\": 7}}").unwrap();
    assert!(Rules::load(&cluster.store).is_err());
    let steward = cluster.steward("node1");
    steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap();
    // A clerk with nothing to do forgets what he told, so he gets something to do.
    eventually("it is told", || {
        steward.release(&owner("nobody"), None).unwrap();
        steward.state().unreadable.iter().any(|one| one.contains(&key))
    });
}
