//! Programs against the running kernel: real namespaces, real packets. They need root, and `ip`, `nft`, `python3` and
//! `sysctl` to set the stage and to read back.

mod stage;

use std::io::Read;
use std::net::UdpSocket;
use std::time::Instant;

use podwire_policy::compile;
use podwire_policy::Direction::{Egress, Ingress};
use podwire_policy_agent::dataplane::{Change, DropCounters, DropSample, DropSamples, Nftables, NodeInput};
use serde_json::json;
use stage::Answer::{Refused, Silence, Yes};
use stage::{
    apply, ask_tcp, ask_tcp_in_vain, cluster_policy, network_policy, on_a_node, pod, run, serve, snapshot,
    Place,
};

#[test]
fn pods_of_one_bridge_are_kept_apart_in_silence() {
    on_a_node(|nft| {
        let [a, b, c] = [10, 11, 12].map(Place::bridged);
        a.serves(&[80, 81]);
        let pods =
            [pod("a", json!({"app": "a"}), &a), pod("b", json!({"app": "b"}), &b), pod("c", json!({}), &c)];
        let from_b = network_policy(
            "a",
            json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [
                { "from": [{ "podSelector": { "matchLabels": { "app": "b" } } }], "ports": [{ "port": 80 }] }] }),
        );
        assert_eq!([b.asks(&a, 80), c.asks(&a, 80), c.asks(&a, 99)], [Yes, Yes, Refused]);
        apply(nft, &[&pods[..], &[from_b]].concat());
        assert_eq!([b.asks(&a, 80), b.asks_in_vain(&a, 81), b.asks_in_vain(&a, 99)], [Yes, Silence, Silence]);
        assert_eq!([c.asks_in_vain(&a, 80), c.asks_in_vain(&a, 99)], [Silence, Silence]);
        // Others are as before, and so is everything without policies.
        assert_eq!([a.asks(&b, 99), b.asks(&c, 99)], [Refused, Refused]);
        apply(nft, &pods);
        assert_eq!([b.asks(&a, 81), c.asks(&a, 80)], [Yes, Yes]);
        nft.remove().unwrap();
        assert_eq!(run("nft list tables"), "");
    });
}

#[test]
fn routed_pods_are_kept_apart_and_both_ends_must_allow() {
    on_a_node(|nft| {
        let (a, b, c) = (Place::routed(10), Place::routed(11), Place::bridged(12));
        [&a, &b, &c].into_iter().for_each(|place| place.serves(&[80]));
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
        assert_eq!([a.asks(&b, 80), a.asks_in_vain(&c, 80)], [Yes, Silence]);
        assert_eq!([b.asks(&a, 80), c.asks(&a, 80), c.asks(&b, 80)], [Yes, Yes, Yes]);
        let b_is_closed = network_policy("in", json!({ "podSelector": { "matchLabels": { "app": "b" } } }));
        apply(nft, &[&pods[..], &[only_to_b, b_is_closed]].concat());
        assert_eq!([a.asks_in_vain(&b, 80), c.asks_in_vain(&b, 80), b.asks(&a, 80)], [Silence, Silence, Yes]);
    });
}

#[test]
fn the_own_node_and_the_pod_itself_are_always_reached() {
    on_a_node(|nft| {
        let (world, a, b) = (Place::world(), Place::bridged(10), Place::routed(11));
        serve(90);
        [&world, &a, &b].into_iter().for_each(|place| place.serves(&[80]));
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node" }, "status": { "addresses": [
            { "type": "InternalIP", "address": "192.0.2.1" }, { "type": "InternalIP", "address": "fd00:9::1" }] } });
        let closed =
            network_policy("all", json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }));
        let objects = [node, pod("a", json!({}), &a), pod("b", json!({}), &b), closed];
        apply(nft, &objects);
        for place in [&a, &b] {
            // A probe, and what a pod asks its node for.
            assert_eq!([ask_tcp(&place.ip4, 80), ask_tcp(&place.ip6, 80)], [Yes, Yes]);
            let answers =
                ["192.0.2.1", "fd00:9::1", "10.1.0.1"].map(|ip| place.within(move || ask_tcp(ip, 90)));
            assert_eq!(answers, [Yes, Yes, Yes]);
            assert_eq!(place.asks(place, 80), Yes);
            assert_eq!([world.asks_in_vain(place, 80), place.asks_in_vain(&world, 80)], [Silence, Silence]);
        }
        assert_eq!([a.asks_in_vain(&b, 80), b.asks_in_vain(&a, 80)], [Silence, Silence]);
        // An administrator's rule is about the own node too.
        let no_node = cluster_policy(
            "node",
            json!({ "tier": "Admin", "priority": 1, "subject": { "namespaces": {} },
                "egress": [{ "action": "Deny", "to": [{ "nodes": {} }] }] }),
        );
        apply(nft, &[&objects[..], &[no_node]].concat());
        assert_eq!(a.within(|| ask_tcp_in_vain("192.0.2.1", 90)), Silence);
        assert_eq!(ask_tcp(&a.ip4, 80), Yes);
    });
}

