//! Workload endpoints in the store.

use podwire_agent_ipc::addresses::{self, Lease, Response};
use podwire_agent_ipc::pending;
use podwire_block_ipam::store::Store;
use podwire_block_ipam::{Allocator, Request, Rules};

use crate::cluster::{eventually, now, owner, pool, settled, v4, Cluster, Mode};

fn endpoint(container: &str, ip: &str) -> podwire_agent_ipc::pods::Endpoint {
    podwire_agent_ipc::pods::Endpoint {
        owner: owner(container),
        namespace: "shop".into(),
        pod: "web".into(),
        profiles: vec!["kns.shop".into()],
        addresses: vec![ip.parse().unwrap()],
        interface: "cali0".into(),
        mac: "0a:00:00:00:00:01".into(),
        ..podwire_agent_ipc::pods::Endpoint::default()
    }
}

const ENDPOINT: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/node1-k8s-web-eth0";

impl Cluster {
    /// The container and the addresses of the pod's endpoint, if the store has one.
    fn published(&self) -> Option<(String, String)> {
        let entry = self.store.0.store.lock().unwrap().get(ENDPOINT).unwrap()?;
        let object: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
        let text = |field: &str| object["spec"][field].to_string();
        Some((text("containerID"), text("ipNetworks")))
    }
}

fn expected(container: &str, ip: &str) -> Option<(String, String)> {
    Some((format!("\"{container}\""), format!("[\"{ip}/32\"]")))
}

#[test]
fn an_endpoint_is_published_later_and_withdrawn_only_by_its_container() {
    let cluster = Cluster::new("endpoint", pool());
    let agent = cluster.agent("node1");
    eventually("the warm pool is filled", || agent.status().warm_pool == 4);
    cluster.store.set(Mode::Down);
    agent.publish(&endpoint("c1", "10.244.0.1")).unwrap();
    cluster.store.set(Mode::Working);
    eventually("it is synced or reported", || cluster.published() == expected("c1", "10.244.0.1"));
    // A new sandbox of the pod is attached before the first one is deleted.
    agent.publish(&endpoint("c2", "10.244.0.2")).unwrap();
    eventually("the newer one is published", || cluster.published() == expected("c2", "10.244.0.2"));
    agent.withdraw(&endpoint("c1", "10.244.0.1")).unwrap();
    let notes = pending::released_dir(&podwire_agent_ipc::pods::endpoints_dir(&cluster.state("node1")));
    let settled = || std::fs::read_dir(&notes).unwrap().count() == 0;
    eventually("everything is synced", || settled() && agent.status().unsynced == 0);
    assert_eq!(cluster.published(), expected("c2", "10.244.0.2"));
    cluster.store.set(Mode::Down);
    agent.withdraw(&endpoint("c2", "10.244.0.2")).unwrap();
    assert!(!settled());
    cluster.store.set(Mode::Working);
    eventually("it is withdrawn", || cluster.published().is_none() && settled());
}

