//! The cases. Each begins without nodes and events.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::blocks::Blocks;
use crate::cluster::{eventually, Cluster};
use crate::controller::{Controller, ALONE, LEASE};

pub struct Case {
    pub name: &'static str,
    pub run: for<'a> fn(&'a mut Cluster) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
}

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub const CASES: &[Case] = &[$(Case { name: stringify!($name), run: |cluster| Box::pin($name(cluster)) }),*];
    };
}

cases![
    fifty_nodes_at_once_get_different_cidrs,
    every_node_gets_a_cidr_of_both_families,
    no_other_field_of_a_node_changes,
    a_full_network_is_reported_and_a_freed_cidr_is_assigned,
    a_new_controller_respects_the_cidrs_of_all_nodes,
    duplicates_are_reported_and_not_assigned,
    invalid_cidrs_are_reported_and_do_not_block_other_nodes,
    the_choice_of_another_controller_is_accepted,
    new_nodes_with_old_names_get_cidrs,
    a_refused_patch_is_reported_and_retried,
    an_outage_of_the_api_server_loses_nothing,
    after_the_leader_is_killed_another_takes_over,
    a_suspended_leader_writes_nothing_after_it_resumes,
    a_terminated_leader_releases_the_lease,
    kube_controller_manager_and_podwire_take_over_from_each_other,
    addresses_of_deleted_pods_and_nodes_are_released,
];

const CLUSTER: &str = "10.1.0.0/16";

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number:02}")).collect()
}

async fn fifty_nodes_at_once_get_different_cidrs(cluster: &mut Cluster) {
    let controller = Controller::start(cluster, "one", CLUSTER, "10.1.0.0/20");
    controller.is_ready().await;
    cluster.create_all(&names("n", 50)).await;
    let all = cluster.all_have(1).await;
    for cidr in all.values().flatten() {
        let third: u8 = cidr.split('.').nth(2).unwrap().parse().unwrap();
        assert!(cidr.ends_with(".0/24") && third >= 16, "{cidr} is in the service range");
    }
    let label = "{clusterCIDR=\"10.1.0.0/16\"}";
    for line in [
        format!("node_ipam_controller_cidrset_cidrs_allocations_total{label} 50"),
        format!("node_ipam_controller_cirdset_max_cidrs{label} 256.0"),
        format!("node_ipam_controller_cidrset_usage_cidrs{label} {}", 66.0 / 256.0),
        "podwire_controller_writes_total 50".into(),
        "podwire_controller_nodes 50".into(),
        "podwire_controller_waiting_nodes 0".into(),
        "leader_election_master_status{name=\"podwire-controller\"} 1".into(),
    ] {
        eventually(&line, || async { controller.get("/metrics").1.lines().any(|there| there == line) }).await;
    }
    assert_eq!(controller.get("/healthz").0, 200);
}

async fn every_node_gets_a_cidr_of_both_families(cluster: &mut Cluster) {
    let controller = Controller::start(cluster, ALONE, "fd00:1::/48,10.1.0.0/16", "");
    cluster.create_all(&names("n", 10)).await;
    let all = cluster.all_have(2).await;
    for cidrs in all.values() {
        assert!(
            cidrs[0].starts_with("fd00:1:") && cidrs[0].ends_with("/64"),
            "in the order of the flag: {cidrs:?}"
        );
        assert!(cidrs[1].starts_with("10.1."), "{cidrs:?}");
    }
    controller.is_ready().await;
    assert_eq!(cluster.leader().await, "", "it needs no lease");
}

async fn no_other_field_of_a_node_changes(cluster: &mut Cluster) {
    cluster.create("n", &[]).await;
    let before = cluster.without_cidrs("n").await;
    let _controller = Controller::start(cluster, "one", CLUSTER, "");
    cluster.wait_for_cidr("n").await;
    assert_eq!(cluster.without_cidrs("n").await, before);
}

async fn a_full_network_is_reported_and_a_freed_cidr_is_assigned(cluster: &mut Cluster) {
    let _controller = Controller::start(cluster, "one", "10.1.0.0/23", "");
    cluster.create_all(&names("n", 2)).await;
    cluster.all_have(1).await;
    let freed = cluster.cidr_of("n01").await;
    cluster.create("late", &[]).await;
    let note = cluster.wait_for_event("late", "CIDRNotAvailable").await;
    assert!(
        note.starts_with("Node late status is now: CIDRNotAvailable: 10.1.0.0/23 has no CIDR left"),
        "{note}"
    );
    assert_eq!(cluster.cidr_of("late").await, "");
    cluster.delete("n01").await;
    cluster.wait_for_cidr("late").await;
    assert_eq!(cluster.cidr_of("late").await, freed);
    assert_eq!(cluster.events("late", "CIDRNotAvailable").await.len(), 1, "reported once");
}

