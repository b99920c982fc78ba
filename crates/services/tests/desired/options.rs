//! Session affinity and source ranges.

use serde_json::{json, Value};

use crate::cluster::{check, slice, web, REMOTE};

#[test]
fn affinity_has_a_timeout() {
    let sticky = |config: Value| {
        web(
            json!({ "sessionAffinity": "ClientIP", "sessionAffinityConfig": config, "externalIPs": ["198.51.100.7"] }),
        )
    };
    let with = |seconds: u64| {
        [
            format!("TCP 10.96.0.1:80 x/web ClusterIp [10.0.0.2:8080] sticky {seconds}"),
            format!("TCP 198.51.100.7:80 x/web Cluster [10.0.0.2:8080] sticky {seconds}"),
        ]
    };
    let (default, one) = (with(10800), with(1));
    check(&[
        ("default", vec![sticky(Value::Null), slice(REMOTE)], &default.each_ref().map(String::as_str)),
        (
            "written",
            vec![sticky(json!({ "clientIP": { "timeoutSeconds": 1 } })), slice(REMOTE)],
            &one.each_ref().map(String::as_str),
        ),
    ]);
}

#[test]
fn source_ranges_restrict_the_load_balancer_only() {
    let ranges = |ranges: Value| {
        let mut service = web(json!({ "type": "LoadBalancer", "loadBalancerSourceRanges": ranges,
            "ports": [{ "port": 80, "nodePort": 30080 }], "externalIPs": ["198.51.100.7"] }));
        service["status"] =
            json!({ "loadBalancer": { "ingress": [{ "ip": "198.51.100.1" }, { "ip": "fd00::1" }] } });
        vec![service, slice(REMOTE)]
    };
    let with = |from: &str| {
        [
            "TCP 10.96.0.1:80 x/web ClusterIp [10.0.0.2:8080]".to_owned(),
            "TCP 192.0.2.1:30080 x/web Cluster [10.0.0.2:8080]".to_owned(),
            format!("TCP 198.51.100.1:80 x/web Cluster [10.0.0.2:8080]{from}"),
            "TCP 198.51.100.7:80 x/web Cluster [10.0.0.2:8080]".to_owned(),
        ]
    };
    let cases = [
        ("none", json!([]), ""),
        ("spaces and overlaps", json!([" 10.0.0.0/8 ", "10.1.0.0/16"]), " from [10.0.0.0/8]"),
        ("everybody", json!(["10.0.0.0/8", "0.0.0.0/0"]), ""),
        ("the other family", json!(["fd00::/8"]), ""),
        ("the node", json!(["192.0.2.0/24"]), " from [192.0.2.0/24,198.51.100.1/32]"),
    ];
    for (name, written, from) in cases {
        check(&[(name, ranges(written), &with(from).each_ref().map(String::as_str))]);
    }
}
