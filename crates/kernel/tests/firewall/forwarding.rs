//! What the plugin `firewall` forwards: isolated bridges, and nodes with a FORWARD policy of DROP.

use std::net::UdpSocket;
use std::thread;

use podwire_kernel::firewall::hostports::{self, Options};
use podwire_kernel::firewall::{drop_empty_tables, forward};
use podwire_kernel::Owner;
use podwire_netlink::Socket;

use crate::testbed::{external_host, ip, on_a_node, owner, ruleset, run, tcp, Peer, SILENCE, TIMEOUT};

#[test]
fn isolated_bridges_reach_only_published_ports() {
    on_a_node(|nft| {
        let world = external_host();
        run("ip link add br1 type bridge; ip link set br1 up; ip addr add 10.2.0.1/16 dev br1");
        let one = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        let two = Peer::pod("pod2", "br1", "10.2.0.5/16", "10.2.0.1");
        one.serves(80, "one");
        two.serves(80, "two");
        world.serves(80, "world");
        let rules = |bridge: &str, policy| forward::Rules {
            admin_chain: "CNI-ADMIN".into(),
            policy,
            bridge: Some(bridge.into()),
        };
        let apart = |nft: &mut Socket, policy| {
            forward::add(nft, &owner("c1"), &[ip("10.1.0.5")], &rules("br0", policy)).unwrap();
            forward::add(nft, &owner("c2"), &[ip("10.2.0.5")], &rules("br1", policy)).unwrap();
        };
        apart(nft, forward::Policy::Open);
        assert!(one.asks("10.2.0.5:80").is_some() && two.asks("10.1.0.5:80").is_some());
        apart(nft, forward::Policy::SameBridge);
        assert!(one.asks_in_vain("10.2.0.5:80").is_none() && two.asks_in_vain("10.1.0.5:80").is_none());
        assert!(world.asks("10.1.0.5:80").is_some() && one.asks("192.0.2.2:80").is_some());
        assert!(ruleset().contains("\"br0\" . \"br0\""));
        // A network of others on the same bridge does not open it.
        let other = Owner::new("others", "c3", "eth0");
        forward::add(nft, &other, &[ip("10.1.0.9")], &rules("br0", forward::Policy::Open)).unwrap();
        forward::remove_all(nft, &other).unwrap();
        assert!(one.asks_in_vain("10.2.0.5:80").is_none() && two.asks_in_vain("10.1.0.5:80").is_none());
        hostports::add(nft, &owner("c1"), &[tcp(8080, "10.1.0.5/16", 80)], &Options::default()).unwrap();
        assert_eq!(two.asks("192.0.2.1:8080").as_deref(), Some("one sees 10.2.0.5"));
        apart(nft, forward::Policy::Isolated);
        assert!(!ruleset().contains("\"br0\" . \"br0\""));
        assert!(one.asks_in_vain("10.2.0.5:80").is_none());
        apart(nft, forward::Policy::Open);
        assert!(one.asks("10.2.0.5:80").is_some());
    });
}

