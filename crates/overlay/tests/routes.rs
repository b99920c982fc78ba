//! Roads that carry packets, and exactly the things in the kernel that they are made of.

#![allow(clippy::unwrap_used)] // A test that cannot go on says so.

mod lab;

use lab::Lab;
use podwire_ip::IpFamily;
use podwire_overlay::{Alloc, Backend, HostGw, Vxlan};

/// What pods may send over VXLAN, the smaller of both families.
const MTU: u32 = 1430;

fn vxlan() -> Vxlan {
    Vxlan::default()
}

fn direct() -> Vxlan {
    Vxlan { direct: true, ..Vxlan::default() }
}

fn mac(lab: &Lab, number: u8, family: IpFamily) -> String {
    lab.node(number).macs.borrow()[usize::from(family.is_v6())].expect("a MAC").to_string()
}

#[test]
fn pods_of_all_pairs_reach_each_other_over_vxlan_in_both_families() {
    let lab = Lab::new(MTU);
    assert_eq!(vxlan().mtu(&lab.node(1).local_node()), MTU);
    lab.build(&vxlan());
    lab.assert_all_talk(MTU);
    let n1 = lab.node(1);
    assert_eq!(
        n1.routes(),
        [
            "10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink",
            "10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink",
            "fd00:244:0:2::/64 via fd00:244:0:2:: dev flannel-v6.1 onlink",
            "fd00:244:0:3::/64 via fd00:244:0:3:: dev flannel-v6.1 onlink",
        ]
    );
    let at = |what: &str, number, family| format!("{what} at {}", mac(&lab, number, family));
    assert_eq!(
        n1.neighbours("flannel.1"),
        [at("10.244.2.0", 2, IpFamily::V4), at("10.244.3.0", 3, IpFamily::V4)]
    );
    assert_eq!(
        n1.neighbours("flannel-v6.1"),
        [at("fd00:244:0:2::", 2, IpFamily::V6), at("fd00:244:0:3::", 3, IpFamily::V6)]
    );
    let mut behind = [
        format!("{} behind 192.168.10.12", mac(&lab, 2, IpFamily::V4)),
        format!("{} behind 192.168.20.13", mac(&lab, 3, IpFamily::V4)),
    ];
    behind.sort();
    assert_eq!(n1.forwarding("flannel.1"), behind);
    let mut behind = [
        format!("{} behind fd10::12", mac(&lab, 2, IpFamily::V6)),
        format!("{} behind fd20::13", mac(&lab, 3, IpFamily::V6)),
    ];
    behind.sort();
    assert_eq!(n1.forwarding("flannel-v6.1"), behind);
}

#[test]
fn the_devices_are_those_that_flannel_would_make_but_with_the_right_mtu() {
    let lab = Lab::new(MTU);
    lab.build(&vxlan());
    let n1 = lab.node(1);
    for (device, local, mtu, address) in [
        ("flannel.1", "192.168.10.11", 1430, "10.244.1.0/32"),
        ("flannel-v6.1", "fd10::11", 1430, "fd00:244:0:1::/128"),
    ] {
        let link = &n1.node.json(&format!("ip -j -d link show {device}"))[0];
        let data = &link["linkinfo"]["info_data"];
        assert_eq!(link["mtu"], mtu, "{link}");
        assert_eq!((&data["id"], &data["port"]), (&1.into(), &8472.into()), "{data}");
        assert_eq!(data["learning"], false, "{data}");
        assert_eq!(
            (&data["link"], data["local"].as_str().or(data["local6"].as_str())),
            (&"eth0".into(), Some(local))
        );
        assert!(n1.node.sh(&format!("ip -o address show {device}")).contains(address));
    }
    assert_eq!(n1.node.sh("cat /proc/sys/net/ipv6/conf/flannel.1/accept_ra"), "0\n");
}

