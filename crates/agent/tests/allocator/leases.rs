//! Leases: ADD and DEL.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use podwire_agent::calico::allocator::{BlockAllocator, Error, Settings};
use podwire_agent_ipc::addresses::AddressRequest;
use podwire_agent_ipc::{pending, Owner};
use podwire_block_ipam::store::Store;
use podwire_block_ipam::{Allocator, Ownership, Pool, Rules};

use crate::cluster::{
    eventually, now, owner, pool, settled, v4, wait_for_idle, Cluster, Mode, Shared, TIMEOUT,
};

/// A plugin that does not reach the agent records the release. The address is not assigned again before it is released.
#[test]
fn an_attachment_that_a_plugin_released_gets_a_new_address() {
    let cluster = Cluster::new("noted", pool());
    let (agent, state) = (cluster.agent("node1"), cluster.state("node1"));
    let first = agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap();
    eventually("it is synced or reported", || settled(&agent, &state));
    podwire_agent_ipc::addresses::release(&state, &owner("c1")).unwrap();
    let second = agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap();
    assert_ne!(first, second);
    let held = [("net.c1".to_owned(), second[0].addr())].into();
    eventually("the first is released", || settled(&agent, &state) && cluster.held() == held);
    cluster.assert_sound();
}

/// After a power loss a file may be empty.
#[test]
fn an_empty_lease_file_is_released_by_its_handle() {
    let cluster = Cluster::new("empty", pool());
    let state = cluster.state("node1");
    std::fs::create_dir_all(pending::leases_dir(&state)).unwrap();
    std::fs::write(pending::leases_dir(&state).join(pending::file_name(&owner("c1"))), "").unwrap();
    let rules = Rules::load(&cluster.store).unwrap();
    let request =
        podwire_block_ipam::Request::new(podwire_block_ipam::AffinityOwner::host("node1"), "net.c1");
    let allocator = Allocator::new(&cluster.store, now);
    allocator.assign_address(&rules, &request, "10.244.0.1".parse().unwrap()).unwrap();
    let agent = cluster.agent("node1");
    agent.release(&owner("c1"), None).unwrap();
    eventually("it is released", || settled(&agent, &state) && cluster.held().is_empty());
    cluster.assert_sound();
}

#[test]
fn a_pod_gets_a_warm_address_and_the_store_gets_it_later() {
    let cluster = Cluster::new("warm", pool());
    let agent = cluster.agent("node1");
    eventually("the warm pool is filled", || agent.status().warm_pool == 4);
    let given = agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap();
    assert_eq!(given.len(), 1);
    assert_eq!(given[0].prefix_len(), 28);
    assert_eq!(
        agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap(),
        given,
        "a repeated request gets the same lease"
    );
    eventually("the store has it", || cluster.held() == [("net.c1".to_owned(), given[0].addr())].into());
    let block = Allocator::new(&cluster.store, now).blocks().unwrap().remove(0).unwrap();
    let known = block.allocation(given[0].addr()).unwrap().attribute.secondary.clone();
    assert_eq!(
        (known["namespace"].as_str(), known["pod"].as_str(), known["node"].as_str()),
        ("shop", "web", "node1")
    );
    assert!(known.contains_key("timestamp"), "{known:?}");
    cluster.assert_sound();
    agent.release(&owner("c1"), Some("shop.web")).unwrap();
    eventually("it is released", || cluster.held().is_empty() && settled(&agent, &cluster.state("node1")));
    cluster.assert_sound();
}

#[test]
fn a_warm_add_and_a_del_make_no_request_to_the_store() {
    let cluster = Cluster::new("zero", pool());
    let agent = cluster.agent("node1");
    eventually("the warm pool is filled", || agent.status().warm_pool == 4);
    wait_for_idle(&cluster);
    cluster.store.set(Mode::Down);
    let one = agent.assign(&owner("c1"), &v4(), Duration::ZERO).unwrap();
    let other = agent.assign(&owner("c2"), &v4(), Duration::ZERO).unwrap();
    assert_ne!(one, other);
    agent.release(&owner("c1"), None).unwrap();
    cluster.store.set(Mode::Working);
    eventually("the store has caught up", || {
        cluster.held() == [("net.c2".to_owned(), other[0].addr())].into()
    });
}

#[test]
fn without_store_and_warm_pool_add_fails_with_try_again() {
    let cluster = Cluster::new("away", pool());
    cluster.store.set(Mode::Down);
    let agent = cluster.agent("node1");
    eventually("the store fails", || agent.status().problem.is_some());
    let error = agent.assign(&owner("c1"), &v4(), Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.code(), 11, "{error}");
    assert!(error.to_string().contains("it is down"), "{error}");
    eventually("it is not ready", || agent.check_ready().is_err());
    agent.release(&owner("c1"), None).unwrap();
    cluster.store.set(Mode::Working);
    agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap();
    eventually("it is ready", || agent.check_ready().is_ok());
}

