//! Cases for ptp, macvlan and loopback.

use podwire_tests::Case;
use serde_json::{json, Value};

use crate::bridge::{pool, V4, V6};
use crate::differences::*;

fn ptp_config(keys: Value, subnets: &[&str]) -> Value {
    let mut config = json!({"type": "ptp", "ipam": pool(subnets)});
    for (key, value) in keys.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    config
}

fn case(name: &'static str, keys: Value, subnets: &[&str]) -> Case {
    Case::new(name, &[ptp_config(keys, subnets)]).differs(VETH).differs(&[LEASE])
}

pub fn ptp() -> Vec<Case> {
    let v4 = |name, keys| case(name, keys, &[V4]).differs(&[SCOPE, PORT]);
    let both = |name, keys| case(name, keys, &[V4, V6]).differs(&[SCOPE, DAD, KEEP]);
    let refused = |name, keys| Case::new(name, &[ptp_config(keys, &[V4])]).pods(1);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "192.168.0.0/16"}]);
    let routed = json!({"ipam": {"type": "host-local", "subnet": V4, "routes": routes}});
    let without_gateway = json!({"ipam": {"type": "static", "addresses": [{"address": "10.1.0.5/24"}]}});
    vec![
        v4("IPv4", json!({})).differs(&[NO_EMPTY_DNS]),
        case("IPv6", json!({}), &[V6]).differs(&[DAD, KEEP, NO_EMPTY_DNS]),
        both("both families", json!({"ipMasq": true})).differs(&[NO_EMPTY_DNS]),
        v4("MTU", json!({"mtu": 1400})).differs(&[NO_EMPTY_DNS]),
        v4("routes of the IPAM", routed).differs(&[NO_EMPTY_DNS, CHECK]),
        v4("name servers", json!({"dns": {"nameservers": ["10.1.0.1"]}})),
        v4("0.1.0", json!({})).version("0.1.0").pods(1),
        both("0.2.0, both families", json!({})).version("0.2.0").pods(1),
        both("0.3.1", json!({})).version("0.3.1").pods(1),
        both("0.4.0", json!({})).version("0.4.0").pods(1),
        refused("no gateway", without_gateway).fails("").differs(&[CODE, FAILED_ADD]),
        refused("no IPAM", json!({"ipam": {}})).fails("").differs(&[CODE, DEL]),
        case("a pool that is empty", json!({}), &["10.1.0.0/30"])
            .fails("no IP addresses available in range set")
            .differs(&[SCOPE, PORT, NO_EMPTY_DNS, CODE]),
        refused("an interface of that name in the pod", json!({}))
            .after("ip -n p1 link add eth0 type veth peer name other")
            .fails("eth0")
            .differs(&[FAILED_ADD, UNTOUCHED]),
    ]
}

/// A veth pair as master; both ends are on the node.
const UPLINK: &str =
    "ip link add uplink address 02:00:00:00:00:01 type veth peer name far address 02:00:00:00:00:02
    ip link set uplink up; ip link set far up";

pub fn macvlan() -> Vec<Case> {
    let config = |keys: Value, subnets: &[&str]| {
        let mut config = json!({"type": "macvlan", "master": "uplink", "ipam": pool(subnets)});
        for (key, value) in keys.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        config
    };
    let case = |name, keys, subnets: &[&str]| {
        Case::new(name, &[config(keys, subnets)]).after(UPLINK).differs(&[QUEUE, LEASE, HUNG])
    };
    let unleased = |name, keys| Case::new(name, &[config(keys, &[V4])]).after(UPLINK).differs(&[QUEUE, HUNG]);
    let v4 = |name, keys| case(name, keys, &[V4]);
    let refused = |name, keys| Case::new(name, &[config(keys, &[V4])]).pods(1).after(UPLINK);
    let servers = json!({"nameservers": ["10.1.0.1"]});
    let leased =
        json!({"ipam": {"type": "static", "addresses": [{"address": "10.1.0.5/24"}], "dns": servers}});
    vec![
        v4("IPv4", json!({})).differs(&[NO_EMPTY_DNS]),
        case("IPv6", json!({}), &[V6]).differs(&[KEEP, NEWS, NO_EMPTY_DNS]),
        case("both families", json!({}), &[V4, V6]).differs(&[KEEP, NEWS, NO_EMPTY_DNS]),
        v4("private", json!({"mode": "private"})).differs(&[NO_EMPTY_DNS]),
        v4("MTU", json!({"mtu": 1400})).differs(&[NO_EMPTY_DNS]),
        v4("passthru", json!({"mode": "passthru"})).pods(1).differs(&[NO_EMPTY_DNS]),
        v4("name servers", json!({"dns": servers})),
        unleased("name servers of the IPAM", leased).pods(1).differs(&[NO_EMPTY_DNS, SERVERS]),
        unleased("no IPAM", json!({"ipam": {}})).differs(&[NO_EMPTY_DNS]),
        v4("a MAC of the runtime", json!({"runtimeConfig": {"mac": "02:00:00:00:00:07"}}))
            .pods(1)
            .differs(&[NO_EMPTY_DNS]),
        v4("0.2.0", json!({})).version("0.2.0").pods(1),
        v4("0.4.0", json!({})).version("0.4.0").pods(1),
        refused("an unknown mode", json!({"mode": "source"}))
            .fails("unknown macvlan mode")
            .differs(&[CODE, UNTOUCHED]),
        refused("a master that is not there", json!({"master": "nowhere"})).fails("").differs(&[CODE, DEL]),
        refused("an MTU beyond the master's", json!({"mtu": 9000}))
            .fails("invalid MTU 9000")
            .differs(&[CODE, DEL]),
    ]
}

pub fn loopback() -> Vec<Case> {
    let case = |name| Case::new(name, &[json!({"type": "loopback"})]).pods(1);
    vec![
        case("1.0.0").differs(&[NO_EMPTY_DNS]),
        case("0.4.0").version("0.4.0").differs(&[SHAPE]),
        case("0.3.1").version("0.3.1").differs(&[SHAPE]),
        case("0.2.0").version("0.2.0").differs(&[SHAPE]),
        case("0.1.0").version("0.1.0").differs(&[SHAPE]),
        case("another name").env("CNI_IFNAME", "eth7").differs(&[NO_EMPTY_DNS]),
        case("up already").after("ip -n p1 link set lo up").differs(&[NO_EMPTY_DNS]),
        case("an address of the outside world")
            .after("ip -n p1 address add 10.9.9.9/32 dev lo")
            .fails("loopback interface found with non-loopback address")
            .differs(&[FAILED_ADD]),
        case("a namespace that is not there")
            .env("CNI_NETNS", "/run/netns/nowhere")
            .fails("/run/netns/nowhere")
            .differs(&[CODE]),
    ]
}
