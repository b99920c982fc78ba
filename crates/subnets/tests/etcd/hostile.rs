//! Keys and values of another program under flannel's prefix: they neither stop a node nor take its subnets.

use podwire_subnets::{Health, PodCidrs};
use podwire_test_servers::{EtcdServer, TcpProxy};

use crate::watching::{names, until};
use crate::{cidrs, configure, options, registration, source, NETWORK, SUBNETS};

/// Four of them exceed the client library's limit of a message.
const LARGE: usize = 1_400_000;

async fn put_large(server: &EtcdServer, numbers: std::ops::Range<usize>) {
    for number in numbers {
        server.put(&format!("{SUBNETS}junk-{number}"), &"x".repeat(LARGE)).await;
    }
}

#[tokio::test]
async fn large_values_do_not_stop_a_node() {
    let server = EtcdServer::start();
    configure(&server, NETWORK).await;
    let source = source(&server);
    let first = source.acquire(&registration(1)).await.unwrap();
    put_large(&server, 0..16).await;
    server.put(&format!("{SUBNETS}10.5.250.0-24"), &"x".repeat(LARGE)).await;
    assert!(source.find_previous(&registration(1)).await.unwrap().is_some());
    assert_eq!(source.acquire(&registration(1)).await.unwrap().pod_cidrs, first.pod_cidrs);
    source.acquire(&registration(2)).await.unwrap();
    let mut watch = source.watch();
    let (nodes, snapshot) = watch.known().await;
    assert_eq!((nodes.len(), snapshot.skipped.len()), (2, 17));
    let large = snapshot.skipped.iter().find(|node| node.name.ends_with("10.5.250.0-24")).unwrap();
    assert_eq!(large.reason, "its value has 1400000 bytes, more than 65536");
}

#[tokio::test]
async fn a_large_config_is_refused_with_its_size() {
    let server = EtcdServer::start();
    configure(&server, &format!(r#"{{"Network": "10.5.0.0/16", "Comment": "{}"}}"#, "x".repeat(LARGE))).await;
    for error in [
        source(&server).network().await.unwrap_err(),
        source(&server).acquire(&registration(1)).await.unwrap_err(),
    ] {
        let text = "etcd key /coreos.com/network/config: its value has 1400041 bytes, more than 65536";
        assert_eq!(error.to_string(), text);
    }
}

#[tokio::test]
async fn large_values_during_an_outage_do_not_stop_a_watch() {
    let server = EtcdServer::start();
    configure(&server, NETWORK).await;
    let proxy = TcpProxy::start(&server.url());
    let options = podwire_subnets::EtcdOptions { endpoints: vec![proxy.url.clone()], ..options(&server) };
    let mut watch = podwire_subnets::Etcd::new(options).unwrap().watch();
    until(&mut watch, |snapshot| snapshot.health == Health::Current).await;
    proxy.cut();
    until(&mut watch, |snapshot| matches!(snapshot.health, Health::Stale { .. })).await;
    put_large(&server, 0..16).await;
    let node = source(&server).acquire(&registration(1)).await.unwrap();
    proxy.restore();
    let all = until(&mut watch, |snapshot| names(snapshot).len() == 1 && snapshot.skipped.len() == 16).await;
    assert_eq!(names(&all), [node.name]);
}

#[tokio::test]
async fn keys_that_no_config_leads_to_take_no_subnets() {
    let server = EtcdServer::start();
    configure(&server, NETWORK).await;
    let value = r#"{"PublicIP":"192.168.64.99","BackendType":"host-gw"}"#;
    for (key, value) in [
        ("0.0.0.0-0", value),
        ("10.0.0.0-8", value),
        ("10.5.0.0-16", value),
        ("10.5.0.0-17", value),
        ("10.5.128.0-17", value),
        ("10.5.0.0-18", value),
        ("10.5.64.0-18", value),
        ("10.5.128.0-18", value),
        ("10.5.192.0-18", value),
        // One bit larger than a subnet.
        ("10.5.2.0-23", value),
        ("10.5.4.0-23", "junk"),
    ] {
        server.put(&format!("{SUBNETS}{key}"), value).await;
    }
    for number in 0..64 {
        server.put(&format!("{SUBNETS}10.5.{}.0-22", number * 4), value).await;
    }
    let node = source(&server).acquire(&registration(1)).await.unwrap();
    assert_eq!(node.pod_cidrs.v4.unwrap().prefix_len(), 24);
}

/// A subnet may be in use although its value cannot be read, or is a smaller one of an earlier config.
#[tokio::test]
async fn subnets_of_other_nodes_stay_taken() {
    let server = EtcdServer::start();
    configure(&server, r#"{"Network": "10.5.0.0/26", "SubnetLen": 28, "SubnetMin": "10.5.0.0"}"#).await;
    server.put(&format!("{SUBNETS}10.5.0.0-28"), "of a newer version").await;
    let value = r#"{"PublicIP":"192.168.64.99","BackendType":"host-gw"}"#;
    server.put(&format!("{SUBNETS}10.5.0.16-29"), value).await;
    server.put(&format!("{SUBNETS}10.5.0.48-29"), value).await;
    let node = source(&server).acquire(&registration(1)).await.unwrap();
    assert_eq!(node.pod_cidrs, PodCidrs { ..cidrs("10.5.0.32/28") });
    let error = source(&server).acquire(&registration(2)).await.unwrap_err().to_string();
    assert!(error.contains("(4 leases, the largest is 10.5.0."), "{error}");
}