#[test]
fn pod_packets_pass_an_iptables_forward_policy_of_drop() {
    on_a_node(|nft| {
        let world = external_host();
        let pod = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        world.serves(80, "world");
        pod.serves(80, "pod");
        run("iptables -P FORWARD DROP; iptables -N DOCKER-USER; iptables -A FORWARD -j DOCKER-USER");
        // After our second chain the mark is cleared.
        run("nft add table inet watch; nft 'add chain inet watch f { type filter hook forward priority 10; }'; \
             nft add rule inet watch f meta mark != 0 counter drop");
        assert_eq!(pod.asks_in_vain("192.0.2.2:80"), None);
        let rules =
            forward::Rules { admin_chain: "CNI-ADMIN".into(), policy: forward::Policy::Open, bridge: None };
        forward::add(nft, &owner("c1"), &[ip("10.1.0.5")], &rules).unwrap();
        forward::add(nft, &owner("c2"), &[ip("10.1.0.6"), ip("fd00:1::6")], &rules).unwrap();
        assert_eq!(pod.asks("192.0.2.2:80").as_deref(), Some("world sees 10.1.0.5"));
        assert_eq!(world.asks_in_vain("10.1.0.5:80"), None, "only answers reach a pod");
        // A table that sets the mark before ours, as the overlay's does, lets the packet pass.
        run("nft add table inet earlier; nft 'add chain inet earlier f { type filter hook forward priority -1; }'; \
             nft add rule inet earlier f ip daddr 10.1.0.5 meta mark set meta mark or 0x1000000");
        assert_eq!(world.asks("10.1.0.5:80").as_deref(), Some("pod sees 192.0.2.2"));
        run("nft delete table inet earlier");
        let listed = run("iptables -S FORWARD");
        let ours = "-A FORWARD -m mark --mark 0x1000000/0x1000000 -m comment --comment \"podwire: pods may pass\" -j ACCEPT";
        assert_eq!(listed, format!("-P FORWARD DROP\n{ours}\n-A FORWARD -j DOCKER-USER\n"));

        // It survives iptables-save and iptables-restore, which rewrite it.
        run("iptables-save > /tmp/podwire-test-$$ && iptables-restore < /tmp/podwire-test-$$; rm /tmp/podwire-test-$$");
        forward::add(nft, &owner("c1"), &[ip("10.1.0.5")], &rules).unwrap();
        assert_eq!(run("iptables -S FORWARD").matches("podwire").count(), 1);
        run("nft add rule inet podwire_firewall CNI-ADMIN tcp dport 80 accept");
        assert!(pod.asks("192.0.2.2:80").is_some());
        assert_eq!(
            world.asks("10.1.0.5:80").as_deref(),
            Some("pod sees 192.0.2.2"),
            "what the administrator lets pass does"
        );
        run("nft insert rule inet podwire_firewall CNI-ADMIN tcp dport 80 drop");
        assert_eq!(pod.asks_in_vain("192.0.2.2:80"), None, "the administrator has the first word");

        assert!(forward::is_present(nft, &owner("c1"), ip("10.1.0.5")).unwrap());
        assert!(forward::remove(nft, &owner("c1"), &[ip("10.1.0.5")]).unwrap());
        assert_eq!(forward::collect(nft, "pods", &[]).unwrap(), 2);
        assert_eq!(drop_empty_tables(nft).unwrap(), 0, "the administrator's rules stay");
        run("nft flush chain inet podwire_firewall CNI-ADMIN");
        assert_eq!(drop_empty_tables(nft).unwrap(), 1);
        assert!(!run("iptables -S FORWARD").contains("podwire"));
    });
}

/// The chains of table `podwire_firewall`, sorted.
fn chains_of_forwarding() -> Vec<String> {
    let table = run("nft list table inet podwire_firewall").replace('\t', "");
    let chain = |text: &str| text.split('}').next().unwrap_or_default().trim_end().to_owned();
    let mut chains: Vec<String> = table.split("chain ").skip(1).map(chain).collect();
    chains.sort();
    chains
}

fn rules_for(bridge: &str, policy: forward::Policy) -> forward::Rules {
    forward::Rules { admin_chain: "CNI-ADMIN".into(), policy, bridge: Some(bridge.into()) }
}

const LEAN: [&str; 3] = [
    "CNI-ADMIN {",
    "admins {\njump CNI-ADMIN",
    "forward {\ntype filter hook forward priority filter - 1; policy accept;\njump CNI-ADMIN",
];

