//! The rules that all pods share are created once, and repaired when they are damaged.

use std::thread;

use ipnet::IpNet;
use podwire_kernel::firewall::hostports::{self, Options, PortMap, Protocol};
use podwire_kernel::firewall::{forward, masquerade, spoof};
use podwire_kernel::Mac;
use podwire_netlink::Socket;

use crate::testbed::{ip, net, on_a_node, owner, ruleset, run};

#[test]
fn concurrent_adds_create_the_skeleton_once() {
    on_a_node(|nft| {
        thread::scope(|scope| {
            for n in 0..16 {
                scope.spawn(move || {
                    let nft = &mut Socket::netfilter().unwrap();
                    for m in 0..20 {
                        let addr = net(&format!("10.{}.{n}.{m}/16", n % 4));
                        masquerade::add(nft, &owner(&format!("c{n}-{m}")), &[addr]).unwrap();
                        if m % 2 == 0 {
                            assert!(masquerade::remove(nft, &owner(&format!("c{n}-{m}")), &[addr.addr()])
                                .unwrap());
                        }
                    }
                });
            }
        });
        let listed = ruleset();
        assert_eq!(listed.matches("hook postrouting").count(), 4, "{listed}");
        assert_eq!(listed.matches("masquerade\n").count(), 4, "{listed}");
        assert_eq!(masquerade::collect(nft, "pods", &[]).unwrap(), 160);
    });
}

#[test]
fn a_damaged_skeleton_is_repaired() {
    on_a_node(|nft| {
        masquerade::add(nft, &owner("c1"), &[net("10.1.0.5/16")]).unwrap();
        masquerade::add(nft, &owner("c2"), &[net("fd00:1::5/64")]).unwrap();
        run("nft flush chain inet podwire_masq net6_fd00_1___64; nft delete set inet podwire_masq net6_fd00_1___64");
        masquerade::add(nft, &owner("c3"), &[net("fd00:1::6/64")]).unwrap();
        let listed = ruleset();
        assert_eq!(listed.matches("masquerade\n").count(), 2, "{listed}");
        assert!(listed.contains("pods/c1/eth0") && listed.contains("pods/c3/eth0"), "{listed}");
        run("nft flush ruleset");
        masquerade::add(nft, &owner("c4"), &[net("10.1.0.6/16")]).unwrap();
        assert!(masquerade::is_present(nft, &owner("c4"), ip("10.1.0.6")).unwrap());
    });
}

#[test]
fn flushed_rules_are_reported_and_restored() {
    on_a_node(|nft| {
        let (nets, owner) = ([net("10.1.0.5/16"), net("fd00:1::5/64")], owner("c1"));
        let map =
            |pod: IpNet| PortMap { protocol: Protocol::Tcp, host_ip: None, host_port: 80, pod, pod_port: 80 };
        let (maps, options) = (nets.map(map), Options::default());
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let bridge = Some("br0".to_owned());
        let rules =
            forward::Rules { admin_chain: "ADMIN".into(), policy: forward::Policy::SameBridge, bridge };
        let missing = |nft: &mut Socket| {
            let mut all = masquerade::absent(nft, &nets).unwrap();
            all.extend(hostports::absent(nft, &maps, &options).unwrap());
            all.extend(forward::absent(nft, &owner, &rules).unwrap());
            all.extend(spoof::absent(nft).unwrap());
            all
        };
        masquerade::add(nft, &owner, &nets).unwrap();
        hostports::add(nft, &owner, &maps, &options).unwrap();
        forward::add(nft, &owner, &nets.map(|net| net.addr()), &rules).unwrap();
        spoof::add(nft, &owner, "pod1", mac, false).unwrap();
        assert_eq!(missing(nft), [""; 0], "all is as it was made");
        let whole = ruleset();
        for table in
            ["inet podwire_masq", "inet podwire_ports", "inet podwire_firewall", "bridge podwire_spoof"]
        {
            run(&format!("nft flush table {table}"));
            assert!(!missing(nft).is_empty(), "{table}");
        }
        masquerade::prepare(nft, &nets).unwrap();
        hostports::prepare(nft, &maps, &options).unwrap();
        forward::prepare(nft, &owner, &rules).unwrap();
        spoof::prepare(nft).unwrap();
        assert_eq!(missing(nft), [""; 0]);
        assert_eq!(ruleset(), whole, "and no element was lost");
    });
}
