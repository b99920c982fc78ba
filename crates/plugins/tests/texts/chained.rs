//! Texts of the plugins that follow another one in a chain.

use serde_json::{json, Value};

use crate::test_pod::with_pod;
use crate::{add, check, compare, text, Request};

#[test]
fn of_bandwidth() {
    let limit = |key: &str, value: u64, text: &str| add("bandwidth", json!({key: value}), text);
    let limits = json!({"ingressRate": 8000, "ingressBurst": 8000});
    let with = |limits: &Value, more: Value| {
        let mut config = limits.clone();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let huge = json!({"egressRate": 8000, "egressBurst": 34_359_738_368_u64});
    with_pod(|pod| {
        compare(
            pod,
            vec![
                limit("ingressRate", 8000, "if rate is set, burst must also be set"),
                limit("egressRate", 8000, "if rate is set, burst must also be set"),
                limit("ingressBurst", 8000, "if burst is set, rate must also be set"),
                limit("egressBurst", 8000, "if burst is set, rate must also be set"),
                add("bandwidth", huge, "burst cannot be more than 4GB"),
                add("bandwidth", limits.clone(), "must be called as chained plugin"),
                add("bandwidth", with(&limits, json!({"unshapedSubnets": ["10.0.0.0/8"], "shapedSubnets": ["10.0.0.0/8"]})),
                    "unshapedSubnets and shapedSubnets cannot be both specified, one of them should be discarded"),
                add("bandwidth", with(&limits, json!({"unshapedSubnets": ["10.0.0.0"]})),
                    "bad subnet \"10.0.0.0\" provided, details invalid CIDR address: 10.0.0.0"),
                add("bandwidth", with(&limits, json!({"shapedSubnets": ["x/8"]})),
                    "bad subnet \"x/8\" provided, details invalid CIDR address: x/8"),
                check("bandwidth", limits, "must be called as a chained plugin"),
            ],
        );
    });
}

#[test]
fn of_portmap() {
    let port = |host: i64, container: i64| json!({"runtimeConfig": {"portMappings": [{"hostPort": host, "containerPort": container}]}});
    with_pod(|pod| {
        compare(
            pod,
            vec![
                add("portmap", port(80, 80), "must be called as chained plugin"),
                add("portmap", port(0, 80), "Invalid host port number: 0"),
                add("portmap", port(80, 0), "Invalid container port number: 0"),
                add("portmap", json!({"backend": "x"}), "unrecognized backend \"x\""),
                add("portmap", json!({"markMasqBit": 32}), "MasqMarkBit must be between 0 and 31"),
                add(
                    "portmap",
                    json!({"markMasqBit": 1, "externalSetMarkChain": "x"}),
                    "Cannot specify externalSetMarkChain and markMasqBit",
                ),
                check("portmap", port(80, 80), "Required prevResult missing"),
            ],
        );
    });
}

#[test]
fn of_firewall() {
    let without_interface = |policy: &str| json!({"ingressPolicy": policy, "prevResult": {"ips": []}});
    with_pod(|pod| {
        compare(
            pod,
            vec![
                add("firewall", json!({}), "missing prevResult from earlier plugin"),
                check("firewall", json!({"backend": "nftables"}), "missing prevResult from earlier plugin"),
                add("firewall", without_interface("x"), "unknown ingress policy: \"x\""),
                add(
                    "firewall",
                    without_interface("same-bridge"),
                    "interface needs to be set for ingress policy \"same-bridge\", make sure to chain \"firewall\" \
                     plugin with \"bridge\"",
                ),
            ],
        );
    });
}

#[test]
fn of_sbr_and_vrf() {
    let none = |prev: Value| json!({ "prevResult": prev });
    let missing = "missing prevResult from earlier plugin";
    with_pod(|pod| {
        compare(
            pod,
            vec![
                add("sbr", json!({}), "This plugin must be called as chained plugin"),
                add("sbr", none(json!({"ips": []})), "No IP addresses supplied on interface: eth0"),
                add("vrf", json!({}), "configuration is expected to have a valid vrf name"),
                add("vrf", json!({"vrfname": "red"}), missing),
                check("vrf", json!({"vrfname": "red"}), missing),
            ],
        );
    });
}

#[test]
fn of_tuning() {
    let key = json!({"sysctl": {"kernel.panic": "1"}, "prevResult": {"ips": []}});
    with_pod(|pod| {
        compare(
            pod,
            vec![
                add("tuning", json!({"mtu": 1400}), "Required prevResult missing"),
                check("tuning", json!({"mtu": 1400}), "Required prevResult missing"),
                add(
                    "tuning",
                    json!({"mac": "x", "prevResult": {"ips": []}}),
                    "invalid args x for MAC addr: address x: invalid MAC address",
                ),
                add("tuning", key, "invalid net sysctl key: \"kernel.panic\""),
            ],
        );
        // The parsed config would have one of the two values.
        let config = r#"{"cniVersion": "1.1.0", "name": "net", "type": "tuning", "prevResult": {"ips": []},
            "sysctl": {"net.ipv4.conf.all.log_martians": "1", "net.ipv4.conf.all.log_martians": "0"}}"#;
        for verb in ["ADD", "CHECK"] {
            let found = text(&Request::of(pod, verb).send("tuning", config));
            assert_eq!(found, "duplicated sysctl keys are not allowed", "{verb}");
        }
        assert!(Request::of(pod, "DEL").send("tuning", config).is_null(), "DEL does not need the config");
        let respelled = config.replacen("net.ipv4.conf.all.log", "net/ipv4/conf/all/log", 1);
        let found = text(&Request::of(pod, "ADD").send("tuning", &respelled));
        assert_eq!(found, "duplicated sysctl keys are not allowed", "two spellings of one key");
    });
}
