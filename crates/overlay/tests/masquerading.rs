//! The effect of the firewall rules on packets: masquerading and FORWARD.

#![allow(clippy::unwrap_used)] // A test that cannot continue panics.

mod lab;

use lab::{Lab, LabNode};
use podwire_ip::IpFamily;
use podwire_overlay::{FirewallOptions, Vxlan};
use podwire_tests::Pod;

const MTU: u32 = 1430;
const MASQUERADE: FirewallOptions =
    FirewallOptions { masquerade: true, random_ports: true, forward: true, blackhole: false };

/// A host outside the cluster, on the link of n1 and n2, without routes to pods.
fn outside(lab: &Lab) -> Pod {
    let machine = lab.router.pod("world");
    lab.router.sh("ip link add w0 type veth peer name eth0 netns world && ip link set w0 master lan10 up \
         && ip -n world link set lo up && ip -n world address add 192.168.10.99/24 dev eth0 \
         && ip -n world address add fd10::99/64 dev eth0 nodad && ip -n world link set eth0 up");
    machine
}

fn rebuild(lab: &Lab, number: u8, firewall: FirewallOptions) -> Vec<String> {
    let node: &LabNode = lab.node(number);
    let cluster = lab.cluster(number);
    let report =
        podwire_overlay::apply(&mut node.host.borrow_mut(), &Vxlan::default(), &cluster, &firewall).unwrap();
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    report.changed
}

#[test]
fn pods_are_masqueraded_only_outside_the_cluster() {
    let lab = Lab::new(MTU);
    lab.build(&Vxlan::default());
    let world = outside(&lab);
    let (n1, n2) = (lab.node(1), lab.node(2));
    let _world = lab.router.listen(Some(&world), "tcp/80");
    assert_eq!(n1.node.ask(Some(&n1.pod), "192.168.10.99", "tcp/80"), "world 192.168.10.11");
    assert_eq!(n1.node.ask(Some(&n1.pod), "fd10::99", "tcp/80"), "world fd10::11");
    // The node uses its own address.
    assert_eq!(n1.node.ask(None, "192.168.10.99", "tcp/80"), "world 192.168.10.11");
    let _pod = n2.node.listen(Some(&n2.pod), "tcp/80");
    assert_eq!(n1.node.ask(Some(&n1.pod), "10.244.2.10", "tcp/80"), "pod2 10.244.1.10");
    assert_eq!(n1.node.ask(Some(&n1.pod), "fd00:244:0:2::10", "tcp/80"), "pod2 fd00:244:0:1::10");
    // A node reaches pods of other nodes with the address of its tunnel device, and its own pods with the bridge's.
    assert_eq!(n1.node.ask(None, "10.244.2.10", "tcp/80"), "pod2 10.244.1.0");
    assert_eq!(n2.node.ask(None, "10.244.2.10", "tcp/80"), "pod2 10.244.2.1");
    // External clients of a pod on this node keep their address.
    lab.router.sh("ip -n world route add 10.244.2.0/24 via 192.168.10.12");
    assert_eq!(lab.router.ask(Some(&world), "10.244.2.10", "tcp/80"), "pod2 192.168.10.99");
    // External clients of a pod on another node are masqueraded, so that replies return through this node.
    lab.router.sh("ip -n world route replace 10.244.2.0/24 via 192.168.10.11");
    assert_eq!(lab.router.ask(Some(&world), "10.244.2.10", "tcp/80"), "pod2 10.244.1.0");
}

#[test]
fn the_rules_follow_the_masquerading_flags() {
    let lab = Lab::new(MTU);
    lab.build(&Vxlan::default());
    let world = outside(&lab);
    lab.router.sh("ip -n world route add 10.244.1.0/24 via 192.168.10.11");
    let n1 = lab.node(1);
    let _world = lab.router.listen(Some(&world), "tcp/80");
    let client = || n1.node.ask(Some(&n1.pod), "192.168.10.99", "tcp/80");
    assert_eq!(client(), "world 192.168.10.11");
    assert!(!rebuild(&lab, 1, FirewallOptions { masquerade: false, ..MASQUERADE }).is_empty());
    assert_eq!(client(), "world 10.244.1.10");
    rebuild(&lab, 1, FirewallOptions { random_ports: false, ..MASQUERADE });
    assert_eq!(client(), "world 192.168.10.11");
    let rules = n1.node.sh("nft list chain inet podwire_overlay postrouting");
    assert!(rules.contains("masquerade") && !rules.contains("random"), "{rules}");
    assert!(!rebuild(&lab, 1, MASQUERADE).is_empty(), "a changed flag is a difference");
    assert!(n1
        .node
        .sh("nft list chain inet podwire_overlay postrouting")
        .contains("masquerade fully-random"));
    assert!(rebuild(&lab, 1, MASQUERADE).is_empty());
}