#[test]
fn forwarded_packets_are_marked_only_while_iptables_filters_them() {
    on_a_node(|nft| {
        let world = external_host();
        let pod = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
        world.serves(80, "world");
        let rules = rules_for("br0", forward::Policy::Open);
        forward::add(nft, &owner("c1"), &[ip("10.1.0.5")], &rules).unwrap();
        assert_eq!(chains_of_forwarding(), LEAN);
        assert_eq!(pod.asks("192.0.2.2:80").as_deref(), Some("world sees 10.1.0.5"));
        // The administrator's rules take effect at once, and for every packet.
        let client = pod.within(|| UdpSocket::bind("10.1.0.5:4000").unwrap());
        let server = world.within(|| UdpSocket::bind("192.0.2.2:4000").unwrap());
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        client.set_read_timeout(Some(SILENCE)).unwrap();
        client.send_to(b"ask", "192.0.2.2:4000").unwrap();
        server.recv(&mut [0; 16]).unwrap();
        run("nft add rule inet podwire_firewall CNI-ADMIN ip daddr 10.1.0.5 drop");
        server.send_to(b"answer", "10.1.0.5:4000").unwrap();
        assert!(client.recv(&mut [0; 16]).is_err(), "an answer passes the administrator's chain");
        run("nft flush chain inet podwire_firewall CNI-ADMIN");
        server.send_to(b"answer", "10.1.0.5:4000").unwrap();
        client.recv(&mut [0; 16]).unwrap();

        run("iptables -P FORWARD DROP");
        assert_eq!(pod.asks_in_vain("192.0.2.2:80"), None);
        let absent = forward::absent(nft, &owner("c1"), &rules).unwrap();
        assert!(absent.iter().any(|text| text.starts_with("chain forwarded of table")), "{absent:?}");
        // An ADD of another pod is enough.
        forward::add(nft, &owner("c2"), &[ip("10.1.0.6")], &rules).unwrap();
        assert_eq!(forward::absent(nft, &owner("c1"), &rules).unwrap(), [""; 0]);
        assert_eq!(pod.asks("192.0.2.2:80").as_deref(), Some("world sees 10.1.0.5"));
        let names: Vec<String> = chains_of_forwarding();
        let names: Vec<&str> = names.iter().filter_map(|chain| chain.split(' ').next()).collect();
        assert_eq!(names, ["CNI-ADMIN", "admins", "forward", "forwarded", "marked"]);

        run("nft delete table ip filter");
        assert_eq!(forward::absent(nft, &owner("c1"), &rules).unwrap(), [""; 0], "more than needed");
        forward::add(nft, &owner("c2"), &[ip("10.1.0.6")], &rules).unwrap();
        assert_eq!(chains_of_forwarding(), LEAN);
        assert!(pod.asks("192.0.2.2:80").is_some());
        // iptables for IPv6 only.
        run("ip6tables -P FORWARD DROP");
        forward::prepare(nft, &owner("c1"), &rules).unwrap();
        assert!(chains_of_forwarding().iter().any(|chain| chain.starts_with("forwarded {")));
        assert!(run("ip6tables -S FORWARD").contains("podwire: pods may pass"));
    });
}

#[test]
fn rules_of_isolation_exist_only_while_a_bridge_is_isolated() {
    on_a_node(|nft| {
        let isolated = Owner::new("isolated", "c2", "eth0");
        let (open, apart) =
            (rules_for("br0", forward::Policy::Open), rules_for("br1", forward::Policy::Isolated));
        forward::add(nft, &owner("c1"), &[ip("10.1.0.5")], &open).unwrap();
        let has_rule =
            || ruleset().contains("iifname @bridges oifname @bridges iifname . oifname != @same drop");
        assert!(!has_rule());
        forward::add(nft, &isolated, &[ip("10.2.0.5")], &apart).unwrap();
        assert!(has_rule());
        // The other network neither opens the bridge nor misses anything.
        forward::add(nft, &owner("c3"), &[ip("10.1.0.6")], &open).unwrap();
        assert!(has_rule());
        assert_eq!(forward::absent(nft, &owner("c3"), &open).unwrap(), [""; 0]);
        run("nft flush chain inet podwire_firewall forward");
        assert_ne!(forward::absent(nft, &owner("c3"), &open).unwrap(), [""; 0]);
        forward::add(nft, &owner("c3"), &[ip("10.1.0.6")], &open).unwrap();
        assert!(has_rule());
        forward::remove_all(nft, &isolated).unwrap();
        assert!(has_rule(), "until GC finds no pod of the network");
        forward::collect(nft, "isolated", &[]).unwrap();
        assert_eq!(chains_of_forwarding(), LEAN);
        assert_eq!(forward::absent(nft, &owner("c3"), &open).unwrap(), [""; 0]);
        // For a pod whose packets firewalld accepts, an open bridge needs no table.
        run("nft delete table inet podwire_firewall");
        forward::isolate(nft, &owner("c4"), &open).unwrap();
        assert_eq!(ruleset(), "");
        forward::isolate(nft, &isolated, &apart).unwrap();
        assert!(has_rule());
    });
}

