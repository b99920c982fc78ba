//! The allocator finds changes that other clients made in the store: it compares after each failure and once a minute.

use std::collections::BTreeSet;
use std::net::IpAddr;

use podwire_agent::calico::allocator::BlockAllocator;
use podwire_agent_ipc::addresses;
use podwire_agent_ipc::pods::{current_netns_inode, Endpoint};
use podwire_block_ipam::store::Store;
use podwire_block_ipam::{AffinityOwner, Allocator, Handle, Request, Rules};

use crate::cluster::{eventually, now, owner, pool, settled, v4, Cluster, Mode, TIMEOUT};

/// Stops the store for a moment. Afterwards the allocator compares everything.
fn blink(cluster: &Cluster, agent: &BlockAllocator) {
    cluster.store.set(Mode::Down);
    // Gives the store sync something to do.
    agent.release(&owner("unknown"), None).unwrap();
    eventually("the store fails", || agent.status().problem.is_some());
    cluster.store.set(Mode::Working);
    eventually("the store answers again", || agent.status().problem.is_none());
}

fn warm_in_store(cluster: &Cluster) -> BTreeSet<IpAddr> {
    let allocator = Allocator::new(&cluster.store, now);
    allocator.addresses_of(&Handle::for_warm_pool("node1")).unwrap().into_iter().collect()
}

#[test]
fn a_warm_address_that_was_released_is_not_assigned() {
    let cluster = Cluster::new("released-warm-pool", pool());
    let agent = cluster.agent("node1");
    eventually("the warm pool is filled", || agent.status().warm_pool == 4);
    let (allocator, rules) = (Allocator::new(&cluster.store, now), Rules::load(&cluster.store).unwrap());
    let former = warm_in_store(&cluster);
    allocator.release_handle(&rules, &Handle::for_warm_pool("node1")).unwrap();
    for ip in &former {
        let thief = Request::new(AffinityOwner::host("node2"), "net.thief");
        allocator.assign_address(&rules, &thief, *ip).unwrap();
    }
    blink(&cluster, &agent);
    eventually("the warm pool has other addresses", || {
        agent.status().warm_pool == 4 && warm_in_store(&cluster).is_disjoint(&former)
    });
    for number in 0..6 {
        let given = agent.assign(&owner(&format!("c{number}")), &v4(), TIMEOUT).unwrap();
        assert!(!former.contains(&given[0].addr()), "{given:?}");
    }
    assert_eq!(agent.status().conflicting, Vec::<String>::new());
    cluster.assert_sound();
}

#[test]
fn a_running_node_that_was_released_reclaims_its_pods_addresses() {
    let cluster = Cluster::new("released-node", pool());
    let agent = cluster.agent("node1");
    let given = agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap()[0].addr();
    let its = [("net.c1".to_owned(), given)].into();
    eventually("the store has it", || cluster.held() == its);
    let (allocator, rules) = (Allocator::new(&cluster.store, now), Rules::load(&cluster.store).unwrap());
    let collected = allocator.release_node(&rules, "node1").unwrap();
    assert_eq!(collected.nodes, ["node1"], "not even its block is left");
    assert!(cluster.held().is_empty() && allocator.blocks().unwrap().is_empty());
    blink(&cluster, &agent);
    eventually("the store has it again", || cluster.held() == its);
    eventually("the warm pool is filled", || warm_in_store(&cluster).len() >= 3);
    assert!(!warm_in_store(&cluster).contains(&given));
    cluster.assert_sound();
}

#[test]
fn an_address_with_another_owner_is_reported_as_conflicting() {
    let cluster = Cluster::new("lost", pool());
    let agent = cluster.agent("node1");
    let given = agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap()[0].addr();
    eventually("the store has it", || !cluster.held().is_empty());
    let (allocator, rules) = (Allocator::new(&cluster.store, now), Rules::load(&cluster.store).unwrap());
    allocator.release_handle(&rules, "net.c1").unwrap();
    allocator
        .assign_address(&rules, &Request::new(AffinityOwner::host("node2"), "net.thief"), given)
        .unwrap();
    blink(&cluster, &agent);
    eventually("it is synced or reported", || agent.status().conflicting == [format!("{given} of net.c1")]);
    allocator.release_handle(&rules, "net.thief").unwrap();
    blink(&cluster, &agent);
    eventually("the conflict is resolved", || agent.status().conflicting.is_empty());
    assert_eq!(cluster.held(), [("net.c1".to_owned(), given)].into());
}