#[test]
fn the_rules_are_flannels_in_its_order() {
    let lab = Lab::new(MTU);
    lab.build(&Vxlan::default());
    let chain = lab.node(1).node.sh("nft list chain inet podwire_overlay postrouting").replace('\t', "");
    let rules: Vec<&str> =
        chain.lines().filter(|line| line.contains("mark") || line.contains("saddr")).collect();
    assert_eq!(
        rules[..6],
        [
            "meta mark & 0x00004000 == 0x00004000 return",
            "ip saddr @own4 ip daddr @cluster4 return",
            "ip saddr @cluster4 ip daddr @own4 return",
            "ip saddr != @cluster4 ip daddr @own4 return",
            "ip saddr @cluster4 ip daddr != 224.0.0.0/4 masquerade fully-random",
            "ip saddr != @cluster4 ip daddr @cluster4 masquerade fully-random",
        ]
    );
    assert_eq!(rules[10], "ip6 saddr != @cluster6 ip6 daddr @cluster6 masquerade fully-random");
}

#[test]
fn a_peer_outside_the_clusters_networks_adds_only_elements() {
    let lab = Lab::new(MTU);
    lab.build(&Vxlan::default());
    let n1 = lab.node(1);
    let rules = |n: &LabNode| n.node.sh("nft -a -t list table inet podwire_overlay");
    let before = rules(n1);
    let mut cluster = lab.cluster(1);
    for number in 0..50 {
        let mut side = cluster.peers[0].subnets[0].clone();
        side.pod_cidr = lab::net(&format!("10.99.{}.0/24", 2 * number));
        side.address = format!("192.168.10.{}", 100 + number).parse().unwrap();
        side.vtep_mac = Some(podwire_kernel::Mac([2, 0, 0, 0, 1, number]));
        cluster.peers.push(podwire_overlay::Peer { name: format!("far{number}"), subnets: vec![side] });
    }
    n1.apply(&Vxlan::default(), &cluster);
    assert_eq!(rules(n1), before);
    let elements = n1.node.sh("nft -j list set inet podwire_overlay cluster4");
    assert_eq!(elements.matches("\"prefix\"").count(), 51, "{elements}");
    assert!(n1.apply(&Vxlan::default(), &cluster).is_quiet());
    n1.apply(&Vxlan::default(), &lab.cluster(1));
    assert_eq!(rules(n1), before);
    assert_eq!(n1.node.sh("nft -j list set inet podwire_overlay cluster4").matches("\"prefix\"").count(), 1);
}

#[test]
fn pods_pass_a_forward_chain_that_drops() {
    let lab = Lab::new(MTU);
    for node in &lab.nodes {
        node.node.sh("iptables -P FORWARD DROP && ip6tables -P FORWARD DROP");
    }
    lab.build(&Vxlan::default());
    lab.assert_pairs_talk(MTU, &[(1, 2), (3, 1)], &IpFamily::ALL);
    let n1 = lab.node(1);
    // The firewall is restarted.
    n1.node.sh("iptables -F FORWARD && ip6tables -F FORWARD");
    assert!(!lab.pings(1, 2, IpFamily::V4));
    let changed = rebuild(&lab, 1, MASQUERADE);
    assert_eq!(changed.len(), 2, "{changed:?}");
    assert!(lab.pings(1, 2, IpFamily::V4) && lab.pings(1, 2, IpFamily::V6));
    assert!(rebuild(&lab, 1, MASQUERADE).is_empty());
    // Other packets do not pass.
    let world = outside(&lab);
    lab.router.sh("ip -n world route add 192.168.20.0/24 via 192.168.10.11");
    assert!(lab.router.is_silent(Some(&world), "192.168.20.13", "tcp/80"));
}

