//! Programs in the running kernel, with real namespaces and packets. Needs root, and `ip`, `nft`, `python3` and
//! `sysctl`.

mod testbed;

use std::io::Read;
use std::net::UdpSocket;
use std::time::Instant;

use podwire_policy::compile;
use podwire_policy::Direction::{Egress, Ingress};
use podwire_policy_agent::dataplane::{Change, DropCounters, DropSample, DropSamples, Nftables, NodeInput};
use serde_json::json;
use testbed::Outcome::{Reached, Refused, Timeout};
use testbed::{
    apply, cluster_policy, connect_tcp, connect_tcp_denied, network_policy, on_node, pod, run,
    send_udp_within, serve, snapshot, Endpoint, DENIED_TIMEOUT,
};

#[test]
fn denied_packets_on_a_bridge_get_no_response() {
    on_node(|nft| {
        let [a, b, c] = [10, 11, 12].map(Endpoint::bridged);
        a.serve(&[80, 81]);
        let pods =
            [pod("a", json!({"app": "a"}), &a), pod("b", json!({"app": "b"}), &b), pod("c", json!({}), &c)];
        let from_b = network_policy(
            "a",
            json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [
                { "from": [{ "podSelector": { "matchLabels": { "app": "b" } } }], "ports": [{ "port": 80 }] }] }),
        );
        assert_eq!([b.tcp(&a, 80), c.tcp(&a, 80), c.tcp(&a, 99)], [Reached, Reached, Refused]);
        apply(nft, &[&pods[..], &[from_b]].concat());
        assert_eq!([b.tcp(&a, 80), b.tcp_denied(&a, 81), b.tcp_denied(&a, 99)], [Reached, Timeout, Timeout]);
        assert_eq!([c.tcp_denied(&a, 80), c.tcp_denied(&a, 99)], [Timeout, Timeout]);
        // Other pods are not affected, and nothing is without policies.
        assert_eq!([a.tcp(&b, 99), b.tcp(&c, 99)], [Refused, Refused]);
        apply(nft, &pods);
        assert_eq!([b.tcp(&a, 81), c.tcp(&a, 80)], [Reached, Reached]);
        nft.remove().unwrap();
        assert_eq!(run("nft list tables | grep -v podwire_fast_path || true"), "");
    });
}

#[test]
fn both_ends_of_routed_pods_must_allow() {
    on_node(|nft| {
        let (a, b, c) = (Endpoint::routed(10), Endpoint::routed(11), Endpoint::bridged(12));
        [&a, &b, &c].into_iter().for_each(|endpoint| endpoint.serve(&[80]));
        let pods = [
            pod("a", json!({"app": "a"}), &a),
            pod("b", json!({"app": "b"}), &b),
            pod("c", json!({"app": "c"}), &c),
        ];
        let only_to_b = network_policy(
            "out",
            json!({ "podSelector": { "matchLabels": { "app": "a" } }, "policyTypes": ["Egress"],
                "egress": [{ "to": [{ "podSelector": { "matchLabels": { "app": "b" } } }] }] }),
        );
        apply(nft, &[&pods[..], std::slice::from_ref(&only_to_b)].concat());
        assert_eq!([a.tcp(&b, 80), a.tcp_denied(&c, 80)], [Reached, Timeout]);
        assert_eq!([b.tcp(&a, 80), c.tcp(&a, 80), c.tcp(&b, 80)], [Reached, Reached, Reached]);
        let b_is_closed = network_policy("in", json!({ "podSelector": { "matchLabels": { "app": "b" } } }));
        apply(nft, &[&pods[..], &[only_to_b, b_is_closed]].concat());
        assert_eq!([a.tcp_denied(&b, 80), c.tcp_denied(&b, 80), b.tcp(&a, 80)], [Timeout, Timeout, Reached]);
    });
}