#[test]
fn concurrent_adds_agree_on_the_chains_of_forwarding() {
    on_a_node(|nft| {
        run("iptables -P FORWARD DROP");
        thread::scope(|scope| {
            for n in 0..8 {
                scope.spawn(move || {
                    let nft = &mut Socket::netfilter().unwrap();
                    let policy = [forward::Policy::Open, forward::Policy::SameBridge][n % 2];
                    let rules = forward::Rules {
                        admin_chain: format!("ADMIN{}", n % 3),
                        ..rules_for(&format!("br{n}"), policy)
                    };
                    for m in 0..10 {
                        let owner = Owner::new(format!("net{n}"), format!("c{m}"), "eth0");
                        forward::add(nft, &owner, &[ip(&format!("10.1.{n}.{m}"))], &rules).unwrap();
                    }
                });
            }
        });
        for n in 0..8 {
            let policy = [forward::Policy::Open, forward::Policy::SameBridge][n % 2];
            let rules = forward::Rules {
                admin_chain: format!("ADMIN{}", n % 3),
                ..rules_for(&format!("br{n}"), policy)
            };
            let owner = Owner::new(format!("net{n}"), "c0", "eth0");
            assert_eq!(forward::absent(nft, &owner, &rules).unwrap(), [""; 0], "{}", ruleset());
        }
        let listed = ruleset();
        assert_eq!(listed.matches("jump ADMIN").count(), 9, "{listed}");
        assert_eq!(listed.matches("oifname @bridges").count(), 2, "{listed}");
    });
}

/// The table as earlier versions created it, with a pod of theirs.
const EARLIER: &str = r#"nft -f - <<END
table inet podwire_firewall {
    set pods4 { type ipv4_addr; elements = { 10.1.0.5 comment "pods/c1/eth0" }; }
    set pods6 { type ipv6_addr; }
    set bridges { type ifname; }
    set same { type ifname . ifname; }
    chain CNI-ADMIN { }
    chain admins { jump CNI-ADMIN; }
    chain unmarked {
        meta mark set meta mark | 0x01000000 jump admins
        meta mark set meta mark & 0xfeffffff
    }
    chain forward { type filter hook forward priority -1; policy accept;
        meta mark & 0x01000000 == 0x01000000 jump admins
        meta mark & 0x01000000 == 0x00000000 jump unmarked
        iifname @bridges oifname @bridges ct state ! established,related ct status ! dnat iifname . oifname != @same drop
        ip saddr @pods4 meta mark set meta mark | 0x01000000 accept
        ct state established,related ip daddr @pods4 meta mark set meta mark | 0x01000000 accept
        ip6 saddr @pods6 meta mark set meta mark | 0x01000000 accept
        ct state established,related ip6 daddr @pods6 meta mark set meta mark | 0x01000000 accept
    }
    chain forwarded { type filter hook forward priority 1; policy accept;
        meta mark & 0x01000000 == 0x01000000 meta mark set meta mark & 0xfeffffff
    }
}
END"#;

#[test]
fn chains_of_earlier_versions_are_replaced_by_an_add() {
    for is_filtered in [false, true] {
        on_a_node(move |nft| {
            let world = external_host();
            let pod = Peer::pod("pod1", "br0", "10.1.0.5/16", "10.1.0.1");
            world.serves(80, "world");
            if is_filtered {
                run("iptables -P FORWARD DROP");
            }
            run(EARLIER);
            run("nft add rule inet podwire_firewall CNI-ADMIN tcp dport 81 drop");
            let rules = rules_for("br0", forward::Policy::Open);
            forward::add(nft, &owner("c2"), &[ip("10.1.0.6")], &rules).unwrap();
            let replaced = chains_of_forwarding();
            assert_eq!(forward::absent(nft, &owner("c2"), &rules).unwrap(), [""; 0]);
            assert!(pod.asks("192.0.2.2:80").is_some(), "a pod of before");
            assert!(ruleset().contains("tcp dport 81 drop"));
            assert!(forward::is_present(nft, &owner("c1"), ip("10.1.0.5")).unwrap());

            run("nft delete table inet podwire_firewall");
            forward::add(nft, &owner("c2"), &[ip("10.1.0.6")], &rules).unwrap();
            run("nft add rule inet podwire_firewall CNI-ADMIN tcp dport 81 drop");
            assert_eq!(replaced, chains_of_forwarding());
        });
    }
}
