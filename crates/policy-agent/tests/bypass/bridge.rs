//! Frames of pods on one bridge: what the IP rules do not see, forged neighbours and routers.

use std::net::IpAddr;

use podwire_policy_agent::dataplane::{Nftables, PodPort};
use serde_json::{json, Value};

use crate::attachment::{apply, port};
use crate::frames::{arriving, Sender, ARP, IPV4, IPV6};
use crate::packets::{group, icmpv6, ip, link_local, octets, udp};
use crate::testbed::Outcome::{Reached, Timeout};
use crate::testbed::{network_policy, on_node, pod, Endpoint};

/// Pods a, b and c on the bridge; only c may send to b.
struct OnBridge {
    pods: [Endpoint; 3],
    ports: [PodPort; 3],
}

fn on_bridge(nft: &mut Nftables) -> OnBridge {
    let pods = [10, 11, 12].map(Endpoint::bridged);
    let names = ["a", "b", "c"];
    let ports = [0, 1, 2].map(|n| port(&pods[n], &format!("veth1{n}"), names[n], true));
    let mut objects: Vec<Value> =
        names.iter().zip(&pods).map(|(name, endpoint)| pod(name, json!({ "app": name }), endpoint)).collect();
    objects.push(network_policy(
        "b",
        json!({ "podSelector": { "matchLabels": { "app": "b" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "c" } } }] }] }),
    ));
    apply(nft, &objects, &ports);
    OnBridge { pods, ports }
}

#[test]
fn no_frame_bypasses_the_ingress_policy_of_a_bridged_pod() {
    on_node(|nft| {
        let OnBridge { pods: [a, b, c], ports } = on_bridge(nft);
        let macs = ports.each_ref().map(|port| port.mac.unwrap());
        let (mut from_a, mut from_c) = (Sender::new(&a, &ports[0]), Sender::new(&c, &ports[2]));
        let own = [ip(&a.ip4), ip(&a.ip6), link_local(macs[0])];
        let victim = [ip(&b.ip4), ip(&b.ip6), link_local(macs[1])];
        let vlan = |id: u16| [&[0x81, 0][..], &id.to_be_bytes()].concat();
        for (n, ether_type) in [(0, IPV4), (1, IPV6)] {
            let packet = |text: &str| udp(own[n], victim[n], (9, 9), &format!("{text} {n}"));
            from_a.add(macs[1], &[], ether_type, &packet("plain"));
            from_a.add(macs[1], &vlan(0), ether_type, &packet("vlan 0"));
            from_a.add(macs[1], &vlan(5), ether_type, &packet("vlan 5"));
            from_a.add(macs[1], &[vlan(5), vlan(6)].concat(), ether_type, &packet("two tags"));
            from_a.add(macs[1], &[0x88, 0xa8, 0, 7], ether_type, &packet("service tag"));
            from_a.add([0xff; 6], &[], ether_type, &packet("broadcast frame"));
            // A PPPoE session: version, code, session, length, protocol.
            let number = if n == 0 { [0, 0x21] } else { [0, 0x57] };
            let session = [&[0x11, 0, 0, 1, 0, 60][..], &number, &packet("pppoe")].concat();
            from_a.add(macs[1], &[], 0x8864, &session);
        }
        from_a.add(macs[1], &[], 0x88b5, b"<unknown ethertype>");
        from_a.add(macs[1], &[], 40, b"<llc>");
        for (n, to) in [
            (0, "255.255.255.255"),
            (0, "10.1.255.255"),
            (0, "224.0.0.1"),
            (0, "224.0.0.251"),
            (1, "ff02::1"),
            (1, "ff02::fb"),
            (2, "ff02::1"),
        ] {
            let text = format!("group {n} {}", to.replace([':', '.'], "-"));
            let ether_type = if n == 0 { IPV4 } else { IPV6 };
            from_a.add(group(ip(to)), &[], ether_type, &udp(own[n], ip(to), (9, 9), &text));
        }
        from_a.add(macs[1], &[], IPV6, &udp(own[1], victim[2], (9, 9), "to link-local"));
        from_a.add(macs[1], &[], IPV6, &udp(own[2], victim[1], (9, 9), "from link-local"));
        from_a.add(macs[1], &[], IPV6, &udp(own[2], victim[2], (546, 547), "link-local to dhcp"));
        from_a.add(macs[1], &[], IPV6, &udp(ip("::"), victim[1], (9, 9), "from unspecified 6"));
        from_a.add(macs[1], &[], IPV4, &udp(ip("0.0.0.0"), victim[0], (68, 67), "from unspecified 4"));
        let end = udp(ip(&c.ip4), victim[0], (9, 9), "end");
        let arrived = arriving(&b, || {
            from_a.send();
            from_c.add(macs[1], &[], IPV4, &udp(ip(&c.ip4), victim[0], (9, 9), "allowed 4"));
            from_c.add(macs[1], &[], IPV6, &udp(ip(&c.ip6), victim[1], (9, 9), "allowed 6"));
            from_c.add(macs[1], &[], IPV4, &end);
            from_c.send();
        });
        assert_eq!(arrived, ["allowed 4", "allowed 6"]);
        // A pod without policies receives groups.
        let arrived = arriving(&c, || {
            from_a.add(group(ip("ff02::1")), &[], IPV6, &udp(own[1], ip("ff02::1"), (9, 9), "group 6"));
            from_a.add(group(ip("224.0.0.1")), &[], IPV4, &udp(own[0], ip("224.0.0.1"), (9, 9), "group 4"));
            from_a.add(macs[2], &[], IPV4, &udp(own[0], ip(&c.ip4), (9, 9), "end"));
            from_a.send();
        });
        assert_eq!(arrived, ["group 6", "group 4"]);
        // Neighbour discovery and ARP still work, from nothing.
        for endpoint in [&a, &b, &c] {
            endpoint.sh("ip neigh flush dev eth0; ip -6 neigh flush dev eth0");
        }
        b.serve(&[80]);
        assert_eq!(c.tcp(&b, 80), Reached);
        assert_eq!(a.tcp_denied(&b, 80), Timeout);
    });
}