async fn a_new_controller_respects_the_cidrs_of_all_nodes(cluster: &mut Cluster) {
    let controller = Controller::start(cluster, "one", CLUSTER, "");
    cluster.create_all(&names("n", 20)).await;
    let before = cluster.all_have(1).await;
    drop(controller);
    cluster.delete("n03").await;
    cluster.create_all(&names("m", 20)).await;
    let _again = Controller::start(cluster, "two", CLUSTER, "");
    let after = cluster.all_have(1).await;
    assert!(before.iter().filter(|(name, _)| *name != "n03").all(|(name, cidrs)| after[name] == *cidrs));
}

async fn duplicates_are_reported_and_not_assigned(cluster: &mut Cluster) {
    cluster.create("a", &["10.1.0.0/24"]).await;
    cluster.create("b", &["10.1.0.0/24"]).await;
    let controller = Controller::start(cluster, "one", "10.1.0.0/23", "");
    let note = cluster.wait_for_event("a", "DuplicatePodCIDR").await;
    assert!(note.starts_with("podCIDR 10.1.0.0/24 of node a overlaps that of b"), "{note}");
    cluster.wait_for_event("b", "DuplicatePodCIDR").await;
    assert_eq!(controller.quarantined(), ["a", "b"]);
    cluster.create("c", &[]).await;
    cluster.wait_for_cidr("c").await;
    assert_eq!(cluster.cidr_of("c").await, "10.1.1.0/24");
    // One of the two is deleted, and the other still has it.
    cluster.create("d", &[]).await;
    cluster.wait_for_event("d", "CIDRNotAvailable").await;
    cluster.delete("a").await;
    eventually("b is the only node with its CIDR", || async { controller.quarantined().is_empty() }).await;
    assert_eq!(cluster.cidr_of("d").await, "");
    cluster.delete("b").await;
    cluster.wait_for_cidr("d").await;
    assert_eq!(cluster.cidr_of("d").await, "10.1.0.0/24");
}

async fn invalid_cidrs_are_reported_and_do_not_block_other_nodes(cluster: &mut Cluster) {
    cluster.create("outside", &["192.168.7.0/24"]).await;
    cluster.create("services", &["10.1.3.0/24"]).await;
    cluster.create("dual", &["10.1.200.0/24", "fd00:7::/64"]).await;
    cluster.create("garbage", &["10.1.77.0/24"]).await;
    // The API server rejects this, but an etcd that was edited by hand may have it.
    let (mut etcd, key) = (cluster.server.etcd().client().await, "/registry/minions/garbage");
    let there = etcd.get(key, None).await.unwrap().kvs()[0].value_str().unwrap().to_owned();
    etcd.put(key, there.replace("10.1.77.0/24", "10.1.77.0/99"), None).await.unwrap();
    let controller = Controller::start(cluster, "one", CLUSTER, "10.1.0.0/20");
    for (name, text) in [
        ("outside", "podCIDR 192.168.7.0/24 of node outside is not in the cluster networks"),
        ("services", "podCIDR 10.1.3.0/24 of node services overlaps the service range 10.1.0.0/20"),
        ("dual", "podCIDR fd00:7::/64 of node dual is not in the cluster networks"),
        ("garbage", "podCIDR \"10.1.77.0/99\" of node garbage is not a CIDR"),
    ] {
        let note = cluster.wait_for_event(name, "InvalidPodCIDR").await;
        assert!(note.starts_with(text), "{note}");
    }
    cluster.create_all(&names("n", 5)).await;
    for name in names("n", 5) {
        cluster.wait_for_cidr(&name).await;
    }
    assert_eq!(controller.quarantined(), ["dual", "garbage", "outside", "services"]);
    assert_eq!(controller.get("/readyz").0, 200, "it continues");
}