#[test]
fn endpoints_survive_a_restart_of_the_agent_but_not_a_reboot() {
    let cluster = Cluster::new("endpoint-boot", pool());
    let state = cluster.state("node1");
    let dir = pending::leases_dir(&podwire_agent_ipc::pods::endpoints_dir(&state));
    std::fs::create_dir_all(&dir).unwrap();
    let write = |endpoint: &podwire_agent_ipc::pods::Endpoint| {
        pending::write(&dir, &pending::file_name(&endpoint.owner), endpoint).unwrap();
    };
    // A killed agent has recorded it and not published it.
    write(&podwire_agent_ipc::pods::Endpoint {
        boot_id: pending::boot_id().unwrap(),
        ..endpoint("c1", "10.244.0.1")
    });
    let gone = podwire_agent_ipc::pods::Endpoint {
        pod: "old".into(),
        boot_id: "another".into(),
        ..endpoint("c0", "10.244.0.9")
    };
    write(&gone);
    let key = ENDPOINT.replace("web", "old");
    cluster.store.create(&key, br#"{"metadata":{},"spec":{"containerID":"c0"}}"#).unwrap();
    let _agent = cluster.agent("node1");
    eventually("the attached pod is published", || cluster.published() == expected("c1", "10.244.0.1"));
    eventually("the other is withdrawn", || cluster.store.get(&key).unwrap().is_none());
}

#[test]
fn an_endpoint_that_fails_does_not_block_others() {
    let cluster = Cluster::new("endpoint-refused", pool());
    let agent = cluster.agent("node1");
    *cluster.store.0.forbidden.lock().unwrap() = Some("node1-k8s-odd-eth0");
    agent
        .publish(&podwire_agent_ipc::pods::Endpoint { pod: "odd".into(), ..endpoint("c1", "10.244.0.1") })
        .unwrap();
    eventually("the store rejects it", || agent.status().problem.is_some());
    agent.publish(&endpoint("c2", "10.244.0.2")).unwrap();
    eventually("the other is published", || cluster.published() == expected("c2", "10.244.0.2"));
    // The store has it a moment before the sync records that.
    eventually("one is left", || agent.status().unsynced == 1);
    *cluster.store.0.forbidden.lock().unwrap() = None;
    eventually("everything is synced", || agent.status().unsynced == 0 && agent.status().problem.is_none());
    assert!(cluster.store.get(&ENDPOINT.replace("web", "odd")).unwrap().is_some());
}

#[test]
fn pods_that_another_program_deleted_are_not_published_again() {
    let cluster = Cluster::new("endpoint-deleted", pool());
    let state = cluster.state("node1");
    let endpoints = podwire_agent_ipc::pods::endpoints_dir(&state);
    // A previous agent has published two pods. Calico's plugin has deleted one of them since, without updating the
    // agent's files.
    let note = |pod: &str, ip: &str, interface: &str, host_netns: u64| {
        let boot = pending::boot_id().unwrap();
        let name = pending::file_name(&owner(pod));
        let addresses = vec![format!("{ip}/28").parse().unwrap()];
        let lease = Lease { owner: owner(pod), addresses, boot_id: boot.clone(), ..Lease::default() };
        let (pod, interface) = (pod.to_owned(), interface.to_owned());
        let endpoint = podwire_agent_ipc::pods::Endpoint {
            pod,
            interface,
            boot_id: boot,
            host_netns,
            ..endpoint(&lease.owner.container, ip)
        };
        for dir in [pending::leases_dir(&state), pending::leases_dir(&endpoints)] {
            std::fs::create_dir_all(dir).unwrap();
        }
        pending::write(&pending::leases_dir(&state), &name, &lease).unwrap();
        pending::write(&pending::leases_dir(&endpoints), &name, &endpoint).unwrap();
    };
    let rules = Rules::load(&cluster.store).unwrap();
    let allocator = Allocator::new(&cluster.store, now);
    let give = |handle: &str| {
        let request = Request::new(podwire_block_ipam::AffinityOwner::host("node1"), handle);
        allocator.assign(&rules, &request).unwrap().addresses[0].addr()
    };
    let (kept, deleted, unseen) = (give("net.kept"), give("net.deleted"), give("net.unseen"));
    allocator.release_handle(&rules, "net.deleted").unwrap();
    let here = podwire_agent_ipc::pods::current_netns_inode();
    note("kept", &kept.to_string(), "lo", here);
    note("deleted", &deleted.to_string(), "cali-is-gone", here);
    // In another network namespace the agent cannot see the interface.
    note("unseen", &unseen.to_string(), "cali-elsewhere", here + 1);
    let agent = cluster.agent("node1");
    let gone = pending::released_dir(&endpoints);
    let is_synced = || settled(&agent, &state) && std::fs::read_dir(&gone).unwrap().count() == 0;
    eventually("everything is synced", || agent.status().warm_pool == 4 && is_synced());
    assert_eq!(cluster.held(), [("net.kept".to_owned(), kept), ("net.unseen".to_owned(), unseen)].into());
    assert!(cluster.store.get(&ENDPOINT.replace("web", "kept")).unwrap().is_some());
    assert!(cluster.store.get(&ENDPOINT.replace("web", "deleted")).unwrap().is_none());
    assert_eq!(agent.status().leases, 2);
    cluster.assert_sound();
}

#[test]
fn an_existing_endpoint_of_the_pod_is_updated() {
    let cluster = Cluster::new("endpoint-reuse", pool());
    let theirs = ENDPOINT.replace("eth0", "net1");
    let value =
        br#"{"kind":"WorkloadEndpoint","metadata":{"uid":"u1"},"spec":{"containerID":"former","newer":1}}"#;
    cluster.store.create(&theirs, value).unwrap();
    let neighbour = ENDPOINT.replace("web-eth0", "web--1-eth0");
    cluster.store.create(&neighbour, value).unwrap();
    let agent = cluster.agent("node1");
    agent.publish(&endpoint("c1", "10.244.0.1")).unwrap();
    eventually("it is synced or reported", || agent.status().unsynced == 0);
    assert_eq!(cluster.published(), None, "no second one");
    let read = |key: &str| -> serde_json::Value {
        serde_json::from_slice(&cluster.store.get(key).unwrap().unwrap().value).unwrap()
    };
    let object = read(&theirs);
    assert_eq!(
        (object["spec"]["containerID"].as_str(), object["spec"]["newer"].as_u64()),
        (Some("c1"), Some(1))
    );
    assert_eq!(
        (object["spec"]["endpoint"].as_str(), object["metadata"]["uid"].as_str()),
        (Some("net1"), Some("u1"))
    );
    assert_eq!(read(&neighbour)["spec"]["containerID"], "former");
}

#[test]
fn the_profile_of_a_network_without_policies_is_created_once() {
    let cluster = Cluster::new("profile", pool());
    let key = "/calico/resources/v3/projectcalico.org/profiles/net";
    let agent = cluster.agent("node1");
    let plain =
        podwire_agent_ipc::pods::Endpoint { profiles: vec!["net".into()], ..endpoint("c1", "10.244.0.1") };
    agent.publish(&plain).unwrap();
    eventually("it is synced or reported", || agent.status().unsynced == 0);
    let made = cluster.store.get(key).unwrap().unwrap();
    agent.publish(&podwire_agent_ipc::pods::Endpoint { mac: "0a:00:00:00:00:02".into(), ..plain }).unwrap();
    eventually("it is synced or reported", || agent.status().unsynced == 0);
    assert_eq!(cluster.store.get(key).unwrap().unwrap(), made);
}

#[test]
fn gc_withdraws_endpoints_and_releases_their_addresses() {
    let cluster = Cluster::new("endpoint-gc", pool());
    let other = ENDPOINT.replace("web", "other");
    let is_there = |key: &str| cluster.store.get(key).unwrap().is_some();
    let valid =
        [podwire_agent_ipc::ValidAttachment { container_id: "c2".to_owned(), ifname: "eth0".to_owned() }];
    let later = podwire_agent_ipc::pods::Endpoint { pod: "other".into(), ..endpoint("c2", "10.244.0.2") };
    let agent = cluster.agent("node1");
    agent.publish(&endpoint("c1", "10.244.0.1")).unwrap();
    agent.publish(&later).unwrap();
    eventually("both are published", || is_there(ENDPOINT) && is_there(&other));
    agent.collect("net", &valid).unwrap();
    eventually("one is withdrawn", || !is_there(ENDPOINT));
    assert!(is_there(&other));
    // The same without an agent: a stale endpoint is found by its address.
    let respond = |request: &addresses::Request| {
        podwire_agent::calico::allocator::direct::respond(
            &cluster.store,
            None,
            "node2",
            &cluster.state("node2"),
            request,
        )
    };
    let key = ENDPOINT.replace("node1", "node2");
    let given = respond(&addresses::Request::Assign { owner: owner("c3"), addresses: v4(), timeout_ms: 0 });
    assert!(matches!(given, Response::Assigned { .. }), "{given:?}");
    let published =
        respond(&addresses::Request::Publish { endpoint: Box::new(endpoint("c3", "10.244.0.3")) });
    assert_eq!(published, Response::Done);
    assert!(is_there(&key));
    assert_eq!(
        respond(&addresses::Request::Collect { network: "net".into(), valid: valid.to_vec() }),
        Response::Done
    );
    assert!(!is_there(&key) && !cluster.held().iter().any(|(handle, _)| handle == "net.c3"));
}

/// The endpoint of a container without a pod.
fn container(network: &str) -> podwire_agent_ipc::pods::Endpoint {
    podwire_agent_ipc::pods::Endpoint {
        owner: podwire_agent_ipc::Owner { network: network.into(), ..owner("c1") },
        pod: String::new(),
        namespace: String::new(),
        profiles: vec![network.into()],
        ..endpoint("c1", "10.244.0.1")
    }
}

const CONTAINER: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node1-cni-c1-eth0";

impl Cluster {
    fn profiles(&self) -> Option<String> {
        let entry = self.store.0.store.lock().unwrap().get(CONTAINER).unwrap()?;
        let object: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
        Some(object["spec"]["profiles"].to_string())
    }

    fn has_profile(&self, name: &str) -> bool {
        let key = format!("/calico/resources/v3/projectcalico.org/profiles/{name}");
        self.store.0.store.lock().unwrap().get(&key).unwrap().is_some()
    }
}

#[test]
fn a_secondary_network_joins_and_leaves_an_endpoint() {
    let cluster = Cluster::new("endpoint-secondary", pool());
    let agent = cluster.agent("node1");
    let secondary = || container("other");
    assert_eq!(agent.join(&secondary()).unwrap(), None);
    agent.publish(&container("net")).unwrap();
    let joined = agent.join(&secondary()).unwrap().unwrap();
    assert_eq!(joined.addresses, container("net").addresses);
    let both = Some(r#"["net","other"]"#.to_owned());
    eventually("both are published", || cluster.profiles() == both);
    assert!(cluster.has_profile("net") && cluster.has_profile("other"));
    let alone = || cluster.profiles() == Some(r#"["net"]"#.into());
    agent.withdraw(&secondary()).unwrap();
    eventually("one is left", alone);
    agent.join(&secondary()).unwrap();
    eventually("both are published again", || cluster.profiles() == both);
    agent.collect("other", &[]).unwrap();
    eventually("the stale one is gone", alone);
    // A network that never joined removes nothing.
    agent.withdraw(&container("stranger")).unwrap();
    agent.publish(&endpoint("c9", "10.244.0.9")).unwrap();
    eventually("the later one is published", || cluster.published() == expected("c9", "10.244.0.9"));
    assert!(alone());
    agent.join(&secondary()).unwrap();
    agent.withdraw(&container("net")).unwrap();
    eventually("the primary network withdraws the endpoint", || cluster.profiles().is_none());
}

#[test]
fn a_secondary_network_that_left_without_an_agent_is_removed() {
    let cluster = Cluster::new("endpoint-secondary-pending", pool());
    let state = cluster.state("node1");
    let dir = pending::leases_dir(&podwire_agent_ipc::pods::endpoints_dir(&state));
    std::fs::create_dir_all(&dir).unwrap();
    let primary = podwire_agent_ipc::pods::Endpoint {
        profiles: vec!["net".into(), "other".into()],
        boot_id: pending::boot_id().unwrap(),
        ..container("net")
    };
    pending::write(&dir, &pending::file_name(&primary.owner), &primary).unwrap();
    let secondary = container("other");
    podwire_agent_ipc::pods::withdraw(&state, &secondary).unwrap();
    let agent = cluster.agent("node1");
    let is_alone = || cluster.profiles().as_deref() == Some(r#"["net"]"#);
    eventually("the pending withdrawal is done", || is_alone() && agent.status().unsynced == 0);
    assert_eq!(
        std::fs::read_dir(pending::released_dir(&podwire_agent_ipc::pods::endpoints_dir(&state)))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn a_secondary_network_joins_without_an_agent() {
    let cluster = Cluster::new("endpoint-secondary-direct", pool());
    let respond = |request: &addresses::Request| {
        podwire_agent::calico::allocator::direct::respond(
            &cluster.store,
            None,
            "node1",
            &cluster.state("node1"),
            request,
        )
    };
    let join = || respond(&addresses::Request::Join { endpoint: Box::new(container("other")) });
    assert_eq!(join(), Response::Joined { endpoint: None });
    respond(&addresses::Request::Publish { endpoint: Box::new(container("net")) });
    let Response::Joined { endpoint: Some(joined) } = join() else { panic!("nothing to join") };
    assert_eq!((&joined.addresses[..], &*joined.interface), (&container("net").addresses[..], "cali0"));
    assert_eq!(cluster.profiles().as_deref(), Some(r#"["net","other"]"#));
    // The primary network does not join.
    let again = respond(&addresses::Request::Join { endpoint: Box::new(container("net")) });
    assert_eq!(again, Response::Joined { endpoint: None });
    // A repeated ADD has joined already.
    let Response::Joined { endpoint: Some(again) } = join() else { panic!("nothing to join") };
    assert_eq!((again.profiles.len(), &again.addresses), (2, &joined.addresses));
    let secondary = container("other");
    // A repeated withdrawal, or one of a network that never joined, changes nothing.
    for gone in [secondary.clone(), secondary, container("stranger")] {
        assert_eq!(respond(&addresses::Request::Withdraw { endpoint: Box::new(gone) }), Response::Done);
        assert_eq!(cluster.profiles().as_deref(), Some(r#"["net"]"#));
    }
    assert_eq!(
        respond(&addresses::Request::Withdraw { endpoint: Box::new(container("net")) }),
        Response::Done
    );
    assert_eq!(cluster.profiles(), None);
}

#[test]
fn a_join_without_an_agent_survives_its_restart() {
    let cluster = Cluster::new("endpoint-secondary-restart", pool());
    let state = cluster.state("node1");
    let dir = pending::leases_dir(&podwire_agent_ipc::pods::endpoints_dir(&state));
    std::fs::create_dir_all(&dir).unwrap();
    let primary =
        podwire_agent_ipc::pods::Endpoint { boot_id: pending::boot_id().unwrap(), ..container("net") };
    pending::write(&dir, &pending::file_name(&primary.owner), &primary).unwrap();
    let respond = |request: &addresses::Request| {
        podwire_agent::calico::allocator::direct::respond(&cluster.store, None, "node1", &state, request)
    };
    respond(&addresses::Request::Publish { endpoint: Box::new(container("net")) });
    respond(&addresses::Request::Join { endpoint: Box::new(container("other")) });
    respond(&addresses::Request::Join { endpoint: Box::new(container("third")) });
    respond(&addresses::Request::Withdraw { endpoint: Box::new(container("third")) });
    let agent = cluster.agent("node1");
    eventually("everything is synced", || agent.status().unsynced == 0);
    assert_eq!(cluster.profiles().as_deref(), Some(r#"["net","other"]"#));
}
