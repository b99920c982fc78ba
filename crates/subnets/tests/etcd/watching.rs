//! Watches, and what breaks them.

use std::time::Duration;

use etcd_client::CompactionOptions;
use podwire_subnets::{Etcd, EtcdOptions, Health, LeaseTerm, Registration, Snapshot, Watch};

use podwire_test_servers::{EtcdServer, TcpProxy};

use crate::{configure, options, registration, source, NETWORK, SUBNETS};

/// The first snapshot that is as wanted; the last one that was not, if it takes too long.
pub async fn until(watch: &mut Watch, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let mut snapshot = watch.latest();
    let end = tokio::time::Instant::now() + Duration::from_secs(60);
    while !wanted(&snapshot) {
        snapshot = tokio::time::timeout_at(end, watch.changed())
            .await
            .unwrap_or_else(|_| panic!("not within 60 s; the last was {snapshot:?}"));
    }
    snapshot
}

pub fn names(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.nodes.iter().flat_map(|nodes| nodes.iter().map(|node| node.name.as_str())).collect()
}

fn peer(last: u8) -> String {
    format!(r#"{{"PublicIP":"192.168.64.{last}","PublicIPv6":null,"BackendType":"host-gw"}}"#)
}

fn key(range: &str) -> String {
    format!("{SUBNETS}{range}")
}

#[tokio::test]
async fn a_watch_lists_all_nodes_and_then_reports_changes() {
    let server = EtcdServer::start();
    server.put(&key("10.5.1.0-24"), &peer(1)).await;
    server.put(&key("10.5.2.0-24&fd00:0:0:2::-64"), r#"{"PublicIP":"192.168.64.2","PublicIPv6":"fd00::2","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:00:00:00:00:02"},"BackendV6Data":{"VNI":1,"VtepMAC":"c6:00:00:00:01:02"}}"#).await;
    server.put(&key("nonsense"), "{}").await;
    server.put(&key("10.5.3.0-24"), "nonsense").await;
    let mut watch = source(&server).watch();
    assert_eq!(watch.latest().health, Health::Waiting);
    assert!(watch.latest().nodes.is_none(), "unknown is not empty");
    let (nodes, first) = watch.known().await;
    assert_eq!(names(&first), ["10.5.1.0-24", "10.5.2.0-24&fd00:0:0:2::-64"]);
    assert_eq!(nodes[1].backend.vtep_v6().unwrap().mac, "c6:00:00:00:01:02");
    assert_eq!(nodes[1].pod_cidrs.v6.unwrap().to_string(), "fd00:0:0:2::/64");
    assert_eq!(nodes[1].lease_term, LeaseTerm::Permanent, "no lease: a reservation");
    let skipped: Vec<&str> = first.skipped.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(skipped, [key("10.5.3.0-24"), key("nonsense")]);
    server.put(&key("10.5.3.0-24"), &peer(3)).await;
    let second = until(&mut watch, |snapshot| names(snapshot).len() == 3).await;
    assert_eq!(second.skipped.len(), 1);
    server.client().await.delete(key("10.5.1.0-24"), None).await.unwrap();
    until(&mut watch, |snapshot| names(snapshot).len() == 2).await;
    server.put(&key("10.5.3.0-24"), &peer(33)).await;
    let moved = |snapshot: &Snapshot| {
        let nodes = snapshot.nodes.iter().flat_map(|nodes| nodes.iter());
        nodes.into_iter().any(|node| node.underlay.v4 == Some([192, 168, 64, 33].into()))
    };
    until(&mut watch, moved).await;
}

#[tokio::test]
async fn after_a_compaction_during_an_outage_the_nodes_are_listed_again() {
    let server = EtcdServer::start();
    for last in 1..=3 {
        server.put(&key(&format!("10.5.{last}.0-24")), &peer(last)).await;
    }
    let proxy = TcpProxy::start(&server.url());
    let source =
        Etcd::new(EtcdOptions { endpoints: vec![proxy.url.clone()], ..EtcdOptions::default() }).unwrap();
    let mut watch = source.watch();
    until(&mut watch, |snapshot| names(snapshot).len() == 3).await;
    proxy.cut();
    let stale = until(&mut watch, |snapshot| matches!(snapshot.health, Health::Stale { .. })).await;
    assert_eq!(names(&stale).len(), 3, "what is known stays known");
    let mut client = server.client().await;
    client.delete(key("10.5.2.0-24"), None).await.unwrap();
    server.put(&key("10.5.9.0-24"), &peer(9)).await;
    let revision = client.get("x", None).await.unwrap().header().unwrap().revision();
    client.compact(revision, Some(CompactionOptions::new().with_physical())).await.unwrap();
    proxy.restore();
    let back = until(&mut watch, |snapshot| snapshot.health == Health::Current).await;
    let back = if names(&back).contains(&"10.5.9.0-24") {
        back
    } else {
        until(&mut watch, |snapshot| names(snapshot).contains(&"10.5.9.0-24")).await
    };
    assert_eq!(names(&back), ["10.5.1.0-24", "10.5.3.0-24", "10.5.9.0-24"]);
}

#[tokio::test]
async fn after_an_outage_the_watch_continues_at_the_last_revision() {
    let server = EtcdServer::start();
    server.put(&key("10.5.1.0-24"), &peer(1)).await;
    let proxy = TcpProxy::start(&server.url());
    let source =
        Etcd::new(EtcdOptions { endpoints: vec![proxy.url.clone()], ..EtcdOptions::default() }).unwrap();
    let mut watch = source.watch();
    watch.known().await;
    for round in 2..5 {
        proxy.cut();
        until(&mut watch, |snapshot| matches!(snapshot.health, Health::Stale { .. })).await;
        server.put(&key(&format!("10.5.{round}.0-24")), &peer(round)).await;
        server.client().await.delete(key(&format!("10.5.{}.0-24", round - 1)), None).await.unwrap();
        proxy.restore();
        until(&mut watch, |snapshot| names(snapshot) == [format!("10.5.{round}.0-24")]).await;
    }
}

#[tokio::test]
async fn a_stopped_server_is_reported_and_the_known_nodes_are_kept() {
    let mut server = EtcdServer::start();
    server.put(&key("10.5.1.0-24"), &peer(1)).await;
    let mut watch = source(&server).watch();
    watch.known().await;
    server.stop();
    let refused = |snapshot: &Snapshot| snapshot.health.to_string().contains("Connection refused");
    let stale = until(&mut watch, refused).await;
    let text = stale.health.to_string();
    assert!(text.starts_with(&format!("etcd {}: connect: ", server.url())), "{text}");
    assert!(text.ends_with("Z; keeping what is known") && text.contains(" since 20"), "{text}");
    assert_eq!(names(&stale), ["10.5.1.0-24"]);
    server.restart();
    until(&mut watch, |snapshot| snapshot.health == Health::Current).await;
    server.put(&key("10.5.2.0-24"), &peer(2)).await;
    until(&mut watch, |snapshot| names(snapshot).len() == 2).await;
}

#[tokio::test]
async fn a_server_restored_from_an_older_state_is_listed_again() {
    let mut server = EtcdServer::start();
    for last in 1..=9 {
        server.put(&key(&format!("10.5.{last}.0-24")), &peer(last)).await;
    }
    let mut watch = source(&server).watch();
    until(&mut watch, |snapshot| names(snapshot).len() == 9).await;
    server.stop();
    server.delete_data();
    server.restart();
    server.put(&key("10.5.77.0-24"), &peer(77)).await;
    until(&mut watch, |snapshot| names(snapshot) == ["10.5.77.0-24"]).await;
}

#[tokio::test]
async fn a_kept_lease_is_renewed_and_another_expires() {
    let server = EtcdServer::start();
    configure(&server, NETWORK).await;
    // Renewed every three seconds; twelve more may pass before it is too late.
    let (ttl, renew_margin) = (Duration::from_secs(15), Duration::from_secs(12));
    let source = Etcd::new(EtcdOptions { ttl, renew_margin, ..options(&server) }).unwrap();
    let kept = source.acquire(&registration(1)).await.unwrap();
    let keeping = {
        let (source, kept) = (source.clone(), kept.clone());
        tokio::spawn(async move { source.keep(&kept).await })
    };
    let dropped = source.acquire(&registration(2)).await.unwrap();
    assert_ne!(kept.name, dropped.name);
    let mut watch = source.watch();
    let both = until(&mut watch, |snapshot| names(snapshot).len() == 2).await;
    assert!(both.nodes.unwrap().iter().all(|node| node.lease_term == LeaseTerm::Leased));
    let one = until(&mut watch, |snapshot| names(snapshot).len() == 1).await;
    assert_eq!(names(&one), [kept.name.as_str()]);
    assert!(!keeping.is_finished());
    let mut client = server.client().await;
    let found = client.get(key(&kept.name), None).await.unwrap().kvs()[0].clone();
    assert!(found.version() > 2, "written {} times", found.version());
    client.delete(key(&kept.name), None).await.unwrap();
    let lost = keeping.await.unwrap();
    assert!(lost.reason.starts_with("the key is gone"), "{lost}");
    let again = Registration { previous: kept.pod_cidrs, ..registration(1) };
    assert_eq!(source.acquire(&again).await.unwrap().pod_cidrs, kept.pod_cidrs, "and is acquired again");
}

#[tokio::test]
async fn a_subnet_that_another_node_has_taken_is_lost() {
    let server = EtcdServer::start();
    configure(&server, NETWORK).await;
    let source = source(&server);
    let node = source.acquire(&registration(1)).await.unwrap();
    let keeping = {
        let (source, node) = (source.clone(), node.clone());
        tokio::spawn(async move { source.keep(&node).await })
    };
    server.put(&key(&node.name), &peer(9)).await;
    let lost = keeping.await.unwrap();
    assert!(lost.reason.contains("another node's now") && lost.reason.contains("192.168.64.9"), "{lost}");
    source.release(&node).await.unwrap();
    assert_eq!(server.dump(SUBNETS).await.len(), 1, "the node that lost it does not release it");
}

#[tokio::test]
async fn a_silent_server_is_noticed() {
    let server = EtcdServer::start();
    server.put(&key("10.5.1.0-24"), &peer(1)).await;
    let mut watch = source(&server).watch();
    watch.known().await;
    until(&mut watch, |snapshot| snapshot.health == Health::Current).await;
    server.signal("STOP");
    let stale = tokio::time::timeout(Duration::from_secs(60), watch.changed()).await;
    server.signal("CONT");
    let stale = stale.expect("noticed within 60 s");
    assert!(matches!(stale.health, Health::Stale { .. }), "{}", stale.health);
    until(&mut watch, |snapshot| snapshot.health == Health::Current).await;
}
