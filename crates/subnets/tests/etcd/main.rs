//! The etcd source against a real etcd: flannel's bytes, races, broken watches, expired leases, TLS and passwords.

mod hostile;
mod secured;
mod watching;

use std::collections::BTreeSet;

use podwire_subnets::{
    find_overlaps, Backend, Error, Etcd, EtcdOptions, LeaseTerm, Node, PodCidrs, Registration, Underlay, Vtep,
};
use podwire_test_servers::EtcdServer;

/// Node number N of a cluster, as it registers.
fn registration(number: u8) -> Registration {
    let vtep = Vtep { vni: 1, mac: format!("c6:00:00:00:00:{number:02x}") };
    Registration {
        name: format!("node-{number}"),
        underlay: Underlay { v4: Some([192, 168, 64, number].into()), v6: None },
        backend: Backend::vxlan(Some(vtep), None),
        previous: PodCidrs::default(),
    }
}

const NETWORK: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;
const SUBNETS: &str = "/coreos.com/network/subnets/";

fn options(server: &EtcdServer) -> EtcdOptions {
    EtcdOptions { endpoints: vec![server.url()], ..EtcdOptions::default() }
}

fn source(server: &EtcdServer) -> Etcd {
    Etcd::new(options(server)).unwrap()
}

/// Writes flannel's network config.
async fn configure(server: &EtcdServer, config: &str) {
    server.put("/coreos.com/network/config", config).await;
}

fn cidrs(text: &str) -> PodCidrs {
    PodCidrs { v4: text.parse().ok(), v6: None }
}

fn previously(number: u8, text: &str) -> Registration {
    Registration { previous: cidrs(text), ..registration(number) }
}

#[tokio::test]
async fn a_node_writes_the_key_and_the_bytes_that_flannel_writes() {
    let server = EtcdServer::start();
    configure(&server, NETWORK).await;
    let node = source(&server).acquire(&previously(3, "10.5.34.0/24")).await.unwrap();
    assert_eq!((node.pod_cidrs, node.name.as_str()), (cidrs("10.5.34.0/24"), "10.5.34.0-24"));
    let day = std::time::Duration::from_secs(24 * 60 * 60);
    let LeaseTerm::Until(end) = node.lease_term else { panic!("{:?}", node.lease_term) };
    let left = end.duration_since(std::time::SystemTime::now()).unwrap();
    assert!(left <= day && left > day - std::time::Duration::from_secs(60), "{left:?}");
    let value = r#"{"PublicIP":"192.168.64.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:00:00:00:00:03"}}"#;
    let expected = ("/coreos.com/network/subnets/10.5.34.0-24".to_string(), value.to_string(), true);
    assert_eq!(server.dump(SUBNETS).await, [expected]);
}