async fn the_choice_of_another_controller_is_accepted(cluster: &mut Cluster) {
    let controller = Controller::start(cluster, "one", CLUSTER, "");
    controller.is_ready().await;
    let mut assigned = 0;
    for (number, name) in names("n", 30).iter().enumerate() {
        cluster.create(name, &[]).await;
        // Both controllers try now.
        assigned += u32::from(cluster.set_cidr(name, &format!("10.1.{}.0/24", 200 + number)).await);
    }
    let all = cluster.all_have(1).await;
    eprintln!("   {assigned} of {} were assigned by the other controller", all.len());
    eventually("no node waits", || async {
        controller.status()["waiting"].as_array().is_some_and(Vec::is_empty)
    })
    .await;
    assert!(controller.quarantined().is_empty());
}

async fn new_nodes_with_old_names_get_cidrs(cluster: &mut Cluster) {
    let controller = Controller::start(cluster, "one", "10.1.0.0/20", "");
    controller.is_ready().await;
    // Some are deleted while they are patched.
    for _ in 0..10 {
        cluster.create_all(&names("n", 8)).await;
        futures::future::join_all(names("n", 8).iter().map(|name| cluster.delete(name))).await;
    }
    cluster.create_all(&names("n", 16)).await;
    cluster.all_have(1).await;
    eventually("no CIDR is lost", || async { controller.status()["networks"][0]["taken"] == 16.0 }).await;
}

async fn a_refused_patch_is_reported_and_retried(cluster: &mut Cluster) {
    let controller = Controller::start(cluster, "one", CLUSTER, "");
    controller.is_ready().await;
    cluster.allow_patch(false);
    cluster.create("n", &[]).await;
    let note = cluster.wait_for_event("n", "CIDRAssignmentFailed").await;
    assert!(
        note.starts_with("Node n status is now: CIDRAssignmentFailed: kubernetes: set podCIDRs of node n"),
        "{note}"
    );
    assert!(note.contains("cannot patch resource"), "{note}");
    let failures = || controller.metric("podwire_controller_write_failures_total").unwrap_or_default();
    eventually("it is retried", || async { failures() >= 3.0 }).await;
    assert_eq!(cluster.events("n", "CIDRAssignmentFailed").await.len(), 1, "reported once");
    cluster.allow_patch(true);
    cluster.wait_for_cidr("n").await;
}

async fn an_outage_of_the_api_server_loses_nothing(cluster: &mut Cluster) {
    let controller = Controller::start(cluster, "one", CLUSTER, "");
    cluster.create_all(&names("n", 10)).await;
    let before = cluster.all_have(1).await;
    cluster.server.stop();
    eventually("it is not ready", || async { controller.get("/readyz").0 == 503 }).await;
    assert_eq!(controller.get("/healthz").0, 200, "a restart would not help");
    cluster.server.serve();
    controller.is_ready().await;
    cluster.create_all(&names("m", 10)).await;
    let after = cluster.all_have(1).await;
    assert!(before.iter().all(|(name, cidrs)| after[name] == *cidrs));
}

async fn after_the_leader_is_killed_another_takes_over(cluster: &mut Cluster) {
    let one = Controller::start(cluster, "one", CLUSTER, "");
    one.is_ready().await;
    let two = Controller::start(cluster, "two", CLUSTER, "");
    two.is_ready().await;
    assert_eq!(two.get("/readyz").1, "podwire controller is on standby, the leader is one\n");
    cluster.create_all(&names("n", 20)).await;
    // While it works.
    eventually("it has begun", || async { cluster.cidrs().await.values().any(|cidrs| !cidrs.is_empty()) })
        .await;
    one.signal("KILL");
    cluster.create_all(&names("m", 20)).await;
    cluster.all_have(1).await;
    assert_eq!(cluster.leader().await, "two");
    assert_eq!(two.status()["phase"], "leading");
}

async fn a_suspended_leader_writes_nothing_after_it_resumes(cluster: &mut Cluster) {
    let one = Controller::start(cluster, "one", CLUSTER, "");
    one.is_ready().await;
    for round in ["k", "l", "m"] {
        eventually("it leads", || async { one.status()["phase"] == "leading" }).await;
        let count = || one.metric("podwire_controller_writes_total");
        eventually("its last writes are counted", || async {
            let before = count();
            tokio::time::sleep(Duration::from_millis(500)).await;
            count() == before
        })
        .await;
        let writes = count();
        one.signal("STOP");
        cluster.create_all(&names(round, 10)).await;
        // The lease ends, and a holder that writes nothing takes it: every write from now on would be this
        // controller's.
        tokio::time::sleep(LEASE).await;
        cluster.set_leader("another").await;
        one.signal("CONT");
        eventually("it is on standby", || async { one.status()["phase"] == "standby" }).await;
        assert!(cluster
            .cidrs()
            .await
            .iter()
            .all(|(name, cidrs)| cidrs.is_empty() || !name.starts_with(round)));
        assert_eq!(count(), writes);
        cluster.set_leader("").await;
        cluster.all_have(1).await;
    }
}

