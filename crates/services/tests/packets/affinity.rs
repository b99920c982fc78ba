//! Clients that keep their endpoint.

use std::time::{Duration, Instant};

use serde_json::{json, Value};

use crate::cluster::{web, Cluster};

fn sticky(seconds: u64) -> Value {
    web(
        json!({ "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": seconds } },
        "externalIPs": ["198.51.100.7", "fd00:7::7"], "externalTrafficPolicy": "Local" }),
    )
}

impl Cluster {
    /// The number of remembered clients of a family.
    fn remembered(&self, family: u8) -> usize {
        let list = self.testbed.node.run(&format!("nft list map inet podwire_services affinity_{family}"));
        list.matches(" expires ").count()
    }

    /// The server that all connections of a client reach.
    fn server(&self, client: &str, target: &str) -> String {
        let servers = self.servers(client, target, 15);
        assert_eq!(servers.len(), 1, "{servers:?}");
        servers.into_iter().next().unwrap_or_default()
    }
}

/// Connects only over IPv4: both families choose independently.
fn servers(cluster: &Cluster, client: &str, target: &str) -> Vec<String> {
    cluster.client(client).servers(&format!("tcp {target}"), 15).into_iter().collect()
}

#[test]
fn a_client_keeps_its_endpoint() {
    let mut cluster = Cluster::new(4);
    cluster.apply(sticky(100), &["1", "2", "3"]);
    for (client, target) in [
        ("4", "10.96.0.1:80"),
        ("n", "10.96.0.1:80"),
        ("o", "10.96.0.1:80"),
        ("o", "198.51.100.7:80"),
        ("4", "[fd00:96::1]:80"),
        ("o", "[fd00:7::7]:80"),
    ] {
        let first = servers(&cluster, client, target);
        assert_eq!(first.len(), 1, "{client} {target}: {first:?}");
        // Also after the agent was restarted and found the same.
        cluster.apply(sticky(100), &["1", "2", "3"]);
        assert_eq!(servers(&cluster, client, target), first);
    }
    assert_eq!([cluster.remembered(4), cluster.remembered(6)], [4, 2]);
    // Without affinity connections spread again, and nothing is remembered.
    cluster.apply(web(json!({})), &["1", "2", "3"]);
    assert_eq!(servers(&cluster, "4", "10.96.0.1:80").len(), 3);
    assert_eq!([cluster.remembered(4), cluster.remembered(6)], [0, 0]);
}

#[test]
fn a_client_gets_another_endpoint_when_its_own_is_gone() {
    let mut cluster = Cluster::new(3);
    cluster.apply(sticky(100), &["1"]);
    assert_eq!(cluster.server("3", "cluster"), "1");
    let change = cluster.apply(sticky(100), &["2"]);
    assert_eq!(change.affinities, 2, "{change:?}");
    assert_eq!(cluster.server("3", "cluster"), "2");
    // Another endpoint does not move it.
    assert_eq!(cluster.apply(sticky(100), &["1", "2"]).affinities, 0);
    assert_eq!(cluster.server("3", "cluster"), "2");
    // A remembered endpoint that is gone is not used.
    cluster.apply(sticky(100), &[]);
    cluster.check(&[("3", "cluster", "refused")]);
}

#[test]
fn an_affinity_expires() {
    let mut cluster = Cluster::new(2);
    cluster.apply(sticky(1), &["1", "r"]);
    servers(&cluster, "2", "198.51.100.7:80");
    assert!(cluster.remembered(4) > 0);
    let begin = Instant::now();
    while cluster.remembered(4) > 0 {
        assert!(begin.elapsed() < Duration::from_secs(10), "an affinity of one second");
    }
}
