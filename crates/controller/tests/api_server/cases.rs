//! What is asked. Each case begins without nodes and events.

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
    fifty_nodes_at_once_get_ranges_of_their_own,
    every_node_gets_a_range_of_both_families,
    nothing_else_of_a_node_is_touched,
    a_full_pool_is_told_and_filled_when_a_node_goes,
    what_nodes_have_is_learned_again_after_a_crash,
    duplicates_are_told_and_nobody_else_gets_them,
    ranges_that_make_no_sense_are_told_and_stop_nobody,
    somebody_elses_choice_is_accepted,
    nodes_that_come_back_under_their_names_get_ranges,
    a_write_that_is_refused_is_told_and_tried_again,
    an_api_server_that_was_away_is_caught_up_with,
    when_the_leader_is_killed_another_takes_over,
    a_leader_that_was_stopped_writes_nothing_when_it_wakes,
    a_leader_that_is_told_to_end_lets_another_begin,
    kube_controller_manager_hands_over_and_takes_back,
    addresses_of_pods_and_nodes_that_are_gone_are_released_after_a_while,
];

const CLUSTER: &str = "10.1.0.0/16";

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number:02}")).collect()
}

async fn fifty_nodes_at_once_get_ranges_of_their_own(cluster: &mut Cluster) {
    let controller = Controller::start(cluster, "one", CLUSTER, "10.1.0.0/20");
    controller.is_ready().await;
    cluster.create_all(&names("n", 50)).await;
    let all = cluster.all_have(1).await;
    for cidr in all.values().flatten() {
        let third: u8 = cidr.split('.').nth(2).unwrap().parse().unwrap();
        assert!(cidr.ends_with(".0/24") && third >= 16, "{cidr} is the services'");
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

async fn every_node_gets_a_range_of_both_families(cluster: &mut Cluster) {
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

async fn nothing_else_of_a_node_is_touched(cluster: &mut Cluster) {
    cluster.create("n", &[]).await;
    let before = cluster.without_ranges("n").await;
    let _controller = Controller::start(cluster, "one", CLUSTER, "");
    cluster.has_range("n").await;
    assert_eq!(cluster.without_ranges("n").await, before);
}

async fn a_full_pool_is_told_and_filled_when_a_node_goes(cluster: &mut Cluster) {
    let _controller = Controller::start(cluster, "one", "10.1.0.0/23", "");
    cluster.create_all(&names("n", 2)).await;
    cluster.all_have(1).await;
    let freed = cluster.cidr_of("n01").await;
    cluster.create("late", &[]).await;
    let note = cluster.told("late", "CIDRNotAvailable").await;
    assert!(
        note.starts_with("Node late status is now: CIDRNotAvailable: 10.1.0.0/23 has no range left"),
        "{note}"
    );
    assert_eq!(cluster.cidr_of("late").await, "");
    cluster.delete("n01").await;
    cluster.has_range("late").await;
    assert_eq!(cluster.cidr_of("late").await, freed);
    assert_eq!(cluster.events("late", "CIDRNotAvailable").await.len(), 1, "told once");
}

async fn what_nodes_have_is_learned_again_after_a_crash(cluster: &mut Cluster) {
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

async fn duplicates_are_told_and_nobody_else_gets_them(cluster: &mut Cluster) {
    cluster.create("a", &["10.1.0.0/24"]).await;
    cluster.create("b", &["10.1.0.0/24"]).await;
    let controller = Controller::start(cluster, "one", "10.1.0.0/23", "");
    let note = cluster.told("a", "DuplicatePodCIDR").await;
    assert!(note.starts_with("podCIDR 10.1.0.0/24 of node a is also of b"), "{note}");
    cluster.told("b", "DuplicatePodCIDR").await;
    assert_eq!(controller.quarantined(), ["a", "b"]);
    cluster.create("c", &[]).await;
    cluster.has_range("c").await;
    assert_eq!(cluster.cidr_of("c").await, "10.1.1.0/24");
    // One of the two is gone, and the other still has it.
    cluster.create("d", &[]).await;
    cluster.told("d", "CIDRNotAvailable").await;
    cluster.delete("a").await;
    eventually("b is alone with its range", || async { controller.quarantined().is_empty() }).await;
    assert_eq!(cluster.cidr_of("d").await, "");
    cluster.delete("b").await;
    cluster.has_range("d").await;
    assert_eq!(cluster.cidr_of("d").await, "10.1.0.0/24");
}

async fn ranges_that_make_no_sense_are_told_and_stop_nobody(cluster: &mut Cluster) {
    cluster.create("outside", &["192.168.7.0/24"]).await;
    cluster.create("services", &["10.1.3.0/24"]).await;
    cluster.create("dual", &["10.1.200.0/24", "fd00:7::/64"]).await;
    cluster.create("garbage", &["10.1.77.0/24"]).await;
    // No API cluster lets anybody write this, but an etcd that was mended by hand may have it.
    let (mut etcd, key) = (cluster.server.etcd().client().await, "/registry/minions/garbage");
    let there = etcd.get(key, None).await.unwrap().kvs()[0].value_str().unwrap().to_owned();
    etcd.put(key, there.replace("10.1.77.0/24", "10.1.77.0/99"), None).await.unwrap();
    let controller = Controller::start(cluster, "one", CLUSTER, "10.1.0.0/20");
    for (name, sentence) in [
        ("outside", "podCIDR 192.168.7.0/24 of node outside is not of the cluster's networks"),
        ("services", "podCIDR 10.1.3.0/24 of node services has addresses of the services (10.1.0.0/20"),
        ("dual", "podCIDR fd00:7::/64 of node dual is not of the cluster's networks"),
        ("garbage", "podCIDR \"10.1.77.0/99\" of node garbage is no range of addresses"),
    ] {
        let note = cluster.told(name, "InvalidPodCIDR").await;
        assert!(note.starts_with(sentence), "{note}");
    }
    cluster.create_all(&names("n", 5)).await;
    for name in names("n", 5) {
        cluster.has_range(&name).await;
    }
    assert_eq!(controller.quarantined(), ["dual", "garbage", "outside", "services"]);
    assert_eq!(controller.get("/readyz").0, 200, "it goes on");
}

async fn somebody_elses_choice_is_accepted(cluster: &mut Cluster) {
    let controller = Controller::start(cluster, "one", CLUSTER, "");
    controller.is_ready().await;
    let mut planted = 0;
    for (number, name) in names("n", 30).iter().enumerate() {
        cluster.create(name, &[]).await;
        // Now both try.
        planted += u32::from(cluster.plant(name, &format!("10.1.{}.0/24", 200 + number)).await);
    }
    let all = cluster.all_have(1).await;
    eprintln!("   {planted} of {} were somebody else's", all.len());
    eventually("nobody waits", || async {
        controller.status()["waiting"].as_array().is_some_and(Vec::is_empty)
    })
    .await;
    assert!(controller.quarantined().is_empty());
}

async fn nodes_that_come_back_under_their_names_get_ranges(cluster: &mut Cluster) {
    let controller = Controller::start(cluster, "one", "10.1.0.0/20", "");
    controller.is_ready().await;
    // Some go while their range is being written.
    for _ in 0..10 {
        cluster.create_all(&names("n", 8)).await;
        futures::future::join_all(names("n", 8).iter().map(|name| cluster.delete(name))).await;
    }
    cluster.create_all(&names("n", 16)).await;
    cluster.all_have(1).await;
    eventually("no range is lost", || async { controller.status()["networks"][0]["taken"] == 16.0 }).await;
}

async fn a_write_that_is_refused_is_told_and_tried_again(cluster: &mut Cluster) {
    let controller = Controller::start(cluster, "one", CLUSTER, "");
    controller.is_ready().await;
    cluster.allow_patch(false);
    cluster.create("n", &[]).await;
    let note = cluster.told("n", "CIDRAssignmentFailed").await;
    assert!(
        note.starts_with("Node n status is now: CIDRAssignmentFailed: kubernetes: set podCIDRs of node n"),
        "{note}"
    );
    assert!(note.contains("cannot patch resource"), "{note}");
    let failures = || controller.metric("podwire_controller_write_failures_total").unwrap_or_default();
    eventually("it is tried again", || async { failures() >= 3.0 }).await;
    assert_eq!(cluster.events("n", "CIDRAssignmentFailed").await.len(), 1, "told once");
    cluster.allow_patch(true);
    cluster.has_range("n").await;
}

async fn an_api_server_that_was_away_is_caught_up_with(cluster: &mut Cluster) {
    let controller = Controller::start(cluster, "one", CLUSTER, "");
    cluster.create_all(&names("n", 10)).await;
    let before = cluster.all_have(1).await;
    cluster.server.stop();
    eventually("it says that it is not ready", || async { controller.get("/readyz").0 == 503 }).await;
    assert_eq!(controller.get("/healthz").0, 200, "a restart would not help");
    cluster.server.serve();
    controller.is_ready().await;
    cluster.create_all(&names("m", 10)).await;
    let after = cluster.all_have(1).await;
    assert!(before.iter().all(|(name, cidrs)| after[name] == *cidrs));
}

async fn when_the_leader_is_killed_another_takes_over(cluster: &mut Cluster) {
    let one = Controller::start(cluster, "one", CLUSTER, "");
    one.is_ready().await;
    let two = Controller::start(cluster, "two", CLUSTER, "");
    two.is_ready().await;
    assert_eq!(two.get("/readyz").1, "podwire controller stands by: one leads\n");
    cluster.create_all(&names("n", 20)).await;
    // In the middle of its work.
    eventually("it has begun", || async { cluster.cidrs().await.values().any(|cidrs| !cidrs.is_empty()) })
        .await;
    one.signal("KILL");
    cluster.create_all(&names("m", 20)).await;
    cluster.all_have(1).await;
    assert_eq!(cluster.leader().await, "two");
    assert_eq!(two.status()["phase"], "leading");
}

async fn a_leader_that_was_stopped_writes_nothing_when_it_wakes(cluster: &mut Cluster) {
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
        // Its time ends, and another takes the lease, which writes nothing: what is written now, this one has written.
        tokio::time::sleep(LEASE).await;
        cluster.hand_lease_to("another").await;
        one.signal("CONT");
        eventually("it stands by", || async { one.status()["phase"] == "standing-by" }).await;
        assert!(cluster
            .cidrs()
            .await
            .iter()
            .all(|(name, cidrs)| cidrs.is_empty() || !name.starts_with(round)));
        assert_eq!(count(), writes);
        cluster.hand_lease_to("").await;
        cluster.all_have(1).await;
    }
}

async fn a_leader_that_is_told_to_end_lets_another_begin(cluster: &mut Cluster) {
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

async fn kube_controller_manager_hands_over_and_takes_back(cluster: &mut Cluster) {
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

async fn addresses_of_pods_and_nodes_that_are_gone_are_released_after_a_while(cluster: &mut Cluster) {
    let blocks = Blocks::new(cluster);
    for node in ["n1", "n2"] {
        cluster.create(node, &[]).await;
        blocks.register(node).await;
        blocks.give(node, &format!("podwire-stock-{node}"), "").await;
        blocks.give(node, &format!("vxlan-tunnel-addr-{node}"), "").await;
    }
    for (node, pod) in [("n1", "stays"), ("n1", "goes"), ("n2", "falls")] {
        let ip = blocks.give(node, &format!("net.{pod}"), pod).await;
        cluster.run_pod(node, pod, &ip).await;
    }
    blocks.give("n1", "net.cut-short", "never").await;
    let store = cluster.server.etcd().url();
    let controllers = ["one", "two"].map(|name| Controller::start_with(cluster, name, [CLUSTER, "", &store]));
    for controller in &controllers {
        controller.is_ready().await;
    }
    let with = |more: &[&str]| {
        let mut all: Vec<String> = more.iter().map(|pod| format!("net.{pod}")).collect();
        all.extend(["podwire-stock-n1", "vxlan-tunnel-addr-n1"].map(String::from));
        all.sort();
        all
    };
    let of_n2 = ["podwire-stock-n2".to_owned(), "vxlan-tunnel-addr-n2".to_owned()];
    let mut all = with(&["stays", "goes", "falls"]);
    all.extend(of_n2);
    all.sort();
    eventually("what was cut short is released", || async { blocks.handles().await == all }).await;
    cluster.delete_pod("goes").await;
    cluster.delete_pod("falls").await;
    cluster.delete("n2").await;
    eventually("those who are gone have nothing", || async { blocks.handles().await == with(&["stays"]) })
        .await;
    eventually("nor has the node any block", || async { blocks.owners().await == ["n1"] }).await;
    eventually("nor an object", || async { blocks.nodes().await == ["n1"] }).await;
    let released = || -> f64 {
        let of = |one: &Controller| one.metric("podwire_controller_released_addresses_total");
        controllers.iter().filter_map(of).sum()
    };
    // They are counted when the look is over, a moment after the store has it.
    eventually("all of them are counted", || async { released() >= 5.0 }).await;
    assert_eq!(released(), 5.0, "each of them once");
    let status =
        controllers.iter().map(Controller::status).find(|status| status["phase"] == "leading").unwrap();
    assert_eq!(
        (&status["addresses"]["released"], &status["addresses"]["trouble"]),
        (&5.into(), &serde_json::Value::Null)
    );
    blocks.clear().await;
    cluster.delete_pod("stays").await;
}
