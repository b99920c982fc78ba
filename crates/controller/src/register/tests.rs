use super::*;
use crate::networks::{ClusterCidrs, NodeCidrMasks};

fn register(cluster: &str) -> Register {
    let masks = NodeCidrMasks { v4: Some(24), ..NodeCidrMasks::default() };
    Register::new(ClusterCidrs::new(cluster, masks, "10.96.0.0/12").unwrap().ranges().unwrap())
}

fn seen(name: &str, cidrs: &[&str]) -> Sighting {
    let cidrs = cidrs.iter().map(|text| text.to_string()).collect();
    Sighting { name: name.into(), uid: format!("uid of {name}"), cidrs, leaving: false }
}

fn order(register: &mut Register) -> Order {
    match register.next() {
        Some(Next::Write(order)) => order,
        other => panic!("{other:?}"),
    }
}

fn ranges(order: &Order) -> String {
    order.ranges.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" ")
}

fn remark(register: &mut Register) -> Remark {
    match register.next() {
        Some(Next::Tell(remark)) => remark,
        other => panic!("{other:?}"),
    }
}

/// The node as it is when the order was carried out.
fn done(order: &Order) -> Sighting {
    let cidrs = order.ranges.iter().map(IpNet::to_string).collect();
    Sighting { name: order.name.clone(), uid: order.uid.clone(), cidrs, leaving: false }
}

fn quarantined(register: &Register) -> Vec<&str> {
    register.quarantine().map(|(name, _)| name).collect()
}

#[test]
fn those_who_have_something_keep_it_and_the_others_get_the_rest() {
    let mut register = register("10.0.0.0/22");
    register.replace(vec![
        seen("a", &[]),
        seen("b", &["10.0.0.0/24"]),
        seen("c", &["10.0.2.0/24"]),
        seen("d", &[]),
    ]);
    let (first, second) = (order(&mut register), order(&mut register));
    assert_eq!((first.name.as_str(), ranges(&first)), ("a", "10.0.1.0/24".into()));
    assert_eq!((second.name.as_str(), ranges(&second)), ("d", "10.0.3.0/24".into()));
    assert_eq!(register.next(), None);
    assert!(!register.answered(&first, done(&first)));
    assert_eq!(register.waiting(), ["d"]);
}

#[test]
fn news_that_are_overtaken_take_nothing_away() {
    let mut register = register("10.0.0.0/23");
    register.learn(seen("a", &[]));
    let first = order(&mut register);
    // A heartbeat from before it was written, then the answer, then another such heartbeat.
    register.learn(seen("a", &[]));
    assert!(!register.answered(&first, done(&first)));
    let version = register.version();
    register.learn(seen("a", &[]));
    assert_eq!((register.next(), register.version()), (None, version), "nothing has changed");
    register.learn(seen("b", &[]));
    assert_eq!(ranges(&order(&mut register)), "10.0.1.0/24");
    assert!(register.version() > version);
}

#[test]
fn an_order_whose_fate_nobody_knows_is_repeated_with_the_same_range() {
    let mut register = register("10.0.0.0/23");
    register.learn(seen("a", &[]));
    let first = order(&mut register);
    assert!(register.rest(&first));
    register.learn(seen("b", &[]));
    assert_eq!(ranges(&order(&mut register)), "10.0.1.0/24", "not the other's");
    assert!(register.retry(&first) && !register.is_done(&first));
    assert_eq!(order(&mut register), first);
    // It had been written, as the watch tells; then the pause before another try ends.
    assert!(register.rest(&first));
    register.learn(done(&first));
    assert!(!register.retry(&first) && register.is_done(&first));
    assert_eq!(register.next(), None);
}

#[test]
fn somebody_elses_choice_is_accepted_and_ours_is_free_again() {
    let mut register = register("10.0.0.0/23");
    register.replace(vec![seen("a", &[]), seen("b", &[]), seen("c", &[])]);
    let (a, b) = (order(&mut register), order(&mut register));
    assert_eq!(remark(&mut register).name, "c");
    assert!(!register.answered(&a, done(&a)));
    // Another controller gave b something of another network; what was meant for it is c's.
    assert!(!register.answered(&b, seen("b", &["10.9.0.0/24"])));
    assert!(register.is_done(&a) && !register.is_done(&b));
    assert_eq!((order(&mut register).name.as_str(), register.review().len()), ("c", 1));
}

