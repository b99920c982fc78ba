//! Masquerading, and addresses that another pod still has.

use podwire_kernel::firewall::hostports::{self, Options};
use podwire_kernel::firewall::{drop_empty_tables, forward, masquerade};
use podwire_kernel::Owner;

use crate::testbed::{external_host, ip, net, on_a_node, owner, ruleset, run, tcp, Peer};

#[test]
fn a_pod_is_masqueraded_outside_its_network_and_not_inside() {
    on_a_node(|nft| {
        let world = external_host();
        let pod = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        // Of the same network, but not on the bridge: packets to it are routed through the node.
        let far = Peer::connected("pod2");
        run("ip route add 10.1.9.9 dev pod2; ip addr add 10.1.0.1/32 dev pod2");
        far.sh("ip addr add 10.1.9.9/32 dev eth0; ip route add 10.1.0.1 dev eth0");
        far.sh("ip route add default via 10.1.0.1");
        pod.sh("ip route add 10.1.9.9 via 10.1.0.1");
        world.serves(9000, "world");
        far.serves(9000, "far");
        assert_eq!(pod.asks("192.0.2.2:9000").as_deref(), Some("world sees 10.1.0.5"));

        masquerade::add(nft, &owner("c1"), &[net("10.1.0.5/16")]).unwrap();
        assert_eq!(pod.asks("192.0.2.2:9000").as_deref(), Some("world sees 192.0.2.1"));
        assert_eq!(pod.asks("10.1.9.9:9000").as_deref(), Some("far sees 10.1.0.5"));
        assert!(masquerade::is_present(nft, &owner("c1"), ip("10.1.0.5")).unwrap());
        assert!(!masquerade::is_present(nft, &owner("c2"), ip("10.1.0.5")).unwrap());

        assert!(!masquerade::remove(nft, &owner("c2"), &[ip("10.1.0.5")]).unwrap());
        assert!(masquerade::remove(nft, &owner("c1"), &[ip("10.1.0.5")]).unwrap());
        assert_eq!(pod.asks("192.0.2.2:9000").as_deref(), Some("world sees 10.1.0.5"));
    });
}

#[test]
fn an_address_of_another_running_pod_is_not_taken_over() {
    on_a_node(|nft| {
        let (other, own) = (Owner::new("other", "c1", "eth0"), owner("c2"));
        let is_running = |comment: &str| comment == "other/c1/eth0";
        let rules =
            forward::Rules { admin_chain: "CNI-ADMIN".into(), policy: forward::Policy::Open, bridge: None };
        let (nets, ips) = ([net("10.1.0.5/16")], [ip("10.1.0.5")]);
        let (maps, options) = ([tcp(8080, "10.1.0.5/16", 80)], Options::default());
        masquerade::add(nft, &other, &nets).unwrap();
        forward::add(nft, &other, &ips, &rules).unwrap();
        hostports::add(nft, &other, &maps, &options).unwrap();
        let before = ruleset();
        let text = "address 10.1.0.5 belongs to other/c1/eth0, which is running";
        let masqueraded = masquerade::add_if_free(nft, &own, &nets, &is_running).unwrap_err();
        let passed = forward::add_if_free(nft, &own, &ips, &rules, &is_running).unwrap_err();
        assert_eq!((masqueraded.to_string(), passed.to_string()), (text.to_owned(), text.to_owned()));
        let mapped = hostports::add_if_free(nft, &own, &maps, &options, &is_running).unwrap_err();
        assert_eq!(mapped.to_string(), "host port 8080/tcp is taken by other/c1/eth0");
        assert_eq!(ruleset(), before);
        assert_eq!(masquerade::holders(nft, ip("10.1.0.5")).unwrap(), ["other/c1/eth0"]);
        assert_eq!(forward::holder(nft, ip("10.1.0.5")).unwrap().as_deref(), Some("other/c1/eth0"));

        // Its own elements, and those of a deleted pod, are no obstacle.
        masquerade::add_if_free(nft, &other, &nets, &is_running).unwrap();
        masquerade::add_if_free(nft, &own, &nets, &|_| false).unwrap();
        forward::add_if_free(nft, &own, &ips, &rules, &|_| false).unwrap();
        hostports::add_if_free(nft, &own, &maps, &options, &|_| false).unwrap();
        assert!(!ruleset().contains("other/c1/eth0"), "{}", ruleset());
    });
}

#[test]
fn masquerades_are_listed_replaced_collected_and_removed() {
    on_a_node(|nft| {
        assert!(!masquerade::remove(nft, &owner("c1"), &[ip("10.1.0.5")]).unwrap());
        assert!(!masquerade::remove_all(nft, &owner("c1")).unwrap());
        assert_eq!(masquerade::collect(nft, "pods", &[]).unwrap(), 0);
        masquerade::add(nft, &owner("dead"), &[net("10.1.0.5/16")]).unwrap();
        masquerade::add(nft, &owner("c1"), &[net("10.1.0.5/16"), net("fd00:1::5/64")]).unwrap();
        masquerade::add(nft, &owner("c1"), &[net("10.1.0.5/16"), net("fd00:1::5/64")]).unwrap();
        masquerade::add(nft, &owner("c2"), &[net("10.2.0.5/16")]).unwrap();
        // Each alone in its network: they share a set and a chain.
        masquerade::add(nft, &owner("c1"), &[net("10.4.0.5/32"), net("10.4.0.6/32")]).unwrap();
        masquerade::add(nft, &owner("c1"), &[net("10.4.0.7/32")]).unwrap();
        masquerade::add(nft, &Owner::new("other", "c3", "eth0"), &[net("10.3.0.5/16")]).unwrap();
        let listed = ruleset();
        for line in [
            "set net4_10.1.0.0_16 {\ntype ipv4_addr\nelements = { 10.1.0.5 comment \"pods/c1/eth0\" }",
            "set net6_fd00_1___64 {\ntype ipv6_addr\nelements = { fd00:1::5 comment \"pods/c1/eth0\" }",
            "chain net4_10.1.0.0_16 {\ntype nat hook postrouting priority srcnat; policy accept;\n\
             ip saddr @net4_10.1.0.0_16 ip daddr != 10.1.0.0/16 ip daddr != 224.0.0.0/4 masquerade\n}",
            "chain net4_alone {\ntype nat hook postrouting priority srcnat; policy accept;\n\
             ip saddr @net4_alone ip daddr != 224.0.0.0/4 masquerade\n}",
            "ip6 saddr @net6_fd00_1___64 ip6 daddr != fd00:1::/64 ip6 daddr != ff00::/8 masquerade\n}",
        ] {
            assert!(listed.contains(line), "no {line:?} in {listed}");
        }
        assert!(!listed.contains("dead") && !listed.contains("_32"), "{listed}");
        assert_eq!(masquerade::collect(nft, "pods", &[owner("c1")]).unwrap(), 1);
        assert!(masquerade::is_present(nft, &owner("c1"), ip("fd00:1::5")).unwrap());
        assert!(masquerade::remove_all(nft, &owner("c1")).unwrap());
        assert_eq!(drop_empty_tables(nft).unwrap(), 0, "the other network's pod is still there");
        assert_eq!(masquerade::collect(nft, "other", &[]).unwrap(), 1);
        assert_eq!(drop_empty_tables(nft).unwrap(), 1);
        assert_eq!(ruleset(), "");
    });
}
