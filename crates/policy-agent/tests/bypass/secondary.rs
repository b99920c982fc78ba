//! Pods with a second interface, and pods that send while an agent starts.

use std::sync::atomic::{AtomicBool, Ordering};

use podwire_policy_agent::dataplane::{Nftables, PodPort};
use serde_json::json;

use crate::attachment::{apply, index_on_node, mac_on_node, Attachment, Pods};
use crate::frames::{arriving, wrong, Sender};
use crate::packets::{ip, udp};
use crate::testbed::{network_policy, on_node, run, Endpoint};

/// A second interface of a pod, on a veth pair. Its addresses belong to the pod too.
fn second_interface(pod: &Endpoint, port: &PodPort) -> PodPort {
    run(&format!("ip link add second type veth peer name eth1 netns {}", pod.process_id()));
    run("ip link set second up; ip route add 10.9.0.9 dev second; ip -6 route add fd00:9:9::9 dev second");
    pod.sh(
        "ip link set eth1 up; ip addr add 10.9.0.9/32 dev eth1; ip addr add fd00:9:9::9/128 dev eth1 nodad",
    );
    let link = pod.sh("ip -o link show dev eth1");
    let mac: podwire_kernel::Mac =
        link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap().parse().unwrap();
    PodPort {
        device: "second".into(),
        index: index_on_node("second"),
        bridged: false,
        addresses: vec![ip("10.9.0.9"), ip("fd00:9:9::9")],
        mac: Some(mac.0),
        ..port.clone()
    }
}

#[test]
fn a_second_interface_is_no_way_around_the_policies_of_the_first() {
    for attachment in [Attachment::Bridge, Attachment::Ptp, Attachment::Calico] {
        on_node(move |nft| {
            let mut pods = Pods::of(attachment);
            let outside = Endpoint::external();
            let second = second_interface(&pods.pods[3], &pods.ports[3]);
            // The pod has the addresses of both interfaces.
            let more = json!([{ "ip": pods.pods[3].ip4 }, { "ip": pods.pods[3].ip6 },
                { "ip": "10.9.0.9" }, { "ip": "fd00:9:9::9" }]);
            pods.objects[3]["status"]["podIPs"] = more;
            apply(nft, &pods.objects, &[&pods.ports[..], std::slice::from_ref(&second)].concat());
            let [_, b, c, e] = &pods.pods;
            let mut sender = Sender::through(e, "eth1", &second);
            let gateway = mac_on_node("second");
            let (mut to_outside, mut to_b) = (Vec::new(), Vec::new());
            for (name, four, six) in [
                ("own", "10.9.0.9", "fd00:9:9::9"),
                ("first", e.ip4.as_str(), e.ip6.as_str()),
                ("friend", c.ip4.as_str(), c.ip6.as_str()),
                ("node", "10.1.0.1", "fd00:1::1"),
            ] {
                for (n, from) in [ip(four), ip(six)].into_iter().enumerate() {
                    let text = format!("{name} {n}");
                    let pick = |endpoint: &Endpoint| ip([&endpoint.ip4, &endpoint.ip6][n]);
                    to_outside.push(udp(from, pick(&outside), (9, 9), &text));
                    to_b.push(udp(from, pick(b), (9, 7), &text));
                }
            }
            let mut send = |packets: Vec<Vec<u8>>, end: Vec<u8>| {
                packets.iter().chain([&end]).for_each(|packet| sender.add_packet(gateway, packet));
                sender.send();
            };
            let allowed = udp(ip("10.9.0.9"), ip(&outside.ip4), (9, 7), "end");
            let mut failed = wrong("outside", &arriving(&outside, || send(to_outside, allowed)), &[]);
            let end = udp(ip(&c.ip4), ip(&b.ip4), (9, 9), "end");
            let mut from_c = Sender::new(c, &pods.ports[2]);
            from_c.add_packet(pods.next_hop(2, 1), &end);
            let arrived = arriving(b, || {
                send(to_b, udp(ip("10.9.0.9"), ip(&b.ip4), (9, 7), "last"));
                from_c.send();
            });
            failed.extend(wrong("pod", &arrived, &[]));
            assert!(failed.is_empty(), "{attachment:?}: {failed:#?}");
        });
    }
}

#[test]
fn nothing_passes_while_an_agent_starts_and_changes_policies() {
    for attachment in [Attachment::Bridge, Attachment::Ptp, Attachment::Calico] {
        on_node(move |nft| {
            let pods = Pods::of(attachment);
            apply(nft, &pods.objects, &pods.ports);
            let [a, b, c, _] = &pods.pods;
            let over = AtomicBool::new(false);
            let arrived = arriving(b, || {
                std::thread::scope(|scope| {
                    let attack = scope.spawn(|| {
                        let mut sender = Sender::new(a, &pods.ports[0]);
                        while !over.load(Ordering::Relaxed) {
                            for (from, to) in [(&a.ip4, &b.ip4), (&a.ip6, &b.ip6), (&c.ip4, &b.ip4)] {
                                let packet = udp(ip(from), ip(to), (9, 9), "attack");
                                (0..50).for_each(|_| sender.add_packet(pods.next_hop(0, 1), &packet));
                            }
                            sender.send();
                        }
                    });
                    for n in 0..10 {
                        // Each agent reads what the last one left.
                        let mut agent = Nftables::open().unwrap();
                        let other = network_policy(
                            "other",
                            json!({ "podSelector": { "matchLabels": { "app": "b" } },
                                "ingress": [{ "ports": [{ "port": 1000 + n }] }] }),
                        );
                        apply(&mut agent, &[&pods.objects[..], &[other]].concat(), &pods.ports);
                    }
                    over.store(true, Ordering::Relaxed);
                    attack.join().unwrap();
                });
                let mut sender = Sender::new(c, &pods.ports[2]);
                sender.add_packet(pods.next_hop(2, 1), &udp(ip(&c.ip4), ip(&b.ip4), (9, 9), "end"));
                sender.send();
            });
            assert!(arrived.is_empty(), "{attachment:?}: {} packets arrived", arrived.len());
        });
    }
}
