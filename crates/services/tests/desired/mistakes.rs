//! Objects with mistakes.

use serde_json::{json, Value};

use crate::cluster::{decide, lines, service, slice, slice_of, web};

#[test]
fn mistakes_are_reported_with_the_object_and_the_others_go_on() {
    let other = |name: &str, more: Value| {
        let mut spec = json!({ "clusterIP": "10.96.0.2", "ports": [{ "port": 80 }] });
        more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
        service(name, spec)
    };
    let created = |mut object: Value, time: &str| {
        object["metadata"]["creationTimestamp"] = time.into();
        object
    };
    let many: Vec<Value> =
        (1..=10_000).map(|port| json!({ "name": port.to_string(), "port": port })).collect();
    let node_port = json!([{ "port": 80, "nodePort": 30080 }]);
    let cases: Vec<(&str, Vec<Value>, &str)> = vec![
        (
            "overlapping external addresses: the oldest Service gets them",
            vec![
                created(other("a", json!({ "externalIPs": ["198.51.100.7"] })), "2026-02-01T00:00:00Z"),
                created(web(json!({ "externalIPs": ["198.51.100.7"] })), "2026-01-01T00:00:00Z"),
            ],
            "Service x/a: TCP 198.51.100.7:80 belongs to Service x/web; it is not served for this one",
        ),
        (
            "an external address that is a cluster IP",
            vec![web(json!({})), other("a", json!({ "externalIPs": ["10.96.0.1"] }))],
            "Service x/a: TCP 10.96.0.1:80 belongs to Service x/web; it is not served for this one",
        ),
        (
            "duplicate node ports",
            vec![
                web(json!({ "type": "NodePort", "ports": node_port })),
                other("z", json!({ "type": "NodePort", "ports": node_port })),
            ],
            "Service x/z: TCP 192.0.2.1:30080 belongs to Service x/web; it is not served for this one",
        ),
        (
            "a loopback endpoint",
            vec![web(json!({})), slice(&["127.0.0.1", "10.0.0.1"])],
            "EndpointSlice x/web-1: endpoint address \"127.0.0.1\" is a loopback address; it is ignored",
        ),
        (
            "a link-local endpoint",
            vec![web(json!({})), slice(&["fe80::1"])],
            "EndpointSlice x/web-1: endpoint address \"fe80::1\" is a link-local address; it is ignored",
        ),
        (
            "an endpoint of the other family",
            vec![web(json!({})), slice(&["10.0.0.1", "fd00::1"])],
            "EndpointSlice x/web-1: endpoint address \"10.0.0.1\" is of the other family; it is ignored",
        ),
        (
            "a slice without its Service",
            vec![web(json!({})), slice_of("gone", "gone-1", json!({ "port": 1 }), &["10.0.0.1"])],
            "EndpointSlice x/gone-1: there is no Service x/gone; its endpoints are not used",
        ),
        (
            "too many ports",
            vec![web(json!({ "ports": many }))],
            "Service x/web: it has 10000 ports; only the first 1000 are served",
        ),
        (
            "an invalid port",
            vec![web(json!({ "ports": [{ "port": 80 }, { "port": 70000 }] }))],
            "Service x/web: port 70000 is not a port number; it is not served",
        ),
        (
            "an invalid external address",
            vec![web(json!({ "externalIPs": ["host"] }))],
            "Service x/web: externalIPs: \"host\" is not an IP address; it is not served",
        ),
        (
            "an invalid source range",
            vec![web(json!({ "loadBalancerSourceRanges": ["10.0.0.0/99"] }))],
            "Service x/web: loadBalancerSourceRanges: \"10.0.0.0/99\" is not a network",
        ),
        (
            "an invalid timeout",
            vec![web(json!({ "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 0 } } }))],
            "Service x/web: timeoutSeconds 0 is not from 1 to 86400; 1 is used",
        ),
        (
            "two Services with one health check port",
            ["web", "z"]
                .map(|name| {
                    let more = json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000 });
                    if name == "web" { web(more) } else { other(name, more) }
                })
                .into(),
            "Service x/z: healthCheckNodePort 31000 belongs to Service x/web; it is not served",
        ),
        (
            "an object that cannot be read",
            vec![web(json!({})), other("a", json!({ "ports": "80" }))],
            "Service x/a: invalid type: string \"80\", expected a sequence; the object is ignored",
        ),
    ];
    let mut failures = Vec::new();
    for (name, objects, expected) in cases {
        let found = decide(&objects);
        let problems: Vec<String> = found.problems.iter().map(|problem| problem.to_string()).collect();
        // The Service `web` is served in all cases.
        if problems != [expected] || !lines(&found).iter().any(|line| line.contains(" x/web")) {
            failures.push(format!("{name}: {problems:#?} {:?}", lines(&found).first()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