#[test]
fn no_frame_bypasses_the_egress_policy_of_a_bridged_pod() {
    on_node(|nft| {
        let pods = [10, 11].map(Endpoint::bridged);
        let ports = [0, 1].map(|n| port(&pods[n], &format!("veth1{n}"), ["a", "b"][n], true));
        let [a, b] = &pods;
        let isolated = network_policy(
            "a",
            json!({ "podSelector": { "matchLabels": { "app": "a" } }, "policyTypes": ["Egress"],
                "egress": [{ "to": [{ "podSelector": { "matchLabels": { "app": "b" } } }],
                    "ports": [{ "protocol": "UDP", "port": 7 }] }] }),
        );
        apply(
            nft,
            &[pod("a", json!({ "app": "a" }), a), pod("b", json!({ "app": "b" }), b), isolated],
            &ports,
        );
        let macs = ports.each_ref().map(|port| port.mac.unwrap());
        let mut from_a = Sender::new(a, &ports[0]);
        let own = [ip(&a.ip4), ip(&a.ip6), link_local(macs[0])];
        let receiver = [ip(&b.ip4), ip(&b.ip6), link_local(macs[1])];
        for (n, to) in [
            (0, "255.255.255.255"),
            (0, "10.1.255.255"),
            (0, "224.0.0.1"),
            (0, "224.0.0.251"),
            (0, "239.1.2.3"),
            (1, "ff02::1"),
            (1, "ff02::fb"),
            (1, "ff05::2"),
            (2, "ff02::1"),
            (2, "ff02::1:2"),
        ] {
            let ether_type = if n == 0 { IPV4 } else { IPV6 };
            for number in [7, 9] {
                let text = format!("group {n} {} {number}", to.replace([':', '.'], "-"));
                from_a.add(group(ip(to)), &[], ether_type, &udp(own[n], ip(to), (9, number), &text));
            }
        }
        for (n, ether_type) in [(0, IPV4), (1, IPV6), (2, IPV6)] {
            let text = |text: &str| format!("{text} {n}");
            from_a.add(macs[1], &[], ether_type, &udp(own[n], receiver[n], (9, 9), &text("other port")));
            from_a.add(
                [0xff; 6],
                &[],
                ether_type,
                &udp(own[n], receiver[n], (9, 9), &text("broadcast frame")),
            );
            let tagged = udp(own[n], receiver[n], (9, 7), &text("vlan 0"));
            from_a.add(macs[1], &[0x81, 0, 0, 0], ether_type, &tagged);
        }
        from_a.add(macs[1], &[], IPV6, &udp(own[2], receiver[2], (546, 547), "link-local to dhcp"));
        from_a.add(macs[1], &[], IPV6, &udp(ip("::"), receiver[1], (9, 7), "from unspecified 6"));
        from_a.add(macs[1], &[], IPV4, &udp(ip("0.0.0.0"), receiver[0], (68, 67), "from unspecified 4"));
        for (n, ether_type) in [(0, IPV4), (1, IPV6)] {
            from_a.add(macs[1], &[], ether_type, &udp(own[n], receiver[n], (9, 7), &format!("allowed {n}")));
        }
        from_a.add(macs[1], &[], IPV4, &udp(own[0], receiver[0], (9, 7), "end"));
        assert_eq!(arriving(b, || from_a.send()), ["allowed 0", "allowed 1"]);
    });
}