#[test]
fn building_again_sends_nothing() {
    let lab = Lab::new(MTU);
    for backend in [&vxlan() as &dyn Backend, &direct(), &HostGw, &Alloc] {
        lab.build(backend);
        for node in &lab.nodes {
            let mut watch = {
                let mut host = node.host.borrow_mut();
                podwire_overlay::Watch::open(&mut host, &["flannel.1", "flannel-v6.1"], &["eth0"]).unwrap()
            };
            node.settle();
            while watch.wait(std::time::Duration::from_millis(200), None).unwrap()
                != podwire_overlay::Event::Timeout
            {}
            let report = lab.apply(node.number, backend);
            assert!(report.is_quiet(), "{} on n{}: {:#?}", backend.name(), node.number, report.changed);
            // The kernel has not noticed either.
            let heard = watch.wait(std::time::Duration::ZERO, None).unwrap();
            assert_eq!(heard, podwire_overlay::Event::Timeout, "{} on n{}", backend.name(), node.number);
        }
    }
}

#[test]
fn with_direct_routing_peers_on_the_wire_need_no_tunnel_and_the_others_have_one() {
    let lab = Lab::new(MTU);
    lab.build(&direct());
    lab.assert_all_talk(MTU);
    assert_eq!(
        lab.node(1).routes(),
        [
            "10.244.2.0/24 via 192.168.10.12 dev eth0",
            "10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink",
            "fd00:244:0:2::/64 via fd10::12 dev eth0",
            "fd00:244:0:3::/64 via fd00:244:0:3:: dev flannel-v6.1 onlink",
        ]
    );
    assert_eq!(lab.node(1).neighbours("flannel.1").len(), 1);
    assert_eq!(lab.node(1).forwarding("flannel-v6.1").len(), 1);
}

#[test]
fn a_peer_that_is_no_longer_on_the_wire_gets_its_tunnel_and_back() {
    let lab = Lab::new(MTU);
    lab.build(&direct());
    // The network's administrator isolates the nodes from each other: all goes through the router.
    for number in [1, 2] {
        let (n, other) = (lab.node(number), 3 - number);
        n.node.sh(&format!(
            "ip route add 192.168.10.1{other}/32 via 192.168.10.1 && ip -6 route add fd10::1{other}/128 via fd10::1"
        ));
        let report = lab.apply(number, &direct());
        assert!(!report.is_quiet());
    }
    let behind = lab.node(1).routes();
    assert!(behind.contains(&"10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink".to_string()), "{behind:?}");
    assert!(
        behind.contains(&"fd00:244:0:2::/64 via fd00:244:0:2:: dev flannel-v6.1 onlink".to_string()),
        "{behind:?}"
    );
    lab.assert_pairs_talk(MTU, &[(1, 2), (2, 1)], &IpFamily::ALL);
    for number in [1, 2] {
        let (n, other) = (lab.node(number), 3 - number);
        n.node.sh(&format!("ip route del 192.168.10.1{other}/32 && ip -6 route del fd10::1{other}/128"));
        lab.apply(number, &direct());
    }
    assert!(lab.node(1).routes().contains(&"fd00:244:0:2::/64 via fd10::12 dev eth0".to_string()));
    assert_eq!(lab.node(1).neighbours("flannel.1").len(), 1);
    lab.assert_pairs_talk(MTU, &[(1, 2), (2, 1)], &IpFamily::ALL);
}

#[test]
fn host_gw_serves_peers_on_the_wire_and_says_why_not_others() {
    let lab = Lab::new(1500);
    lab.build(&HostGw);
    lab.assert_pairs_talk(1500, &[(1, 2), (2, 1)], &IpFamily::ALL);
    assert_eq!(
        lab.node(1).routes(),
        ["10.244.2.0/24 via 192.168.10.12 dev eth0", "fd00:244:0:2::/64 via fd10::12 dev eth0"]
    );
    let report = lab.apply(1, &HostGw);
    assert_eq!(report.unreachable.len(), 2, "{:#?}", report.unreachable);
    for refusal in &report.unreachable {
        assert_eq!(refusal.peer, "n3");
        assert!(refusal.reason.contains("not on the wire of eth0 but behind"), "{refusal}");
    }
    // From another fabric to this one: its devices go.
    lab.build(&vxlan());
    lab.build(&HostGw);
    assert!(!lab.node(1).node.can("ip link show flannel.1"));
    assert_eq!(lab.node(1).routes().len(), 2);
}