#[test]
fn a_pod_reaches_itself_through_the_node_too() {
    on_a_node(|nft| {
        let a = Place::routed(10);
        a.serves(&[80]);
        // As a service does whose only endpoint is the caller: the packet leaves the pod and comes back.
        run("nft add table ip nat; nft add chain ip nat pre \"{ type nat hook prerouting priority -100; }\"");
        run("nft add rule ip nat pre ip daddr 10.96.0.1 dnat to 10.2.0.10");
        run("nft add chain ip nat post \"{ type nat hook postrouting priority 100; }\"");
        run("nft add rule ip nat post ip saddr 10.2.0.10 ip daddr 10.2.0.10 masquerade");
        assert_eq!(a.within(|| ask_tcp("10.96.0.1", 80)), Yes);
        let closed =
            network_policy("all", json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }));
        apply(nft, &[pod("a", json!({}), &a), closed]);
        assert_eq!(a.within(|| ask_tcp("10.96.0.1", 80)), Yes);
    });
}

#[test]
fn ports_by_range_by_name_and_of_udp_and_networks_with_holes() {
    on_a_node(|nft| {
        let (world, a, b) = (Place::world(), Place::bridged(10), Place::routed(11));
        a.serves(&[80, 81, 82, 83, 84, 90]);
        let policy = network_policy(
            "a",
            json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [
                { "ports": [{ "port": "web" }, { "port": 82, "endPort": 83 }, { "port": 90, "protocol": "UDP" }],
                  "from": [{ "podSelector": {} }] },
                { "from": [{ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["192.0.2.2/32", "10.0.0.0/8"] } },
                           { "ipBlock": { "cidr": "::/0", "except": ["fd00:9::2/128", "fd00:1::/64", "fd00:2::/64"] } }] }] }),
        );
        apply(nft, &[pod("a", json!({"app": "a"}), &a), pod("b", json!({}), &b), policy]);
        assert_eq!([80, 82, 83].map(|port| b.asks(&a, port)), [Yes; 3]);
        assert_eq!([81, 84, 90].map(|port| b.asks_in_vain(&a, port)), [Silence; 3]);
        // Fragments have no ports, but the packet that they make has.
        for size in [10, 5000] {
            let answers = [b.asks_udp(&a, 90, size), b.asks_udp_in_vain(&a, 80, size)];
            assert_eq!(answers, [Yes, Silence], "{size} bytes");
        }
        assert_eq!(world.asks_in_vain(&a, 80), Silence);
        world.sh(
            "ip addr flush dev eth0; ip addr add 192.0.2.3/24 dev eth0; ip route add default via 192.0.2.1",
        );
        world.sh("ip addr add fd00:9::3/64 dev eth0 nodad; ip -6 route replace default via fd00:9::1");
        assert_eq!(world.asks(&a, 84), Yes);
    });
}

#[test]
fn tiers_are_asked_in_their_order() {
    on_a_node(|nft| {
        let [a, b, c] = [10, 11, 12].map(Place::bridged);
        a.serves(&[80, 81]);
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
            [b.asks(&a, 80), b.asks_in_vain(&a, 81), c.asks_in_vain(&a, 80), c.asks(&a, 81)],
            [Yes, Silence, Silence, Yes]
        );
        let closed = network_policy("closed", json!({ "podSelector": {} }));
        apply(nft, &[&pods[..], &[admin, baseline, closed]].concat());
        assert_eq!(
            [b.asks(&a, 80), b.asks_in_vain(&a, 81), c.asks_in_vain(&a, 80), c.asks_in_vain(&a, 81)],
            [Yes, Silence, Silence, Silence]
        );
    });
}

