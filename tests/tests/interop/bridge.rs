//! Cases for bridge.

use podwire_tests::Case;
use serde_json::{json, Value};

use crate::differences::*;

/// host-local with these subnets, one address of each.
pub fn pool(subnets: &[&str]) -> Value {
    let ranges: Vec<_> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    json!({"type": "host-local", "ranges": ranges})
}

pub const V4: &str = "10.1.0.0/24";
pub const V6: &str = "fd00:1::/64";

/// A config of bridge with these keys and addresses of these subnets.
pub fn bridge(keys: Value, subnets: &[&str]) -> Value {
    let mut config = json!({"type": "bridge", "bridge": "br0", "ipam": pool(subnets)});
    for (key, value) in keys.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    config
}

fn case(name: &'static str, keys: Value, subnets: &[&str]) -> Case {
    Case::new(name, &[bridge(keys, subnets)]).differs(VETH).differs(&[PORT, LEASE, NO_EMPTY_DNS, HARDWARE])
}

/// A case with IPv4 only.
fn v4(name: &'static str, keys: Value) -> Case {
    case(name, keys, &[V4]).differs(&[QUIET])
}

fn v6(name: &'static str, keys: Value, subnets: &[&str]) -> Case {
    case(name, keys, subnets).differs(&[DAD, KEEP])
}

const OTHER_ADDRESS: &str =
    "ip link add br0 type bridge; ip address add 10.9.0.1/16 dev br0; ip link set br0 up";

