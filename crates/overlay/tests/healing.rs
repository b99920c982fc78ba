//! Every damage to owned objects is repaired by the next reconcile, which touches no foreign object.

#![allow(clippy::unwrap_used)] // A test that cannot continue panics.

mod lab;

use std::time::Duration;

use lab::Lab;
use podwire_ip::IpFamily;
use podwire_overlay::{Error, Event, FirewallOptions, VtepMac, Vxlan, Watch};

const MTU: u32 = 1430;

/// As the agent calls it: with the addresses that it has already published.
fn vxlan(lab: &Lab, number: u8) -> Vxlan {
    let [v4, v6] = *lab.node(number).macs.borrow();
    Vxlan { mac: VtepMac::Registered { v4, v6 }, ..Vxlan::default() }
}

/// One damage for each line.
const DAMAGE: &[&str] = &[
    "ip link del flannel.1",
    "ip link del flannel.1; ip link del flannel-v6.1",
    "ip link set flannel.1 down",
    "ip link set flannel.1 down; ip link set flannel-v6.1 down",
    "ip link set flannel.1 mtu 1280",
    "ip link set flannel.1 address 02:00:00:00:00:99",
    "ip link set flannel-v6.1 address 02:00:00:00:00:98",
    "ip link set flannel.1 type vxlan id 1 learning",
    "ip link set flannel.1 name lost",
    "ip link del flannel.1; ip link add flannel.1 type vxlan id 1 dev eth0 dstport 4789 nolearning",
    "ip link del flannel.1; ip link add flannel.1 type vxlan id 77 dev eth0 dstport 8472 nolearning && ip link set flannel.1 up",
    "ip address flush dev flannel.1",
    "ip address add 10.244.99.9/24 dev flannel.1; ip address add fd00:244:0:99::9/64 dev flannel-v6.1",
    "ip route flush proto 112",
    "ip -6 route flush proto 112",
    "ip route flush dev flannel.1; ip -6 route flush dev flannel-v6.1",
    "ip route change 10.244.2.0/24 via 10.244.3.0 dev flannel.1 onlink proto 112",
    "ip route add 10.244.200.0/24 dev flannel.1 proto 112; ip -6 route add fd00:244:0:200::/64 dev flannel-v6.1 proto 112",
    "ip neigh flush dev flannel.1 nud permanent",
    "ip -6 neigh flush dev flannel-v6.1 nud permanent",
    "ip neigh replace 10.244.2.0 lladdr 02:00:00:00:00:66 dev flannel.1 nud permanent",
    "ip neigh replace 10.244.2.0 lladdr 02:00:00:00:00:66 dev flannel.1 nud reachable",
    "ip neigh add 10.244.66.0 lladdr 02:00:00:00:00:66 dev flannel.1 nud permanent",
    "bridge -j fdb show dev flannel.1 | grep -o '\"mac\":\"[^\"]*' | cut -c8- | while read mac; do bridge fdb del $mac dev flannel.1 self; done",
    "bridge -j fdb show dev flannel.1 | grep -o '\"mac\":\"[^\"]*' | cut -c8- | while read mac; do bridge fdb replace $mac dst 192.0.2.9 dev flannel.1 self; done",
    "bridge fdb add 02:00:00:00:00:77 dst 192.0.2.9 dev flannel-v6.1 self permanent 2>/dev/null || bridge fdb add 02:00:00:00:00:77 dst fd10::77 dev flannel-v6.1 self permanent",
    "nft flush ruleset; iptables -A FORWARD -j ACCEPT",
    "nft flush chain inet podwire_overlay forward",
    "nft flush chain inet podwire_overlay postrouting",
    "nft insert rule inet podwire_overlay postrouting masquerade",
    "nft delete element inet podwire_overlay cluster4 { 10.244.0.0/16 }",
    "nft add element inet podwire_overlay own6 { fd99::/64 }",
    "nft flush chain inet podwire_overlay forwarded; nft delete chain inet podwire_overlay forwarded",
    "nft delete table inet podwire_tunnel",
    "nft flush chain inet podwire_tunnel input",
    "nft delete element inet podwire_tunnel peers4 { 192.168.10.12 }",
    "nft add element inet podwire_tunnel local4 { 192.168.10.99 }",
];