#[test]
fn sctp_is_told_from_tcp() {
    on_a_node(|nft| {
        let (a, b) = (Place::routed(10), Place::routed(11));
        let policy = network_policy(
            "a",
            json!({ "podSelector": { "matchLabels": { "app": "a" } },
                "ingress": [{ "ports": [{ "port": 80, "protocol": "SCTP" }] }] }),
        );
        apply(nft, &[pod("a", json!({"app": "a"}), &a), pod("b", json!({}), &b), policy]);
        // This kernel may have no SCTP: an INIT chunk by hand, and somebody who says which ones arrive.
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
    on_a_node(|nft| {
        let [a, b] = [10, 11].map(Place::bridged);
        a.serves(&[80]);
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
        let world =
            |labels| [&[pod("a", json!({"app": "a"}), &a), pod("b", labels, &b)], &policies[..]].concat();
        let (with, without) = (world(json!({"app": "b"})), world(json!({})));
        assert!(!apply(nft, &with).is_empty());
        assert_eq!(b.asks(&a, 80), Yes);
        let before = run("nft -s -a list table inet podwire_policy");
        assert!(apply(nft, &with).is_empty());
        // Another process, which remembers nothing.
        assert!(apply(&mut Nftables::open().unwrap(), &with).is_empty());
        assert_eq!(run("nft -s -a list table inet podwire_policy"), before);

        let one_set = Change { elements: 2, ..Change::default() };
        assert_eq!(apply(nft, &without), one_set);
        assert_eq!(b.asks_in_vain(&a, 80), Silence);
        assert_eq!(apply(&mut Nftables::open().unwrap(), &with), one_set);
        assert_eq!(b.asks(&a, 80), Yes);
        assert_eq!(run("nft -s -a list table inet podwire_policy"), before);
    });
}

#[test]
fn what_others_break_is_mended() {
    on_a_node(|nft| {
        let [a, b] = [10, 11].map(Place::bridged);
        a.serves(&[80]);
        let closed = network_policy(
            "a",
            json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [
            { "from": [{ "ipBlock": { "cidr": "10.9.0.0/16" } }] }] }),
        );
        let objects = [pod("a", json!({"app": "a"}), &a), pod("b", json!({}), &b), closed];
        apply(nft, &objects);
        let listed = || run("nft list table inet podwire_policy");
        let good = listed();
        for harm in [
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
            run(harm);
            assert_ne!(listed_or_nothing(), good, "{harm}");
            assert!(!apply(nft, &objects).is_empty(), "{harm}");
            assert_eq!(listed(), good, "{harm}");
            assert!(apply(nft, &objects).is_empty(), "{harm}");
        }
        assert_eq!(b.asks_in_vain(&a, 80), Silence);
    });
}

fn listed_or_nothing() -> String {
    run("nft list table inet podwire_policy 2>/dev/null || true")
}

#[test]
fn pods_that_are_not_known_yet_are_closed_and_nobody_else_is() {
    on_a_node(|nft| {
        let (world, a, new, other) =
            (Place::world(), Place::bridged(10), Place::bridged(11), Place::routed(12));
        [&world, &a, &new, &other].into_iter().for_each(|place| place.serves(&[80]));
        let program = compile(&snapshot(&[pod("a", json!({}), &a)]), Some("node")).program;
        let guarded = vec!["10.1.0.0/16".parse().unwrap(), "fd00:1::/64".parse().unwrap()];
        let premises = NodeInput { pod_networks: guarded, ..NodeInput::default() };
        nft.apply(&program, &premises).unwrap();
        assert_eq!(
            [new.asks_in_vain(&world, 80), world.asks_in_vain(&new, 80), a.asks_in_vain(&new, 80)],
            [Silence, Silence, Silence]
        );
        // Its node's probes reach it, and pods of other networks and known ones are as ever.
        assert_eq!([ask_tcp(&new.ip4, 80), ask_tcp(&new.ip6, 80)], [Yes, Yes]);
        assert_eq!(
            [a.asks(&world, 80), world.asks(&a, 80), other.asks(&a, 80), world.asks(&other, 80)],
            [Yes; 4]
        );
        let program =
            compile(&snapshot(&[pod("a", json!({}), &a), pod("new", json!({}), &new)]), Some("node")).program;
        nft.apply(&program, &premises).unwrap();
        assert_eq!([new.asks(&world, 80), a.asks(&new, 80)], [Yes, Yes]);
    });
}