pub fn cases() -> Vec<Case> {
    let routed = |routes: Value| json!({"type": "host-local", "subnet": V4, "routes": routes});
    let routes = routed(json!([{"dst": "0.0.0.0/0"}, {"dst": "192.168.0.0/16", "gw": "10.1.0.9"}]));
    let own_default = routed(json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.9"}]));
    let servers = json!({"nameservers": ["10.1.0.1"], "search": ["a.b"]});
    let made = "ip link add br0 address 02:00:00:00:00:01 type bridge";
    let mac = "02:00:00:00:01:07";
    vec![
        // With one pod only: it is random from which of two ports Go's bridge takes its address.
        v4("no gateway", json!({})).pods(1).agrees(&[HARDWARE]).differs(&[BRIDGE_MAC]),
        v4("a gateway", json!({"isGateway": true})),
        v4("the default gateway", json!({"isDefaultGateway": true})),
        v4("routes of the IPAM", json!({"isGateway": true, "ipam": routes})),
        v4("a default route of the IPAM", json!({"isDefaultGateway": true, "ipam": own_default})),
        v6("IPv6", json!({"isDefaultGateway": true}), &[V6]),
        v6("both families", json!({"isDefaultGateway": true, "ipMasq": true}), &[V4, V6]),
        v4("forced address", json!({"isGateway": true, "forceAddress": true})).after(OTHER_ADDRESS),
        v4("MTU", json!({"isGateway": true, "mtu": 1400})),
        v4("an MTU too small for IPv6", json!({"isGateway": true, "mtu": 1000})).agrees(&[PORT, QUIET]),
        v4("an MTU too small for IPv6, on a bridge that has it", json!({"isGateway": true, "mtu": 1000}))
            .after("ip link add br0 address 02:00:00:00:00:01 type bridge; ip link set br0 up")
            .agrees(&[PORT, QUIET]),
        v4("hairpin", json!({"isGateway": true, "hairpinMode": true})),
        v4("promiscuous", json!({"isGateway": true, "promiscMode": true})),
        v4("a bridge that is there", json!({"isGateway": true})).after(made),
        v4("a bridge that is there, no gateway", json!({}))
            .after(made)
            .agrees(&[HARDWARE])
            .differs(&[FOREIGN]),
        v4("a bridge that is there, with its ports' address", json!({}))
            .pods(1)
            .after("ip link add br0 type bridge")
            .agrees(&[HARDWARE])
            .differs(&[FOREIGN]),
        Case::new("no IPAM", &[bridge(json!({"ipam": {}}), &[])]).pods(1).differs(VETH).differs(&[
            PORT,
            NO_EMPTY_DNS,
            BRIDGE_MAC,
            CHECK,
        ]),
        Case::new("name servers", &[bridge(json!({"isGateway": true, "dns": servers}), &[V4])])
            .differs(VETH)
            .differs(&[PORT, LEASE, QUIET, HARDWARE]),
        v4("MAC in CNI_ARGS", json!({"isGateway": true}))
            .pods(1)
            .agrees(&[HARDWARE])
            .env("CNI_ARGS", "IgnoreUnknown=1;MAC=02:00:00:00:01:07"),
        v4("MAC of the runtime", json!({"isGateway": true, "runtimeConfig": {"mac": mac}}))
            .pods(1)
            .agrees(&[HARDWARE]),
        v4("MAC in args", json!({"isGateway": true, "args": {"cni": {"mac": mac}}}))
            .pods(1)
            .agrees(&[HARDWARE]),
        v4("another name in the pod", json!({"isGateway": true})).env("CNI_IFNAME", "net7"),
        v4("keys in any case", json!({"ISGATEWAY": true, "MTU": 1300, "ipMasq": null})),
    ]
}

pub fn versions() -> Vec<Case> {
    let case = |version, subnets| {
        let config = bridge(json!({"isDefaultGateway": true}), subnets);
        Case::new(version, &[config]).version(version).pods(1).differs(VETH).differs(&[PORT, LEASE, HARDWARE])
    };
    let both = |version| case(version, &[V4, V6]).differs(&[DAD, KEEP]);
    vec![
        case("0.1.0", &[V4]).differs(&[QUIET]),
        both("0.1.0"),
        both("0.2.0"),
        both("0.3.0"),
        both("0.3.1"),
        both("0.4.0"),
        both("1.0.0").differs(&[NO_EMPTY_DNS]),
    ]
}

pub fn refusals() -> Vec<Case> {
    let case = |name, keys| Case::new(name, &[bridge(keys, &[V4])]).pods(1);
    vec![
        case("an unknown version", json!({})).version("0.9.0").fails("incompatible CNI versions"),
        case("hairpin and promiscuous", json!({"hairpinMode": true, "promiscMode": true}))
            .fails("cannot set hairpin mode and promiscuous mode at the same time")
            .differs(&[CODE, UNTOUCHED]),
        case("another address on the bridge", json!({"isGateway": true}))
            .after(OTHER_ADDRESS)
            .fails("already has an IP address different from")
            .differs(&[CODE, FAILED_ADD, LEASE, BRIDGE_MAC]),
        case("a bridge that is none", json!({}))
            .after("ip link add br0 type veth peer name other")
            .fails("br0")
            .differs(&[CODE, UNTOUCHED]),
        case("an interface of that name in the pod", json!({}))
            .after("ip -n p1 link add eth0 type veth peer name other")
            .fails("eth0")
            .differs(&[FAILED_ADD, BRIDGE_MAC, UNTOUCHED]),
        case("a namespace that is not there", json!({}))
            .env("CNI_NETNS", "/run/netns/nowhere")
            .fails("/run/netns/nowhere")
            .differs(&[CODE, FAILED_ADD, UNTOUCHED]),
        case("an IPAM plugin that is not there", json!({"ipam": {"type": "nowhere"}}))
            .fails("nowhere")
            .differs(&[CODE, FAILED_ADD, BRIDGE_MAC]),
        Case::new("a pool that is empty", &[bridge(json!({"isGateway": true}), &["10.1.0.0/30"])])
            .fails("no IP addresses available in range set")
            .differs(VETH)
            .differs(&[PORT, LEASE, NO_EMPTY_DNS, QUIET, CODE, FAILED_ADD, HARDWARE]),
        case("a VLAN that cannot be", json!({"vlan": 5000}))
            .fails("invalid VLAN ID 5000")
            .differs(&[CODE, DEL]),
        case("a bad interface name", json!({})).env("CNI_IFNAME", "a/b").fails("interface name"),
        case("a bad container id", json!({})).env("CNI_CONTAINERID", "-").fails("container"),
        case("no container id", json!({})).env("CNI_CONTAINERID", "").fails("CNI_CONTAINERID"),
        case("a key of the wrong kind", json!({"mtu": "large"})).fails("mtu").differs(&[CODE, DEL]),
    ]
}
