use proptest::prelude::*;

use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn of(networks: &[(&str, u8)], excluded: &[&str]) -> NodeCidrs {
    let networks: Vec<(IpNet, u8)> = networks.iter().map(|(text, len)| (net(text), *len)).collect();
    let excluded: Vec<IpNet> = excluded.iter().map(|text| net(text)).collect();
    NodeCidrs::new(&networks, &excluded).unwrap()
}

fn assign(cidrs: &mut NodeCidrs, node: &str) -> String {
    let given = cidrs.assign(node).unwrap();
    given.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_lowest_cidr_of_both_families_is_assigned_first() {
    let mut cidrs = of(&[("10.244.0.0/16", 24), ("fd00:244::/48", 64)], &[]);
    assert_eq!(assign(&mut cidrs, "a"), "10.244.0.0/24 fd00:244::/64");
    assert_eq!(assign(&mut cidrs, "b"), "10.244.1.0/24 fd00:244:0:1::/64");
    assert_eq!(assign(&mut cidrs, "a"), "10.244.0.0/24 fd00:244::/64", "again");
    let mut small = of(&[("fd00::/120", 124)], &[]);
    assert_eq!(assign(&mut small, "a"), "fd00::/124");
    assert_eq!(assign(&mut small, "b"), "fd00::10/124");
    let mut one = of(&[("10.0.0.0/24", 24)], &[]);
    assert_eq!(assign(&mut one, "a"), "10.0.0.0/24");
    assert!(one.assign("b").is_err());
}

#[test]
fn the_edges_of_the_address_space_do_not_overflow() {
    let mut top = of(&[("255.255.255.0/24", 25)], &[]);
    assert_eq!(assign(&mut top, "a"), "255.255.255.0/25");
    assert_eq!(assign(&mut top, "b"), "255.255.255.128/25");
    assert!(top.assign("c").is_err());
    top.release("b");
    assert_eq!(assign(&mut top, "c"), "255.255.255.128/25");
    let mut top = of(&[("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127", 128)], &[]);
    assert_eq!((count_assignable(&mut top), top.assign("x").is_err()), (2, true));
    let mut whole = of(&[("::/0", 0)], &[]);
    assert_eq!((count_assignable(&mut whole), whole.assign("x").is_err()), (1, true));
    let mut all = of(&[("::/0", 1)], &[]);
    assert_eq!((count_assignable(&mut all), all.assign("x").is_err()), (2, true));
}

fn count_assignable(cidrs: &mut NodeCidrs) -> usize {
    (0..).take_while(|number| cidrs.assign(&format!("n{number}")).is_ok()).count()
}

#[test]
fn the_service_range_is_excluded_however_large() {
    let mut cidrs = of(&[("10.0.0.0/8", 24)], &["10.0.0.0/9"]);
    assert_eq!(assign(&mut cidrs, "a"), "10.128.0.0/24");
    cidrs.exclude(net("10.128.1.7/32"));
    assert_eq!(assign(&mut cidrs, "b"), "10.128.2.0/24");
    let mut none = of(&[("10.0.0.0/16", 24)], &["10.0.0.0/8"]);
    assert!(none.assign("a").is_err());
    let mut other = of(&[("10.0.0.0/16", 24)], &["10.96.0.0/12", "fd00::/108"]);
    assert_eq!(assign(&mut other, "a"), "10.0.0.0/24");
}

#[test]
fn released_cidrs_are_assigned_last_and_in_the_order_of_their_release() {
    let mut cidrs = of(&[("10.0.0.0/22", 24)], &[]);
    for node in ["a", "b", "c"] {
        assign(&mut cidrs, node);
    }
    cidrs.release("b");
    cidrs.release("a");
    assert_eq!(assign(&mut cidrs, "d"), "10.0.3.0/24", "never assigned");
    assert_eq!(assign(&mut cidrs, "e"), "10.0.1.0/24", "b's, released first");
    assert_eq!(assign(&mut cidrs, "f"), "10.0.0.0/24");
    let error = cidrs.assign("g").unwrap_err().to_string();
    assert!(error.starts_with("10.0.0.0/22 has no CIDR left for node \"g\" (CIDRNotAvailable)"), "{error}");
}

#[test]
fn the_state_is_restored_from_the_nodes() {
    let mut cidrs = of(&[("10.0.0.0/22", 24)], &[]);
    assert!(cidrs.observe("a", &[net("10.0.0.0/24")]).is_empty());
    assert!(cidrs.observe("b", &[net("10.0.2.0/24")]).is_empty());
    assert_eq!(assign(&mut cidrs, "a"), "10.0.0.0/24", "what it has");
    assert_eq!(assign(&mut cidrs, "c"), "10.0.1.0/24");
    assert_eq!(assign(&mut cidrs, "d"), "10.0.3.0/24");
    assert_eq!(cidrs.find("b"), Some(&[net("10.0.2.0/24")][..]));
    assert_eq!(cidrs.owners(net("10.0.2.0/24")), ["b"]);
}

#[test]
fn a_failed_assignment_leaks_nothing_of_the_other_family() {
    let mut cidrs = of(&[("10.0.0.0/22", 24), ("fd00::/63", 64)], &[]);
    assign(&mut cidrs, "a");
    assign(&mut cidrs, "b");
    for _ in 0..10 {
        assert!(
            matches!(cidrs.assign("c"), Err(NodeCidrsError::Exhausted { network, .. }) if network == net("fd00::/63"))
        );
    }
    assert_eq!(cidrs.find("c"), None);
    cidrs.release("a");
    // The failed attempts assigned and released 10.0.2.0/24 and 10.0.3.0/24 in turn.
    let given = cidrs.assign("c").unwrap();
    assert_eq!(given[1], net("fd00::/64"));
    assert_eq!(cidrs.pools[0].free(), 2);
}

#[test]
fn a_duplicate_cidr_is_reported_and_free_after_both_nodes_are_gone() {
    let mut cidrs = of(&[("10.0.0.0/23", 24)], &[]);
    assert!(cidrs.observe("a", &[net("10.0.0.0/24")]).is_empty());
    let shared = |node: &str, with: &str| CidrProblem::Duplicate {
        node: node.into(),
        cidr: net("10.0.0.0/24"),
        with: vec![with.into()],
    };
    assert_eq!(cidrs.observe("b", &[net("10.0.0.0/24")]), [shared("b", "a")]);
    assert_eq!(cidrs.problems(), [shared("a", "b"), shared("b", "a")]);
    assert_eq!(assign(&mut cidrs, "c"), "10.0.1.0/24");
    cidrs.release("a");
    assert!(cidrs.assign("d").is_err(), "b still has it");
    assert!(cidrs.problems().is_empty());
    cidrs.release("b");
    assert_eq!(assign(&mut cidrs, "d"), "10.0.0.0/24");
}

#[test]
fn cidrs_of_other_sizes_and_networks_do_not_block_other_nodes() {
    let mut cidrs = of(&[("10.0.0.0/21", 24)], &[]);
    assert!(cidrs.observe("wide", &[net("10.0.2.0/23")]).is_empty());
    assert!(cidrs.observe("narrow", &[net("10.0.1.128/25")]).is_empty());
    let outside = cidrs.observe("outside", &[net("192.168.0.0/24"), net("fd00::/64")]);
    assert_eq!(outside.len(), 2);
    assert!(outside.iter().all(|problem| matches!(problem, CidrProblem::OutsideNetworks { .. })));
    assert_eq!(assign(&mut cidrs, "a"), "10.0.0.0/24");
    assert_eq!(assign(&mut cidrs, "b"), "10.0.4.0/24");
    cidrs.release("wide");
    cidrs.release("narrow");
    for (node, range) in [("c", 5), ("d", 6), ("e", 7), ("f", 2), ("g", 3), ("h", 1)] {
        assert_eq!(assign(&mut cidrs, node), format!("10.0.{range}.0/24"));
    }
    let mut cidrs = of(&[("10.0.0.0/21", 24)], &[]);
    let all = cidrs.observe("all", &[net("10.0.0.0/8")]);
    assert_eq!(all, [CidrProblem::OutsideNetworks { node: "all".into(), cidr: net("10.0.0.0/8") }]);
    assert!(cidrs.assign("a").is_err(), "it has the whole network");
}

#[test]
fn networks_and_lengths_are_checked() {
    let why = |networks: &[(&str, u8)]| {
        let networks: Vec<(IpNet, u8)> = networks.iter().map(|(text, len)| (net(text), *len)).collect();
        NodeCidrs::new(&networks, &[]).unwrap_err().to_string()
    };
    assert!(why(&[]).starts_with("there must be one cluster network, or one of each family, not []"));
    assert!(why(&[("10.0.0.0/8", 24), ("11.0.0.0/8", 24)]).contains("[10.0.0.0/8, 11.0.0.0/8]"));
    assert!(why(&[("10.0.0.0/16", 15)]).contains("must be from /16 to /32"));
    assert!(why(&[("10.0.0.0/16", 33)]).contains("cannot be /33"));
    assert!(why(&[("10.0.0.1/16", 24)]).contains("host bits set: write 10.0.0.0/16"));
}

#[derive(Clone, Debug)]
enum Step {
    Assign(u8),
    Release(u8),
    Observe(u8, u32, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let node = 0u8..12;
    let step = prop_oneof![
        4 => node.clone().prop_map(Step::Assign),
        3 => node.clone().prop_map(Step::Release),
        1 => (node, 0u32..4096, 22u8..28).prop_map(|(node, at, len)| Step::Observe(node, at, len)),
    ];
    proptest::collection::vec(step, 0..80)
}

proptest! {
    #[test]
    fn assigned_cidrs_never_overlap_and_none_is_lost(steps in steps()) {
        // Sixteen CIDRs, two of which are excluded.
        let mut cidrs = of(&[("10.0.0.0/20", 24)], &["10.0.4.0/23"]);
        let services = net("10.0.4.0/23");
        for step in steps {
            match step {
                Step::Assign(node) => {
                    let name = format!("n{node}");
                    let before = cidrs.clone();
                    match cidrs.assign(&name) {
                        Ok(given) if before.find(&name).is_some() => prop_assert_eq!(Some(&given[..]), before.find(&name)),
                        Ok(given) => {
                            prop_assert_eq!(given.len(), 1);
                            prop_assert_eq!(given[0].prefix_len(), 24);
                            prop_assert!(!overlap(given[0], services));
                            for other in before.owned.values().flatten() {
                                prop_assert!(!overlap(given[0], *other), "{} of another", given[0]);
                            }
                        }
                        Err(_) => prop_assert_eq!(before.pools[0].free(), 0, "there was one"),
                    }
                }
                Step::Release(node) => cidrs.release(&format!("n{node}")),
                Step::Observe(node, at, len) => {
                    let range = IpNet::new(std::net::Ipv4Addr::from(0x0a00_0000 + at).into(), len).unwrap().trunc();
                    cidrs.observe(&format!("n{node}"), &[range]);
                }
            }
        }
        let nodes: Vec<String> = cidrs.owned.keys().cloned().collect();
        nodes.iter().for_each(|node| cidrs.release(node));
        prop_assert_eq!(cidrs.pools[0].free(), 14);
        prop_assert_eq!(count_assignable(&mut cidrs), 14);
    }

    #[test]
    fn a_released_cidr_rests_as_long_as_possible(order in Just((0usize..14).collect::<Vec<_>>()).prop_shuffle()) {
        let mut cidrs = of(&[("10.0.0.0/20", 24)], &["10.0.4.0/23"]);
        let given: Vec<IpNet> = (0..14).map(|number| cidrs.assign(&format!("n{number}")).unwrap()[0]).collect();
        for number in &order {
            cidrs.release(&format!("n{number}"));
        }
        for number in order {
            prop_assert_eq!(cidrs.assign(&format!("again{number}")).unwrap()[0], given[number]);
        }
    }
}

#[test]
fn usage_counts_every_cidr_once() {
    let taken = |cidrs: &NodeCidrs| -> Vec<f64> { cidrs.usage().iter().map(|usage| usage.taken).collect() };
    let mut cidrs = of(&[("10.0.0.0/16", 24), ("fd00::/32", 64)], &["10.0.0.0/20"]);
    assert_eq!(cidrs.usage()[0].capacity, 256.0);
    assert_eq!(cidrs.usage()[1].capacity, 4_294_967_296.0);
    assert_eq!(taken(&cidrs), [16.0, 0.0]);
    cidrs.assign("a").unwrap();
    assert_eq!(taken(&cidrs), [17.0, 1.0]);
    assert_eq!(
        cidrs.tries().map(|(_, tries)| tries).collect::<Vec<_>>(),
        [2, 1],
        "after the excluded network"
    );
    cidrs.observe("b", &[net("10.0.16.0/24")]);
    assert_eq!(taken(&cidrs), [17.0, 1.0], "two nodes have the same");
    cidrs.release("a");
    assert_eq!((cidrs.usage()[0].allocations, cidrs.usage()[0].releases), (1, 0), "b still has it");
    assert_eq!((cidrs.usage()[1].allocations, cidrs.usage()[1].releases), (1, 1));
    assert_eq!(taken(&cidrs), [17.0, 0.0]);
    cidrs.observe("c", &[net("10.0.32.0/23")]);
    cidrs.observe("d", &[net("10.0.33.128/25")]);
    assert_eq!(taken(&cidrs), [19.0, 0.0], "one is within the other");
    cidrs.observe("e", &[net("10.0.0.0/8")]);
    assert_eq!(taken(&cidrs), [256.0, 0.0]);
    let mut whole = of(&[("::/0", 0)], &[]);
    whole.assign("a").unwrap();
    assert_eq!((whole.usage()[0].capacity, taken(&whole)), (1.0, vec![1.0]));
}

#[test]
fn a_node_with_service_addresses_is_reported() {
    let mut cidrs = of(&[("10.0.0.0/16", 24)], &["10.0.0.0/20"]);
    let problems = cidrs.observe("a", &[net("10.0.1.0/24")]);
    let excluded =
        CidrProblem::Excluded { node: "a".into(), cidr: net("10.0.1.0/24"), excluded: net("10.0.0.0/20") };
    assert_eq!(problems, [excluded]);
    assert_eq!(problems[0].node(), "a");
}