#[test]
fn thousands_of_pods_and_networks_fit_into_one_transaction() {
    on_a_node(|nft| {
        let a = Place::bridged(10);
        let world = Place::world();
        a.serves(&[80]);
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
        assert_eq!(world.within(|| ask_tcp_in_vain("10.1.0.10", 80)), Silence);
        world.sh(
            "ip addr add 10.200.3.7/32 dev eth0; ip route replace 10.1.0.0/16 via 192.0.2.1 src 10.200.3.7",
        );
        run("ip route add 10.200.3.7 via 192.0.2.2");
        assert_eq!(world.within(|| ask_tcp("10.1.0.10", 80)), Yes);
    });
}

/// A node whose dropped packets are shown, too.
fn with_samples() -> NodeInput {
    NodeInput { sample_drops: true, ..NodeInput::default() }
}

#[test]
fn dropped_packets_are_counted_by_pod_and_reason_and_what_passes_is_not() {
    on_a_node(|nft| {
        let [a, b, c] = [10, 11, 12].map(Place::bridged);
        a.serves(&[80]);
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
        assert_eq!(b.asks(&a, 80), Yes);
        assert_eq!(counters.read().unwrap().pods, [].into());

        assert_eq!([c.asks_in_vain(&a, 80), b.asks_udp_in_vain(&a, 80, 9)], [Silence, Silence]);
        let drops = counters.read().unwrap();
        let (isolated, denied) = (
            (Ingress, "isolated by NetworkPolicy x/a".to_owned()),
            (Egress, "denied by ClusterNetworkPolicy no-way-out egress[0] \"udp\"".to_owned()),
        );
        let by_pod = |direction, name: &str| drops.pods.get(&(direction, name.to_owned())).copied();
        // TCP asks again and again; UDP asked once with each family.
        assert!(drops.reasons[&isolated] >= 2, "{drops:?}");
        assert_eq!(drops.reasons[&denied], 2, "{drops:?}");
        assert_eq!(by_pod(Ingress, "x/a"), Some(drops.reasons[&isolated]), "{drops:?}");
        assert_eq!((by_pod(Egress, "x/b"), drops.pods.len()), (Some(2), 2), "{drops:?}");

        // Another policy is another chain; what was counted before stays.
        apply(nft, &objects[..4]);
        let later = counters.read().unwrap();
        assert_eq!((&later.pods, later.reasons.get(&denied)), (&drops.pods, None));
        assert_eq!(later.reasons[&isolated], drops.reasons[&isolated]);
    });
}

#[test]
fn some_dropped_packets_are_shown_and_a_flood_shows_no_more_than_a_few() {
    on_a_node(|nft| {
        let [a, b] = [10, 11].map(Place::routed);
        let closed = network_policy("a", json!({ "podSelector": { "matchLabels": { "app": "a" } } }));
        let objects = [pod("a", json!({"app": "a"}), &a), pod("b", json!({}), &b), closed];
        let program = compile(&snapshot(&objects), Some("node")).program;
        let mut samples = DropSamples::listen().unwrap();
        nft.apply(&program, &with_samples()).unwrap();
        assert!(Nftables::open().unwrap().apply(&program, &with_samples()).unwrap().is_empty());
        assert_eq!(a.asks(&b, 80), Refused);
        assert_eq!(samples.read().unwrap(), []);

        assert_eq!(b.asks_in_vain(&a, 80), Silence);
        let seen = samples.read().unwrap();
        let tell = |sample: &DropSample| {
            let ip = |ip: Option<std::net::IpAddr>| ip.expect("an address").to_string();
            (ip(sample.source), ip(sample.destination), sample.protocol.clone(), sample.port)
        };
        for (from, to) in [(&b.ip4, &a.ip4), (&b.ip6, &a.ip6)] {
            let packet = (from.clone(), to.clone(), "TCP".to_owned(), Some(80));
            assert!(seen.iter().any(|sample| tell(sample) == packet), "{seen:?}");
        }
        for sample in &seen {
            assert_eq!((sample.direction, nft.reason(sample)), (Ingress, "isolated by NetworkPolicy x/a"));
        }

        let address = a.ip4.clone();
        let began = Instant::now();
        b.within(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            (0..5000).for_each(|_| drop(socket.send_to(b"!", (address.as_str(), 53))));
        });
        // Twenty at once, ten in a second.
        let shown = samples.read().unwrap().len();
        let most = 20 + 10 * (began.elapsed().as_secs() as usize + 1);
        assert!((1..=most).contains(&shown), "{shown} of at most {most}");
        let counted = DropCounters::open().unwrap().read().unwrap();
        assert!(counted.pods[&(Ingress, "x/a".to_owned())] >= 5000, "{counted:?}");
    });
}