#[test]
fn an_agent_is_ready_only_when_its_warm_pool_is_filled() {
    let cluster = Cluster::new("filled", pool());
    let claims = cluster.store.0.claims.lock().unwrap();
    let agent = cluster.agent("node1");
    eventually("the pools are read", || cluster.store.asked() > 3);
    wait_for_idle(&cluster);
    let error = agent.check_ready().expect_err("no address is claimed yet");
    assert_eq!((error.code(), error.to_string().contains("not filled yet")), (11, true), "{error}");
    drop(claims);
    eventually("it is ready", || agent.check_ready().is_ok());
    assert_eq!(agent.status().warm_pool, 4);
}

#[test]
fn a_killed_agent_recovers_its_leases() {
    let cluster = Cluster::new("killed", pool());
    let state = cluster.state("node1");
    let agent = cluster.agent("node1");
    eventually("the warm pool is filled", || agent.status().warm_pool == 4);
    cluster.store.set(Mode::Down);
    let kept = agent.assign(&owner("kept"), &v4(), TIMEOUT).unwrap();
    agent.assign(&owner("gone"), &v4(), TIMEOUT).unwrap();
    agent.release(&owner("gone"), None).unwrap();
    // The next agent has a copy of the directory: this one's thread holds the lock until the process ends. It cannot
    // reach the store.
    let copy = cluster.state("node1-again");
    copy_tree(&state, &copy);
    let store = Shared(Arc::default());
    for entry in cluster.store.0.store.lock().unwrap().list("").unwrap() {
        store.create(&entry.key, &entry.value).unwrap();
    }
    let cluster = Cluster { store: store.clone(), dir: cluster.dir.clone() };
    let settings = Settings { node: "node1".into(), warm_addresses: 4, claim: Ownership::DURATION };
    let again =
        BlockAllocator::start(settings, &copy, Box::new(move || Ok(Box::new(store.clone())))).unwrap();
    eventually("the store has one of them", || {
        cluster.held() == [("net.kept".to_owned(), kept[0].addr())].into()
    });
    assert_eq!(again.lease(&owner("kept")).unwrap().addresses, kept);
    let mut seen: BTreeSet<_> = kept.iter().copied().collect();
    for number in 0..14 {
        let given = again.assign(&owner(&format!("c{number}")), &v4(), TIMEOUT).unwrap();
        assert!(seen.insert(given[0]), "{given:?} was given twice");
    }
    eventually("everything is synced", || cluster.held().len() == 15);
    cluster.assert_sound();
}

fn copy_tree(from: &Path, to: &Path) {
    for dir in ["leases", "released"] {
        std::fs::create_dir_all(to.join(dir)).unwrap();
        std::fs::copy(from.join("id"), to.join("id")).unwrap();
        for file in std::fs::read_dir(from.join(dir)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), to.join(dir).join(file.file_name())).unwrap();
        }
    }
}

#[test]
fn leases_of_an_earlier_boot_are_released() {
    let cluster = Cluster::new("boot", pool());
    let state = cluster.state("node1");
    std::fs::create_dir_all(pending::leases_dir(&state)).unwrap();
    let lease = podwire_agent_ipc::addresses::Lease {
        owner: owner("old"),
        addresses: vec!["10.244.0.1/28".parse().unwrap()],
        boot_id: "another".into(),
        ..podwire_agent_ipc::addresses::Lease::default()
    };
    pending::write(&pending::leases_dir(&state), &pending::file_name(&lease.owner), &lease).unwrap();
    let allocator = Allocator::new(&cluster.store, now);
    let rules = Rules::load(&cluster.store).unwrap();
    let request =
        podwire_block_ipam::Request::new(podwire_block_ipam::AffinityOwner::host("node1"), "net.old");
    allocator.assign_address(&rules, &request, "10.244.0.1".parse().unwrap()).unwrap();
    let agent = cluster.agent("node1");
    eventually("it is released", || cluster.held().is_empty() && settled(&agent, &state));
    assert_eq!(agent.status().leases, 0);
    cluster.assert_sound();
}