#[test]
fn a_bridged_pod_cannot_pose_as_a_neighbour_or_a_router() {
    on_node(|nft| {
        let OnBridge { pods: [a, _b, c], ports } = on_bridge(nft);
        let macs = ports.each_ref().map(|port| port.mac.unwrap());
        let mut from_a = Sender::new(&a, &ports[0]);
        let (own, own_link_local) = (ip(&a.ip6), link_local(macs[0]));
        let router_link_local = ip("fe80::1");
        let (all, everyone) = (ip("ff02::1"), group(ip("ff02::1")));
        let to = ip(&c.ip6);
        // Flags (override), target, and the option with the target's MAC address.
        let about =
            |target: IpAddr| [vec![0x20, 0, 0, 0], octets(target), vec![2, 1], macs[0].to_vec()].concat();
        let advertisement = |from, target, text: &str| icmpv6(from, all, 136, &about(target), text);
        from_a.add(everyone, &[], IPV6, &advertisement(own, ip("fd00:1::1"), "gateway"));
        from_a.add(everyone, &[], IPV6, &advertisement(own, ip("fd00:1::11"), "neighbour"));
        from_a.add(
            everyone,
            &[],
            IPV6,
            &advertisement(own_link_local, router_link_local, "router link-local"),
        );
        from_a.add(everyone, &[], IPV6, &advertisement(router_link_local, own, "from foreign link-local"));
        let probe = |target: IpAddr| [vec![0; 4], octets(target)].concat();
        from_a.add(everyone, &[], IPV6, &icmpv6(ip("::"), all, 135, &probe(to), "probe of another"));
        let solicit = [vec![0; 4], octets(to), vec![1, 1], macs[0].to_vec()].concat();
        let poison = icmpv6(router_link_local, to, 135, &solicit, "solicitation from foreign link-local");
        from_a.add(macs[2], &[], IPV6, &poison);
        // A router advertisement with a lifetime, and a redirect.
        let router = [64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        from_a.add(everyone, &[], IPV6, &icmpv6(own_link_local, all, 134, &router, "router"));
        let redirect = [vec![0; 4], octets(own_link_local), octets(ip("2001:db8::1"))].concat();
        from_a.add(macs[2], &[], IPV6, &icmpv6(own_link_local, to, 137, &redirect, "redirect"));
        for (from4, from6) in [(67, 547), (1234, 1234)] {
            let (answer4, answer6) = (format!("dhcp server 4 {from4}"), format!("dhcp server 6 {from6}"));
            from_a.add(macs[2], &[], IPV4, &udp(ip(&a.ip4), ip(&c.ip4), (from4, 68), &answer4));
            let answer = udp(own_link_local, link_local(macs[2]), (from6, 546), &answer6);
            from_a.add(macs[2], &[], IPV6, &answer);
            from_a.add(macs[2], &[], IPV6, &udp(own, to, (from6, 546), &format!("{answer6} from address")));
        }
        let arp = |sender: [u8; 6], address: &str, text: &str| {
            let text = format!("<{text}>");
            let ends = [&sender[..], &octets(ip(address)), &[0xff; 6], &octets(ip(address))].concat();
            [&[0, 1, 8, 0, 6, 4, 0, 2][..], &ends, text.as_bytes()].concat()
        };
        from_a.add([0xff; 6], &[], ARP, &arp(macs[0], "10.1.0.1", "arp gateway"));
        from_a.add([0xff; 6], &[], ARP, &arp(macs[0], "10.1.0.11", "arp neighbour"));
        from_a.add([0xff; 6], &[], ARP, &arp(macs[1], "10.1.0.10", "arp foreign mac"));
        // These are about the pod itself.
        from_a.add(everyone, &[], IPV6, &advertisement(own, own, "own address"));
        from_a.add(everyone, &[], IPV6, &advertisement(own_link_local, own_link_local, "own link-local"));
        from_a.add([0xff; 6], &[], ARP, &arp(macs[0], "10.1.0.10", "own arp"));
        from_a.add(macs[2], &[], IPV4, &udp(ip(&a.ip4), ip(&c.ip4), (9, 9), "end"));
        let arrived = arriving(&c, || from_a.send());
        assert_eq!(arrived, ["own address", "own link-local", "own arp"]);
    });
}

#[test]
fn isolated_pods_get_dhcp_answers_and_trunks_send_tags_only_where_asked() {
    on_node(|nft| {
        let names = ["trunk", "asks", "silent", "server"];
        let pods = [10, 11, 12, 13].map(Endpoint::bridged);
        let mut ports = [0, 1, 2, 3].map(|n| port(&pods[n], &format!("veth1{n}"), names[n], true));
        (ports[0].is_trunk, ports[1].uses_dhcp) = (true, true);
        let mut objects: Vec<Value> = names
            .iter()
            .zip(&pods)
            .map(|(name, endpoint)| pod(name, json!({ "app": name }), endpoint))
            .collect();
        let isolated =
            json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["asks", "silent"] }] });
        objects
            .push(network_policy("isolated", json!({ "podSelector": isolated, "policyTypes": ["Ingress"] })));
        // The server is no pod of this node: nothing guards its port.
        apply(nft, &objects, &ports[..3]);
        let [trunk, asks, silent, server] = &pods;
        let macs = ports.each_ref().map(|port| port.mac.unwrap());
        let everyone = [0xff; 6];
        for (endpoint, n, expected) in [(asks, 1, &["answer 4", "answer 6"][..]), (silent, 2, &[])] {
            let mut from_server = Sender::new(server, &ports[3]);
            let answer4 = udp(ip(&server.ip4), ip("255.255.255.255"), (67, 68), "answer 4");
            from_server.add(everyone, &[], IPV4, &answer4);
            let answer6 = udp(link_local(macs[3]), link_local(macs[n]), (547, 546), "answer 6");
            from_server.add(macs[n], &[], IPV6, &answer6);
            from_server.add(macs[n], &[], ARP, b"<end>");
            assert_eq!(arriving(endpoint, || from_server.send()), expected, "{}", names[n]);
        }
        let arrived = arriving(server, || {
            let mut from_trunk = Sender::new(trunk, &ports[0]);
            let packet = |text: &str| udp(ip(&trunk.ip4), ip(&server.ip4), (9, 9), text);
            from_trunk.add(macs[3], &[0x81, 0, 0, 5], IPV4, &packet("tagged"));
            from_trunk.add(macs[3], &[], 0x88b5, b"<other protocol>");
            from_trunk.add(macs[3], &[], IPV4, &packet("end"));
            from_trunk.send();
        });
        assert_eq!(arrived, ["tagged", "other protocol"]);
    });
}
