//! Ways around policies on a bridge and behind a routed veth: frames and packets that the IP rules do not see, forged
//! neighbours and routers, and unusual source addresses. Each must be dropped; what a network needs must pass.

mod testbed;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::process::Stdio;

use podwire_kernel::Mac;
use podwire_policy::compile;
use podwire_policy_agent::dataplane::{Nftables, NodeInput, PodPort};
use serde_json::{json, Value};
use testbed::Outcome::{Reached, Timeout};
use testbed::{connect_tcp_denied, network_policy, on_node, pod, run, serve, snapshot, Endpoint};

const FRAMES: &str = include_str!("testbed/frames.py");
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;

/// A pod's port and MAC address.
fn port(endpoint: &Endpoint, device: &str, name: &str, bridged: bool) -> PodPort {
    let link = endpoint.sh("ip -o link show dev eth0");
    let mac: Mac =
        link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap().parse().unwrap();
    PodPort {
        device: device.into(),
        pod: format!("x/{name}"),
        bridged,
        addresses: vec![endpoint.ip4.parse().unwrap(), endpoint.ip6.parse().unwrap()],
        prefixes: Vec::new(),
        mac: Some(mac.0),
        first_mac: None,
        is_trunk: false,
        uses_dhcp: false,
    }
}

fn link_local(mac: [u8; 6]) -> IpAddr {
    let [a, b, c, d, e, f] = mac;
    let half = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(0xfe80, 0, 0, 0, half(a ^ 2, b), half(c, 0xff), half(0xfe, d), half(e, f)).into()
}

fn apply(nft: &mut Nftables, objects: &[Value], ports: &[PodPort]) {
    let program = compile(&snapshot(objects), Some("node")).program;
    nft.apply(&program, &NodeInput { ports: ports.to_vec(), ..NodeInput::default() }).unwrap();
}

fn checksum(data: &[u8]) -> u16 {
    let mut sum: u32 =
        data.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(*two.get(1).unwrap_or(&0))).sum();
    while sum >> 16 > 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

/// An IP packet with the checksum of its payload set at `at`.
fn packet(from: IpAddr, to: IpAddr, protocol: u8, mut payload: Vec<u8>, at: usize) -> Vec<u8> {
    let length = payload.len() as u16;
    let pseudo =
        [octets(from), octets(to), vec![0, protocol], length.to_be_bytes().to_vec(), payload.clone()];
    payload[at..at + 2].copy_from_slice(&checksum(&pseudo.concat()).to_be_bytes());
    if from.is_ipv6() {
        let header = [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[protocol, 255]].concat();
        return [header, octets(from), octets(to), payload].concat();
    }
    let start = [&[0x45, 0][..], &(length + 20).to_be_bytes(), &[0, 7, 0, 0, 64, protocol, 0, 0]].concat();
    let mut header = [start, octets(from), octets(to)].concat();
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [header, payload].concat()
}

fn udp(from: IpAddr, to: IpAddr, ports: (u16, u16), text: &str) -> Vec<u8> {
    let text = format!("<{text}>");
    let numbers = [ports.0, ports.1, 8 + text.len() as u16, 0].map(u16::to_be_bytes).concat();
    packet(from, to, 17, [&numbers, text.as_bytes()].concat(), 6)
}

/// An ICMPv6 message: a neighbour or router advertisement, with the text behind its options.
fn icmpv6(from: IpAddr, to: IpAddr, kind: u8, body: &[u8], text: &str) -> Vec<u8> {
    let message = [&[kind, 0, 0, 0][..], body, format!("<{text}>").as_bytes()].concat();
    packet(from, to, 58, message, 2)
}

/// A pod that sends frames.
struct Sender<'a> {
    endpoint: &'a Endpoint,
    mac: [u8; 6],
    frames: Vec<Vec<u8>>,
}

impl<'a> Sender<'a> {
    fn new(endpoint: &'a Endpoint, port: &PodPort) -> Sender<'a> {
        Sender { endpoint, mac: port.mac.unwrap(), frames: Vec::new() }
    }

    /// Adds a frame; `tags` are the VLAN tags before the EtherType.
    fn add(&mut self, to: [u8; 6], tags: &[u8], ether_type: u16, payload: &[u8]) {
        let frame = [&to, &self.mac, tags, &ether_type.to_be_bytes(), payload].concat();
        let padding = vec![0; 60usize.saturating_sub(frame.len())];
        self.frames.push([frame, padding].concat());
    }

    fn send(&mut self) {
        let mut child = self.endpoint.start_with_input("python3", &["-c", FRAMES, "send"], Stdio::piped());
        let mut input = child.stdin.take().unwrap();
        for frame in self.frames.drain(..) {
            let line: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(input, "{line}").unwrap();
        }
        drop(input);
        assert!(child.wait().unwrap().success());
    }
}

/// The texts that arrive at the endpoint while `work` runs, and until `end` does, which `work` sends last.
fn arriving(at: &Endpoint, work: impl FnOnce()) -> Vec<String> {
    let mut child = at.start("python3", &["-c", FRAMES, "sniff"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    assert_eq!(lines.next().as_deref(), Some("ready"));
    work();
    let texts = lines.take_while(|line| line != "end").collect();
    assert!(child.wait().unwrap().success());
    texts
}

/// The MAC address of an IPv4 or IPv6 group, or of all.
fn group(ip: IpAddr) -> [u8; 6] {
    match ip {
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            [1, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V4(_) => [0xff; 6],
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

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
        from_a.add(macs[2], &[], IPV4, &udp(ip(&a.ip4), ip(&c.ip4), (67, 68), "dhcp server 4"));
        from_a.add(
            macs[2],
            &[],
            IPV6,
            &udp(own_link_local, link_local(macs[2]), (547, 546), "dhcp server 6"),
        );
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
fn link_local_and_unspecified_sources_do_not_bypass_egress_isolation() {
    on_node(|nft| {
        let (a, b) = (Endpoint::bridged(10), Endpoint::routed(11));
        serve(90);
        let ports = [port(&a, "veth10", "a", true), port(&b, "ptp11", "b", false)];
        let pods = [pod("a", json!({}), &a), pod("b", json!({}), &b)];
        let devices = ["br0", "ptp11"].map(|device| {
            let line =
                format!("ip -6 -o addr show dev {device} scope link | grep -o \"fe80[^/]*\" | head -1");
            run(&line).trim().to_owned()
        });
        let node = |n: usize| format!("[{}%2]:90", devices[n]);
        let closed = testbed::cluster_policy(
            "closed",
            json!({ "tier": "Admin", "priority": 1, "subject": { "namespaces": {} },
                "egress": [{ "action": "Deny", "to": [{ "networks": ["0.0.0.0/0", "::/0"] }] }] }),
        );
        apply(nft, &[&pods[..], &[closed]].concat(), &ports);
        for (n, endpoint) in [&a, &b].into_iter().enumerate() {
            let index: u32 =
                endpoint.sh("ip -o link show dev eth0").split(':').next().unwrap().parse().unwrap();
            let to = std::net::SocketAddrV6::new(devices[n].parse().unwrap(), 90, 0, index);
            let outcome = endpoint.run_inside(move || {
                std::net::TcpStream::connect_timeout(&to.into(), std::time::Duration::from_secs(2)).is_ok()
            });
            assert!(!outcome, "{} by its link-local address", node(n));
            assert_eq!(endpoint.run_inside(|| connect_tcp_denied("10.1.0.1", 90)), Timeout);
        }
    });
}
