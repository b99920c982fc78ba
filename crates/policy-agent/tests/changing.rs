//! Packets during changes of the program. Needs root and the same tools as `packets`.

mod testbed;

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use podwire_policy::compile;
use podwire_policy_agent::dataplane::{NodeInput, PodPort};
use serde_json::json;
use testbed::Outcome::Timeout;
use testbed::{apply, network_policy, on_node, pod, snapshot, Endpoint};

/// A stream of datagrams from one endpoint to another.
struct Flow {
    from: UdpSocket,
    to: UdpSocket,
}

impl Flow {
    fn between(from: &Endpoint, to: &Endpoint) -> Flow {
        let [from, arrive] =
            [from, to].map(|endpoint| endpoint.run_inside(|| UdpSocket::bind("0.0.0.0:0").unwrap()));
        from.connect((to.ip4.as_str(), arrive.local_addr().unwrap().port())).unwrap();
        Flow { from, to: arrive }
    }

    /// Sends one datagram after the other. Each must arrive before the next is sent.
    fn send_and_receive_until(&self, over: &AtomicBool) {
        self.to.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        while !over.load(Ordering::Relaxed) {
            self.from.send(b"!").unwrap();
            self.to.recv(&mut [0; 9]).expect("an allowed datagram arrives during the change");
        }
    }

    /// Sends as many as possible. Returns their number.
    fn flood_until(&self, over: &AtomicBool) -> usize {
        let continues = || !over.load(Ordering::Relaxed);
        std::iter::repeat_with(|| self.from.send(b"!").unwrap()).take_while(|_| continues()).count()
    }

    /// The number of datagrams that arrived and were not read.
    fn arrived(&self) -> usize {
        self.to.set_nonblocking(true).unwrap();
        std::iter::from_fn(|| self.to.recv(&mut [0; 9]).ok()).count()
    }
}

#[test]
fn a_connection_survives_changes_of_the_program() {
    on_node(|nft| {
        let [a, b] = [10, 11].map(Endpoint::bridged);
        a.serve(&[80]);
        let pods = [pod("a", json!({"app": "a"}), &a), pod("b", json!({"app": "b"}), &b)];
        let rule = |port: u16| {
            network_policy(
                "a",
                json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [{ "ports": [{ "port": port }] }] }),
            )
        };
        apply(nft, &[&pods[..], &[rule(80)]].concat());
        let mut stream = b.run_inside(|| TcpStream::connect((a.ip4.as_str(), 80)).expect("connected"));
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        for round in 0..20u8 {
            assert!(!apply(nft, &[&pods[..], &[rule(1000 + u16::from(round))]].concat()).is_empty());
            stream.write_all(&[round]).unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [round]);
        }
        // The new program applies to a new connection.
        assert_eq!(b.tcp_denied(&a, 80), Timeout);
    });
}

/// During a change, a packet that started with the old rules can be led to chains of the new ones.
#[test]
fn no_packet_passes_that_is_denied_before_and_after_a_change() {
    const CHANGES: usize = 2000;
    on_node(|nft| {
        let [a, b, c] = [10, 11, 12].map(Endpoint::routed);
        let pods =
            [pod("a", json!({"app": "a"}), &a), pod("b", json!({"app": "b"}), &b), pod("c", json!({}), &c)];
        let allowed = |number: usize| {
            let network = format!("198.{}.{}.0/24", number / 256, number % 256);
            let peers = json!([{ "podSelector": { "matchLabels": { "app": "b" } } }, { "ipBlock": { "cidr": network } }]);
            network_policy(
                "a",
                json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [{ "from": peers }] }),
            )
        };
        apply(nft, &[&pods[..], &[allowed(0)]].concat());
        let (allowed_flow, denied_flow) = (Flow::between(&b, &a), Flow::between(&c, &a));
        let over = AtomicBool::new(false);
        let sent = std::thread::scope(|scope| {
            scope.spawn(|| allowed_flow.send_and_receive_until(&over));
            let flood = scope.spawn(|| denied_flow.flood_until(&over));
            for number in 1..=CHANGES {
                apply(nft, &[&pods[..], &[allowed(number)]].concat());
            }
            over.store(true, Ordering::Relaxed);
            flood.join().unwrap()
        });
        assert_eq!(denied_flow.arrived(), 0, "of {sent} denied datagrams, in {CHANGES} changes");
    });
}

/// The map of granted prefixes refers to the pod's chain. Both become superfluous at once.
#[test]
fn the_last_pod_with_granted_prefixes_and_its_policy_are_removed_in_one_change() {
    on_node(|nft| {
        let a = Endpoint::routed(10);
        let port = PodPort {
            device: "veth10".into(),
            index: None,
            pod: "x/a".into(),
            bridged: false,
            addresses: vec![a.ip4.parse().unwrap(), a.ip6.parse().unwrap()],
            prefixes: vec!["192.168.7.0/24".parse().unwrap(), "fd00:7::/64".parse().unwrap()],
            mac: None,
            first_mac: None,
            is_trunk: false,
            uses_dhcp: false,
        };
        let isolated = network_policy("a", json!({ "podSelector": { "matchLabels": { "app": "a" } } }));
        let objects = [pod("a", json!({"app": "a"}), &a), isolated];
        let program = compile(&snapshot(&objects), Some("node")).program;
        nft.apply(&program, &NodeInput { ports: vec![port], ..NodeInput::default() }).expect("applied");
        let listed = || testbed::run("nft list table inet podwire_policy");
        assert!(listed().contains("granted_ingress_4"), "{}", listed());
        apply(nft, &[]);
        assert!(!listed().contains("granted_"), "{}", listed());
        assert!(apply(nft, &[]).is_empty());
    });
}
