//! The compiled program and the oracle agree: on any policies, pods and packets, however strange.

mod worlds;

use policy::{compile, oracle, Verdict};
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
    fn what_rules_name_is_there_and_nothing_else(world in worlds::world()) {
        use policy::program::{Peer, Port};
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
        let named = |id: &policy::program::Id| rules.iter().any(|rule| rule.peer == Peer::Addresses(id.clone()));
        prop_assert!(program.addresses.keys().all(named));
        let walked: Vec<_> = program.chains.values().flat_map(|chain| &chain.stages).collect();
        prop_assert!(program.stages.keys().all(|id| walked.contains(&id)));
        let used: Vec<_> = program.endpoints.values().flat_map(|pod| [&pod.ingress, &pod.egress]).flatten().collect();
        prop_assert!(program.chains.keys().all(|id| used.contains(&id)));
    }
}