#[test]
fn every_damage_is_noticed_and_repaired() {
    let lab = Lab::new(MTU);
    let n1 = lab.node(1);
    // With this chain the agent also needs the chains that mark packets for it.
    n1.node.sh("iptables -A FORWARD -j ACCEPT");
    lab.build(&Vxlan::default());
    let whole = n1.picture();
    let mut watch =
        Watch::open(&mut n1.host.borrow_mut(), &["flannel.1", "flannel-v6.1"], &["eth0"]).unwrap();
    for damage in DAMAGE {
        n1.node.sh(damage);
        assert_ne!(n1.picture_or_none(), whole, "no damage: {damage}");
        let event = watch.wait(Duration::from_secs(5), None).unwrap();
        assert!(matches!(event, Event::Changed(_)), "{damage}: {event:?}");
        let report = lab.apply(1, &vxlan(&lab, 1));
        assert!(!report.changed.is_empty(), "{damage}");
        assert_eq!(n1.picture(), whole, "{damage}: {:#?}", report.changed);
        let again = lab.apply(1, &vxlan(&lab, 1));
        assert!(again.is_quiet(), "{damage}: {:#?}", again.changed);
        assert!(lab.pings(1, 2, IpFamily::V4) && lab.pings(1, 3, IpFamily::V4), "{damage}");
        assert!(lab.pings(1, 2, IpFamily::V6) && lab.pings(1, 3, IpFamily::V6), "{damage}");
        while watch.wait(Duration::ZERO, None).unwrap() != Event::Timeout {}
    }
    lab.assert_all_talk(MTU);
}

#[test]
fn a_changed_node_address_keeps_the_device_and_updates_the_peers() {
    let lab = Lab::new(MTU);
    lab.build(&Vxlan::default());
    let n2 = lab.node(2);
    let index = n2.node.sh("ip -o link show flannel.1 | cut -d: -f1");
    n2.node.sh("ip address del 192.168.10.12/24 dev eth0 && ip address add 192.168.10.22/24 dev eth0 \
         && ip address del fd10::12/64 dev eth0 && ip address add fd10::22/64 dev eth0 nodad \
         && ip route replace default via 192.168.10.1 && ip -6 route replace default via fd10::1 dev eth0");
    assert!(!lab.pings(1, 2, IpFamily::V4));
    lab.build(&Vxlan::default());
    let shown = n2.node.sh("ip -d link show flannel.1; ip -d link show flannel-v6.1");
    assert!(shown.contains("local 192.168.10.22") && shown.contains("local fd10::22"), "{shown}");
    let now = n2.node.sh("ip -o link show flannel.1 | cut -d: -f1");
    assert_eq!(now, index, "it was changed, not recreated");
    assert!(lab.node(3).forwarding("flannel.1").iter().any(|row| row.ends_with("behind 192.168.10.22")));
    lab.assert_all_talk(MTU);
}

#[test]
fn direct_routes_return_after_the_uplink_was_down() {
    let lab = Lab::new(MTU);
    let direct = Vxlan { direct: true, ..Vxlan::default() };
    lab.build(&direct);
    let n1 = lab.node(1);
    let (whole, mut watch) = (n1.picture(), {
        let mut host = n1.host.borrow_mut();
        Watch::open(&mut host, &["flannel.1", "flannel-v6.1"], &["eth0"]).unwrap()
    });
    n1.node.sh("ip link set eth0 down; ip link set eth0 up; ip route replace default via 192.168.10.1; \
         ip address replace fd10::11/64 dev eth0 nodad; ip -6 route replace default via fd10::1 dev eth0");
    assert_ne!(n1.picture(), whole);
    assert!(matches!(watch.wait(Duration::from_secs(5), None).unwrap(), Event::Changed(_)));
    lab.apply(1, &direct);
    assert_eq!(n1.picture(), whole);
    lab.assert_pairs_talk(MTU, &[(1, 2), (1, 3)], &IpFamily::ALL);
}

