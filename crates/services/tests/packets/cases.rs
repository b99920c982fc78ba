//! Which client reaches which endpoint, with which source address.

use podwire_services::dataplane::remove;
use serde_json::json;

use crate::cluster::{balanced, web, Cluster};
use crate::testbed::Testbed;

#[test]
fn a_cluster_ip_is_reached_from_pods_the_node_and_outside() {
    let mut cluster = Cluster::new(2);
    cluster.apply(web(json!({})), &["r"]);
    cluster.check(&[("1", "cluster", "r itself"), ("n", "cluster", "r itself"), ("o", "cluster", "r node")]);
    cluster.apply(web(json!({})), &["1"]);
    cluster.check(&[
        ("2", "cluster", "1 itself"),
        // A pod reaches itself.
        ("1", "cluster", "1 node"),
        ("n", "cluster", "1 itself"),
        ("o", "cluster", "1 node"),
    ]);
    cluster.apply(web(json!({})), &["n"]);
    // The node delivers to itself without another hop, so the reply comes back through it anyway.
    cluster.check(&[
        ("1", "cluster", "n itself"),
        ("n", "cluster", "n itself"),
        ("o", "cluster", "n itself"),
    ]);
}

#[test]
fn pods_on_one_bridge_reach_each_other() {
    let mut cluster = Cluster::on(Testbed::bridged(2));
    let service = || web(json!({ "type": "NodePort", "externalTrafficPolicy": "Local" }));
    cluster.apply(service(), &["1"]);
    cluster.check(&[
        ("2", "cluster", "1 itself"),
        ("1", "cluster", "1 node"),
        ("n", "cluster", "1 itself"),
        ("o", "cluster", "1 node"),
        ("2", "node", "1 itself"),
        ("o", "node", "1 itself"),
    ]);
    cluster.apply(service(), &["r"]);
    cluster.check(&[("1", "cluster", "r itself"), ("2", "node", "r itself"), ("o", "node", "silence")]);
    cluster.apply(service(), &[]);
    cluster.check(&[("1", "cluster", "refused"), ("1", "node", "refused")]);
}

#[test]
fn external_addresses_are_reached_with_the_address_of_the_node() {
    let mut cluster = Cluster::new(2);
    let service = || web(json!({ "type": "NodePort", "externalIPs": ["198.51.100.7", "fd00:7::7"] }));
    for target in ["node", "external"] {
        cluster.apply(service(), &["r"]);
        cluster.check(&[("1", target, "r node"), ("n", target, "r itself"), ("o", target, "r node")]);
        cluster.apply(service(), &["1"]);
        cluster.check(&[
            ("1", target, "1 node"),
            ("2", target, "1 node"),
            ("n", target, "1 itself"),
            ("o", target, "1 node"),
        ]);
    }
}

#[test]
fn the_external_policy_local_keeps_the_address_of_the_client() {
    let mut cluster = Cluster::new(2);
    let service = || {
        web(
            json!({ "type": "NodePort", "externalIPs": ["198.51.100.7", "fd00:7::7"], "externalTrafficPolicy": "Local" }),
        )
    };
    for target in ["node", "external"] {
        cluster.apply(service(), &["1"]);
        cluster.check(&[
            ("1", target, "1 node"),
            ("2", target, "1 itself"),
            ("n", target, "1 itself"),
            ("o", target, "1 itself"),
        ]);
        // Clients on this node reach all endpoints, others none.
        cluster.apply(service(), &["r"]);
        cluster.check(&[("1", target, "r itself"), ("n", target, "r itself"), ("o", target, "silence")]);
        cluster.apply(service(), &["1", "r"]);
        assert_eq!(Vec::from_iter(cluster.servers("o", target, 20)), ["1"]);
        assert_eq!(Vec::from_iter(cluster.servers("2", target, 40)), ["1", "r"]);
    }
}

#[test]
fn the_internal_policy_local_reaches_endpoints_of_this_node() {
    let mut cluster = Cluster::new(2);
    let service = || web(json!({ "internalTrafficPolicy": "Local" }));
    cluster.apply(service(), &["1", "r"]);
    cluster.check(&[("2", "cluster", "1 itself"), ("n", "cluster", "1 itself"), ("o", "cluster", "1 node")]);
    cluster.apply(service(), &["r"]);
    cluster.check(&[("2", "cluster", "silence"), ("n", "cluster", "silence"), ("o", "cluster", "silence")]);
}