#[test]
fn the_own_node_and_the_pod_itself_are_always_reachable() {
    on_node(|nft| {
        let (external, a, b) = (Endpoint::external(), Endpoint::bridged(10), Endpoint::routed(11));
        serve(90);
        [&external, &a, &b].into_iter().for_each(|endpoint| endpoint.serve(&[80]));
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node" }, "status": { "addresses": [
            { "type": "InternalIP", "address": "192.0.2.1" }, { "type": "InternalIP", "address": "fd00:9::1" }] } });
        let closed =
            network_policy("all", json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }));
        let objects = [node, pod("a", json!({}), &a), pod("b", json!({}), &b), closed];
        apply(nft, &objects);
        for endpoint in [&a, &b] {
            // A probe, and a request from the pod to its node.
            assert_eq!([connect_tcp(&endpoint.ip4, 80), connect_tcp(&endpoint.ip6, 80)], [Reached, Reached]);
            let answers = ["192.0.2.1", "fd00:9::1", "10.1.0.1"]
                .map(|ip| endpoint.run_inside(move || connect_tcp(ip, 90)));
            assert_eq!(answers, [Reached, Reached, Reached]);
            assert_eq!(endpoint.tcp(endpoint, 80), Reached);
            assert_eq!(
                [external.tcp_denied(endpoint, 80), endpoint.tcp_denied(&external, 80)],
                [Timeout, Timeout]
            );
        }
        assert_eq!([a.tcp_denied(&b, 80), b.tcp_denied(&a, 80)], [Timeout, Timeout]);
        // An administrator's rule applies to the own node too.
        let no_node = cluster_policy(
            "node",
            json!({ "tier": "Admin", "priority": 1, "subject": { "namespaces": {} },
                "egress": [{ "action": "Deny", "to": [{ "nodes": {} }] }] }),
        );
        apply(nft, &[&objects[..], &[no_node]].concat());
        assert_eq!(a.run_inside(|| connect_tcp_denied("192.0.2.1", 90)), Timeout);
        assert_eq!(connect_tcp(&a.ip4, 80), Reached);
    });
}

/// The guard of the tunnels drops what pods send to its ports. Policies look at no packet that it lets through.
#[test]
fn packets_between_nodes_are_not_checked() {
    on_node(|nft| {
        let a = Endpoint::bridged(10);
        [90, 8472].into_iter().for_each(serve);
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node" }, "status": { "addresses": [
            { "type": "InternalIP", "address": "10.1.0.1" }] } });
        let no_node = cluster_policy(
            "node",
            json!({ "tier": "Admin", "priority": 1, "subject": { "namespaces": {} },
                "egress": [{ "action": "Deny", "to": [{ "nodes": {} }] }] }),
        );
        let program = compile(&snapshot(&[node, pod("a", json!({}), &a), no_node]), Some("node")).program;
        nft.apply(&program, &NodeInput { guarded_ports: [8472].into(), ..NodeInput::default() }).unwrap();
        assert_eq!(
            Nftables::open().unwrap().guarded_ports().unwrap(),
            [8472].into(),
            "the next agent keeps them"
        );
        let answer = |port| a.run_inside(move || send_udp_within(DENIED_TIMEOUT, "10.1.0.1", port, 9));
        assert_eq!([answer(90), answer(8472)], [Timeout, Timeout], "conntrack tracks these packets");
        run("nft add table inet t; nft add chain inet t p { type filter hook prerouting priority raw \\; }");
        run("nft add rule inet t p udp dport { 90, 8472 } notrack");
        assert_eq!([answer(90), answer(8472)], [Timeout, Reached]);
    });
}

#[test]
fn a_pod_reaches_itself_through_the_node_too() {
    on_node(|nft| {
        let a = Endpoint::routed(10);
        a.serve(&[80]);
        // As a Service whose only endpoint is the client: the packet leaves the pod and comes back.
        run("nft add table ip nat; nft add chain ip nat pre \"{ type nat hook prerouting priority -100; }\"");
        run("nft add rule ip nat pre ip daddr 10.96.0.1 dnat to 10.2.0.10");
        run("nft add chain ip nat post \"{ type nat hook postrouting priority 100; }\"");
        run("nft add rule ip nat post ip saddr 10.2.0.10 ip daddr 10.2.0.10 masquerade");
        assert_eq!(a.run_inside(|| connect_tcp("10.96.0.1", 80)), Reached);
        let closed =
            network_policy("all", json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }));
        apply(nft, &[pod("a", json!({}), &a), closed]);
        assert_eq!(a.run_inside(|| connect_tcp("10.96.0.1", 80)), Reached);
    });
}

