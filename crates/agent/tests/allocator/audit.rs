//! What others do to the store behind a node's back is found out: by comparing, after each trouble and now and then.

use std::collections::BTreeSet;
use std::net::IpAddr;

use podwire_agent_ipc::addresses;
use podwire_agent_ipc::pods::{current_netns_inode, Endpoint};
use podwire_block_ipam::store::Store;
use podwire_block_ipam::{AffinityOwner, Allocator, Handle, Request, Rules};
use podwire_steward::Steward;

use crate::stage::{eventually, now, owner, pool, settled, v4, Cluster, Mood, PATIENCE};

/// The store does not answer for a moment. Afterwards everything is compared.
fn blink(cluster: &Cluster, steward: &Steward) {
    cluster.store.set(Mood::Away);
    // Something for the clerk to do.
    steward.release(&owner("nobody"), None).unwrap();
    eventually("trouble", || steward.state().trouble.is_some());
    cluster.store.set(Mood::Well);
    eventually("none any more", || steward.state().trouble.is_none());
}

fn stock_in_store(cluster: &Cluster) -> BTreeSet<IpAddr> {
    let allocator = Allocator::new(&cluster.store, now);
    allocator.addresses_of(&Handle::for_warm_pool("node1")).unwrap().into_iter().collect()
}

#[test]
fn stock_that_somebody_has_released_is_given_to_nobody() {
    let cluster = Cluster::new("released-stock", pool());
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    let (allocator, rules) = (Allocator::new(&cluster.store, now), Rules::load(&cluster.store).unwrap());
    let former = stock_in_store(&cluster);
    allocator.release_handle(&rules, &Handle::for_warm_pool("node1")).unwrap();
    for ip in &former {
        let thief = Request::new(AffinityOwner::host("node2"), "net.thief");
        allocator.assign_address(&rules, &thief, *ip).unwrap();
    }
    blink(&cluster, &steward);
    eventually("another stock", || {
        steward.state().stock == 4 && stock_in_store(&cluster).is_disjoint(&former)
    });
    for number in 0..6 {
        let given = steward.assign(&owner(&format!("c{number}")), &v4(), PATIENCE).unwrap();
        assert!(!former.contains(&given[0].addr()), "{given:?}");
    }
    assert_eq!(steward.state().lost, Vec::<String>::new());
    cluster.assert_sound();
}

#[test]
fn a_node_that_lives_and_was_released_takes_what_its_pods_have_again() {
    let cluster = Cluster::new("released-node", pool());
    let steward = cluster.steward("node1");
    let given = steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap()[0].addr();
    let its = [("net.c1".to_owned(), given)].into();
    eventually("the store knows", || cluster.held() == its);
    let (allocator, rules) = (Allocator::new(&cluster.store, now), Rules::load(&cluster.store).unwrap());
    let collected = allocator.release_node(&rules, "node1").unwrap();
    assert_eq!(collected.nodes, ["node1"], "not even its block is left");
    assert!(cluster.held().is_empty() && allocator.blocks().unwrap().is_empty());
    blink(&cluster, &steward);
    eventually("the store knows again", || cluster.held() == its);
    eventually("there is stock", || stock_in_store(&cluster).len() >= 3);
    assert!(!stock_in_store(&cluster).contains(&given));
    cluster.assert_sound();
}

#[test]
fn an_address_that_is_somebody_elses_by_now_is_told() {
    let cluster = Cluster::new("lost", pool());
    let steward = cluster.steward("node1");
    let given = steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap()[0].addr();
    eventually("the store knows", || !cluster.held().is_empty());
    let (allocator, rules) = (Allocator::new(&cluster.store, now), Rules::load(&cluster.store).unwrap());
    allocator.release_handle(&rules, "net.c1").unwrap();
    allocator
        .assign_address(&rules, &Request::new(AffinityOwner::host("node2"), "net.thief"), given)
        .unwrap();
    blink(&cluster, &steward);
    eventually("it is told", || steward.state().lost == [format!("{given} of net.c1")]);
    allocator.release_handle(&rules, "net.thief").unwrap();
    blink(&cluster, &steward);
    eventually("it is its own again", || steward.state().lost.is_empty());
    assert_eq!(cluster.held(), [("net.c1".to_owned(), given)].into());
}

