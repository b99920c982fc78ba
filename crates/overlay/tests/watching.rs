//! The events of a watch.

#![allow(clippy::unwrap_used)] // A test that cannot continue panics.

mod lab;

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lab::{Lab, LabNode};
use podwire_ip::IpFamily;
use podwire_overlay::{Event, Vxlan, Watch};

const SOON: Duration = Duration::from_secs(5);

fn watch(node: &LabNode) -> Watch {
    let mut watch =
        Watch::open(&mut node.host.borrow_mut(), &["flannel.1", "flannel-v6.1"], &["eth0"]).unwrap();
    drain(node, &mut watch);
    watch
}

fn drain(node: &LabNode, watch: &mut Watch) {
    node.settle();
    while watch.wait(Duration::from_millis(300), None).unwrap() != Event::Timeout {}
}

#[test]
fn changes_of_owned_objects_are_reported_and_others_are_not() {
    let lab = Lab::new(1430);
    lab.build(&Vxlan::default());
    let node = lab.node(1);
    let mut watch = watch(node);
    for (act, expected) in [
        ("ip link set flannel.1 mtu 1400", "device flannel.1"),
        ("ip link set flannel-v6.1 down", "device flannel-v6.1"),
        ("ip route del 10.244.2.0/24", "route to 10.244.2.0/24"),
        ("ip neigh del 10.244.2.0 dev flannel.1", "neighbours of flannel.1"),
        ("bridge fdb add 02:00:00:00:00:42 dst 192.0.2.1 dev flannel.1", "neighbours of flannel.1"),
        ("ip address add 10.244.7.7/32 dev flannel.1", "addresses of flannel.1"),
        ("ip address add 192.168.10.77/24 dev eth0", "addresses of eth0"),
        ("ip link set eth0 mtu 1400", "device eth0"),
        ("ip route add 192.168.77.0/24 dev eth0", "route to 192.168.77.0/24"),
        ("nft add element inet podwire_overlay cluster4 { 172.16.0.0/12 }", "table inet podwire_overlay"),
        ("nft delete table inet podwire_overlay", "table inet podwire_overlay"),
        ("iptables -A FORWARD -j ACCEPT", "table ip filter"),
        ("ip link del flannel.1", "device flannel.1"),
        // It has another index and is found by name.
        ("ip link add flannel.1 type vxlan id 1 dstport 8472", "device flannel.1"),
        ("ip link set flannel.1 up", "device flannel.1"),
    ] {
        node.node.sh(act);
        match watch.wait(SOON, None).unwrap() {
            Event::Changed(what) => assert!(what.iter().any(|one| one == expected), "{act}: {what:?}"),
            other => panic!("{act}: {other:?}"),
        }
        drain(node, &mut watch);
    }
    for act in [
        "ip link add other type veth peer name far && ip link set other up && ip link set far up",
        "ip address add 172.20.0.1/24 dev cni0",
        "ip route add 172.21.0.0/24 via 10.244.1.10 dev cni0",
        "ip neigh replace 10.244.1.99 lladdr 02:00:00:00:00:01 dev cni0 nud permanent",
        "ip neigh replace 192.168.10.99 lladdr 02:00:00:00:00:01 dev eth0 nud permanent",
        "nft add table inet theirs && nft add chain inet theirs c && nft add rule inet theirs c accept",
        "iptables -t nat -A PREROUTING -j ACCEPT",
    ] {
        node.node.sh(act);
        assert_eq!(watch.wait(Duration::from_millis(100), None).unwrap(), Event::Timeout, "{act}");
    }
}

#[test]
fn the_wake_descriptor_ends_the_wait() {
    let lab = Lab::new(1430);
    let mut watch = watch(lab.node(1));
    let (mut here, there) = UnixStream::pair().unwrap();
    here.write_all(b"x").unwrap();
    assert_eq!(watch.wait(Duration::from_secs(60), Some(there.as_fd())).unwrap(), Event::Woken);
    assert_eq!(watch.wait(Duration::ZERO, None).unwrap(), Event::Timeout);
}

#[test]
fn a_watch_and_apply_loop_repairs_and_settles() {
    let lab = Lab::new(1430);
    lab.build(&Vxlan::default());
    let node = lab.node(1);
    let before = node.routes();
    let mut watch = watch(node);
    for damage in
        ["ip link del flannel.1; ip link del flannel-v6.1", "ip route flush proto 112", "nft flush ruleset"]
    {
        node.node.sh(damage);
        let mut rounds = 0;
        while watch.wait(Duration::from_millis(200), None).unwrap() != Event::Timeout {
            lab.apply(1, &Vxlan::default());
            rounds += 1;
            assert!(rounds < 10, "{damage}: it does not settle");
        }
        assert!(rounds > 0, "{damage}");
        assert_eq!(node.routes(), before, "{damage}");
        // The peers get the new hardware address.
        lab.build(&Vxlan::default());
        drain(node, &mut watch);
        lab.assert_pairs_talk(1430, &[(1, 2), (1, 3)], &IpFamily::ALL);
    }
}

#[test]
fn a_node_without_an_uplink_watches_every_link() {
    let lab = Lab::new(1430);
    let node = lab.node(1);
    let mut watch = Watch::for_uplinks(&mut node.host.borrow_mut()).unwrap();
    drain(node, &mut watch);
    for act in [
        "ip link add late0 type veth peer name late1",
        "ip address add 192.0.2.9/24 dev late0",
        "ip link set late0 up; ip link set late1 up",
        "ip route add 198.51.100.0/24 via 192.0.2.1",
    ] {
        node.node.sh(act);
        assert!(matches!(watch.wait(SOON, None).unwrap(), Event::Changed(_)), "{act}");
        drain(node, &mut watch);
    }
}