#[test]
fn a_full_pool_is_told_once_and_filled_when_a_node_goes() {
    let mut register = register("10.0.0.0/24");
    register.replace(vec![seen("a", &["10.0.0.0/24"]), seen("b", &[]), seen("c", &[])]);
    let told = remark(&mut register);
    assert_eq!((told.name.as_str(), told.reason.as_str()), ("b", "CIDRNotAvailable"));
    assert!(
        told.note.starts_with("Node b status is now: CIDRNotAvailable: 10.0.0.0/24 has no range left"),
        "{}",
        told.note
    );
    assert_eq!(remark(&mut register).name, "c");
    assert_eq!(register.next(), None);
    register.forget("a", "uid of an earlier a");
    assert_eq!(register.next(), None, "that was another node of the name");
    register.forget("a", "uid of a");
    assert_eq!(order(&mut register).name, "b");
    assert_eq!(register.next(), None, "c has been told already");
    assert_eq!(register.waiting(), ["b", "c"]);
    register.forget("b", "uid of b");
    assert_eq!(order(&mut register).name, "c");
}

#[test]
fn a_node_that_comes_back_under_its_name_is_another() {
    let mut register = register("10.0.0.0/22");
    register.learn(seen("a", &[]));
    let first = order(&mut register);
    let again = Sighting { uid: "another".into(), ..seen("a", &[]) };
    register.learn(again.clone());
    let second = order(&mut register);
    assert_eq!((second.uid.as_str(), ranges(&second)), ("another", "10.0.1.0/24".into()));
    assert!(!register.rest(&first), "the first one's order is of no interest any more");
    assert!(register.rest(&second));
    register.replace(vec![again]);
    assert_eq!(register.len(), 1);
}

#[test]
fn duplicates_are_told_of_both_and_nobody_else_gets_the_range() {
    let mut register = register("10.0.0.0/23");
    register.replace(vec![seen("a", &["10.0.0.0/24"]), seen("b", &["10.0.0.0/24"]), seen("c", &[])]);
    let told = register.review();
    assert_eq!(told.iter().map(|remark| remark.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(told.iter().all(|remark| remark.reason == Reason::DuplicatePodCidr));
    assert!(told[0].note.starts_with("podCIDR 10.0.0.0/24 of node a is also of b"), "{}", told[0].note);
    assert_eq!(register.review(), [], "once");
    assert_eq!(ranges(&order(&mut register)), "10.0.1.0/24");
    register.forget("a", "uid of a");
    assert_eq!(register.review(), []);
    assert!(quarantined(&register).is_empty(), "b is alone with it now");
    register.learn(seen("d", &[]));
    assert_eq!(remark(&mut register).name, "d", "b still has it");
    register.forget("b", "uid of b");
    assert_eq!(ranges(&order(&mut register)), "10.0.0.0/24");
}

#[test]
fn ranges_that_make_no_sense_stop_nobody() {
    let mut register = register("10.0.0.0/8");
    register.replace(vec![
        seen("garbage", &["pods"]),
        seen("outside", &["192.168.0.0/24"]),
        seen("services", &["10.96.7.0/24"]),
        seen("other-family", &["10.0.5.0/24", "fd00::/64"]),
        seen("fine", &["10.0.1.0/24"]),
        seen("new", &[]),
    ]);
    let told = register.review();
    assert!(told.iter().all(|remark| remark.reason == Reason::InvalidPodCidr));
    assert_eq!(quarantined(&register), ["garbage", "other-family", "outside", "services"]);
    assert!(told[0].note.starts_with("podCIDR \"pods\" of node garbage is no range"), "{}", told[0].note);
    assert_eq!(ranges(&order(&mut register)), "10.0.0.0/24");
    assert_eq!(register.waiting(), ["new"]);
    register.forget("garbage", "uid of garbage");
    register.review();
    assert_eq!(quarantined(&register).len(), 3);
}

#[test]
fn a_node_that_is_being_deleted_gets_nothing_more() {
    let mut register = register("10.0.0.0/22");
    let leaving = |name: &str| Sighting { leaving: true, ..seen(name, &[]) };
    register.learn(leaving("a"));
    register.learn(seen("b", &[]));
    register.learn(leaving("b"));
    assert_eq!(register.next(), None);
    assert_eq!(register.waiting(), Vec::<&str>::new());
}

#[test]
fn both_families_or_none() {
    let mut register = register("10.0.0.0/22,fd00::/63");
    register.replace(vec![seen("a", &[]), seen("b", &[]), seen("c", &[])]);
    assert_eq!(ranges(&order(&mut register)), "10.0.0.0/24 fd00::/64");
    assert_eq!(ranges(&order(&mut register)), "10.0.1.0/24 fd00:0:0:1::/64");
    assert!(remark(&mut register).note.contains("fd00::/63 has no range left"));
    assert_eq!(register.usage().iter().map(|usage| usage.taken).collect::<Vec<_>>(), [2.0, 2.0]);
}