#[test]
fn connections_without_an_endpoint_are_refused() {
    let mut cluster = Cluster::new(1);
    for policy in ["Cluster", "Local"] {
        let service = web(json!({ "type": "NodePort", "externalIPs": ["198.51.100.7", "fd00:7::7"],
            "internalTrafficPolicy": policy, "externalTrafficPolicy": policy }));
        cluster.apply(service, &[]);
        for client in ["1", "n", "o"] {
            cluster.check(&[
                (client, "cluster", "refused"),
                (client, "node", "refused"),
                (client, "external", "refused"),
            ]);
        }
    }
    // A port that the Service does not have, and an address that no Service has.
    cluster.apply(web(json!({})), &["r"]);
    for client in ["1", "n", "o"] {
        cluster.check(&[(client, "other port", "refused"), (client, "unused", "silence")]);
    }
}

#[test]
fn source_ranges_admit_clients_to_the_load_balancer() {
    let mut cluster = Cluster::new(2);
    let rows = |o: &'static str, one: &'static str, two: &'static str| -> Vec<(&str, &str, &str)> {
        vec![("o", "balancer", o), ("1", "balancer", one), ("2", "balancer", two), ("o", "node", "r node")]
    };
    cluster.apply(balanced(&[]), &["r"]);
    cluster.check(&rows("r node", "r node", "r node"));
    cluster.apply(balanced(&["192.0.2.0/24", "fd00:9::/64"]), &["r"]);
    cluster.check(&rows("r node", "silence", "silence"));
    cluster.apply(balanced(&["192.0.2.2/32", "10.1.0.1/32", "fd00:9::2/128", "fd00:1::1/128"]), &["r"]);
    cluster.check(&rows("r node", "r node", "silence"));
    cluster.apply(balanced(&["10.0.0.0/8", "10.1.0.0/16", "fd00:1::/64"]), &["r"]);
    cluster.check(&rows("silence", "r node", "r node"));
}

#[test]
fn all_endpoints_get_connections() {
    let mut cluster = Cluster::new(4);
    let change = cluster.apply(web(json!({})), &["1", "2", "3"]);
    assert!(change.chains);
    assert_eq!(Vec::from_iter(cluster.servers("4", "cluster", 60)), ["1", "2", "3"]);
    // The first leaves, and the last takes its index: of each frontend, three endpoints and the chain, which is
    // deleted and added. Of each family, one address less that may reach itself.
    let change = cluster.apply(web(json!({})), &["2", "3"]);
    assert_eq!(change.elements, 8 * (3 + 2) + 2, "{change:?}");
    assert_eq!(Vec::from_iter(cluster.servers("4", "cluster", 40)), ["2", "3"]);
    // Another number of endpoints that was there before needs no chain.
    let change = cluster.apply(web(json!({})), &["1", "2", "3"]);
    assert!(!change.chains);
    // A replacement: of each frontend, an endpoint is deleted and added; of each family, an address.
    let change = cluster.apply(web(json!({})), &["1", "2", "4"]);
    assert_eq!(change.elements, 8 * 2 + 2 * 2, "{change:?}");
    assert_eq!(Vec::from_iter(cluster.servers("4", "cluster", 60)), ["1", "2", "4"]);
}

#[test]
fn damage_is_repaired_and_the_table_is_removed() {
    let mut cluster = Cluster::new(2);
    cluster.apply(web(json!({ "type": "NodePort" })), &["1"]);
    let damages = [
        "nft flush map inet podwire_services frontends_4",
        "nft flush chain inet podwire_services services",
        "nft flush chain inet podwire_services ip4_random_1",
        "nft delete table inet podwire_services",
        "nft add element inet podwire_services rejected_4 { 10.96.0.9 . tcp . 80 }",
        "nft flush ruleset",
    ];
    for damage in damages {
        cluster.testbed.node.run(damage);
        let change = cluster.apply(web(json!({ "type": "NodePort" })), &["1"]);
        assert!(!change.is_empty(), "{damage}");
        cluster.check(&[("2", "cluster", "1 itself"), ("o", "node", "1 node")]);
    }
    cluster.testbed.node.inside(|| {
        assert!(remove().unwrap());
        assert_eq!(crate::testbed::run("nft list ruleset"), "");
        assert!(!remove().unwrap());
    });
}
