//! The compiled program and the oracle agree on random policies, pods and packets.

mod clusters;

use std::collections::BTreeSet;

use clusters::Cluster;
use podwire_policy::{compile, oracle, Compiler, Verdict};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn program_and_oracle_agree(cluster in clusters::cluster()) {
        let Cluster { snapshot, packets } = cluster;
        let program = compile(&snapshot, None).program;
        for packet in packets {
            let evaluation = oracle::evaluate(&snapshot, &packet);
            prop_assert_eq!(program.evaluate(&packet), evaluation.verdict, "{:?} {:#?} {:#?}", packet, evaluation, program);
        }
    }

    #[test]
    fn the_order_of_objects_does_not_matter(cluster in clusters::cluster()) {
        let mut reversed = cluster.snapshot.clone();
        reversed.pods.reverse();
        reversed.network_policies.reverse();
        reversed.cluster_network_policies.reverse();
        reversed.nodes.reverse();
        reversed.namespaces.reverse();
        let (one, other) = (compile(&cluster.snapshot, None), compile(&reversed, None));
        prop_assert_eq!(one.program, other.program);
        prop_assert_eq!(one.warnings, other.warnings);
    }

    #[test]
    fn programs_of_single_nodes_agree_with_the_whole_program(cluster in clusters::cluster()) {
        let Cluster { snapshot, packets } = cluster;
        let whole = compile(&snapshot, None).program;
        let parts = ["n0", "n1", ""].map(|node| compile(&snapshot, Some(node)).program);
        for packet in packets {
            let of_parts = parts.iter().fold(Verdict::Allow, |all, part| all.and(part.evaluate(&packet)));
            prop_assert_eq!(of_parts, whole.evaluate(&packet));
        }
    }

    #[test]
    fn an_updated_program_equals_a_new_one(
        cluster in clusters::cluster(), changes in clusters::changes(), node in prop::option::of(Just("n0"))
    ) {
        let Cluster { mut snapshot, packets } = cluster;
        let mut compiler = Compiler::new(&snapshot, node);
        for change in changes {
            change.apply(&mut snapshot, &mut compiler);
            prop_assert_eq!(compiler.program(), &compile(&snapshot, node).program);
            prop_assert_eq!(compiler.unmatched(), Compiler::new(&snapshot, node).unmatched());
        }
        // The result is undefined while two pods have the same address.
        let addresses: Vec<_> = snapshot.pods.iter().filter(|pod| pod.has_pod_network()).flat_map(|pod| pod.addresses()).collect();
        let distinct: BTreeSet<_> = addresses.iter().collect();
        if node.is_none() && distinct.len() == addresses.len() {
            for packet in packets {
                let verdict = oracle::evaluate(&snapshot, &packet).verdict;
                prop_assert_eq!(compiler.program().evaluate(&packet), verdict, "{:?}", packet);
            }
        }
    }

    #[test]
    fn pods_that_lose_something_are_restricted(
        cluster in clusters::cluster(), changes in clusters::changes(), node in prop::option::of(Just("n0"))
    ) {
        let Cluster { mut snapshot, packets } = cluster;
        let mut compiler = Compiler::new(&snapshot, node);
        let mut before = compiler.program().clone();
        for change in changes {
            change.apply(&mut snapshot, &mut compiler);
            let now = compiler.program();
            let restricted = now.restricted_since(&before);
            for packet in &packets {
                if before.evaluate(packet) == Verdict::Allow && now.evaluate(packet) == Verdict::Deny {
                    let found = restricted.contains(&packet.source) || restricted.contains(&packet.destination);
                    prop_assert!(found, "{:?} {:?}", packet, restricted);
                }
            }
            before = now.clone();
        }
    }

    #[test]
    fn several_changes_before_a_compilation_equal_a_new_program(cluster in clusters::cluster(), changes in clusters::changes()) {
        let mut snapshot = cluster.snapshot;
        let mut compiler = Compiler::new(&snapshot, None);
        for change in changes {
            change.apply(&mut snapshot, &mut compiler);
        }
        prop_assert_eq!(compiler.program(), &compile(&snapshot, None).program);
    }

    #[test]
    fn the_program_contains_exactly_what_its_rules_name(cluster in clusters::cluster()) {
        use podwire_policy::program::{Peer, Port};
        let program = compile(&cluster.snapshot, None).program;
        let rules: Vec<_> = program.stages.values().flat_map(|stage| &stage.rules).collect();
        for rule in &rules {
            match &rule.peer {
                Peer::Addresses(id) => prop_assert!(program.addresses.contains_key(id)),
                Peer::Networks(id) => prop_assert!(program.networks.contains_key(id)),
                Peer::Anyone | Peer::OwnNode => {}
            }
            match &rule.port {
                Port::Numbers(id) => prop_assert!(program.ports.contains_key(id)),
                Port::Named(id) => prop_assert!(program.named_ports.contains_key(id)),
                Port::Any => {}
            }
        }
        let named = |id: &podwire_policy::program::Id| rules.iter().any(|rule| rule.peer == Peer::Addresses(id.clone()));
        prop_assert!(program.addresses.keys().all(named));
        let used_stages: Vec<_> = program.chains.values().flat_map(|chain| &chain.stages).collect();
        prop_assert!(program.stages.keys().all(|id| used_stages.contains(&id)));
        let used_chains: Vec<_> = program.endpoints.values().flat_map(|pod| [&pod.ingress, &pod.egress]).flatten().collect();
        prop_assert!(program.chains.keys().all(|id| used_chains.contains(&id)));
    }
}
