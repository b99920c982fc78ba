//! Interfaces with a master: macvlan, ipvlan, vlan; and dummy, which has none.
//!
//! Tests of a driver that the kernel lacks are skipped with a message. The kernel of the emulated machine (`scripts/vm
//! links`) has all of them.

mod damage;
mod keys;
mod others;
mod packets;
mod verbs;

use podwire_tests::{needs, ours, Chain, Node, Pod};
use serde_json::{json, Value};

/// The plugins, each with its config on the uplink.
const KINDS: [&str; 4] = ["macvlan", "ipvlan", "vlan", "dummy"];

/// Those of them whose driver this kernel has.
fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter().filter(|kind| needs(kind))
}

/// The plugins that need a master.
fn children() -> impl Iterator<Item = &'static str> {
    kinds().filter(|kind| *kind != "dummy")
}

const V4: &str = "10.5.0.0/24";
const V6: &str = "fd05::/64";

/// The choices of address families.
const FAMILIES: [&[&str]; 3] = [&[V4], &[V6], &[V4, V6]];

/// A pool without the first addresses of its subnets, which the other machine has.
fn pool(subnets: &[&str]) -> Value {
    let range = |subnet: &&str| {
        let (net, _) = subnet.split_once("0/").unwrap_or_else(|| subnet.split_once('/').expect("a subnet"));
        json!([{"subnet": subnet, "rangeStart": format!("{net}10"), "rangeEnd": format!("{net}20")}])
    };
    json!({"type": "host-local", "ranges": subnets.iter().map(range).collect::<Vec<_>>()})
}

/// A config of the plugin on the uplink, without IPAM.
fn bare(kind: &str) -> Value {
    match kind {
        "vlan" => json!({"type": kind, "master": "uplink", "vlanId": 5}),
        "dummy" => json!({"type": kind}),
        _ => json!({"type": kind, "master": "uplink"}),
    }
}

/// A config of the plugin on the uplink, with addresses of these subnets and a route.
fn config(kind: &str, subnets: &[&str]) -> Value {
    let mut config = bare(kind);
    config["ipam"] = pool(subnets);
    config["ipam"]["routes"] = json!(subnets
        .iter()
        .map(|subnet| if subnet.contains(':') {
            json!({"dst": "2001:db8:1::/48"})
        } else {
            json!({"dst": "198.51.100.0/24"})
        })
        .collect::<Vec<_>>());
    config
}

/// The plugin on the uplink with one fixed address.
fn fixed(kind: &str, address: &str) -> Value {
    with(bare(kind), json!({"ipam": {"type": "static", "addresses": [{"address": address}]}}))
}

/// `config` with these keys added or replaced.
fn with(mut config: Value, keys: Value) -> Value {
    for (key, value) in keys.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    config
}

/// A network with one of Podwire's plugins.
fn network(name: &str, config: &Value) -> Chain {
    Chain { version: "1.1.0".into(), ..Chain::new(&ours(), name, std::slice::from_ref(config)) }
}

/// A node with a link to another machine. The node's end is `uplink`, without an address. The other end has 10.5.0.1
/// and fd05::1, and 10.5.0.2 and fd05::2 in VLAN 5 if the kernel has VLANs.
fn node() -> (Node, Pod) {
    let node = Node::new();
    let outside = node.pod("outside");
    node.sh("ip link add uplink type veth peer name far netns outside
         ip link set uplink up
         ip -n outside link set lo up
         ip -n outside link set far up
         ip -n outside address add 10.5.0.1/24 dev far
         ip -n outside address add fd05::1/64 dev far nodad");
    (node, outside)
}

/// As [`node`], with the other machine on the link that the plugin's pods are on.
fn node_for(kind: &str) -> (Node, Pod) {
    let (node, outside) = node();
    if kind == "vlan" {
        node.sh("ip -n outside address flush dev far scope global
             ip -n outside link add link far name tagged type vlan id 5
             ip -n outside link set tagged up
             ip -n outside address add 10.5.0.1/24 dev tagged
             ip -n outside address add fd05::1/64 dev tagged nodad");
    }
    (node, outside)
}

/// The pod's address, the first or the second.
fn address(result: &Value, n: usize) -> &str {
    let net = result["ips"][n]["address"].as_str().unwrap_or_else(|| panic!("no address {n}: {result}"));
    net.split('/').next().unwrap_or(net)
}

/// The pod's interface as `ip` prints it.
fn link(node: &Node, pod: &Pod, name: &str) -> Value {
    node.json(&format!("ip -n {} -j -d link show {name}", pod.name))[0].clone()
}

/// Whether the pod has an interface of that name.
fn has(node: &Node, pod: &Pod, name: &str) -> bool {
    node.can(&format!("ip -n {} link show {name}", pod.name))
}

fn without_netns(pod: &Pod) -> Pod {
    Pod { netns: String::new(), ..pod.clone() }
}