#[test]
fn what_led_to_a_node_that_left_is_gone() {
    let lab = Lab::new(MTU);
    lab.build(&vxlan());
    let n1 = lab.node(1);
    let mut cluster = lab.cluster(1);
    cluster.peers.retain(|peer| peer.name != "n3");
    let report = n1.apply(&vxlan(), &cluster);
    assert_eq!(report.changed.len(), 6, "{:#?}", report.changed);
    assert_eq!(n1.routes().len(), 2);
    for device in ["flannel.1", "flannel-v6.1"] {
        assert_eq!((n1.neighbours(device).len(), n1.forwarding(device).len()), (1, 1));
    }
    assert!(n1.apply(&vxlan(), &cluster).is_quiet());
    lab.assert_pairs_talk(MTU, &[(1, 2)], &IpFamily::ALL);
}

#[test]
fn a_peer_that_came_back_with_another_hardware_address_leaves_no_trace_of_the_old_one() {
    let lab = Lab::new(MTU);
    lab.build(&vxlan());
    let old = mac(&lab, 2, IpFamily::V4);
    lab.node(2).node.sh("ip link del flannel.1");
    lab.apply(2, &vxlan());
    assert_ne!(mac(&lab, 2, IpFamily::V4), old, "a device that was deleted is born with another address");
    lab.apply(1, &vxlan());
    let n1 = lab.node(1);
    let told = format!("{:?} {:?}", n1.neighbours("flannel.1"), n1.forwarding("flannel.1"));
    assert!(!told.contains(&old) && told.contains(&mac(&lab, 2, IpFamily::V4)), "{told}");
    assert_eq!(n1.forwarding("flannel.1").len(), 2);
    lab.assert_pairs_talk(MTU, &[(1, 2)], &[IpFamily::V4]);
}

#[test]
fn nothing_is_left_of_a_fabric_when_there_is_none() {
    let lab = Lab::new(MTU);
    lab.build(&vxlan());
    lab.build(&Alloc);
    for node in &lab.nodes {
        assert!(node.routes().is_empty());
        assert!(!node.node.can("ip link show flannel.1 || ip link show flannel-v6.1"));
    }
}

#[test]
fn peers_that_contradict_each_other_are_refused_and_the_others_served() {
    let lab = Lab::new(MTU);
    lab.build(&vxlan());
    let mut cluster = lab.cluster(1);
    let n2 = cluster.peers[0].clone();
    let mut twin = |name: &str, change: &dyn Fn(&mut podwire_overlay::PeerSubnet)| {
        let mut peer = podwire_overlay::Peer { name: name.into(), ..n2.clone() };
        peer.subnets.truncate(1);
        change(&mut peer.subnets[0]);
        cluster.peers.push(peer);
    };
    twin("x-range", &|side| side.address = "192.168.10.77".parse().unwrap());
    twin("x-address", &|side| side.pod_cidr = lab::net("10.244.77.0/24"));
    twin("x-mac", &|side| {
        side.pod_cidr = lab::net("10.244.78.0/24");
        side.address = "192.168.10.78".parse().unwrap();
    });
    twin("x-mute", &|side| {
        *side =
            podwire_overlay::PeerSubnet::new(lab::net("10.244.79.0/24"), "192.168.10.79".parse().unwrap());
    });
    twin("x-own", &|side| side.pod_cidr = lab::net("10.244.1.128/25"));
    let report = lab.node(1).apply(&vxlan(), &cluster);
    let mut unreachable: Vec<String> = report.unreachable.iter().map(ToString::to_string).collect();
    unreachable.sort();
    let wanted = [
        ("x-address", "is that of n2"),
        ("x-mac", "hardware address of n2's"),
        ("x-mute", "has not told"),
        ("x-own", "overlaps with that of n1"),
        ("x-range", "overlaps with that of n2"),
    ];
    assert_eq!(unreachable.len(), wanted.len(), "{unreachable:#?}");
    for (told, (peer, why)) in unreachable.iter().zip(wanted) {
        assert!(told.starts_with(&format!("no road to {peer}: ")) && told.contains(why), "{told}");
    }
    assert!(report.changed.is_empty(), "{:#?}", report.changed);
}