#[test]
fn port_ranges_named_ports_udp_and_networks_with_exceptions() {
    on_node(|nft| {
        let (external, a, b) = (Endpoint::external(), Endpoint::bridged(10), Endpoint::routed(11));
        a.serve(&[80, 81, 82, 83, 84, 90]);
        let policy = network_policy(
            "a",
            json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [
                { "ports": [{ "port": "web" }, { "port": 82, "endPort": 83 }, { "port": 90, "protocol": "UDP" }],
                  "from": [{ "podSelector": {} }] },
                { "from": [{ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["192.0.2.2/32", "10.0.0.0/8"] } },
                           { "ipBlock": { "cidr": "::/0", "except": ["fd00:9::2/128", "fd00:1::/64", "fd00:2::/64"] } }] }] }),
        );
        apply(nft, &[pod("a", json!({"app": "a"}), &a), pod("b", json!({}), &b), policy]);
        assert_eq!([80, 82, 83].map(|port| b.tcp(&a, port)), [Reached; 3]);
        assert_eq!([81, 84, 90].map(|port| b.tcp_denied(&a, port)), [Timeout; 3]);
        // Fragments have no ports, but the reassembled packet has.
        for size in [10, 5000] {
            let answers = [b.udp(&a, 90, size), b.udp_denied(&a, 80, size)];
            assert_eq!(answers, [Reached, Timeout], "{size} bytes");
        }
        assert_eq!(external.tcp_denied(&a, 80), Timeout);
        external.sh(
            "ip addr flush dev eth0; ip addr add 192.0.2.3/24 dev eth0; ip route add default via 192.0.2.1",
        );
        external.sh("ip addr add fd00:9::3/64 dev eth0 nodad; ip -6 route replace default via fd00:9::1");
        assert_eq!(external.tcp(&a, 84), Reached);
    });
}

#[test]
fn tiers_apply_in_order() {
    on_node(|nft| {
        let [a, b, c] = [10, 11, 12].map(Endpoint::bridged);
        a.serve(&[80, 81]);
        let rule = |action: &str, app: &str, port: u16| {
            json!({ "action": action, "from": [{ "pods": { "podSelector": { "matchLabels": { "app": app } } } }],
                "protocols": [{ "tcp": { "destinationPort": { "number": port } } }] })
        };
        let tier = |name: &str, tier: &str, rules: serde_json::Value| {
            cluster_policy(
                name,
                json!({ "tier": tier, "priority": 1, "ingress": rules,
                "subject": { "pods": { "podSelector": { "matchLabels": { "app": "a" } } } } }),
            )
        };
        let pods = [
            pod("a", json!({"app": "a"}), &a),
            pod("b", json!({"app": "b"}), &b),
            pod("c", json!({"app": "c"}), &c),
        ];
        let admin = tier(
            "admin",
            "Admin",
            json!([rule("Accept", "b", 80), rule("Pass", "c", 80), rule("Deny", "b", 81)]),
        );
        let baseline = tier("base", "Baseline", json!([rule("Deny", "c", 80), rule("Accept", "c", 81)]));
        apply(nft, &[&pods[..], &[admin.clone(), baseline.clone()]].concat());
        assert_eq!(
            [b.tcp(&a, 80), b.tcp_denied(&a, 81), c.tcp_denied(&a, 80), c.tcp(&a, 81)],
            [Reached, Timeout, Timeout, Reached]
        );
        let closed = network_policy("closed", json!({ "podSelector": {} }));
        apply(nft, &[&pods[..], &[admin, baseline, closed]].concat());
        assert_eq!(
            [b.tcp(&a, 80), b.tcp_denied(&a, 81), c.tcp_denied(&a, 80), c.tcp_denied(&a, 81)],
            [Reached, Timeout, Timeout, Timeout]
        );
    });
}