#[test]
fn lost_responses_leak_no_address() {
    let cluster = Cluster::new("mute", pool());
    let agent = cluster.agent("node1");
    eventually("the warm pool is filled", || agent.status().warm_pool == 4);
    for round in 0..6 {
        cluster.store.set(if round % 2 == 0 { Mode::Mute } else { Mode::Working });
        for number in 0..3 {
            let _ = agent.assign(&owner(&format!("c{round}-{number}")), &v4(), Duration::from_millis(200));
        }
        for number in 0..2 {
            agent.release(&owner(&format!("c{round}-{number}")), None).unwrap();
        }
    }
    cluster.store.set(Mode::Working);
    eventually("everything is synced", || settled(&agent, &cluster.state("node1")));
    let known: BTreeSet<_> = (0..6)
        .filter_map(|round| agent.lease(&owner(&format!("c{round}-2"))))
        .map(|lease| (format!("net.{}", lease.owner.container), lease.addresses[0].addr()))
        .collect();
    eventually("the store agrees", || cluster.held() == known);
}

#[test]
fn concurrent_nodes_share_a_pool_without_double_allocation() {
    // Four blocks of four addresses for three nodes and thirteen pods.
    let pool = Pool::new("pods", "10.244.0.0/28".parse().unwrap()).with_block_size(30);
    let cluster = Cluster::new("crowd", pool);
    let allocators: Vec<BlockAllocator> =
        (1..4).map(|number| cluster.agent(&format!("node{number}"))).collect();
    let given = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (node, agent) in allocators.iter().enumerate() {
            let given = &given;
            scope.spawn(move || {
                for number in 0..4 {
                    let pod = owner(&format!("n{node}-{number}"));
                    let got = agent.assign(&pod, &v4(), TIMEOUT).unwrap();
                    given.lock().unwrap().push(got[0].addr());
                }
            });
        }
    });
    let given = given.into_inner().unwrap();
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 12, "{given:?}");
    eventually("everything is synced", || cluster.held().len() == 12);
    let held: BTreeSet<IpAddr> = cluster.held().into_iter().map(|(_, ip)| ip).collect();
    assert_eq!(held, given.into_iter().collect());
    cluster.assert_sound();
}

#[test]
fn a_request_that_cannot_be_satisfied_gets_the_reason() {
    let cluster = Cluster::new("requests", pool());
    let agent = cluster.agent("node1");
    let ask = |container: &str, wanted: AddressRequest| agent.assign(&owner(container), &wanted, TIMEOUT);
    let pools = |names: &[&str]| AddressRequest {
        ipv4_pools: Some(names.iter().map(ToString::to_string).collect()),
        ..v4()
    };
    let this = |ip: &str| AddressRequest { ips: vec![ip.parse().unwrap()], ..v4() };
    let error = ask("a", pools(&["none"])).unwrap_err();
    assert!(matches!(&error, Error::Ipam(_)) && error.to_string().contains("none"), "{error}");
    assert_eq!(error.code(), 7);
    let error = ask("b", this("192.0.2.1")).unwrap_err();
    assert!(error.to_string().contains("192.0.2.1 is not in an enabled IP pool"), "{error}");
    let error =
        ask("c", AddressRequest { ipv4_pools: None, ipv6_pools: Some(Vec::new()), ..v4() }).unwrap_err();
    assert!(error.to_string().contains("IPv6"), "{error}");
    assert_eq!(ask("d", this("10.244.0.77")).unwrap(), ["10.244.0.77/28".parse().unwrap()]);
    let other = AddressRequest { pod: "other".into(), ..this("10.244.0.77") };
    let error = ask("e", other).unwrap_err();
    assert!(error.to_string().contains("belongs to"), "{error}");
    assert_eq!(ask("f", pools(&["pods"])).unwrap().len(), 1);
}