async fn a_terminated_leader_releases_the_lease(cluster: &mut Cluster) {
    let one = Controller::start(cluster, "one", CLUSTER, "");
    one.is_ready().await;
    cluster.create_all(&names("n", 20)).await;
    one.terminate().await;
    assert_eq!(cluster.leader().await, "", "the lease is released");
    let all = cluster.cidrs().await;
    let two = Controller::start(cluster, "two", CLUSTER, "");
    let after = cluster.all_have(1).await;
    assert!(all.iter().all(|(name, cidrs)| cidrs.is_empty() || after[name] == *cidrs));
    two.terminate().await;
}

async fn kube_controller_manager_and_podwire_take_over_from_each_other(cluster: &mut Cluster) {
    let manager = cluster.controller_manager(CLUSTER);
    cluster.create_all(&names("n", 10)).await;
    let theirs = cluster.all_have(1).await;
    drop(manager);
    let controller = Controller::start(cluster, "one", CLUSTER, "");
    cluster.create_all(&names("m", 10)).await;
    let ours = cluster.all_have(1).await;
    assert!(theirs.iter().all(|(name, cidrs)| ours[name] == *cidrs));
    controller.terminate().await;
    let _manager = cluster.controller_manager(CLUSTER);
    cluster.create_all(&names("o", 10)).await;
    let again = cluster.all_have(1).await;
    assert!(ours.iter().all(|(name, cidrs)| again[name] == *cidrs));
}

async fn addresses_of_deleted_pods_and_nodes_are_released(cluster: &mut Cluster) {
    let blocks = Blocks::new(cluster);
    for node in ["n1", "n2"] {
        cluster.create(node, &[]).await;
        blocks.register(node).await;
        blocks.assign(node, &format!("podwire-warm-{node}"), "").await;
        blocks.assign(node, &format!("vxlan-tunnel-addr-{node}"), "").await;
    }
    for (node, pod) in [("n1", "kept"), ("n1", "deleted"), ("n2", "orphaned")] {
        let ip = blocks.assign(node, &format!("net.{pod}"), pod).await;
        cluster.run_pod(node, pod, &ip).await;
    }
    blocks.assign("n1", "net.leaked", "never").await;
    let store = cluster.server.etcd().url();
    let controllers = ["one", "two"].map(|name| Controller::start_with(cluster, name, [CLUSTER, "", &store]));
    for controller in &controllers {
        controller.is_ready().await;
    }
    let with = |more: &[&str]| {
        let mut all: Vec<String> = more.iter().map(|pod| format!("net.{pod}")).collect();
        all.extend(["podwire-warm-n1", "vxlan-tunnel-addr-n1"].map(String::from));
        all.sort();
        all
    };
    let of_n2 = ["podwire-warm-n2".to_owned(), "vxlan-tunnel-addr-n2".to_owned()];
    let mut all = with(&["kept", "deleted", "orphaned"]);
    all.extend(of_n2);
    all.sort();
    eventually("the address without a pod is released", || async { blocks.handles().await == all }).await;
    cluster.delete_pod("deleted").await;
    cluster.delete_pod("orphaned").await;
    cluster.delete("n2").await;
    eventually("deleted pods and nodes have no address", || async {
        blocks.handles().await == with(&["kept"])
    })
    .await;
    eventually("the deleted node has no block", || async { blocks.owners().await == ["n1"] }).await;
    eventually("the deleted node has no object", || async { blocks.nodes().await == ["n1"] }).await;
    let released = || -> f64 {
        let of = |one: &Controller| one.metric("podwire_controller_released_addresses_total");
        controllers.iter().filter_map(of).sum()
    };
    // The metric is updated at the end of the run, a moment after the store.
    eventually("all of them are counted", || async { released() >= 5.0 }).await;
    assert_eq!(released(), 5.0, "each of them once");
    let status =
        controllers.iter().map(Controller::status).find(|status| status["phase"] == "leading").unwrap();
    assert_eq!(
        (&status["addresses"]["released"], &status["addresses"]["error"]),
        (&5.into(), &serde_json::Value::Null)
    );
    blocks.clear().await;
    cluster.delete_pod("kept").await;
}