#[test]
fn a_lease_released_without_an_agent_is_forgotten() {
    let cluster = Cluster::new("released-directly", pool());
    let state = cluster.state("node1");
    let agent = cluster.agent("node1");
    agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap();
    eventually("the store has it", || !cluster.held().is_empty());
    let question = addresses::Request::Release { owner: owner("c1"), legacy_handle: None };
    podwire_agent::calico::allocator::direct::respond(&cluster.store, None, "node1", &state, &question);
    assert!(cluster.held().is_empty());
    blink(&cluster, &agent);
    eventually("the lease is gone", || agent.status().leases == 0);
    assert!(cluster.held().is_empty());
    assert!(std::fs::read_dir(podwire_agent_ipc::pending::released_dir(&state)).unwrap().next().is_none());
}

#[test]
fn a_pod_without_its_veth_pair_is_released() {
    let cluster = Cluster::new("veths", pool());
    let agent = cluster.agent("node1");
    for (container, interface) in [("attached", "lo"), ("gone", "nosuch0")] {
        agent.assign(&owner(container), &v4(), TIMEOUT).unwrap();
        let endpoint = Endpoint {
            owner: owner(container),
            interface: interface.into(),
            host_netns: current_netns_inode(),
            ..Endpoint::default()
        };
        agent.publish(&endpoint).unwrap();
    }
    eventually("everything is synced", || agent.status().unsynced == 0 && cluster.held().len() == 2);
    blink(&cluster, &agent);
    eventually("one is released", || cluster.held().iter().all(|(handle, _)| handle == "net.attached"));
    assert_eq!((agent.status().leases, cluster.held().len()), (1, 1));
    cluster.assert_sound();
}

#[test]
fn a_network_name_with_a_dot_is_another_network() {
    let cluster = Cluster::new("dots", pool());
    let (allocator, rules) = (Allocator::new(&cluster.store, now), Rules::load(&cluster.store).unwrap());
    for handle in ["lan.c1", "lan.10.c1"] {
        allocator.assign(&rules, &Request::new(AffinityOwner::host("node1"), handle)).unwrap();
    }
    let question = addresses::Request::Collect { network: "lan".into(), valid: Vec::new() };
    podwire_agent::calico::allocator::direct::respond(
        &cluster.store,
        None,
        "node1",
        &cluster.state("node1"),
        &question,
    );
    let left: Vec<String> = cluster.held().into_iter().map(|(handle, _)| handle).collect();
    assert_eq!(left, ["lan.10.c1"]);
}

#[test]
fn gc_releases_addresses_that_calico_assigned() {
    let cluster = Cluster::new("strangers", pool());
    let (allocator, rules) = (Allocator::new(&cluster.store, now), Rules::load(&cluster.store).unwrap());
    let give = |node: &str, handle: &str| {
        let mut request = Request::new(AffinityOwner::host(node), handle);
        for (key, value) in [("node", node), ("namespace", "shop"), ("pod", "web")] {
            request.attributes.insert(key.into(), value.into());
        }
        allocator.assign(&rules, &request).unwrap();
    };
    // Calico's plugin assigned these, and there is no lease for them.
    for handle in ["net.gone", "net.valid", "net.10.c1", "other.gone"] {
        give("node1", handle);
    }
    give("node2", "net.elsewhere");
    // Another node has borrowed an address of this node's block.
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
    let agent = cluster.agent("node1");
    let valid = |container: &str| podwire_agent_ipc::ValidAttachment {
        container_id: container.to_owned(),
        ifname: "eth0".to_owned(),
    };
    cluster.store.set(Mode::Down);
    agent.collect("net", &[valid("valid")]).unwrap();
    cluster.store.set(Mode::Working);
    // A pod that is attached before the leak check is not in the list of valid ones, but has a lease.
    agent.assign(&owner("new"), &v4(), TIMEOUT).unwrap();
    let handles = || -> BTreeSet<String> { cluster.held().into_iter().map(|(handle, _)| handle).collect() };
    let left = ["net.10.c1", "net.borrowed", "net.elsewhere", "net.new", "net.valid", "other.gone"];
    eventually("it is released", || handles() == left.map(String::from).into());
    assert!(cluster.store.get(key).unwrap().is_none(), "it is withdrawn");
    eventually("everything is synced", || settled(&agent, &cluster.state("node1")));
    cluster.assert_sound();
}