#[test]
fn sctp_ports_differ_from_tcp_ports() {
    on_node(|nft| {
        let (a, b) = (Endpoint::routed(10), Endpoint::routed(11));
        let policy = network_policy(
            "a",
            json!({ "podSelector": { "matchLabels": { "app": "a" } },
                "ingress": [{ "ports": [{ "port": 80, "protocol": "SCTP" }] }] }),
        );
        apply(nft, &[pod("a", json!({"app": "a"}), &a), pod("b", json!({}), &b), policy]);
        // This kernel may lack SCTP: raw sockets send an INIT chunk and print what arrives.
        let listen = "import socket,sys\ns=socket.socket(socket.AF_INET,socket.SOCK_RAW,132)\ns.settimeout(20)\nprint('ready',flush=True)\ntry:\n  while 1: print(int.from_bytes(s.recv(999)[22:24],'big'),flush=True); s.settimeout(1.5)\nexcept TimeoutError: pass";
        let mut listener = a.start("python3", &["-c", listen]);
        let mut output = listener.stdout.take().unwrap();
        output.read_exact(&mut [0; 6]).unwrap();
        let send = "import socket,struct\ndef crc(d):\n  c=0xffffffff\n  for x in d:\n    c^=x\n    for _ in range(8): c=(c>>1)^(0x82f63b78 if c&1 else 0)\n  return c^0xffffffff\ns=socket.socket(socket.AF_INET,socket.SOCK_RAW,132)\nfor p in (81,80,82):\n  h=struct.pack('>HHI',4000+p,p,0); k=struct.pack('>BBHIIHHI',1,0,20,77,65536,1,1,1)\n  s.sendto(h+struct.pack('<I',crc(h+b'\\0'*4+k))+k,('10.2.0.10',0))";
        assert!(b.start("python3", &["-c", send]).wait().unwrap().success());
        let mut arrived = String::new();
        output.read_to_string(&mut arrived).unwrap();
        listener.wait().unwrap();
        assert_eq!(arrived, "80\n");
    });
}

#[test]
fn a_label_changes_elements_and_the_same_program_changes_nothing() {
    on_node(|nft| {
        let [a, b] = [10, 11].map(Endpoint::bridged);
        a.serve(&[80]);
        let policies = [
            network_policy(
                "a",
                json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [
                    { "from": [{ "podSelector": { "matchLabels": { "app": "b" } } }], "ports": [{ "port": 80 }] }] }),
            ),
            network_policy(
                "net",
                json!({ "podSelector": { "matchLabels": { "app": "a" } }, "policyTypes": ["Egress"], "egress": [
                    { "to": [{ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["10.1.2.0/24"] } }],
                      "ports": [{ "port": 1, "endPort": 99 }, { "port": "web" }] }] }),
            ),
        ];
        let objects =
            |labels| [&[pod("a", json!({"app": "a"}), &a), pod("b", labels, &b)], &policies[..]].concat();
        let (with, without) = (objects(json!({"app": "b"})), objects(json!({})));
        assert!(!apply(nft, &with).is_empty());
        assert_eq!(b.tcp(&a, 80), Reached);
        let before = run("nft -s -a list table inet podwire_policy");
        assert!(apply(nft, &with).is_empty());
        // Another process without the remembered state.
        assert!(apply(&mut Nftables::open().unwrap(), &with).is_empty());
        assert_eq!(run("nft -s -a list table inet podwire_policy"), before);

        let one_set = Change { elements: 2, ..Change::default() };
        assert_eq!(apply(nft, &without), one_set);
        assert_eq!(b.tcp_denied(&a, 80), Timeout);
        assert_eq!(apply(&mut Nftables::open().unwrap(), &with), one_set);
        assert_eq!(b.tcp(&a, 80), Reached);
        assert_eq!(run("nft -s -a list table inet podwire_policy"), before);
    });
}

#[test]
fn changes_by_other_programs_are_repaired() {
    on_node(|nft| {
        let [a, b] = [10, 11].map(Endpoint::bridged);
        a.serve(&[80]);
        let closed = network_policy(
            "a",
            json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [
            { "from": [{ "ipBlock": { "cidr": "10.9.0.0/16" } }] }] }),
        );
        let objects = [pod("a", json!({"app": "a"}), &a), pod("b", json!({}), &b), closed];
        apply(nft, &objects);
        let listed = || run("nft list table inet podwire_policy");
        let good = listed();
        for damage in [
            "nft flush chain inet podwire_policy ingress",
            "nft flush chain inet podwire_policy received_forward",
            "nft delete element inet podwire_policy ingress_4 { 10.1.0.10 }",
            "nft add element inet podwire_policy egress_4 { 10.1.0.99 : accept }",
            "nft flush set inet podwire_policy $(nft list sets inet | grep -o \"n[0-9a-f]*_4\")",
            "nft add chain inet podwire_policy stray",
            "nft insert rule inet podwire_policy egress accept",
            "nft delete table inet podwire_policy",
            "nft flush ruleset",
        ] {
            run(damage);
            assert_ne!(listed_or_nothing(), good, "{damage}");
            assert!(!apply(nft, &objects).is_empty(), "{damage}");
            assert_eq!(listed(), good, "{damage}");
            assert!(apply(nft, &objects).is_empty(), "{damage}");
        }
        assert_eq!(b.tcp_denied(&a, 80), Timeout);
    });
}