#[test]
fn what_was_released_without_an_agent_is_not_believed_in_by_the_next() {
    let cluster = Cluster::new("released-directly", pool());
    let state = cluster.state("node1");
    let steward = cluster.steward("node1");
    steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap();
    eventually("the store knows", || !cluster.held().is_empty());
    let question = addresses::Request::Release { owner: owner("c1"), legacy_handle: None };
    podwire_steward::direct::answer(&cluster.store, None, "node1", &state, &question);
    assert!(cluster.held().is_empty());
    blink(&cluster, &steward);
    eventually("nobody has it", || steward.state().leases == 0);
    assert!(cluster.held().is_empty());
    assert!(std::fs::read_dir(podwire_agent_ipc::pending::released_dir(&state)).unwrap().next().is_none());
}

#[test]
fn a_pod_whose_cable_somebody_else_has_removed_is_gone() {
    let cluster = Cluster::new("cables", pool());
    let steward = cluster.steward("node1");
    for (container, interface) in [("living", "lo"), ("gone", "nosuch0")] {
        steward.assign(&owner(container), &v4(), PATIENCE).unwrap();
        let endpoint = Endpoint {
            owner: owner(container),
            interface: interface.into(),
            host_netns: current_netns_inode(),
            ..Endpoint::default()
        };
        steward.publish(&endpoint).unwrap();
    }
    eventually("all is told", || steward.state().untold == 0 && cluster.held().len() == 2);
    blink(&cluster, &steward);
    eventually("one is gone", || cluster.held().iter().all(|(handle, _)| handle == "net.living"));
    assert_eq!((steward.state().leases, cluster.held().len()), (1, 1));
    cluster.assert_sound();
}

#[test]
fn a_network_whose_name_goes_on_behind_a_dot_is_another() {
    let cluster = Cluster::new("dots", pool());
    let (allocator, rules) = (Allocator::new(&cluster.store, now), Rules::load(&cluster.store).unwrap());
    for handle in ["lan.c1", "lan.10.c1"] {
        allocator.assign(&rules, &Request::new(AffinityOwner::host("node1"), handle)).unwrap();
    }
    let question = addresses::Request::Collect { network: "lan".into(), valid: Vec::new() };
    podwire_steward::direct::answer(&cluster.store, None, "node1", &cluster.state("node1"), &question);
    let left: Vec<String> = cluster.held().into_iter().map(|(handle, _)| handle).collect();
    assert_eq!(left, ["lan.10.c1"]);
}

#[test]
fn gc_finds_what_others_gave_before_the_agent_came() {
    let cluster = Cluster::new("strangers", pool());
    let (allocator, rules) = (Allocator::new(&cluster.store, now), Rules::load(&cluster.store).unwrap());
    let give = |node: &str, handle: &str| {
        let mut request = Request::new(AffinityOwner::host(node), handle);
        for (key, value) in [("node", node), ("namespace", "shop"), ("pod", "web")] {
            request.attributes.insert(key.into(), value.into());
        }
        allocator.assign(&rules, &request).unwrap();
    };
    // Calico's plugin gave these, and no note here knows of them.
    for handle in ["net.gone", "net.valid", "net.10.c1", "other.gone"] {
        give("node1", handle);
    }
    give("node2", "net.elsewhere");
    // Another node has borrowed an address of this one's block.
    let ours = allocator.addresses_of("net.gone").unwrap()[0];
    let borrowed = IpAddr::from(match ours {
        IpAddr::V4(ip) => (u32::from(ip) | 0xf).to_be_bytes(),
        IpAddr::V6(_) => unreachable!("the pool is of IPv4"),
    });
    let mut request = Request::new(AffinityOwner::host("node2"), "net.borrowed");
    request.attributes.insert("node".into(), "node2".into());
    allocator.assign_address(&rules, &request, borrowed).unwrap();
    let key = "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/node1-k8s-web-eth0";
    cluster.store.create(key, br#"{"metadata":{},"spec":{"containerID":"gone"}}"#).unwrap();
    let steward = cluster.steward("node1");
    let valid = |container: &str| podwire_agent_ipc::ValidAttachment {
        container_id: container.to_owned(),
        ifname: "eth0".to_owned(),
    };
    cluster.store.set(Mood::Away);
    steward.collect("net", &[valid("valid")]).unwrap();
    cluster.store.set(Mood::Well);
    // Who comes before the clerk could look is not among the valid ones, and has a lease.
    steward.assign(&owner("new"), &v4(), PATIENCE).unwrap();
    let handles = || -> BTreeSet<String> { cluster.held().into_iter().map(|(handle, _)| handle).collect() };
    let left = ["net.10.c1", "net.borrowed", "net.elsewhere", "net.new", "net.valid", "other.gone"];
    eventually("it is given back", || handles() == left.map(String::from).into());
    assert!(cluster.store.get(key).unwrap().is_none(), "nobody is told of it any more");
    eventually("nothing is left to do", || settled(&steward, &cluster.state("node1")));
    cluster.assert_sound();
}