#[test]
fn foreign_routes_neighbours_and_rules_are_never_touched() {
    let lab = Lab::new(MTU);
    lab.build(&Vxlan::default());
    let n1 = lab.node(1);
    n1.node.sh("ip route add 172.30.0.0/16 via 10.244.2.0 dev flannel.1 onlink \
         && ip route add 10.99.0.0/16 via 192.168.10.12 proto static \
         && ip route add 10.244.3.0/24 via 192.168.10.12 metric 50 \
         && ip route add blackhole 10.244.0.0/16 \
         && ip -6 route add fd99::/64 via fd10::12 dev eth0 proto bird \
         && ip route add 10.244.50.0/24 via 10.244.2.0 dev flannel.1 onlink proto bird \
         && ip neigh replace 192.168.10.99 lladdr 02:00:00:00:00:55 dev eth0 nud permanent \
         && nft add table inet theirs && nft add chain inet theirs c && nft add rule inet theirs c accept");
    let foreign = "ip route | grep -v 'proto 112'; ip -6 route | grep -v 'proto 112' | grep -v expires; \
                  ip neigh show dev eth0 nud permanent; nft list table inet theirs";
    let before = n1.node.sh(foreign);
    assert!(lab.apply(1, &vxlan(&lab, 1)).is_quiet(), "nothing here is owned");
    n1.node.sh("ip route flush proto 112; ip -6 route flush proto 112");
    lab.apply(1, &vxlan(&lab, 1));
    assert_eq!(n1.node.sh(foreign), before);
    let cluster = podwire_overlay::Cluster { peers: Vec::new(), ..lab.cluster(1) };
    n1.apply(&vxlan(&lab, 1), &cluster);
    assert!(n1.routes().is_empty());
    assert_eq!(n1.node.sh(foreign), before);
}

#[test]
fn a_foreign_route_with_the_same_destination_is_reported_and_stays() {
    let lab = Lab::new(MTU);
    lab.build(&Vxlan::default());
    let n1 = lab.node(1);
    n1.node.sh("ip route del 10.244.3.0/24 && ip route add 10.244.3.0/24 via 192.168.10.1");
    let report = lab.apply(1, &vxlan(&lab, 1));
    let shown: Vec<String> = report.unreachable.iter().map(ToString::to_string).collect();
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert!(shown[0].starts_with("no route to n3: 10.244.3.0/24 has a route via 192.168.10.1"), "{shown:?}");
    assert!(n1.node.sh("ip route show 10.244.3.0/24").contains("via 192.168.10.1"));
    n1.node.sh("ip route del 10.244.3.0/24");
    assert!(lab.apply(1, &vxlan(&lab, 1)).unreachable.is_empty());
    lab.assert_pairs_talk(MTU, &[(1, 3)], &IpFamily::ALL);
}

