//! What others hear of the pods.

use podwire_agent_ipc::addresses::{self, Lease, Response};
use podwire_agent_ipc::pending;
use podwire_block_ipam::store::Store;
use podwire_block_ipam::{Allocator, Request, Rules};

use crate::stage::{eventually, now, owner, pool, settled, v4, Cluster, Mood};

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

fn said(container: &str, ip: &str) -> Option<(String, String)> {
    Some((format!("\"{container}\""), format!("[\"{ip}/32\"]")))
}

#[test]
fn an_endpoint_is_told_afterwards_and_withdrawn_by_its_own_container_only() {
    let cluster = Cluster::new("endpoint", pool());
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    cluster.store.set(Mood::Away);
    steward.publish(&endpoint("c1", "10.244.0.1")).unwrap();
    cluster.store.set(Mood::Well);
    eventually("it is told", || cluster.published() == said("c1", "10.244.0.1"));
    // Another sandbox of the same pod comes before the first one is deleted.
    steward.publish(&endpoint("c2", "10.244.0.2")).unwrap();
    eventually("the later one counts", || cluster.published() == said("c2", "10.244.0.2"));
    steward.withdraw(&endpoint("c1", "10.244.0.1")).unwrap();
    let notes = pending::released_dir(&podwire_agent_ipc::pods::endpoints_dir(&cluster.state("node1")));
    let settled = || std::fs::read_dir(&notes).unwrap().count() == 0;
    eventually("all is told", || settled() && steward.state().untold == 0);
    assert_eq!(cluster.published(), said("c2", "10.244.0.2"));
    cluster.store.set(Mood::Away);
    steward.withdraw(&endpoint("c2", "10.244.0.2")).unwrap();
    assert!(!settled());
    cluster.store.set(Mood::Well);
    eventually("it is gone", || cluster.published().is_none() && settled());
}

#[test]
fn endpoints_survive_their_agent_and_not_their_boot() {
    let cluster = Cluster::new("endpoint-boot", pool());
    let state = cluster.state("node1");
    let folder = pending::leases_dir(&podwire_agent_ipc::pods::endpoints_dir(&state));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |endpoint: &podwire_agent_ipc::pods::Endpoint| {
        pending::write(&folder, &pending::file_name(&endpoint.owner), endpoint).unwrap();
    };
    // An agent that was killed has noted it, and nobody was told.
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
    let _steward = cluster.steward("node1");
    eventually("the living is told", || cluster.published() == said("c1", "10.244.0.1"));
    eventually("the dead is withdrawn", || cluster.store.get(&key).unwrap().is_none());
}

#[test]
fn one_who_cannot_be_told_of_keeps_nobody_else_back() {
    let cluster = Cluster::new("endpoint-refused", pool());
    let steward = cluster.steward("node1");
    *cluster.store.0.forbidden.lock().unwrap() = Some("node1-k8s-odd-eth0");
    steward
        .publish(&podwire_agent_ipc::pods::Endpoint { pod: "odd".into(), ..endpoint("c1", "10.244.0.1") })
        .unwrap();
    eventually("it is refused", || steward.state().trouble.is_some());
    steward.publish(&endpoint("c2", "10.244.0.2")).unwrap();
    eventually("the other is told", || cluster.published() == said("c2", "10.244.0.2"));
    // The store has it a moment before the clerk notes that.
    eventually("one is left", || steward.state().untold == 1);
    *cluster.store.0.forbidden.lock().unwrap() = None;
    eventually("all is told", || steward.state().untold == 0 && steward.state().trouble.is_none());
    assert!(cluster.store.get(&ENDPOINT.replace("web", "odd")).unwrap().is_some());
}

