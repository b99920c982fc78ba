//! Cases for the plugins that follow bridge in a chain.

use podwire_tests::Case;
use serde_json::{json, Value};

use crate::bridge::{bridge, V4, V6};
use crate::differences::*;

/// `config` with these keys added or replaced.
fn with(mut config: Value, keys: Value) -> Value {
    for (key, value) in keys.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    config
}

/// bridge with these subnets, then `second`.
fn after_bridge(name: &'static str, second: Value, subnets: &[&str]) -> Case {
    let first = bridge(json!({"isDefaultGateway": true}), subnets);
    Case::new(name, &[first, second]).differs(VETH).differs(&[PORT, LEASE, HARDWARE])
}

/// … with IPv4 only, spec 1.0.0.
fn case(name: &'static str, second: Value) -> Case {
    after_bridge(name, second, &[V4]).differs(&[QUIET, NO_EMPTY_DNS])
}

/// … in an older version.
fn old(version: &'static str, second: Value) -> Case {
    after_bridge(version, second, &[V4]).version(version).differs(&[QUIET])
}

/// portmap and firewall.
pub fn port_maps() -> Vec<Case> {
    let ports = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 5353, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1"},
    ]);
    let portmap = |keys| with(json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}}), keys);
    let mapping = |one: Value| portmap(json!({"runtimeConfig": {"portMappings": [one]}}));
    let of_containerd = json!({"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""});
    let firewall = json!({"type": "firewall", "backend": "iptables"});
    vec![
        after_bridge("port maps", portmap(json!({})), &[V4, V6]).pods(1).differs(&[
            NO_EMPTY_DNS,
            DAD,
            KEEP,
            CHECK,
        ]),
        after_bridge("port maps of IPv6", portmap(json!({})), &[V6]).pods(1).differs(&[
            NO_EMPTY_DNS,
            DAD,
            KEEP,
            CHECK,
        ]),
        case("port maps without SNAT", portmap(json!({"snat": false}))).pods(1).differs(&[CHECK]),
        case("port maps as containerd writes them", mapping(of_containerd)).pods(1).differs(&[CHECK]),
        case("no port maps", json!({"type": "portmap"})),
        old("0.3.1", portmap(json!({}))).pods(1),
        case(
            "a protocol that is none",
            mapping(json!({"hostPort": 1, "containerPort": 1, "protocol": "ipx"})),
        )
        .pods(1)
        .fails("ipx")
        .differs(&[CODE, FAILED_ADD]),
        case("port 0", mapping(json!({"hostPort": 0, "containerPort": 1, "protocol": "tcp"})))
            .pods(1)
            .fails("0")
            .differs(&[CODE, DEL]),
        Case::new("port maps without a container", &[portmap(json!({}))])
            .pods(1)
            .fails("must be called as chained plugin")
            .differs(&[CODE]),
        after_bridge("firewall", firewall.clone(), &[V4, V6]).differs(&[NO_EMPTY_DNS, DAD, KEEP]),
        old("0.4.0", firewall.clone()),
        old("0.3.1", firewall).pods(1).fails("incompatible CNI versions"),
        Case::new("a firewall without a container", &[json!({"type": "firewall"})])
            .pods(1)
            .fails("prevResult")
            .differs(&[CODE]),
    ]
}

/// bandwidth.
pub fn limits() -> Vec<Case> {
    let limited = |name, keys| case(name, with(json!({"type": "bandwidth"}), keys));
    let refused = |name, keys| limited(name, keys).pods(1).differs(&[CODE, DEL]);
    let both = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 1_600_000});
    let of_containerd = json!({"IngressRate": 1_000_000, "IngressBurst": u32::MAX, "EgressRate": 1_000_000, "EgressBurst": u32::MAX});
    vec![
        limited("both ways", both.clone()).differs(&[BUCKET]),
        limited("into the pod", json!({"ingressRate": 100_000, "ingressBurst": 1_000_000})),
        limited("out of the pod", json!({"egressRate": 1_234_567_890, "egressBurst": 12_345_678}))
            .differs(&[BUCKET]),
        limited("by the runtime", json!({"runtimeConfig": {"bandwidth": both.clone()}})).differs(&[BUCKET]),
        limited("by containerd", json!({"runtimeConfig": {"bandwidth": of_containerd}})).differs(&[BUCKET]),
        limited("none", json!({})).differs(&[CHECK]),
        old("0.3.1", with(json!({"type": "bandwidth"}), both)).pods(1).differs(&[BUCKET]),
        refused("a rate without burst", json!({"ingressRate": 8000}))
            .fails("if rate is set, burst must also be set"),
        refused("a burst without rate", json!({"egressBurst": 8000}))
            .fails("if burst is set, rate must also be set"),
        refused("a burst of 4 GB", json!({"egressRate": 8000, "egressBurst": 1u64 << 35}))
            .fails("burst cannot be more than 4GB"),
    ]
}