#[test]
fn packets_are_marked_only_where_iptables_has_a_forward_chain() {
    let lab = Lab::new(MTU);
    lab.build(&Vxlan::default());
    let n1 = lab.node(1);
    let marks = || n1.node.sh("nft list table inet podwire_overlay").matches("hook forward").count();
    assert_eq!(marks(), 0);
    n1.node.sh("iptables -P FORWARD DROP");
    rebuild(&lab, 1, MASQUERADE);
    assert_eq!(marks(), 2);
    assert!(lab.pings(1, 2, IpFamily::V4));
    n1.node.sh("nft delete table ip filter");
    assert_eq!(rebuild(&lab, 1, MASQUERADE).len(), 2);
    assert_eq!(marks(), 0);
    assert!(rebuild(&lab, 1, MASQUERADE).is_empty());
    assert!(lab.pings(1, 2, IpFamily::V4));
}

#[test]
fn remove_deletes_the_table_and_the_iptables_rule() {
    let lab = Lab::new(MTU);
    let n1 = lab.node(1);
    n1.node.sh("iptables -P FORWARD DROP");
    lab.build(&Vxlan::default());
    let mut host = n1.host.borrow_mut();
    assert!(n1.node.sh("iptables-save; nft list ruleset").contains("pods may pass"));
    assert!(podwire_kernel::firewall::cluster::remove(host.nft().unwrap()).unwrap());
    let left = n1.node.sh("nft list ruleset");
    assert!(!left.contains("podwire_overlay") && !left.contains("pods may pass"), "{left}");
    assert!(!podwire_kernel::firewall::cluster::remove(host.nft().unwrap()).unwrap());
}

#[test]
fn a_changed_network_changes_only_the_range_in_the_set() {
    let lab = Lab::new(MTU);
    let n1 = lab.node(1);
    for network in ["10.244.0.0/16", "10.244.0.0/17", "10.0.0.0/8", "10.244.0.0/16"] {
        let cluster = podwire_overlay::Cluster { networks: vec![lab::net(network)], ..lab.cluster(1) };
        n1.apply(&Vxlan::default(), &cluster);
        let set = n1.node.sh("nft list set inet podwire_overlay cluster4");
        assert!(set.contains(&format!("elements = {{ {network} }}")), "{network}: {set}");
        assert!(n1.apply(&Vxlan::default(), &cluster).is_quiet());
    }
}

#[test]
fn retire_removes_only_flannelds_rules() {
    let lab = Lab::new(MTU);
    let n1 = lab.node(1);
    // As flanneld writes them, by iptables and by nft.
    n1.node.sh(
        r#"for t in iptables ip6tables; do
             net=10.244.0.0/16; [ $t = iptables ] || net=fd00:244::/48
             $t -t nat -A POSTROUTING -j RETURN -m comment --comment theirs
             $t -t nat -N FLANNEL-POSTRTG
             $t -t nat -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
             $t -t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
             $t -t nat -A FLANNEL-POSTRTG -s $net -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
             $t -N FLANNEL-FWD
             $t -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
             $t -A FLANNEL-FWD -s $net -m comment --comment "flanneld forward" -j ACCEPT
             $t -A FORWARD -j ACCEPT -m comment --comment theirs
           done
           nft add table ip flannel-ipv4 && nft add chain ip flannel-ipv4 postrtg '{ type nat hook postrouting priority 100; }'
           nft add table ip6 flannel-ipv6"#,
    );
    lab.build(&Vxlan::default());
    let mut host = n1.host.borrow_mut();
    use podwire_kernel::firewall::cluster::flannel;
    assert_eq!(flannel::retire(host.nft().unwrap()).unwrap(), 6);
    let left = n1.node.sh("nft list ruleset; iptables-save; ip6tables-save");
    assert!(!left.to_lowercase().contains("flannel"), "{left}");
    assert_eq!(left.matches("--comment theirs").count(), 4, "{left}");
    assert!(left.contains("podwire_overlay"));
    assert_eq!(flannel::retire(host.nft().unwrap()).unwrap(), 0);
}