fn listed_or_nothing() -> String {
    run("nft list table inet podwire_policy 2>/dev/null || true")
}

#[test]
fn unknown_pods_are_isolated_and_others_are_not() {
    on_node(|nft| {
        let (external, a, new, other) =
            (Endpoint::external(), Endpoint::bridged(10), Endpoint::bridged(11), Endpoint::routed(12));
        [&external, &a, &new, &other].into_iter().for_each(|endpoint| endpoint.serve(&[80]));
        let program = compile(&snapshot(&[pod("a", json!({}), &a)]), Some("node")).program;
        let pod_networks = vec!["10.1.0.0/16".parse().unwrap(), "fd00:1::/64".parse().unwrap()];
        let input = NodeInput { pod_networks, ..NodeInput::default() };
        nft.apply(&program, &input).unwrap();
        assert_eq!(
            [new.tcp_denied(&external, 80), external.tcp_denied(&new, 80), a.tcp_denied(&new, 80)],
            [Timeout, Timeout, Timeout]
        );
        // The node's probes reach it. Pods of other networks and known pods are not affected.
        assert_eq!([connect_tcp(&new.ip4, 80), connect_tcp(&new.ip6, 80)], [Reached, Reached]);
        assert_eq!(
            [a.tcp(&external, 80), external.tcp(&a, 80), other.tcp(&a, 80), external.tcp(&other, 80)],
            [Reached; 4]
        );
        let program =
            compile(&snapshot(&[pod("a", json!({}), &a), pod("new", json!({}), &new)]), Some("node")).program;
        nft.apply(&program, &input).unwrap();
        assert_eq!([new.tcp(&external, 80), a.tcp(&new, 80)], [Reached, Reached]);
    });
}

#[test]
fn thousands_of_pods_and_networks_fit_into_one_transaction() {
    on_node(|nft| {
        let a = Endpoint::bridged(10);
        let external = Endpoint::external();
        a.serve(&[80]);
        let mut objects = vec![pod("a", json!({"app": "a"}), &a)];
        for number in 0..5000u32 {
            let ip = format!("10.200.{}.{}", number / 250, number % 250);
            objects.push(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": "far", "name": format!("p{number}"),
                "labels": { "app": "far" } }, "status": { "podIP": ip } }));
        }
        let blocks: Vec<_> = (0..3000u32)
            .map(|n| json!({ "ipBlock": { "cidr": format!("172.{}.{}.0/25", 16 + n / 250, n % 250) } }))
            .collect();
        let far = json!({ "namespaceSelector": {}, "podSelector": { "matchLabels": { "app": "far" } } });
        let from: Vec<_> = blocks.into_iter().chain([far]).collect();
        objects.push(network_policy(
            "a",
            json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [{ "from": from }] }),
        ));
        apply(nft, &objects);
        assert!(apply(&mut Nftables::open().unwrap(), &objects).is_empty());
        assert_eq!(external.run_inside(|| connect_tcp_denied("10.1.0.10", 80)), Timeout);
        external.sh(
            "ip addr add 10.200.3.7/32 dev eth0; ip route replace 10.1.0.0/16 via 192.0.2.1 src 10.200.3.7",
        );
        run("ip route add 10.200.3.7 via 192.0.2.2");
        assert_eq!(external.run_inside(|| connect_tcp("10.1.0.10", 80)), Reached);
    });
}

/// Input with samples of dropped packets.
fn with_samples() -> NodeInput {
    NodeInput { sample_drops: true, ..NodeInput::default() }
}

