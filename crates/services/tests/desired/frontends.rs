//! Kinds of Services, families, protocols and traffic policies.

use serde_json::{json, Value};

use crate::cluster::{check, service, slice, slice_of, web, REMOTE, TWO};

#[test]
fn every_kind_of_service_has_its_frontends() {
    let all = |kind: &str, more: Value| {
        let mut spec = json!({ "type": kind, "ports": [{ "port": 80, "nodePort": 30080 }] });
        more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
        web(spec)
    };
    let with_ingress = |mut service: Value, ingress: Value| {
        service["status"] = json!({ "loadBalancer": { "ingress": ingress } });
        service
    };
    let load_balancer = || with_ingress(all("LoadBalancer", json!({})), json!([{ "ip": "198.51.100.1" }]));
    check(&[
        (
            "a cluster IP",
            vec![web(json!({})), slice(TWO)],
            &["TCP 10.96.0.1:80 x/web ClusterIp [10.0.0.1:8080,10.0.0.2:8080]"],
        ),
        ("no slices", vec![web(json!({}))], &["TCP 10.96.0.1:80 x/web ClusterIp [] Reject"]),
        ("headless", vec![web(json!({ "clusterIP": "None" })), slice(TWO)], &[]),
        ("no address yet", vec![web(json!({ "clusterIP": "" }))], &[]),
        ("a DNS name", vec![web(json!({ "type": "ExternalName" }))], &[]),
        (
            "a node port at the primary address",
            vec![all("NodePort", json!({})), slice(REMOTE)],
            &[
                "TCP 10.96.0.1:80 x/web ClusterIp [10.0.0.2:8080]",
                "TCP 192.0.2.1:30080 x/web Cluster [10.0.0.2:8080]",
            ],
        ),
        (
            "external addresses",
            vec![web(json!({ "externalIPs": ["198.51.100.7", "198.51.100.7", "fd00::7"] })), slice(REMOTE)],
            &[
                "TCP 10.96.0.1:80 x/web ClusterIp [10.0.0.2:8080]",
                "TCP 198.51.100.7:80 x/web Cluster [10.0.0.2:8080]",
            ],
        ),
        (
            "a load balancer",
            vec![load_balancer(), slice(REMOTE)],
            &[
                "TCP 10.96.0.1:80 x/web ClusterIp [10.0.0.2:8080]",
                "TCP 192.0.2.1:30080 x/web Cluster [10.0.0.2:8080]",
                "TCP 198.51.100.1:80 x/web Cluster [10.0.0.2:8080]",
            ],
        ),
        (
            "a load balancer that is a proxy, and one with a name",
            vec![with_ingress(
                web(json!({ "type": "LoadBalancer" })),
                json!([{ "ip": "198.51.100.1", "ipMode": "Proxy" }, { "hostname": "lb" }, { "ip": "198.51.100.2", "ipMode": "VIP" }]),
            )],
            &["TCP 10.96.0.1:80 x/web ClusterIp [] Reject", "TCP 198.51.100.2:80 x/web Cluster [] Reject"],
        ),
        (
            "an address that is external and of the load balancer",
            vec![with_ingress(
                web(
                    json!({ "type": "LoadBalancer", "externalIPs": ["198.51.100.1"], "loadBalancerSourceRanges": ["10.0.0.0/8"] }),
                ),
                json!([{ "ip": "198.51.100.1" }]),
            )],
            &[
                "TCP 10.96.0.1:80 x/web ClusterIp [] Reject",
                "TCP 198.51.100.1:80 x/web Cluster [] Reject from [10.0.0.0/8]",
            ],
        ),
    ]);
}

