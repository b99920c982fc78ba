//! Pods with a larger MTU than the network between the nodes are found, however they are attached.

#![allow(clippy::unwrap_used)] // A test that cannot continue panics.

mod lab;

use podwire_overlay::{oversized_ports, OversizedPort};
use podwire_tests::Node;

#[test]
fn pods_with_a_larger_mtu_are_found_on_the_bridge_and_by_their_routes() {
    let node = Node::new();
    node.sh("ip link add cni0 type bridge; ip address add 10.244.1.1/24 dev cni0; ip link set cni0 up
         ip link add other0 type bridge; ip address add 172.30.0.1/24 dev other0; ip link set other0 up
         pod() { ip link add $1 mtu $2 type veth peer name far-$1; ip link set $1 up; ip link set far-$1 up; }
         pod large 1450; ip link set large master cni0; ip link set large alias cbr0/c1/eth0
         pod small 1400; ip link set small master cni0
         pod foreign 1500; ip link set foreign master other0
         pod routed 1500; ip route add 10.244.1.9/32 dev routed
         pod alone 1500");
    let mut host = lab::host_of(&node);
    let cidrs = [lab::net("10.244.1.0/24"), lab::net("fd00:244:0:1::/64")];
    let port = |name: &str, alias: &str, mtu| OversizedPort { name: name.into(), alias: alias.into(), mtu };
    let found = oversized_ports(&mut host, &cidrs, 1400).unwrap();
    assert_eq!(found, [port("large", "cbr0/c1/eth0", 1450), port("routed", "", 1500)]);
    assert_eq!(oversized_ports(&mut host, &cidrs, 1500).unwrap(), []);
}
