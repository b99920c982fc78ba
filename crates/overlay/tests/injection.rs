//! Packets that a pod, a neighbour or a peer puts into the tunnels between nodes: VXLAN does not authenticate, so the node
//! must not unwrap them.

#![allow(clippy::unwrap_used)] // A test that cannot continue panics.

mod lab;

use std::process::Command;

use lab::{Lab, LabNode};
use podwire_ip::IpFamily;
use podwire_overlay::{Backend, FirewallOptions, Ipip, Vxlan};
use podwire_tests::{needs, Node, Pod, Process};

const INJECT: &str = include_str!("lab/inject.py");
/// Prints each text that it receives at UDP port 9, until `end`.
const RECEIVE: &str = "
import socket, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
s.bind(('::', 9))
print('listening', file=sys.stderr, flush=True)
text = b''
while text != b'end':
    text, sender = s.recvfrom(2000)
    print('got', text.decode(), sender[0], file=sys.stderr, flush=True)
";

fn python(node: &Node, at: Option<&Pod>, program: &str, words: &[&str]) -> Command {
    let mut command = node.command(if at.is_some() { "ip" } else { "python3" });
    if let Some(pod) = at {
        command.args(["netns", "exec", &pod.name, "python3"]);
    }
    command.args(["-c", program]).args(words);
    command
}

/// A way to put a packet into the tunnel of n2.
struct Probe<'a> {
    name: String,
    sender: &'a Node,
    pod: Option<&'a Pod>,
    /// The UDP port of VXLAN, or 0 for IPIP.
    port: &'a str,
    /// The outer source, for a raw socket; `-` for an ordinary one.
    source: &'a str,
    destination: &'a str,
    /// The node that would unwrap the packet.
    target: &'a LabNode,
    inner_source: &'a str,
}

impl Probe<'_> {
    fn send(&self, family: IpFamily, to: &str) {
        let mac = self.target.macs.borrow()[usize::from(family.is_v6())].map(|mac| mac.to_string());
        let mac = mac.as_deref().unwrap_or("00");
        let words = [self.source, self.destination, self.port, mac, self.inner_source, to, &self.name];
        let sent = python(self.sender, self.pod, INJECT, &words).output().unwrap();
        assert!(sent.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&sent.stderr));
    }
}