#[tokio::test]
async fn a_missing_or_invalid_config_is_reported() {
    let server = EtcdServer::start();
    let source = source(&server);
    let error = source.network().await.unwrap_err().to_string();
    assert!(
        error.starts_with("flannel config not found in etcd store, key /coreos.com/network/config"),
        "{error}"
    );
    configure(&server, r#"{"Network": "10.5.0.0/30"}"#).await;
    let error = source.acquire(&registration(1)).await.unwrap_err().to_string();
    assert!(error.starts_with("etcd key /coreos.com/network/config: network is too small."), "{error}");
    configure(&server, r#"{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00::/48"}"#).await;
    let error = source.acquire(&registration(1)).await.unwrap_err().to_string();
    assert!(error.contains("a subnet in etcd needs IPv4"), "{error}");
    let none = Etcd::new(EtcdOptions { endpoints: vec![String::new()], ..EtcdOptions::default() });
    assert!(none.unwrap_err().to_string().contains("no endpoint is given"));
}

#[tokio::test]
async fn a_restarted_node_finds_its_record_and_keeps_its_subnet() {
    let server = EtcdServer::start();
    configure(&server, NETWORK).await;
    let source = source(&server);
    let first = source.acquire(&registration(1)).await.unwrap();
    let previous = source.find_previous(&registration(1)).await.unwrap().unwrap();
    assert_eq!(previous.backend.vtep().unwrap().mac, "c6:00:00:00:00:01");
    let changed = Registration { backend: Backend::named("host-gw"), ..previously(1, "10.5.99.0/24") };
    let again = source.acquire(&changed).await.unwrap();
    assert_eq!(again.pod_cidrs, first.pod_cidrs, "the record in etcd has precedence over subnet.env");
    let dump = server.dump(SUBNETS).await;
    assert_eq!(dump.len(), 1);
    assert!(dump[0].1.contains(r#""BackendType":"host-gw"}"#), "{dump:?}");
    assert_eq!(source.find_previous(&registration(2)).await.unwrap(), None);
    source.release(&again).await.unwrap();
    assert!(server.dump(SUBNETS).await.is_empty());
}

#[tokio::test]
async fn the_previous_subnet_is_acquired_again_unless_another_node_has_it() {
    let server = EtcdServer::start();
    configure(&server, NETWORK).await;
    let source = source(&server);
    assert_eq!(source.acquire(&previously(1, "10.5.7.0/24")).await.unwrap().pod_cidrs, cidrs("10.5.7.0/24"));
    assert_ne!(source.acquire(&previously(2, "10.5.7.0/24")).await.unwrap().pod_cidrs, cidrs("10.5.7.0/24"));
    assert_ne!(source.acquire(&previously(3, "10.6.7.0/24")).await.unwrap().pod_cidrs, cidrs("10.6.7.0/24"));
    assert_ne!(source.acquire(&previously(4, "10.5.8.0/25")).await.unwrap().pod_cidrs, cidrs("10.5.8.0/25"));
}

#[tokio::test]
async fn a_subnet_of_an_earlier_config_is_released() {
    let server = EtcdServer::start();
    configure(&server, NETWORK).await;
    let source = source(&server);
    source.acquire(&registration(1)).await.unwrap();
    configure(&server, r#"{"Network": "10.9.0.0/16"}"#).await;
    let node = source.acquire(&registration(1)).await.unwrap();
    assert_eq!(node.pod_cidrs.v4.unwrap().network().octets()[..2], [10, 9]);
    assert_eq!(server.dump(SUBNETS).await.len(), 1, "the old key is gone");
}

#[tokio::test]
async fn a_reservation_stays_without_a_lease() {
    let server = EtcdServer::start();
    configure(&server, NETWORK).await;
    server.put(&format!("{SUBNETS}10.5.200.0-24"), r#"{"PublicIP":"192.168.64.1"}"#).await;
    let node = source(&server).acquire(&registration(1)).await.unwrap();
    assert_eq!((node.pod_cidrs, node.lease_term), (cidrs("10.5.200.0/24"), LeaseTerm::Permanent));
    let dump = server.dump(SUBNETS).await;
    assert!(dump[0].1.contains("VtepMAC") && !dump[0].2, "{dump:?}");
}

/// More nodes than subnets acquire at once. As many succeed as there are subnets, and no two overlap.
async fn race(config: &str, nodes: u8, subnets: usize) {
    let server = EtcdServer::start();
    configure(&server, config).await;
    let racers: Vec<_> = (1..=nodes)
        .map(|number| {
            let source = source(&server);
            tokio::spawn(async move { source.acquire(&registration(number)).await })
        })
        .collect();
    let (mut won, mut lost): (Vec<Node>, Vec<Error>) = Default::default();
    for racer in racers {
        match racer.await.unwrap() {
            Ok(node) => won.push(node),
            Err(error) => lost.push(error),
        }
    }
    assert_eq!((won.len(), find_overlaps(&won)), (subnets, Vec::new()));
    for error in lost {
        assert!(matches!(error, Error::OutOfSubnets(_)), "{error}");
        assert!(error.to_string().starts_with("out of subnets: all of "), "{error}");
    }
    let keys: BTreeSet<String> = server.dump(SUBNETS).await.into_iter().map(|(key, ..)| key).collect();
    assert_eq!(keys, won.iter().map(|node| format!("{SUBNETS}{}", node.name)).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_nodes_never_share_a_subnet() {
    race(r#"{"Network": "10.5.0.0/26", "SubnetLen": 30}"#, 20, 15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_nodes_never_share_a_subnet_of_either_family() {
    let config = r#"{"Network": "10.5.0.0/27", "SubnetLen": 30, "EnableIPv6": true, "IPv6Network": "fd00::/120", "IPv6SubnetLen": 124}"#;
    race(config, 10, 7).await;
}

#[tokio::test]
async fn an_unreachable_endpoint_is_skipped() {
    let server = EtcdServer::start();
    configure(&server, NETWORK).await;
    let endpoints = vec!["http://127.0.0.1:1".into(), server.url()];
    let source = Etcd::new(EtcdOptions { endpoints, ..EtcdOptions::default() }).unwrap();
    for _ in 0..5 {
        source.network().await.unwrap();
    }
    let endpoints = vec!["http://127.0.0.1:1".into(), "http://127.0.0.1:2".into()];
    let source = Etcd::new(EtcdOptions { endpoints, ..EtcdOptions::default() }).unwrap();
    let error = source.network().await.unwrap_err().to_string();
    assert!(
        error.starts_with("etcd http://127.0.0.1:1,http://127.0.0.1:2: connect: http://127.0.0.1:1: "),
        "{error}"
    );
    assert!(error.contains("Connection refused"), "{error}");
}