#[test]
fn flanneld_is_replaced_without_packet_loss() {
    let lab = Lab::new(MTU);
    // n1 as flanneld leaves it: device, routes, neighbours and forwarding entries, some of a deleted node.
    lab.node(1).node.sh(
        "ip link add flannel.1 address 02:00:00:00:00:f1 mtu 1450 type vxlan id 1 local 192.168.10.11 dev eth0 dstport 8472 nolearning \
         && ip address add 10.244.1.0/32 dev flannel.1 && ip link set flannel.1 up",
    );
    for number in [2, 3] {
        lab.apply(number, &Vxlan::default());
    }
    for (number, address) in
        [(2, "192.168.10.12".to_string()), (3, "192.168.20.13".into()), (8, "192.168.10.88".into())]
    {
        let mac = match number {
            8 => "02:00:00:00:00:88".to_string(),
            number => lab.node(number).macs.borrow()[0].unwrap().to_string(),
        };
        lab.node(1).node.sh(&format!(
            "ip neigh add 10.244.{number}.0 lladdr {mac} dev flannel.1 nud permanent \
             && bridge fdb add {mac} dst {address} dev flannel.1 self permanent \
             && ip route add 10.244.{number}.0/24 via 10.244.{number}.0 dev flannel.1 onlink"
        ));
    }
    lab.node(1).macs.borrow_mut()[0] = Some("02:00:00:00:00:f1".parse().unwrap());
    for number in [2, 3] {
        lab.apply(number, &Vxlan::default());
    }
    assert!(lab.pings(1, 2, IpFamily::V4), "flannel's route works");
    let index = lab.node(1).node.sh("ip -o link show flannel.1 | cut -d: -f1");
    let pinging = {
        let mut command = lab.node(1).node.command("ip");
        command.args([
            "netns",
            "exec",
            "pod1",
            "ping",
            "-q",
            "-i",
            "0.01",
            "-c",
            "100",
            "-W",
            "10",
            "10.244.2.10",
        ]);
        command.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    lab.build(&Vxlan::default());
    let shown = String::from_utf8(pinging.wait_with_output().unwrap().stdout).unwrap();
    assert!(shown.contains("100 packets transmitted, 100 received"), "{shown}");
    let n1 = lab.node(1);
    assert_eq!(n1.node.sh("ip -o link show flannel.1 | cut -d: -f1"), index);
    assert!(
        n1.node.sh("ip link show flannel.1").contains("02:00:00:00:00:f1"),
        "peers identify it by its address"
    );
    let left = n1.node.sh("ip route show dev flannel.1");
    assert!(!left.contains("10.244.8.0") && left.lines().all(|line| line.contains("proto 112")), "{left}");
    assert_eq!((n1.neighbours("flannel.1").len(), n1.forwarding("flannel.1").len()), (2, 2));
    lab.assert_all_talk(MTU);
}

#[test]
fn a_hand_over_keeps_routes_working_and_can_be_reversed() {
    for backend in [&Vxlan::default() as &dyn podwire_overlay::Backend, &podwire_overlay::HostGw] {
        let lab = Lab::new(MTU);
        lab.build(backend);
        let n1 = lab.node(1);
        let owned = "ip route show proto 112; ip -6 route show proto 112; ip link show | grep 'podwire overlay'; nft list tables | grep -E 'podwire_(overlay|tunnel)'; true";
        let (before, routes) = (n1.routes(), n1.node.sh("ip route show proto 112 | wc -l"));
        let done = podwire_overlay::hand_over(&mut lab::host_of(&n1.node)).unwrap();
        assert!(!done.is_empty());
        assert_eq!(n1.node.sh(owned), "", "{done:#?}");
        assert_eq!(n1.node.sh("ip route show proto boot | grep -c '^10.244'"), routes);
        assert!(lab.pings(1, 2, IpFamily::V4) && lab.pings(1, 2, IpFamily::V6));
        assert!(
            podwire_overlay::hand_over(&mut lab::host_of(&n1.node)).unwrap().is_empty(),
            "nothing is left to do"
        );
        lab.apply(1, backend);
        assert_eq!(n1.routes(), before);
    }
}

#[test]
fn repeated_applies_lose_no_packet() {
    let lab = Lab::new(MTU);
    lab.build(&Vxlan::default());
    let pinging = {
        let mut command = lab.node(1).node.command("ip");
        command.args([
            "netns",
            "exec",
            "pod1",
            "ping",
            "-q",
            "-i",
            "0.005",
            "-c",
            "200",
            "-W",
            "10",
            "10.244.3.10",
        ]);
        command.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    // A new socket each time, as after a restart of the agent.
    for _ in 0..10 {
        *lab.node(1).host.borrow_mut() = lab::host_of(&lab.node(1).node);
        lab.apply(1, &Vxlan::default());
    }
    let shown = String::from_utf8(pinging.wait_with_output().unwrap().stdout).unwrap();
    assert!(shown.contains("200 packets transmitted, 200 received"), "{shown}");
}

#[test]
fn a_foreign_device_with_our_name_is_an_error() {
    let lab = Lab::new(MTU);
    let n1 = lab.node(1);
    n1.node.sh("ip link add flannel.1 type bridge");
    let cluster = lab.cluster(1);
    let error = podwire_overlay::apply(
        &mut n1.host.borrow_mut(),
        &Vxlan::default(),
        &cluster,
        &FirewallOptions::default(),
    )
    .unwrap_err();
    assert!(matches!(error, Error::ForeignDevice { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "device \"flannel.1\" exists as a bridge, but the overlay needs a vxlan: rename or delete it, or choose another VNI"
    );
    assert!(n1.node.can("ip link show flannel.1 type bridge"));
}

#[test]
fn a_derived_hardware_address_survives_a_reboot() {
    let lab = Lab::new(MTU);
    let derived = Vxlan { mac: VtepMac::Derived, ..Vxlan::default() };
    let first = lab.apply(1, &derived).tunnels;
    lab.node(1).node.sh("ip link del flannel.1; ip link del flannel-v6.1");
    let second = lab.apply(1, &derived).tunnels;
    let macs = |tunnels: &[podwire_overlay::TunnelDevice]| {
        tunnels.iter().map(|tunnel| tunnel.mac.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(macs(&first), macs(&second));
    assert_ne!(macs(&first)[0], macs(&first)[1]);
    assert_ne!(macs(&first), macs(&lab.apply(2, &derived).tunnels));
}

#[test]
fn another_vni_replaces_the_device() {
    let lab = Lab::new(MTU);
    lab.build(&Vxlan::default());
    let other = Vxlan { vni: 42, port: 4789, gbp: true, learning: true, ..Vxlan::default() };
    lab.build(&other);
    let n1 = lab.node(1);
    assert!(!n1.node.can("ip link show flannel.1"));
    let shown = n1.node.sh("ip -d link show flannel.42");
    assert!(
        shown.contains("vxlan id 42") && shown.contains("dstport 4789") && shown.contains("gbp"),
        "{shown}"
    );
    assert!(!shown.contains("nolearning"), "{shown}");
    assert_eq!(n1.routes()[0], "10.244.2.0/24 via 10.244.2.0 dev flannel.42 onlink");
    lab.assert_pairs_talk(MTU, &[(1, 3)], &IpFamily::ALL);
    // Settings that the kernel can change in place are changed in place.
    let index = n1.node.sh("ip -o link show flannel.42 | cut -d: -f1");
    let changed = Vxlan { learning: false, df: podwire_kernel::vxlan::Df::Inherit, ..other };
    lab.apply(1, &changed);
    let shown = n1.node.sh("ip -d link show flannel.42");
    assert!(shown.contains("nolearning") && shown.contains("df inherit"), "{shown}");
    assert_eq!(n1.node.sh("ip -o link show flannel.42 | cut -d: -f1"), index);
    assert!(lab.apply(1, &changed).is_quiet());
}

#[test]
fn the_device_mtu_follows_the_uplinks() {
    let lab = Lab::new(1300);
    lab.build(&Vxlan::default());
    let n1 = lab.node(1);
    let mtus =
        || n1.node.sh("for d in flannel.1 flannel-v6.1; do ip -o link show $d | grep -o 'mtu [0-9]*'; done");
    assert_eq!(mtus(), "mtu 1430\nmtu 1430\n");
    n1.node.sh("ip link set eth0 mtu 1400");
    assert_eq!(lab.apply(1, &Vxlan::default()).changed.len(), 2);
    assert_eq!(mtus(), "mtu 1330\nmtu 1330\n");
    lab.assert_pairs_talk(1300, &[(1, 3)], &IpFamily::ALL);
}
