//! Frames with a VLAN tag, and of other protocols than IP and ARP. IP rules do not see them, so they must not get around
//! `macspoofchk` and `ingressPolicy: isolated`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use podwire_tests::{assert_same, ours, Chain, Node, Pod};
use serde_json::{json, Value};

const FRAMES: &str = include_str!("../../crates/policy-agent/tests/testbed/frames.py");
const IPV4: &[u8] = &[0x08, 0x00];

/// Starts frames.py in a pod.
fn frames(node: &Node, pod: &Pod, verb: &str) -> std::process::Child {
    let mut command = node.command("ip");
    command.args(["netns", "exec", &pod.name, "python3", "-c", FRAMES, verb, "eth0"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3")
}

fn mac(node: &Node, pod: &Pod) -> String {
    node.sh(&format!("ip -n {} -br link show eth0", pod.name))
        .split_whitespace()
        .nth(2)
        .expect("a MAC")
        .replace(':', "")
}

/// A UDP packet of no particular meaning.
fn packet(from: &str, to: &str, text: &str) -> Vec<u8> {
    let octets = |address: &str| address.parse::<std::net::Ipv4Addr>().expect("an address").octets();
    let data = format!("<{text}>");
    let (total, udp) = (28 + data.len() as u8, 8 + data.len() as u8);
    let head = [&[0x45, 0, 0, total, 0, 1, 0, 0, 64, 17, 0, 0][..], &octets(from), &octets(to)].concat();
    let sum: u32 = head.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    let mut head = head;
    head[10..12].copy_from_slice(&sum.to_be_bytes());
    [&head[..], &[0, 9, 0, 9, 0, udp, 0, 0], data.as_bytes()].concat()
}

/// The texts of the frames that arrive at `to`. The pod `end` sends the last one, by ARP.
fn arriving(node: &Node, [from, to, end]: [&Pod; 3], addresses: [&str; 2]) -> Vec<String> {
    let (own, theirs) = (mac(node, from), mac(node, to));
    let mut sniffer = frames(node, to, "sniff");
    let mut lines =
        BufReader::new(sniffer.stdout.take().expect("stdout")).lines().map(|line| line.expect("a line"));
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let text = |text: &str| packet(addresses[0], addresses[1], text);
    let session = [&[0x88, 0x64, 0x11, 0, 0, 1, 0, 60, 0, 0x21][..], &text("pppoe")].concat();
    let all = [
        [IPV4, &text("untagged")].concat(),
        [&[0x81, 0, 0, 0][..], IPV4, &text("vlan 0")].concat(),
        [&[0x81, 0, 0, 5][..], IPV4, &text("vlan 5")].concat(),
        [&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6][..], IPV4, &text("two tags")].concat(),
        session,
        [&[0x88, 0xb5][..], b"<other protocol>"].concat(),
    ];
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    // The bridge drops ARP that is shorter than its header.
    let padding = "00".repeat(40);
    send(node, from, all.iter().map(|frame| format!("{theirs}{own}{}{padding}", hex(frame))));
    send(node, end, [format!("{theirs}{}0806{}{padding}", mac(node, end), hex(b"<end>"))].into_iter());
    let texts = lines.take_while(|line| line != "end").collect();
    assert!(sniffer.wait().expect("an end").success());
    texts
}

fn send(node: &Node, from: &Pod, frames_of: impl Iterator<Item = String>) {
    let mut sender = frames(node, from, "send");
    let mut input = sender.stdin.take().expect("stdin");
    for frame in frames_of {
        std::io::Write::write_all(&mut input, format!("{frame}\n").as_bytes()).expect("frames are read");
    }
    drop(input);
    assert!(sender.wait().expect("an end").success());
}

fn chain(bridge: Value, more: &[Value]) -> Chain {
    let mut plugin = json!({"type": "bridge", "bridge": "br0", "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.4.0.0/24"}});
    for (key, value) in bridge.as_object().expect("an object") {
        plugin[key] = value.clone();
    }
    Chain { version: "1.1.0".into(), ..Chain::new(&ours(), "net", &[&[plugin], more].concat()) }
}

const ALL: [&str; 6] = ["untagged", "vlan 0", "vlan 5", "two tags", "pppoe", "other protocol"];

#[test]
fn tagged_frames_get_around_neither_the_spoof_check_nor_the_isolation() {
    let isolated = json!({"type": "firewall", "ingressPolicy": "isolated"});
    for (title, chain, expected) in [
        ("no guard", chain(json!({}), &[]), &ALL[..]),
        ("macspoofchk", chain(json!({"macspoofchk": true}), &[]), &ALL[..1]),
        ("isolated", chain(json!({}), &[isolated]), &[]),
    ] {
        let node = Node::new();
        let before = node.leftovers();
        let pods = ["a", "b", "end"].map(|name| node.pod(name));
        let results = pods.each_ref().map(|pod| chain.add(&node, pod));
        assert_eq!(arriving(&node, pods.each_ref(), ["10.4.0.2", "10.4.0.3"]), expected, "{title}");
        for (pod, result) in pods.iter().zip(&results) {
            chain.check(&node, pod, result).unwrap_or_else(|output| panic!("{title}: {}", output.stdout));
        }
        if title != "no guard" {
            node.sh("nft flush set bridge podwire_spoof untagged");
            let lost = chain.check(&node, &pods[0], &results[0]).expect_err("CHECK sees it");
            assert!(
                lost.stdout.contains("lost its spoof check")
                    || lost.stdout.contains("may send tagged frames")
            );
        }
        for (pod, result) in pods.iter().zip(&results) {
            chain.del(&node, pod, Some(result));
            node.remove(pod);
        }
        chain.gc(&node, &[]);
        node.sh("ip link delete br0");
        assert_same(&before, &node.leftovers(), title);
    }
}