/// The names of the probes that the pod of n2 received.
fn received(lab: &Lab, family: IpFamily, probes: &[Probe<'_>]) -> Vec<String> {
    let (n2, n3) = (lab.node(2), lab.node(3));
    let mut receiver = Process::start(python(&n2.node, Some(&n2.pod), RECEIVE, &[]));
    receiver.expect(&["listening"]);
    let to = n2.pod_address(family);
    probes.iter().for_each(|probe| probe.send(family, &to));
    // An ordinary packet through the tunnel from the pod of n3: what came before it has arrived.
    let end = "import socket, sys\nsocket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, \
               socket.SOCK_DGRAM).sendto(b'end', (sys.argv[1], 9))";
    assert!(python(&n3.node, Some(&n3.pod), end, &[&to]).status().unwrap().success());
    receiver.expect(&["got end"]);
    let said = receiver.said();
    receiver.wait();
    let names = said.lines().filter_map(|line| line.strip_prefix("got ")?.split(' ').next());
    names.filter(|name| *name != "end").map(str::to_owned).collect()
}

fn build(lab: &Lab, backend: &dyn Backend, masquerade: bool) {
    let firewall = FirewallOptions { masquerade, ..FirewallOptions::default() };
    lab.build(backend);
    for node in &lab.nodes {
        let cluster = lab.cluster(node.number);
        podwire_overlay::apply(&mut node.host.borrow_mut(), backend, &cluster, &firewall).unwrap();
    }
}

fn check(lab: &Lab, masquerade: bool, port: u16) {
    build(lab, &Vxlan { port, ..Vxlan::default() }, masquerade);
    let port = port.to_string();
    let (n1, n2) = (lab.node(1), lab.node(2));
    for family in IpFamily::ALL {
        let v4 = family.is_v4();
        let pick = |four: &'static str, six: &'static str| if v4 { four } else { six };
        let (n1_address, n2_address) = (pick("192.168.10.11", "fd10::11"), pick("192.168.10.12", "fd10::12"));
        let (n3_address, bridge) = (pick("192.168.20.13", "fd20::13"), pick("10.244.2.1", "fd00:244:0:2::1"));
        let (own, of_n3) = (pick("10.244.1.10", "fd00:244:0:1::10"), pick("10.244.3.10", "fd00:244:0:3::10"));
        let outside = pick("203.0.113.7", "2001:db8::7");
        let from_pod = |name: &str, source, destination, target, inner_source| Probe {
            name: name.into(),
            sender: &n1.node,
            pod: Some(&n1.pod),
            port: &port,
            source,
            destination,
            target,
            inner_source,
        };
        let from_node = |name: &str, inner_source| Probe {
            pod: None,
            ..from_pod(name, "-", n2_address, n2, inner_source)
        };
        let from_neighbour =
            |name: &str, inner_source| Probe { sender: &lab.router, ..from_node(name, inner_source) };
        let own_bridge = pick("10.244.1.1", "fd00:244:0:1::1");
        let mut probes = vec![
            from_pod("pod-to-its-node", "-", n1_address, n1, outside),
            from_pod("pod-to-its-bridge", "-", own_bridge, n1, own),
            from_pod("pod-to-other-node", "-", n2_address, n2, own),
            from_pod("pod-to-other-bridge", "-", bridge, n2, own),
            from_pod("pod-as-peer-to-its-node", n3_address, n1_address, n1, of_n3),
            from_pod("pod-as-peer-to-other-node", n3_address, n2_address, n2, of_n3),
            from_pod("pod-to-its-node-in-fragments", own, n1_address, n1, outside),
            from_pod("pod-to-its-node-in-small-fragments", own, n1_address, n1, outside),
            from_pod("pod-to-other-node-in-fragments", own, n2_address, n2, own),
            from_pod("pod-to-other-node-in-small-fragments", own, n2_address, n2, own),
            from_neighbour("neighbour", of_n3),
            from_node("peer-with-source-of-another", of_n3),
            from_node("peer-with-own-source", own),
            Probe { source: n1_address, ..from_node("peer-in-fragments", own) },
        ];
        if !v4 {
            probes.insert(0, from_pod("pod-behind-options", own, n1_address, n1, outside));
        }
        assert_eq!(
            received(lab, family, &probes),
            ["peer-with-own-source", "peer-in-fragments"],
            "{family:?}, masquerade {masquerade}, port {port}"
        );
        // Without masquerading, peers forward packets of outside hosts unchanged.
        let forwarded = received(lab, family, &[from_node("forwarded", outside)]);
        assert_eq!(forwarded.is_empty(), masquerade, "{family:?}: {forwarded:?}");
    }
    lab.assert_all_talk(1430);
    if masquerade {
        assert_no_tracked_tunnel(lab, &port);
    }
}

/// conntrack has what came out of the tunnel, and nothing of the tunnel itself.
fn assert_no_tracked_tunnel(lab: &Lab, port: &str) {
    for node in &lab.nodes {
        for family in ["ipv4", "ipv6"] {
            let tracked = node.node.sh(&format!("conntrack -L -f {family} 2>/dev/null"));
            assert!(tracked.contains("icmp"), "{family}: {tracked}");
            // Some probes are inner packets for the same port, with the address of a pod.
            let is_outer = |line: &str| {
                line.contains(&format!("dport={port} "))
                    && !line.contains("10.244.")
                    && !line.contains("fd00:244:")
            };
            assert!(!tracked.lines().any(is_outer), "{family}: {tracked}");
        }
    }
}

#[test]
fn only_peers_with_their_own_pods_come_out_of_the_tunnel() {
    let lab = Lab::new(1430);
    check(&lab, true, 8472);
    check(&lab, false, 8472);
}

#[test]
fn the_tunnel_is_guarded_at_the_registered_port_too() {
    check(&Lab::new(1430), true, 4789);
}

#[test]
fn no_router_advertisement_comes_out_of_a_tunnel_whatever_the_sysctl_says() {
    let lab = Lab::new(1430);
    build(&lab, &Vxlan::default(), false);
    let (n1, n2) = (lab.node(1), lab.node(2));
    n2.node.sh("echo 2 >/proc/sys/net/ipv6/conf/flannel-v6.1/accept_ra");
    let from_peer = || Probe {
        name: "router-advertisement".into(),
        sender: &n1.node,
        pod: None,
        port: "8472",
        source: "-",
        destination: "fd10::12",
        target: n2,
        inner_source: "fe80::77",
    };
    let route = || n2.node.sh("ip -6 route show default dev flannel-v6.1");
    received(&lab, IpFamily::V6, &[from_peer()]);
    assert_eq!(route(), "");
    // Without the guard the same packet gives the node a default route.
    n2.node.sh("nft delete table inet podwire_tunnel");
    received(&lab, IpFamily::V6, &[from_peer()]);
    assert!(route().contains("via fe80::77"), "the packet is no router advertisement: {}", route());
}

#[test]
fn only_peers_with_their_own_pods_come_out_of_an_ipip_tunnel() {
    if !needs("ipip") {
        return;
    }
    let lab = Lab::new(1480);
    build(&lab, &Ipip::default(), true);
    let (n1, n2) = (lab.node(1), lab.node(2));
    let probe = |name: &str, sender, pod, destination, inner_source| Probe {
        name: name.into(),
        sender,
        pod,
        port: "0",
        source: "-",
        destination,
        target: n2,
        inner_source,
    };
    let pod = Some(&n1.pod);
    let probes = [
        probe("pod-to-its-node", &n1.node, pod, "192.168.10.11", "203.0.113.7"),
        probe("pod-to-other-node", &n1.node, pod, "192.168.10.12", "10.244.1.10"),
        probe("pod-to-other-bridge", &n1.node, pod, "10.244.2.1", "10.244.1.10"),
        probe("neighbour", &lab.router, None, "192.168.10.12", "10.244.3.10"),
        probe("peer-with-source-of-another", &n1.node, None, "192.168.10.12", "10.244.3.10"),
        probe("peer-with-own-source", &n1.node, None, "192.168.10.12", "10.244.1.10"),
    ];
    assert_eq!(received(&lab, IpFamily::V4, &probes), ["peer-with-own-source"]);
    lab.assert_pairs_talk(1480, &[(1, 2), (3, 1)], &[IpFamily::V4]);
}
