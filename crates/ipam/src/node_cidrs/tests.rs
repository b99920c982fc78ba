use proptest::prelude::*;

use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn of(networks: &[(&str, u8)], kept_out: &[&str]) -> NodeCidrs {
    let networks: Vec<(IpNet, u8)> = networks.iter().map(|(text, len)| (net(text), *len)).collect();
    let kept_out: Vec<IpNet> = kept_out.iter().map(|text| net(text)).collect();
    NodeCidrs::new(&networks, &kept_out).unwrap()
}

fn assign(ranges: &mut NodeCidrs, node: &str) -> String {
    let given = ranges.assign(node).unwrap();
    given.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn ranges_of_both_families_are_cut_from_the_lowest() {
    let mut ranges = of(&[("10.244.0.0/16", 24), ("fd00:244::/48", 64)], &[]);
    assert_eq!(assign(&mut ranges, "a"), "10.244.0.0/24 fd00:244::/64");
    assert_eq!(assign(&mut ranges, "b"), "10.244.1.0/24 fd00:244:0:1::/64");
    assert_eq!(assign(&mut ranges, "a"), "10.244.0.0/24 fd00:244::/64", "again");
    let mut small = of(&[("fd00::/120", 124)], &[]);
    assert_eq!(assign(&mut small, "a"), "fd00::/124");
    assert_eq!(assign(&mut small, "b"), "fd00::10/124");
    let mut one = of(&[("10.0.0.0/24", 24)], &[]);
    assert_eq!(assign(&mut one, "a"), "10.0.0.0/24");
    assert!(one.assign("b").is_err());
}

#[test]
fn the_edges_of_the_address_space_are_reached_and_not_passed() {
    let mut top = of(&[("255.255.255.0/24", 25)], &[]);
    assert_eq!(assign(&mut top, "a"), "255.255.255.0/25");
    assert_eq!(assign(&mut top, "b"), "255.255.255.128/25");
    assert!(top.assign("c").is_err());
    top.release("b");
    assert_eq!(assign(&mut top, "c"), "255.255.255.128/25");
    let mut top = of(&[("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127", 128)], &[]);
    assert_eq!((ranges_of(&mut top), top.assign("x").is_err()), (2, true));
    let mut whole = of(&[("::/0", 0)], &[]);
    assert_eq!((ranges_of(&mut whole), whole.assign("x").is_err()), (1, true));
    let mut all = of(&[("::/0", 1)], &[]);
    assert_eq!((ranges_of(&mut all), all.assign("x").is_err()), (2, true));
}

fn ranges_of(ranges: &mut NodeCidrs) -> usize {
    (0..).take_while(|number| ranges.assign(&format!("n{number}")).is_ok()).count()
}

#[test]
fn the_services_range_is_kept_out_however_large() {
    let mut ranges = of(&[("10.0.0.0/8", 24)], &["10.0.0.0/9"]);
    assert_eq!(assign(&mut ranges, "a"), "10.128.0.0/24");
    ranges.exclude(net("10.128.1.7/32"));
    assert_eq!(assign(&mut ranges, "b"), "10.128.2.0/24");
    let mut none = of(&[("10.0.0.0/16", 24)], &["10.0.0.0/8"]);
    assert!(none.assign("a").is_err());
    let mut other = of(&[("10.0.0.0/16", 24)], &["10.96.0.0/12", "fd00::/108"]);
    assert_eq!(assign(&mut other, "a"), "10.0.0.0/24");
}

#[test]
fn what_was_given_back_rests_until_nothing_else_is_left_and_the_longest_free_comes_first() {
    let mut ranges = of(&[("10.0.0.0/22", 24)], &[]);
    for node in ["a", "b", "c"] {
        assign(&mut ranges, node);
    }
    ranges.release("b");
    ranges.release("a");
    assert_eq!(assign(&mut ranges, "d"), "10.0.3.0/24", "nobody had it");
    assert_eq!(assign(&mut ranges, "e"), "10.0.1.0/24", "b's, given back first");
    assert_eq!(assign(&mut ranges, "f"), "10.0.0.0/24");
    let error = ranges.assign("g").unwrap_err().to_string();
    assert!(error.starts_with("10.0.0.0/22 has no range left for node \"g\" (CIDRNotAvailable)"), "{error}");
}

#[test]
fn all_is_learned_again_from_the_nodes() {
    let mut ranges = of(&[("10.0.0.0/22", 24)], &[]);
    assert!(ranges.observe("a", &[net("10.0.0.0/24")]).is_empty());
    assert!(ranges.observe("b", &[net("10.0.2.0/24")]).is_empty());
    assert_eq!(assign(&mut ranges, "a"), "10.0.0.0/24", "what it has");
    assert_eq!(assign(&mut ranges, "c"), "10.0.1.0/24");
    assert_eq!(assign(&mut ranges, "d"), "10.0.3.0/24");
    assert_eq!(ranges.find("b"), Some(&[net("10.0.2.0/24")][..]));
    assert_eq!(ranges.owners(net("10.0.2.0/24")), ["b"]);
}

#[test]
fn a_family_that_is_used_up_costs_the_other_nothing() {
    let mut ranges = of(&[("10.0.0.0/22", 24), ("fd00::/63", 64)], &[]);
    assign(&mut ranges, "a");
    assign(&mut ranges, "b");
    for _ in 0..10 {
        assert!(
            matches!(ranges.assign("c"), Err(NodeCidrsError::Exhausted { network, .. }) if network == net("fd00::/63"))
        );
    }
    assert_eq!(ranges.find("c"), None);
    ranges.release("a");
    // Both tries got 10.0.2.0/24 and gave it back; 10.0.3.0/24 likewise, so the longest free is the one before.
    let given = ranges.assign("c").unwrap();
    assert_eq!(given[1], net("fd00::/64"));
    assert_eq!(ranges.pools[0].free(), 2);
}

#[test]
fn a_range_of_two_nodes_is_told_and_free_when_both_are_gone() {
    let mut ranges = of(&[("10.0.0.0/23", 24)], &[]);
    assert!(ranges.observe("a", &[net("10.0.0.0/24")]).is_empty());
    let shared = |node: &str, with: &str| CidrProblem::Shared {
        node: node.into(),
        range: net("10.0.0.0/24"),
        with: vec![with.into()],
    };
    assert_eq!(ranges.observe("b", &[net("10.0.0.0/24")]), [shared("b", "a")]);
    assert_eq!(ranges.problems(), [shared("a", "b"), shared("b", "a")]);
    assert_eq!(assign(&mut ranges, "c"), "10.0.1.0/24");
    ranges.release("a");
    assert!(ranges.assign("d").is_err(), "b still has it");
    assert!(ranges.problems().is_empty());
    ranges.release("b");
    assert_eq!(assign(&mut ranges, "d"), "10.0.0.0/24");
}

#[test]
fn ranges_of_other_sizes_and_networks_stop_nobody() {
    let mut ranges = of(&[("10.0.0.0/21", 24)], &[]);
    assert!(ranges.observe("wide", &[net("10.0.2.0/23")]).is_empty());
    assert!(ranges.observe("narrow", &[net("10.0.1.128/25")]).is_empty());
    let outside = ranges.observe("lost", &[net("192.168.0.0/24"), net("fd00::/64")]);
    assert_eq!(outside.len(), 2);
    assert!(outside.iter().all(|problem| matches!(problem, CidrProblem::Outside { .. })));
    assert_eq!(assign(&mut ranges, "a"), "10.0.0.0/24");
    assert_eq!(assign(&mut ranges, "b"), "10.0.4.0/24");
    ranges.release("wide");
    ranges.release("narrow");
    for (node, range) in [("c", 5), ("d", 6), ("e", 7), ("f", 2), ("g", 3), ("h", 1)] {
        assert_eq!(assign(&mut ranges, node), format!("10.0.{range}.0/24"));
    }
    let mut ranges = of(&[("10.0.0.0/21", 24)], &[]);
    let all = ranges.observe("all", &[net("10.0.0.0/8")]);
    assert_eq!(all, [CidrProblem::Outside { node: "all".into(), range: net("10.0.0.0/8") }]);
    assert!(ranges.assign("a").is_err(), "it says that it has everything");
}

#[test]
fn networks_and_lengths_are_checked() {
    let why = |networks: &[(&str, u8)]| {
        let networks: Vec<(IpNet, u8)> = networks.iter().map(|(text, len)| (net(text), *len)).collect();
        NodeCidrs::new(&networks, &[]).unwrap_err().to_string()
    };
    assert!(why(&[]).starts_with("cluster networks must be one, or one of each family, and are []"));
    assert!(why(&[("10.0.0.0/8", 24), ("11.0.0.0/8", 24)]).contains("[10.0.0.0/8, 11.0.0.0/8]"));
    assert!(why(&[("10.0.0.0/16", 15)]).contains("must be from /16 to /32"));
    assert!(why(&[("10.0.0.0/16", 33)]).contains("cannot be /33"));
    assert!(why(&[("10.0.0.1/16", 24)]).contains("it is an address in 10.0.0.0/16"));
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
    fn nobody_is_given_what_another_has_and_nothing_is_lost(steps in steps()) {
        // Sixteen ranges, of which the services take two.
        let mut ranges = of(&[("10.0.0.0/20", 24)], &["10.0.4.0/23"]);
        let services = net("10.0.4.0/23");
        for step in steps {
            match step {
                Step::Assign(node) => {
                    let name = format!("n{node}");
                    let before = ranges.clone();
                    match ranges.assign(&name) {
                        Ok(given) if before.find(&name).is_some() => prop_assert_eq!(Some(&given[..]), before.find(&name)),
                        Ok(given) => {
                            prop_assert_eq!(given.len(), 1);
                            prop_assert_eq!(given[0].prefix_len(), 24);
                            prop_assert!(!meet(given[0], services));
                            for other in before.owned.values().flatten() {
                                prop_assert!(!meet(given[0], *other), "{} of another", given[0]);
                            }
                        }
                        Err(_) => prop_assert_eq!(before.pools[0].free(), 0, "there was one"),
                    }
                }
                Step::Release(node) => ranges.release(&format!("n{node}")),
                Step::Observe(node, at, len) => {
                    let range = IpNet::new(std::net::Ipv4Addr::from(0x0a00_0000 + at).into(), len).unwrap().trunc();
                    ranges.observe(&format!("n{node}"), &[range]);
                }
            }
        }
        let nodes: Vec<String> = ranges.owned.keys().cloned().collect();
        nodes.iter().for_each(|node| ranges.release(node));
        prop_assert_eq!(ranges.pools[0].free(), 14);
        prop_assert_eq!(ranges_of(&mut ranges), 14);
    }

    #[test]
    fn a_range_rests_as_long_as_it_can(order in Just((0usize..14).collect::<Vec<_>>()).prop_shuffle()) {
        let mut ranges = of(&[("10.0.0.0/20", 24)], &["10.0.4.0/23"]);
        let given: Vec<IpNet> = (0..14).map(|number| ranges.assign(&format!("n{number}")).unwrap()[0]).collect();
        for number in &order {
            ranges.release(&format!("n{number}"));
        }
        for number in order {
            prop_assert_eq!(ranges.assign(&format!("again{number}")).unwrap()[0], given[number]);
        }
    }
}

#[test]
fn how_full_a_network_is_counts_every_range_once() {
    let taken = |ranges: &NodeCidrs| -> Vec<f64> { ranges.usage().iter().map(|usage| usage.taken).collect() };
    let mut ranges = of(&[("10.0.0.0/16", 24), ("fd00::/32", 64)], &["10.0.0.0/20"]);
    assert_eq!(ranges.usage()[0].capacity, 256.0);
    assert_eq!(ranges.usage()[1].capacity, 4_294_967_296.0);
    assert_eq!(taken(&ranges), [16.0, 0.0]);
    ranges.assign("a").unwrap();
    assert_eq!(taken(&ranges), [17.0, 1.0]);
    assert_eq!(ranges.tries().map(|(_, tries)| tries).collect::<Vec<_>>(), [2, 1], "behind what is kept out");
    ranges.observe("b", &[net("10.0.16.0/24")]);
    assert_eq!(taken(&ranges), [17.0, 1.0], "two have the same");
    ranges.release("a");
    assert_eq!((ranges.usage()[0].allocations, ranges.usage()[0].releases), (1, 0), "it is still b's");
    assert_eq!((ranges.usage()[1].allocations, ranges.usage()[1].releases), (1, 1));
    assert_eq!(taken(&ranges), [17.0, 0.0]);
    ranges.observe("c", &[net("10.0.32.0/23")]);
    ranges.observe("d", &[net("10.0.33.128/25")]);
    assert_eq!(taken(&ranges), [19.0, 0.0], "one is within the other");
    ranges.observe("e", &[net("10.0.0.0/8")]);
    assert_eq!(taken(&ranges), [256.0, 0.0]);
    let mut whole = of(&[("::/0", 0)], &[]);
    whole.assign("a").unwrap();
    assert_eq!((whole.usage()[0].capacity, taken(&whole)), (1.0, vec![1.0]));
}

#[test]
fn a_node_that_has_the_services_addresses_is_told() {
    let mut ranges = of(&[("10.0.0.0/16", 24)], &["10.0.0.0/20"]);
    let odd = ranges.observe("a", &[net("10.0.1.0/24")]);
    let kept = CidrProblem::KeptOut { node: "a".into(), range: net("10.0.1.0/24"), kept: net("10.0.0.0/20") };
    assert_eq!(odd, [kept]);
    assert_eq!(odd[0].node(), "a");
}
