//! Routes that carry packets, and exactly the kernel objects that they consist of.

#![allow(clippy::unwrap_used)] // A test that cannot continue panics.

mod lab;

use lab::Lab;
use podwire_ip::IpFamily;
use podwire_overlay::{Alloc, Backend, HostGw, Vxlan};

/// The MTU of pods with VXLAN: the smaller of both families.
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
fn all_pods_reach_each_other_over_vxlan_in_both_families() {
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
fn the_devices_are_flannels_with_the_correct_mtu() {
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
fn a_second_apply_sends_nothing() {
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
            // The kernel sent no notices.
            let event = watch.wait(std::time::Duration::ZERO, None).unwrap();
            assert_eq!(event, podwire_overlay::Event::Timeout, "{} on n{}", backend.name(), node.number);
        }
    }
}

#[test]
fn with_direct_routing_only_peers_behind_a_router_use_the_tunnel() {
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
fn a_peer_that_moves_behind_a_router_gets_a_tunnel_and_back() {
    let lab = Lab::new(MTU);
    lab.build(&direct());
    // Routes via the router isolate the nodes from each other.
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
fn host_gw_reaches_peers_on_the_link_and_reports_the_others() {
    let lab = Lab::new(1500);
    lab.build(&HostGw);
    lab.assert_pairs_talk(1500, &[(1, 2), (2, 1)], &IpFamily::ALL);
    assert_eq!(
        lab.node(1).routes(),
        ["10.244.2.0/24 via 192.168.10.12 dev eth0", "fd00:244:0:2::/64 via fd10::12 dev eth0"]
    );
    let report = lab.apply(1, &HostGw);
    assert_eq!(report.unreachable.len(), 2, "{:#?}", report.unreachable);
    for peer in &report.unreachable {
        assert_eq!(peer.peer, "n3");
        assert!(peer.reason.contains("not on the link of eth0 but behind"), "{peer}");
    }
    // A change of the backend removes the devices of the old one.
    lab.build(&vxlan());
    lab.build(&HostGw);
    assert!(!lab.node(1).node.can("ip link show flannel.1"));
    assert_eq!(lab.node(1).routes().len(), 2);
}

#[test]
fn all_entries_of_a_node_that_left_are_removed() {
    let lab = Lab::new(MTU);
    lab.build(&vxlan());
    let n1 = lab.node(1);
    let mut cluster = lab.cluster(1);
    cluster.peers.retain(|peer| peer.name != "n3");
    let report = n1.apply(&vxlan(), &cluster);
    assert_eq!(report.changed.len(), 14, "{:#?}", report.changed);
    assert_eq!(n1.routes().len(), 2);
    for device in ["flannel.1", "flannel-v6.1"] {
        assert_eq!((n1.neighbours(device).len(), n1.forwarding(device).len()), (1, 1));
    }
    assert!(n1.apply(&vxlan(), &cluster).is_quiet());
    lab.assert_pairs_talk(MTU, &[(1, 2)], &IpFamily::ALL);
}

#[test]
fn a_new_hardware_address_of_a_peer_replaces_the_old_one() {
    let lab = Lab::new(MTU);
    lab.build(&vxlan());
    let old = mac(&lab, 2, IpFamily::V4);
    lab.node(2).node.sh("ip link del flannel.1");
    lab.apply(2, &vxlan());
    assert_ne!(mac(&lab, 2, IpFamily::V4), old, "a recreated device gets another address");
    lab.apply(1, &vxlan());
    let n1 = lab.node(1);
    let entries = format!("{:?} {:?}", n1.neighbours("flannel.1"), n1.forwarding("flannel.1"));
    assert!(!entries.contains(&old) && entries.contains(&mac(&lab, 2, IpFamily::V4)), "{entries}");
    assert_eq!(n1.forwarding("flannel.1").len(), 2);
    lab.assert_pairs_talk(MTU, &[(1, 2)], &[IpFamily::V4]);
}

#[test]
fn the_alloc_backend_removes_everything() {
    let lab = Lab::new(MTU);
    lab.build(&vxlan());
    lab.build(&Alloc);
    for node in &lab.nodes {
        assert!(node.routes().is_empty());
        assert!(!node.node.can("ip link show flannel.1 || ip link show flannel-v6.1"));
    }
}

#[test]
fn conflicting_peers_are_reported_and_the_others_reached() {
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
    twin("x-unpublished", &|side| {
        *side =
            podwire_overlay::PeerSubnet::new(lab::net("10.244.79.0/24"), "192.168.10.79".parse().unwrap());
    });
    twin("x-own", &|side| side.pod_cidr = lab::net("10.244.1.128/25"));
    let report = lab.node(1).apply(&vxlan(), &cluster);
    let mut unreachable: Vec<String> = report.unreachable.iter().map(ToString::to_string).collect();
    unreachable.sort();
    let wanted = [
        ("x-address", "is also the address of n2"),
        ("x-mac", "hardware address as that of n2"),
        ("x-own", "overlaps that of n1"),
        ("x-range", "overlaps that of n2"),
        ("x-unpublished", "has not published"),
    ];
    assert_eq!(unreachable.len(), wanted.len(), "{unreachable:#?}");
    for (text, (peer, reason)) in unreachable.iter().zip(wanted) {
        assert!(text.starts_with(&format!("no route to {peer}: ")) && text.contains(reason), "{text}");
    }
    assert!(report.changed.is_empty(), "{:#?}", report.changed);
}