#[test]
fn pods_that_another_program_has_deleted_do_not_come_back_with_the_agent() {
    let cluster = Cluster::new("endpoint-deleted", pool());
    let state = cluster.state("node1");
    let endpoints = podwire_agent_ipc::pods::endpoints_dir(&state);
    // An agent that ended has noted two pods and told of both. Calico's plugin, which knows nothing of notes, has deleted one of them since.
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
        for folder in [pending::leases_dir(&state), pending::leases_dir(&endpoints)] {
            std::fs::create_dir_all(folder).unwrap();
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
    // Where that would be, nobody looks.
    note("unseen", &unseen.to_string(), "cali-elsewhere", here + 1);
    let steward = cluster.steward("node1");
    let gone = pending::released_dir(&endpoints);
    let is_told = || settled(&steward, &state) && std::fs::read_dir(&gone).unwrap().count() == 0;
    eventually("all is told", || steward.state().stock == 4 && is_told());
    assert_eq!(cluster.held(), [("net.kept".to_owned(), kept), ("net.unseen".to_owned(), unseen)].into());
    assert!(cluster.store.get(&ENDPOINT.replace("web", "kept")).unwrap().is_some());
    assert!(cluster.store.get(&ENDPOINT.replace("web", "deleted")).unwrap().is_none());
    assert_eq!(steward.state().leases, 2);
    cluster.assert_sound();
}

#[test]
fn an_endpoint_that_another_has_made_for_the_pod_is_gone_on_with() {
    let cluster = Cluster::new("endpoint-reuse", pool());
    let theirs = ENDPOINT.replace("eth0", "net1");
    let value =
        br#"{"kind":"WorkloadEndpoint","metadata":{"uid":"u1"},"spec":{"containerID":"former","newer":1}}"#;
    cluster.store.create(&theirs, value).unwrap();
    let neighbour = ENDPOINT.replace("web-eth0", "web--1-eth0");
    cluster.store.create(&neighbour, value).unwrap();
    let steward = cluster.steward("node1");
    steward.publish(&endpoint("c1", "10.244.0.1")).unwrap();
    eventually("it is told", || steward.state().untold == 0);
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
fn a_profile_is_made_for_a_network_without_policies_and_never_changed() {
    let cluster = Cluster::new("profile", pool());
    let key = "/calico/resources/v3/projectcalico.org/profiles/net";
    let steward = cluster.steward("node1");
    let plain =
        podwire_agent_ipc::pods::Endpoint { profiles: vec!["net".into()], ..endpoint("c1", "10.244.0.1") };
    steward.publish(&plain).unwrap();
    eventually("it is told", || steward.state().untold == 0);
    let made = cluster.store.get(key).unwrap().unwrap();
    steward.publish(&podwire_agent_ipc::pods::Endpoint { mac: "0a:00:00:00:00:02".into(), ..plain }).unwrap();
    eventually("it is told", || steward.state().untold == 0);
    assert_eq!(cluster.store.get(key).unwrap().unwrap(), made);
}

#[test]
fn what_is_not_valid_any_more_is_withdrawn_with_its_addresses() {
    let cluster = Cluster::new("endpoint-gc", pool());
    let other = ENDPOINT.replace("web", "other");
    let is_there = |key: &str| cluster.store.get(key).unwrap().is_some();
    let valid =
        [podwire_agent_ipc::ValidAttachment { container_id: "c2".to_owned(), ifname: "eth0".to_owned() }];
    let later = podwire_agent_ipc::pods::Endpoint { pod: "other".into(), ..endpoint("c2", "10.244.0.2") };
    let steward = cluster.steward("node1");
    steward.publish(&endpoint("c1", "10.244.0.1")).unwrap();
    steward.publish(&later).unwrap();
    eventually("both are told", || is_there(ENDPOINT) && is_there(&other));
    steward.collect("net", &valid).unwrap();
    eventually("one is withdrawn", || !is_there(ENDPOINT));
    assert!(is_there(&other));
    // The same where nobody owns the node's blocks: what is stale is known by its address.
    let ask = |question: &addresses::Request| {
        podwire_steward::direct::answer(&cluster.store, None, "node2", &cluster.state("node2"), question)
    };
    let key = ENDPOINT.replace("node1", "node2");
    let given = ask(&addresses::Request::Assign { owner: owner("c3"), addresses: v4(), timeout_ms: 0 });
    assert!(matches!(given, Response::Assigned { .. }), "{given:?}");
    let published = ask(&addresses::Request::Publish { endpoint: Box::new(endpoint("c3", "10.244.0.3")) });
    assert_eq!(published, Response::Done);
    assert!(is_there(&key));
    assert_eq!(
        ask(&addresses::Request::Collect { network: "net".into(), valid: valid.to_vec() }),
        Response::Done
    );
    assert!(!is_there(&key) && !cluster.held().iter().any(|(handle, _)| handle == "net.c3"));
}

/// A container that is no pod, by a network.
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
fn a_network_joins_the_endpoint_of_another_and_leaves_it() {
    let cluster = Cluster::new("endpoint-guest", pool());
    let steward = cluster.steward("node1");
    let guest = || container("other");
    assert_eq!(steward.join(&guest()).unwrap(), None);
    steward.publish(&container("net")).unwrap();
    let joined = steward.join(&guest()).unwrap().unwrap();
    assert_eq!(joined.addresses, container("net").addresses);
    let both = Some(r#"["net","other"]"#.to_owned());
    eventually("both are told", || cluster.profiles() == both);
    assert!(cluster.has_profile("net") && cluster.has_profile("other"));
    let alone = || cluster.profiles() == Some(r#"["net"]"#.into());
    steward.withdraw(&guest()).unwrap();
    eventually("one is left", alone);
    steward.join(&guest()).unwrap();
    eventually("both are told again", || cluster.profiles() == both);
    steward.collect("other", &[]).unwrap();
    eventually("the stale one is gone", alone);
    // A network that was never there takes nothing with it.
    steward.withdraw(&container("stranger")).unwrap();
    steward.publish(&endpoint("c9", "10.244.0.9")).unwrap();
    eventually("what came later is told", || cluster.published() == said("c9", "10.244.0.9"));
    assert!(alone());
    steward.join(&guest()).unwrap();
    steward.withdraw(&container("net")).unwrap();
    eventually("the first takes everything with it", || cluster.profiles().is_none());
}

#[test]
fn a_network_that_left_while_nobody_listened_is_taken_from_the_endpoint() {
    let cluster = Cluster::new("endpoint-guest-note", pool());
    let state = cluster.state("node1");
    let folder = pending::leases_dir(&podwire_agent_ipc::pods::endpoints_dir(&state));
    std::fs::create_dir_all(&folder).unwrap();
    let host = podwire_agent_ipc::pods::Endpoint {
        profiles: vec!["net".into(), "other".into()],
        boot_id: pending::boot_id().unwrap(),
        ..container("net")
    };
    pending::write(&folder, &pending::file_name(&host.owner), &host).unwrap();
    let guest = container("other");
    podwire_agent_ipc::pods::withdraw(&state, &guest).unwrap();
    let steward = cluster.steward("node1");
    let is_alone = || cluster.profiles().as_deref() == Some(r#"["net"]"#);
    eventually("the note is carried out", || is_alone() && steward.state().untold == 0);
    assert_eq!(
        std::fs::read_dir(pending::released_dir(&podwire_agent_ipc::pods::endpoints_dir(&state)))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn a_network_joins_where_nobody_owns_the_blocks() {
    let cluster = Cluster::new("endpoint-guest-direct", pool());
    let ask = |question: &addresses::Request| {
        podwire_steward::direct::answer(&cluster.store, None, "node1", &cluster.state("node1"), question)
    };
    let join = || ask(&addresses::Request::Join { endpoint: Box::new(container("other")) });
    assert_eq!(join(), Response::Joined { endpoint: None });
    ask(&addresses::Request::Publish { endpoint: Box::new(container("net")) });
    let Response::Joined { endpoint: Some(joined) } = join() else { panic!("nothing to join") };
    assert_eq!((&joined.addresses[..], &*joined.interface), (&container("net").addresses[..], "cali0"));
    assert_eq!(cluster.profiles().as_deref(), Some(r#"["net","other"]"#));
    // By its own network it does not join.
    let again = ask(&addresses::Request::Join { endpoint: Box::new(container("net")) });
    assert_eq!(again, Response::Joined { endpoint: None });
    // An ADD that is tried again has joined already.
    let Response::Joined { endpoint: Some(again) } = join() else { panic!("nothing to join") };
    assert_eq!((again.profiles.len(), &again.addresses), (2, &joined.addresses));
    let guest = container("other");
    // The second time, and of a network that was never there, there is nothing to withdraw.
    for gone in [guest.clone(), guest, container("stranger")] {
        assert_eq!(ask(&addresses::Request::Withdraw { endpoint: Box::new(gone) }), Response::Done);
        assert_eq!(cluster.profiles().as_deref(), Some(r#"["net"]"#));
    }
    assert_eq!(ask(&addresses::Request::Withdraw { endpoint: Box::new(container("net")) }), Response::Done);
    assert_eq!(cluster.profiles(), None);
}

#[test]
fn what_is_joined_while_the_agent_is_away_he_tells_again() {
    let cluster = Cluster::new("endpoint-guest-away", pool());
    let state = cluster.state("node1");
    let folder = pending::leases_dir(&podwire_agent_ipc::pods::endpoints_dir(&state));
    std::fs::create_dir_all(&folder).unwrap();
    let host = podwire_agent_ipc::pods::Endpoint { boot_id: pending::boot_id().unwrap(), ..container("net") };
    pending::write(&folder, &pending::file_name(&host.owner), &host).unwrap();
    let ask = |question: &addresses::Request| {
        podwire_steward::direct::answer(&cluster.store, None, "node1", &state, question)
    };
    ask(&addresses::Request::Publish { endpoint: Box::new(container("net")) });
    ask(&addresses::Request::Join { endpoint: Box::new(container("other")) });
    ask(&addresses::Request::Join { endpoint: Box::new(container("third")) });
    ask(&addresses::Request::Withdraw { endpoint: Box::new(container("third")) });
    let steward = cluster.steward("node1");
    eventually("all is told", || steward.state().untold == 0);
    assert_eq!(cluster.profiles().as_deref(), Some(r#"["net","other"]"#));
}