#[test]
fn only_dropped_packets_are_counted_by_pod_and_reason() {
    on_node(|nft| {
        let [a, b, c] = [10, 11, 12].map(Endpoint::bridged);
        a.serve(&[80]);
        let pods = [
            pod("a", json!({"app": "a"}), &a),
            pod("b", json!({"app": "b"}), &b),
            pod("c", json!({"app": "c"}), &c),
        ];
        let isolates = network_policy(
            "a",
            json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [
                { "from": [{ "podSelector": { "matchLabels": { "app": "b" } } }] }] }),
        );
        let denies = cluster_policy(
            "no-way-out",
            json!({ "tier": "Admin", "priority": 1, "subject": { "pods": { "podSelector": { "matchLabels": { "app": "b" } } } },
                "egress": [{ "name": "udp", "action": "Deny", "to": [{ "namespaces": {} }],
                             "protocols": [{ "udp": { "destinationPort": { "number": 80 } } }] }] }),
        );
        let objects = [&pods[..], &[isolates, denies]].concat();
        apply(nft, &objects);
        let mut counters = DropCounters::open().unwrap();
        assert_eq!(b.tcp(&a, 80), Reached);
        assert_eq!(counters.read().unwrap().pods, [].into());

        assert_eq!([c.tcp_denied(&a, 80), b.udp_denied(&a, 80, 9)], [Timeout, Timeout]);
        let counts = counters.read().unwrap();
        let (isolated, denied) = (
            (Ingress, "isolated by NetworkPolicy x/a".to_owned()),
            (Egress, "denied by ClusterNetworkPolicy no-way-out egress[0] \"udp\"".to_owned()),
        );
        let by_pod = |direction, name: &str| counts.pods.get(&(direction, name.to_owned())).copied();
        // TCP retransmits; UDP sent one datagram in each family.
        assert!(counts.reasons[&isolated] >= 2, "{counts:?}");
        assert_eq!(counts.reasons[&denied], 2, "{counts:?}");
        assert_eq!(by_pod(Ingress, "x/a"), Some(counts.reasons[&isolated]), "{counts:?}");
        assert_eq!((by_pod(Egress, "x/b"), counts.pods.len()), (Some(2), 2), "{counts:?}");

        // A changed policy is a new chain; the counters keep their values.
        apply(nft, &objects[..4]);
        let later = counters.read().unwrap();
        assert_eq!((&later.pods, later.reasons.get(&denied)), (&counts.pods, None));
        assert_eq!(later.reasons[&isolated], counts.reasons[&isolated]);
    });
}

#[test]
fn dropped_packets_are_sampled_at_a_limited_rate() {
    on_node(|nft| {
        let [a, b] = [10, 11].map(Endpoint::routed);
        let closed = network_policy("a", json!({ "podSelector": { "matchLabels": { "app": "a" } } }));
        let objects = [pod("a", json!({"app": "a"}), &a), pod("b", json!({}), &b), closed];
        let program = compile(&snapshot(&objects), Some("node")).program;
        let mut samples = DropSamples::listen().unwrap();
        nft.apply(&program, &with_samples()).unwrap();
        assert!(Nftables::open().unwrap().apply(&program, &with_samples()).unwrap().is_empty());
        assert_eq!(a.tcp(&b, 80), Refused);
        assert_eq!(samples.read().unwrap(), []);

        assert_eq!(b.tcp_denied(&a, 80), Timeout);
        let seen = samples.read().unwrap();
        let fields = |sample: &DropSample| {
            let ip = |ip: Option<std::net::IpAddr>| ip.expect("an address").to_string();
            (ip(sample.source), ip(sample.destination), sample.protocol.clone(), sample.port)
        };
        for (from, to) in [(&b.ip4, &a.ip4), (&b.ip6, &a.ip6)] {
            let packet = (from.clone(), to.clone(), "TCP".to_owned(), Some(80));
            assert!(seen.iter().any(|sample| fields(sample) == packet), "{seen:?}");
        }
        for sample in &seen {
            assert_eq!((sample.direction, nft.reason(sample)), (Ingress, "isolated by NetworkPolicy x/a"));
        }

        let address = a.ip4.clone();
        let start = Instant::now();
        b.run_inside(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            (0..5000).for_each(|_| drop(socket.send_to(b"!", (address.as_str(), 53))));
        });
        // A burst of 20, then 10 a second.
        let shown = samples.read().unwrap().len();
        let most = 20 + 10 * (start.elapsed().as_secs() as usize + 1);
        assert!((1..=most).contains(&shown), "{shown} of at most {most}");
        let counted = DropCounters::open().unwrap().read().unwrap();
        assert!(counted.pods[&(Ingress, "x/a".to_owned())] >= 5000, "{counted:?}");
    });
}