#[test]
fn both_families_and_all_protocols_are_served() {
    let ports = json!([{ "name": "a", "port": 53, "protocol": "UDP" }, { "name": "b", "port": 53, "protocol": "TCP" },
        { "name": "c", "port": 99, "protocol": "SCTP" }]);
    let dual = |ips: Value| service("web", json!({ "clusterIP": ips[0], "clusterIPs": ips, "ports": ports }));
    let slices = || {
        vec![
            slice_of("web", "a4", json!({ "name": "a", "port": 1053, "protocol": "UDP" }), &["10.0.0.1"]),
            slice_of("web", "a6", json!({ "name": "a", "port": 1053, "protocol": "UDP" }), &["fd00::1"]),
            // The protocol and the name must both be equal.
            slice_of("web", "b4", json!({ "name": "b", "port": 1054 }), &["10.0.0.2"]),
            slice_of("web", "c4", json!({ "name": "c", "port": 1055, "protocol": "TCP" }), &["10.0.0.3"]),
            slice_of("web", "d4", json!({ "name": "d", "port": 1056, "protocol": "SCTP" }), &["10.0.0.4"]),
        ]
    };
    let v4: &[&str] = &[
        "TCP 10.96.0.1:53 x/web:b ClusterIp [10.0.0.2:1054]",
        "UDP 10.96.0.1:53 x/web:a ClusterIp [10.0.0.1:1053]",
        "SCTP 10.96.0.1:99 x/web:c ClusterIp [] Reject",
    ];
    let v6: &[&str] = &[
        "TCP [fd00:96::1]:53 x/web:b ClusterIp [] Reject",
        "UDP [fd00:96::1]:53 x/web:a ClusterIp [[fd00::1]:1053]",
        "SCTP [fd00:96::1]:99 x/web:c ClusterIp [] Reject",
    ];
    let with = |ips: Value| [vec![dual(ips)], slices()].concat();
    let both = [v4, v6].concat();
    check(&[
        ("IPv4", with(json!(["10.96.0.1"])), v4),
        ("IPv6", with(json!(["fd00:96::1"])), v6),
        ("both", with(json!(["10.96.0.1", "fd00:96::1"])), &both),
        ("both, IPv6 first", with(json!(["fd00:96::1", "10.96.0.1"])), &both),
    ]);
}

#[test]
fn traffic_policies_choose_among_the_endpoints() {
    let policies = |internal: &str, external: &str| {
        web(
            json!({ "internalTrafficPolicy": internal, "externalTrafficPolicy": external, "externalIPs": ["198.51.100.7"] }),
        )
    };
    check(&[
        (
            "both local",
            vec![policies("Local", "Local"), slice(TWO)],
            &[
                "TCP 10.96.0.1:80 x/web ClusterIp [10.0.0.1:8080]",
                "TCP 198.51.100.7:80 x/web Local [10.0.0.1:8080,10.0.0.2:8080] others [10.0.0.1:8080]",
            ],
        ),
        (
            "both local, and endpoints elsewhere only",
            vec![policies("Local", "Local"), slice(&["10.0.0.2@m", "-10.0.0.3@n"])],
            &[
                "TCP 10.96.0.1:80 x/web ClusterIp [] Drop",
                "TCP 198.51.100.7:80 x/web Local [10.0.0.2:8080] others [] Drop",
            ],
        ),
        (
            "both local, and no endpoints",
            vec![policies("Local", "Local"), slice(&["-10.0.0.2@m"])],
            &[
                "TCP 10.96.0.1:80 x/web ClusterIp [] Reject",
                "TCP 198.51.100.7:80 x/web Local [] others [] Reject",
            ],
        ),
        (
            "an endpoint without a node is never local",
            vec![policies("Local", "Cluster"), slice(&["10.0.0.1"])],
            &[
                "TCP 10.96.0.1:80 x/web ClusterIp [] Drop",
                "TCP 198.51.100.7:80 x/web Cluster [10.0.0.1:8080]",
            ],
        ),
        (
            "the external policy of a Service that is not accessible from outside does not count",
            vec![web(json!({ "externalTrafficPolicy": "Local" })), slice(REMOTE)],
            &["TCP 10.96.0.1:80 x/web ClusterIp [10.0.0.2:8080]"],
        ),
    ]);
}