/// The handle of one pod is damaged, before or after the store has its lease. Only that pod keeps its address until it
/// is repaired.
#[test]
fn an_unreadable_handle_does_not_block_other_releases() {
    let cluster = Cluster::new("handle", pool());
    let (agent, state) = (cluster.agent("node1"), cluster.state("node1"));
    eventually("the warm pool is filled", || agent.status().warm_pool == 4);
    let damage = |container: &str| {
        let key = format!("/calico/ipam/v2/handle/net.{container}");
        let there = cluster.store.get(&key).unwrap();
        let written = there.map(|entry| cluster.store.update(&key, b"damaged", entry.revision));
        written.unwrap_or_else(|| cluster.store.create(&key, b"damaged")).unwrap();
        key
    };
    // This lease cannot be synced.
    let early = damage("early");
    agent.assign(&owner("early"), &v4(), TIMEOUT).unwrap();
    for number in 0..3 {
        agent.assign(&owner(&format!("c{number}")), &v4(), TIMEOUT).unwrap();
    }
    // A waiting request is served whatever happens to the others, and the sync goes on.
    eventually("all others are synced", || cluster.held().len() == 3 && agent.status().unsynced == 1);
    let late = damage("c0");
    // There is no lease for these: they are released by their handles, and one of those is damaged.
    let strangers = damage("stranger");
    for container in ["early", "c0", "c1", "stranger", "unknown"] {
        agent.release(&owner(container), None).unwrap();
    }
    let is_left =
        |container: &str| pending::released_dir(&state).join(pending::file_name(&owner(container))).exists();
    eventually("the others are released", || !is_left("c1") && !is_left("unknown"));
    let handles = || cluster.held().into_iter().map(|(handle, _)| handle).collect::<Vec<_>>();
    eventually("the damaged ones stay", || handles() == ["net.c0", "net.c2"]);
    assert!(is_left("c0") && is_left("early") && is_left("stranger"));
    for key in [&early, &late, &strangers] {
        eventually("it is synced or reported", || {
            agent.status().unreadable.iter().any(|text| text.contains(key))
        });
        let there = cluster.store.get(key).unwrap().unwrap();
        cluster.store.delete(key, there.revision).unwrap();
    }
    agent.assign(&owner("next"), &v4(), TIMEOUT).unwrap();
    agent.release(&owner("next"), None).unwrap();
    eventually("after the repair they are released", || settled(&agent, &state) && handles() == ["net.c2"]);
    cluster.assert_sound();
}

#[test]
fn an_unreadable_block_is_reported_and_skipped() {
    let cluster = Cluster::new("broken", pool());
    let agent = cluster.agent("node1");
    eventually("the warm pool is filled", || agent.status().warm_pool == 4);
    let before = agent.assign(&owner("before"), &v4(), TIMEOUT).unwrap();
    eventually("everything is synced", || agent.status().unsynced == 0);
    let key = format!("/calico/ipam/v2/assignment/ipv4/block/{}-28", before[0].network());
    let entry = cluster.store.get(&key).unwrap().unwrap();
    cluster.store.update(&key, b"{\"cidr\": 1}", entry.revision).unwrap();
    for number in 0..8 {
        agent.assign(&owner(&format!("c{number}")), &v4(), TIMEOUT).unwrap();
    }
    eventually("it is synced or reported", || {
        agent.status().unreadable.iter().any(|text| text.contains(&key))
    });
    agent.release(&owner("before"), None).unwrap();
    let there = cluster.store.get(&key).unwrap().unwrap();
    cluster.store.update(&key, &entry.value, there.revision).unwrap();
}

#[test]
fn a_new_sandbox_gets_the_requested_address_of_the_previous_one() {
    let cluster = Cluster::new("successor", pool());
    let agent = cluster.agent("node1");
    let this = AddressRequest { ips: vec!["10.244.0.77".parse().unwrap()], ..v4() };
    let first = agent.assign(&owner("first"), &this, TIMEOUT).unwrap();
    eventually("the store has it", || agent.status().unsynced == 0);
    assert_eq!(agent.assign(&owner("second"), &this, TIMEOUT).unwrap(), first);
    agent.release(&owner("first"), None).unwrap();
    eventually("the store has the new sandbox", || {
        cluster.held() == [("net.second".to_owned(), first[0].addr())].into()
    });
    cluster.assert_sound();
}

#[test]
fn expired_requests_take_no_address() {
    let cluster = Cluster::new("gave-up", pool());
    cluster.store.set(Mode::Down);
    let agent = cluster.agent("node1");
    for number in 0..20 {
        let waits = Duration::from_millis(1);
        assert!(agent.assign(&owner(&format!("c{number}")), &v4(), waits).is_err());
    }
    cluster.store.set(Mode::Working);
    eventually("the warm pool is filled", || {
        agent.status().warm_pool == 4 && agent.status().problem.is_none()
    });
    let warm_pool = podwire_block_ipam::Handle::for_warm_pool("node1");
    assert_eq!(Allocator::new(&cluster.store, now).addresses_of(&warm_pool).unwrap().len(), 4);
}

#[test]
fn del_without_a_lease_keeps_the_containers_other_interface() {
    let cluster = Cluster::new("interfaces", pool());
    let agent = cluster.agent("node1");
    let given = agent.assign(&owner("c1"), &v4(), TIMEOUT).unwrap()[0].addr();
    let held = [("net.c1".to_owned(), given)].into();
    eventually("the store has it", || cluster.held() == held);
    agent.release(&Owner { ifname: "net2".into(), ..owner("c1") }, None).unwrap();
    eventually("it is released", || settled(&agent, &cluster.state("node1")));
    assert_eq!(cluster.held(), held);
    cluster.assert_sound();
}
