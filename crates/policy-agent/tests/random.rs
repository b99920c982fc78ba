//! Random policies by real packets: the kernel and the oracle agree about who reaches whom.

#[path = "../../policy/tests/agreement/clusters.rs"]
mod clusters;

mod stage;

use std::collections::BTreeMap;

use podwire_policy::{compile, oracle, Compiler, Packet, Protocol, Snapshot, Verdict};
use podwire_policy_agent::dataplane::{Change, Nftables, NodeInput};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use stage::probe::{Probe, Question};
use stage::{on_a_node, Place};

const WORLDS: usize = 40;
/// Ports that random policies speak of.
const SERVICES: [(Protocol, u16); 4] =
    [(Protocol::Tcp, 80), (Protocol::Tcp, 82), (Protocol::Udp, 81), (Protocol::Sctp, 80)];

#[test]
fn the_kernel_does_what_the_oracle_says() {
    on_a_node(|nft| {
        let numbers = 2..10;
        let place = |number: u8| {
            let (ip4, ip6) = (format!("10.0.0.{number}"), format!("fd00::{number}"));
            let place = Place::on_bridge(&format!("pod{number}"), (&ip4, "10.0.0.1"), (&ip6, "fd00::1"));
            (ip4, place)
        };
        let places: BTreeMap<String, Place> = numbers.map(place).collect();
        let probe = Probe::new(&places);
        let mut runner = TestRunner::deterministic();
        let mut denied = 0;
        for number in 0..WORLDS {
            let clusters::Cluster { mut snapshot, packets } =
                clusters::cluster().new_tree(&mut runner).expect("a cluster").current();
            let mut compiler = Compiler::new(&snapshot, None);
            for packet in &packets {
                assert_eq!(compiler.program().evaluate(packet), oracle::evaluate(&snapshot, packet).verdict);
            }
            nft.apply(compiler.program(), &NodeInput::default()).expect("applied");
            let questions = questions(&snapshot, &places);
            denied += questions.iter().filter(|question| !question.allowed).count();
            probe.ask(&format!("world {number}: {snapshot:#?}"), &questions);
            // Step by step the kernel gets where somebody would bring it who reads all that is there.
            for change in clusters::changes().new_tree(&mut runner).expect("changes").current() {
                change.apply(&mut snapshot, &mut compiler);
                nft.apply(compiler.program(), &NodeInput::default()).expect("applied");
            }
            let program = compile(&snapshot, None).program;
            let left = Nftables::open().and_then(|mut other| other.apply(&program, &NodeInput::default()));
            assert_eq!(left.expect("compared"), Change::default(), "world {number}: {snapshot:#?}");
        }
        // Worlds in which nothing is denied would prove nothing.
        assert!(denied > WORLDS * 20, "{denied} denials");
    });
}

fn questions(snapshot: &Snapshot, places: &BTreeMap<String, Place>) -> Vec<Question> {
    let mut questions = Vec::new();
    for (from, source) in places {
        for destination in places.values().filter(|other| other.ip4 != source.ip4) {
            for (from_ip, to_ip) in [(&source.ip4, &destination.ip4), (&source.ip6, &destination.ip6)] {
                for (protocol, port) in SERVICES {
                    let packet = Packet {
                        source: from_ip.parse().expect("an address"),
                        destination: to_ip.parse().expect("an address"),
                        service: Some((protocol, port)),
                    };
                    let allowed = oracle::evaluate(snapshot, &packet).verdict == Verdict::Allow;
                    questions.push(Question {
                        from: from.clone(),
                        ip: to_ip.clone(),
                        protocol,
                        port,
                        allowed,
                    });
                }
            }
        }
    }
    questions
}
