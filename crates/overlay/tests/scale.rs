//! A large cluster: the cost in system calls.

#![allow(clippy::unwrap_used)] // A test that cannot continue panics.

mod lab;

use podwire_ip::IpFamily;
use podwire_kernel::{Host, Mac};
use podwire_overlay::{
    Cluster, FirewallOptions, LocalNode, LocalSubnet, Peer, PeerSubnet, UplinkPreference, Vxlan,
};
use podwire_tests::Node;

const PEERS: u16 = 5000;

fn peer(number: u16) -> Peer {
    let [high, low] = number.to_be_bytes();
    let side = |pods: String, address: String, family: u8| PeerSubnet {
        vtep_mac: Some(Mac([2, 0, 0, family, high, low])),
        ..PeerSubnet::new(lab::net(&pods), address.parse().unwrap())
    };
    let sides = vec![
        side(format!("10.{}.{low}.0/24", high + 1), format!("172.17.{high}.{low}"), 4),
        side(format!("fd00:244:0:{:x}::/64", number + 100), format!("fd17::{number:x}"), 6),
    ];
    Peer { name: format!("node{number:05}"), subnets: sides }
}

/// The changes and system calls of one reconcile.
fn apply(host: &mut Host, cluster: &Cluster) -> (usize, u64) {
    let before = host.route.calls();
    let report =
        podwire_overlay::apply(host, &Vxlan::default(), cluster, &FirewallOptions::default()).unwrap();
    assert!(
        report.failed.is_empty() && report.unreachable.is_empty(),
        "{:?} {:?}",
        report.failed,
        report.unreachable
    );
    (report.changed.len(), host.route.calls() - before)
}

#[test]
fn five_thousand_dual_stack_peers_cost_a_few_hundred_system_calls() {
    let node = Node::new();
    node.sh("ip link add eth0 type veth peer name far && ip link set eth0 up && ip link set far up \
         && ip address add 172.17.255.1/16 dev eth0 && ip address add fd17::ffff/64 dev eth0 nodad \
         && ip route add default via 172.17.255.254 && ip -6 route add default via fd17::fffe dev eth0");
    let mut host = lab::host_of(&node);
    let side = |pods: &str, host: &mut Host| LocalSubnet {
        pod_cidr: lab::net(pods),
        uplink: UplinkPreference::default().choose(host, IpFamily::of_net(lab::net(pods))).unwrap(),
    };
    let sides = vec![side("10.0.0.0/24", &mut host), side("fd00:244:0:1::/64", &mut host)];
    let local = LocalNode { name: "here".into(), subnets: sides };
    let networks = vec![lab::net("10.0.0.0/8"), lab::net("fd00:244::/48")];
    let mut cluster = Cluster { networks, local, peers: (0..PEERS).map(peer).collect() };

    let (changes, calls) = apply(&mut host, &cluster);
    assert!(changes >= 14 * usize::from(PEERS), "{changes}");
    assert!(calls < 1000, "{calls} system calls for {changes} changes");
    let (changes, calls) = apply(&mut host, &cluster);
    assert_eq!(changes, 0);
    assert!(calls < 400, "{calls} system calls to find nothing to do");
    cluster.peers.pop();
    assert_eq!(apply(&mut host, &cluster).0, 14);
    cluster.peers.push(peer(PEERS - 1));
    assert_eq!(apply(&mut host, &cluster).0, 14);
    cluster.peers.clear();
    let (changes, calls) = apply(&mut host, &cluster);
    // And the chain of the guard, which names the length of most networks.
    assert_eq!(changes, 14 * usize::from(PEERS) + 1);
    assert!(calls < 1000, "{calls} system calls for {changes} changes");
    assert_eq!(
        node.sh("ip route show proto 112; ip -6 route show proto 112; bridge fdb show dev flannel.1"),
        ""
    );
}
