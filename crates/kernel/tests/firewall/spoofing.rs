//! Spoofed hardware addresses.

use podwire_kernel::firewall::{drop_empty_tables, spoof};
use podwire_kernel::Mac;

use crate::testbed::{external_host, on_a_node, owner, ruleset, serve, Peer};

#[test]
fn a_pod_cannot_spoof_hardware_addresses() {
    on_a_node(|nft| {
        let _world = external_host();
        let pod = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        serve(80, "node");
        let mac: Mac = pod.sh("ip -br link show eth0").split_whitespace().nth(2).unwrap().parse().unwrap();
        spoof::add(nft, &owner("c1"), "pod1", mac, false).unwrap();
        assert!(pod.asks("10.1.0.1:80").is_some());
        assert!(spoof::is_present(nft, &owner("c1"), "pod1", mac, false).unwrap());
        pod.sh("ip link set eth0 address 02:00:00:00:00:99; ip neigh flush dev eth0");
        assert!(pod.asks_in_vain("10.1.0.1:80").is_none());
        assert!(
            ruleset().contains("iifname @guarded iifname . ether saddr != @allowed drop"),
            "{}",
            ruleset()
        );
        assert!(!spoof::remove(nft, &owner("c2"), "pod1").unwrap());
        assert!(spoof::remove(nft, &owner("c1"), "pod1").unwrap());
        pod.sh("ip neigh flush dev eth0");
        assert!(pod.asks("10.1.0.1:80").is_some());
        spoof::add(nft, &owner("c1"), "pod1", mac, false).unwrap();
        spoof::add(nft, &owner("c2"), "pod1", mac, false).unwrap();
        assert_eq!(spoof::collect(nft, "pods", &[owner("c1")]).unwrap(), 4);
        assert!(!spoof::remove_all(nft, &owner("c2")).unwrap());
        assert_eq!(drop_empty_tables(nft).unwrap(), 1);
    });
}