/// tuning.
pub fn tuning() -> Vec<Case> {
    let tuned = |name, keys| case(name, with(json!({"type": "tuning"}), keys)).pods(1);
    let kept = |name, keys| tuned(name, keys).differs(&[BACKUP]);
    let refused = |name, keys| tuned(name, keys).differs(&[CODE]);
    let mac = "02:00:00:00:02:01";
    vec![
        tuned("nothing", json!({})),
        kept(
            "sysctls",
            json!({"sysctl": {"net.ipv4.conf.all.log_martians": "1", "net.core.somaxconn": "500"}}),
        ),
        kept("a sysctl of the interface", json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}))
            .differs(&[CHECK]),
        kept("MAC", json!({"mac": mac})),
        kept("MTU", json!({"mtu": 1400})),
        kept("promiscuous", json!({"promisc": true})),
        kept("all multicast", json!({"allmulti": true})),
        kept("everything", json!({"mac": mac, "mtu": 1300, "promisc": true, "allmulti": true})),
        kept("MAC of the runtime", json!({"runtimeConfig": {"mac": mac}})),
        kept("MAC in CNI_ARGS", json!({}))
            .agrees(&[HARDWARE])
            .env("CNI_ARGS", "IgnoreUnknown=1;MAC=02:00:00:00:02:01"),
        kept("args", json!({"sysctl": {}, "args": {"cni": {"mac": mac, "mtu": 1350, "promisc": true}}})),
        kept("another folder", json!({"mac": mac, "dataDir": "/run/cni/elsewhere"})),
        refused("a sysctl of elsewhere", json!({"sysctl": {"kernel.hostname": "x"}})).fails("kernel"),
        refused("a sysctl that is not there", json!({"sysctl": {"net.nowhere": "1"}})).fails("nowhere"),
        refused("a MAC that is none", json!({"mac": "zz"})).fails("zz").differs(&[FAILED_ADD]),
    ]
}

/// sbr.
pub fn sbr() -> Vec<Case> {
    let sbr = || json!({"type": "sbr"});
    let own = |name, keys| {
        let first = bridge(with(json!({"isGateway": true}), keys), &[]);
        Case::new(name, &[first, sbr()]).differs(VETH).differs(&[
            PORT,
            QUIET,
            NO_EMPTY_DNS,
            CHECK,
            SOURCES,
            HARDWARE,
        ])
    };
    let routed = |routes: Value| json!({"ipam": {"type": "host-local", "subnet": V4, "routes": routes}});
    let two = json!({"ipam": {"type": "static", "addresses": [
        {"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "10.1.0.6/24", "gateway": "10.1.0.1"}]}});
    let taken = "ip -n p1 link set lo up; ip -n p1 rule add from 10.7.7.7 lookup 100
                 ip -n p1 route add blackhole 10.8.0.0/16 table 101";
    vec![
        case("IPv4", sbr()).differs(&[CHECK, SOURCES]),
        after_bridge("both families", sbr(), &[V4, V6]).differs(&[NO_EMPTY_DNS, DAD, KEEP, CHECK, SOURCES]),
        own("no default route", routed(json!([]))).differs(&[LEASE]),
        own(
            "more routes",
            routed(json!([{"dst": "0.0.0.0/0"}, {"dst": "192.168.0.0/16", "gw": "10.1.0.9"}])),
        )
        .differs(&[LEASE]),
        own("two addresses", two).pods(1).agrees(&[HARDWARE]),
        case("tables that are taken", sbr()).pods(1).after(taken).differs(&[CHECK, SOURCES]),
        old("0.3.1", sbr()).pods(1).differs(&[SOURCES]),
        Case::new("routes without a container", &[sbr()])
            .pods(1)
            .fails("must be called as chained plugin")
            .differs(&[CODE, DEL]),
    ]
}
