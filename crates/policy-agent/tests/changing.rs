//! What packets meet while a program is changed. Like `packets`, it needs root and the same tools.

mod stage;

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use stage::Answer::Silence;
use stage::{apply, network_policy, on_a_node, pod, Place};

/// Datagrams from one place to another.
struct Flow {
    from: UdpSocket,
    to: UdpSocket,
}

impl Flow {
    fn between(from: &Place, to: &Place) -> Flow {
        let [from, arrive] = [from, to].map(|place| place.within(|| UdpSocket::bind("0.0.0.0:0").unwrap()));
        from.connect((to.ip4.as_str(), arrive.local_addr().unwrap().port())).unwrap();
        Flow { from, to: arrive }
    }

    /// One after the other: each must arrive before the next is sent.
    fn talks_until(&self, over: &AtomicBool) {
        self.to.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        while !over.load(Ordering::Relaxed) {
            self.from.send(b"!").unwrap();
            self.to.recv(&mut [0; 9]).expect("what is allowed before and after is allowed");
        }
    }

    /// As many as there is time for; how many that were.
    fn floods_until(&self, over: &AtomicBool) -> usize {
        let goes_on = || !over.load(Ordering::Relaxed);
        std::iter::repeat_with(|| self.from.send(b"!").unwrap()).take_while(|_| goes_on()).count()
    }

    /// How many have come and were not read.
    fn arrived(&self) -> usize {
        self.to.set_nonblocking(true).unwrap();
        std::iter::from_fn(|| self.to.recv(&mut [0; 9]).ok()).count()
    }
}

#[test]
fn a_connection_lives_through_changes_of_the_program() {
    on_a_node(|nft| {
        let [a, b] = [10, 11].map(Place::bridged);
        a.serves(&[80]);
        let pods = [pod("a", json!({"app": "a"}), &a), pod("b", json!({"app": "b"}), &b)];
        let rule = |port: u16| {
            network_policy(
                "a",
                json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [{ "ports": [{ "port": port }] }] }),
            )
        };
        apply(nft, &[&pods[..], &[rule(80)]].concat());
        let mut stream = b.within(|| TcpStream::connect((a.ip4.as_str(), 80)).expect("connected"));
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        for round in 0..20u8 {
            assert!(!apply(nft, &[&pods[..], &[rule(1000 + u16::from(round))]].concat()).is_empty());
            stream.write_all(&[round]).unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [round]);
        }
        // A new one is judged by the new program.
        assert_eq!(b.asks_in_vain(&a, 80), Silence);
    });
}

/// While a change is made, a packet may begin to be judged by the rules from before and find a way to chains from behind it.
#[test]
fn at_no_moment_of_a_change_passes_what_is_forbidden_before_and_after_it() {
    const CHANGES: usize = 2000;
    on_a_node(|nft| {
        let [a, b, c] = [10, 11, 12].map(Place::routed);
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
        let (friend, stranger) = (Flow::between(&b, &a), Flow::between(&c, &a));
        let over = AtomicBool::new(false);
        let sent = std::thread::scope(|scope| {
            scope.spawn(|| friend.talks_until(&over));
            let flood = scope.spawn(|| stranger.floods_until(&over));
            for number in 1..=CHANGES {
                apply(nft, &[&pods[..], &[allowed(number)]].concat());
            }
            over.store(true, Ordering::Relaxed);
            flood.join().unwrap()
        });
        assert_eq!(stranger.arrived(), 0, "of {sent} that were forbidden, in {CHANGES} changes");
    });
}
