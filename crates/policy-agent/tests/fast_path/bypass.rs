//! Ways around policies that aim at the fast path.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use podwire_policy_agent::{Kind, OnClosed, PolicyAgent, PolicyAgentOptions, Update};
use serde_json::{json, Value};

use super::{allow_all, pairs};
use crate::testbed::connections::{arriving, datagrams, exchange, fast, packets, wait_until, PORT};
use crate::testbed::{apply, network_policy, on_node, run, snapshot, Endpoint};

#[test]
fn another_pod_cannot_send_packets_of_a_learned_flow() {
    on_node(|nft| {
        let Some(fast_path) = fast() else { return };
        let spoofers = [Endpoint::bridged(20), Endpoint::routed(21), Endpoint::calico(22)];
        let pairs = pairs();
        let all: Vec<&Endpoint> = pairs.iter().flatten().chain(&spoofers).collect();
        apply(nft, &allow_all(&all));
        for [a, b] in &pairs {
            let [one, two] = datagrams(a, b);
            let before = packets(&fast_path);
            (0..20).for_each(|_| exchange(&one, &two));
            assert!(packets(&fast_path) - before >= 36, "{}", a.ip4);
            for spoofer in &spoofers {
                spoofer.sh(&format!("ip addr add {}/32 dev eth0", a.ip4));
                let spoofed = spoofer.run_inside(|| {
                    let socket = UdpSocket::bind((a.ip4.as_str(), PORT)).unwrap();
                    socket.connect((b.ip4.as_str(), PORT)).unwrap();
                    socket
                });
                let before = packets(&fast_path);
                for _ in 0..10 {
                    let _ = spoofed.send(b"spoofed");
                }
                thread::sleep(Duration::from_millis(20));
                assert_eq!(packets(&fast_path), before, "from {} as {}", spoofer.ip4, a.ip4);
                spoofer.sh(&format!("ip addr del {}/32 dev eth0", a.ip4));
            }
        }
    });
}

/// A pod on a bridge may not send with another hardware address, whichever path its packets take.
#[test]
fn a_forged_hardware_address_does_not_pass() {
    on_node(|nft| {
        let Some(fast_path) = fast() else { return };
        let [a, b] = [10, 11].map(Endpoint::bridged);
        apply(nft, &allow_all(&[&a, &b]));
        let [one, two] = datagrams(&a, &b);
        let forged = "02:00:00:00:00:99";
        b.sh(&format!(
            "nft add table netdev t; \
             nft add chain netdev t i {{ type filter hook ingress device eth0 priority 0 \\; }}; \
             nft add rule netdev t i udp dport {PORT} ether saddr {forged} counter"
        ));
        // As the check of what pods send.
        run(&format!(
            "nft add table bridge g; nft add chain bridge g p {{ type filter hook prerouting priority -300 \\; }}; \
             nft add rule bridge g p ether saddr {forged} drop"
        ));
        let address = |pod: &Endpoint| {
            let link = pod.sh("ip -o link show dev eth0");
            link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap().to_owned()
        };
        let (own, of_b) = (address(&a), address(&b));
        let use_address = |mac: &str| {
            a.sh(&format!(
                "ip link set eth0 address {mac}; ip neigh replace {} lladdr {of_b} dev eth0 nud permanent",
                b.ip4
            ));
        };
        // On a busy machine a second can pass before the forged datagrams are sent.
        wait_until("a forged datagram finds the flow still learned", || {
            use_address(&own);
            exchange(&one, &two);
            use_address(forged);
            let before = packets(&fast_path);
            (0..20).for_each(|_| drop(one.send(b"forged")));
            let found = packets(&fast_path) > before;
            arriving(&two, Duration::from_millis(20));
            found
        });
        assert!(b.sh("nft list table netdev t").contains("packets 0 bytes 0"));
    });
}

#[test]
fn closing_a_policy_ends_the_flow_at_once() {
    on_node(|_| {
        let Some(fast_path) = fast() else { return };
        for [a, b] in pairs() {
            let forget = fast_path.clone();
            let agent = PolicyAgent::start(PolicyAgentOptions {
                node_name: "node".into(),
                close_denied: true,
                closed: OnClosed::new(move || forget.forget_flows()),
                ..PolicyAgentOptions::default()
            })
            .unwrap();
            let open = allow_all(&[&a, &b]);
            let list = |objects: &[Value]| {
                Kind::ALL
                    .into_iter()
                    .for_each(|kind| agent.update(Update::Listed(kind, snapshot(objects))).unwrap());
            };
            list(&open);
            wait_until("the policies are enforced", || agent.status().enforced);
            let [one, two] = datagrams(&a, &b);
            let before = packets(&fast_path);
            (0..20).for_each(|_| exchange(&one, &two));
            assert!(packets(&fast_path) - before >= 36, "{}", a.ip4);
            let mut closed = open.clone();
            closed.pop();
            closed.push(network_policy("all", json!({ "podSelector": {}, "policyTypes": ["Ingress"] })));
            // The sender does not stop.
            thread::scope(|scope| {
                let sender = scope.spawn(|| {
                    let begin = Instant::now();
                    while begin.elapsed() < Duration::from_secs(2) {
                        let _ = one.send(b"late");
                        thread::sleep(Duration::from_micros(200));
                    }
                });
                list(&closed);
                wait_until("the connection is closed", || agent.status().closed_connections > 0);
                // What was on its way.
                arriving(&two, Duration::from_millis(5));
                assert_eq!(arriving(&two, Duration::from_millis(800)).len(), 0, "{}", a.ip4);
                sender.join().unwrap();
            });
        }
    });
}
