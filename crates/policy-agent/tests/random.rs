//! Random policies with real packets: the kernel and the oracle agree on every connection.

#[path = "../../policy/tests/agreement/clusters.rs"]
mod clusters;

mod testbed;

use std::collections::BTreeMap;

use podwire_policy::{compile, oracle, Compiler, Packet, Protocol, Snapshot, Verdict};
use podwire_policy_agent::dataplane::{Change, Nftables, NodeInput};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use testbed::probe::{Check, Probe};
use testbed::{on_node, Endpoint};

const CLUSTERS: usize = 40;
/// Ports that the random policies use.
const SERVICES: [(Protocol, u16); 4] =
    [(Protocol::Tcp, 80), (Protocol::Tcp, 82), (Protocol::Udp, 81), (Protocol::Sctp, 80)];

#[test]
fn the_kernel_agrees_with_the_oracle() {
    on_node(|nft| {
        let numbers = 2..10;
        let endpoint = |number: u8| {
            let (ip4, ip6) = (format!("10.0.0.{number}"), format!("fd00::{number}"));
            let endpoint =
                Endpoint::on_bridge(&format!("pod{number}"), [&ip4, &ip6], ["10.0.0.1", "fd00::1"]);
            (ip4, endpoint)
        };
        let endpoints: BTreeMap<String, Endpoint> = numbers.map(endpoint).collect();
        let probe = Probe::new(&endpoints);
        let mut runner = TestRunner::deterministic();
        let mut denied = 0;
        for number in 0..CLUSTERS {
            let clusters::Cluster { mut snapshot, packets } =
                clusters::cluster().new_tree(&mut runner).expect("a cluster").current();
            let mut compiler = Compiler::new(&snapshot, None);
            for packet in &packets {
                assert_eq!(compiler.program().evaluate(packet), oracle::evaluate(&snapshot, packet).verdict);
            }
            nft.apply(compiler.program(), &NodeInput::default()).expect("applied");
            let checks = checks(&snapshot, &endpoints);
            denied += checks.iter().filter(|check| !check.allowed).count();
            probe.run(&format!("cluster {number}: {snapshot:#?}"), &checks);
            // Incremental changes leave the kernel in the state that a full comparison expects.
            for change in clusters::changes().new_tree(&mut runner).expect("changes").current() {
                change.apply(&mut snapshot, &mut compiler);
                nft.apply(compiler.program(), &NodeInput::default()).expect("applied");
            }
            let program = compile(&snapshot, None).program;
            let left = Nftables::open().and_then(|mut other| other.apply(&program, &NodeInput::default()));
            assert_eq!(left.expect("compared"), Change::default(), "cluster {number}: {snapshot:#?}");
        }
        // Clusters without denied connections would prove nothing.
        assert!(denied > CLUSTERS * 20, "{denied} denials");
    });
}

fn checks(snapshot: &Snapshot, endpoints: &BTreeMap<String, Endpoint>) -> Vec<Check> {
    let mut checks = Vec::new();
    for (from, source) in endpoints {
        for destination in endpoints.values().filter(|other| other.ip4 != source.ip4) {
            for (from_ip, to_ip) in [(&source.ip4, &destination.ip4), (&source.ip6, &destination.ip6)] {
                for (protocol, port) in SERVICES {
                    let packet = Packet {
                        source: from_ip.parse().expect("address"),
                        destination: to_ip.parse().expect("address"),
                        service: Some((protocol, port)),
                    };
                    let allowed = oracle::evaluate(snapshot, &packet).verdict == Verdict::Allow;
                    checks.push(Check { from: from.clone(), ip: to_ip.clone(), protocol, port, allowed });
                }
            }
        }
    }
    checks
}
