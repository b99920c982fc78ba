//! The compiled program and the oracle agree: on any policies, pods and packets, however strange.

mod worlds;

use std::collections::BTreeSet;

use podwire_policy::{compile, oracle, Compiler, Verdict};
use proptest::prelude::*;
use worlds::World;

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn program_and_oracle_agree(world in worlds::world()) {
        let World { snapshot, packets } = world;
        let program = compile(&snapshot, None).program;
        for packet in packets {
            let judgement = oracle::judge(&snapshot, &packet);
            prop_assert_eq!(program.judge(&packet), judgement.verdict, "{:?} {:#?} {:#?}", packet, judgement, program);
        }
    }

    #[test]
    fn the_same_objects_in_another_order_are_the_same_program(world in worlds::world()) {
        let mut turned = world.snapshot.clone();
        turned.pods.reverse();
        turned.network_policies.reverse();
        turned.cluster_network_policies.reverse();
        turned.nodes.reverse();
        turned.namespaces.reverse();
        let (one, other) = (compile(&world.snapshot, None), compile(&turned, None));
        prop_assert_eq!(one.program, other.program);
        prop_assert_eq!(one.warnings, other.warnings);
    }

    #[test]
    fn a_program_for_one_node_judges_its_pods_as_the_whole_does(world in worlds::world()) {
        let World { snapshot, packets } = world;
        let whole = compile(&snapshot, None).program;
        let parts = ["n0", "n1", ""].map(|node| compile(&snapshot, Some(node)).program);
        for packet in packets {
            let of_parts = parts.iter().fold(Verdict::Allow, |all, part| all.and(part.judge(&packet)));
            prop_assert_eq!(of_parts, whole.judge(&packet));
        }
    }

    #[test]
    fn a_program_reached_by_changes_is_the_one_compiled_from_scratch(
        world in worlds::world(), changes in worlds::changes(), node in prop::option::of(Just("n0"))
    ) {
        let World { mut snapshot, packets } = world;
        let mut compiler = Compiler::of(&snapshot, node);
        for change in changes {
            change.make(&mut snapshot, &mut compiler);
            prop_assert_eq!(compiler.program(), &compile(&snapshot, node).program);
            prop_assert_eq!(compiler.unmatched(), Compiler::of(&snapshot, node).unmatched());
        }
        // Who of two pods with one address is meant, nobody can tell.
        let addresses: Vec<_> = snapshot.pods.iter().filter(|pod| pod.is_wired()).flat_map(|pod| pod.addresses()).collect();
        let distinct: BTreeSet<_> = addresses.iter().collect();
        if node.is_none() && distinct.len() == addresses.len() {
            for packet in packets {
                let verdict = oracle::judge(&snapshot, &packet).verdict;
                prop_assert_eq!(compiler.program().judge(&packet), verdict, "{:?}", packet);
            }
        }
    }

    #[test]
    fn whoever_lost_something_by_changes_is_named(
        world in worlds::world(), changes in worlds::changes(), node in prop::option::of(Just("n0"))
    ) {
        let World { mut snapshot, packets } = world;
        let mut compiler = Compiler::of(&snapshot, node);
        let mut before = compiler.program().clone();
        for change in changes {
            change.make(&mut snapshot, &mut compiler);
            let now = compiler.program();
            let narrowed = now.narrowed_since(&before);
            for packet in &packets {
                if before.judge(packet) == Verdict::Allow && now.judge(packet) == Verdict::Deny {
                    let named = narrowed.contains(&packet.source) || narrowed.contains(&packet.destination);
                    prop_assert!(named, "{:?} {:?}", packet, narrowed);
                }
            }
            before = now.clone();
        }
    }

    #[test]
    fn many_changes_at_once_are_like_one_after_the_other(world in worlds::world(), changes in worlds::changes()) {
        let mut snapshot = world.snapshot;
        let mut compiler = Compiler::of(&snapshot, None);
        for change in changes {
            change.make(&mut snapshot, &mut compiler);
        }
        prop_assert_eq!(compiler.program(), &compile(&snapshot, None).program);
    }

    #[test]
    fn what_rules_name_is_there_and_nothing_else(world in worlds::world()) {
        use podwire_policy::program::{Peer, Port};
        let program = compile(&world.snapshot, None).program;
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
        let walked: Vec<_> = program.chains.values().flat_map(|chain| &chain.stages).collect();
        prop_assert!(program.stages.keys().all(|id| walked.contains(&id)));
        let used: Vec<_> = program.endpoints.values().flat_map(|pod| [&pod.ingress, &pod.egress]).flatten().collect();
        prop_assert!(program.chains.keys().all(|id| used.contains(&id)));
    }
}
