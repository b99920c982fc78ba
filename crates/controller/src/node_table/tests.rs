use super::*;
use crate::cluster_cidrs::{ClusterCidrs, NodeCidrMasks};

fn table(cluster: &str) -> NodeTable {
    let masks = NodeCidrMasks { v4: Some(24), ..NodeCidrMasks::default() };
    NodeTable::new(ClusterCidrs::new(cluster, masks, "10.96.0.0/12").unwrap().node_cidrs().unwrap())
}

fn seen(name: &str, cidrs: &[&str]) -> NodeState {
    let pod_cidrs = cidrs.iter().map(|text| text.to_string()).collect();
    NodeState { name: name.into(), uid: format!("uid of {name}"), pod_cidrs, is_deleting: false }
}

fn assignment(table: &mut NodeTable) -> Assignment {
    match table.next_step() {
        Some(NextStep::Patch(assignment)) => assignment,
        other => panic!("{other:?}"),
    }
}

fn cidrs(assignment: &Assignment) -> String {
    assignment.pod_cidrs.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" ")
}

fn event(table: &mut NodeTable) -> NodeEvent {
    match table.next_step() {
        Some(NextStep::Report(event)) => event,
        other => panic!("{other:?}"),
    }
}

/// The node after the assignment was written.
fn done(assignment: &Assignment) -> NodeState {
    let pod_cidrs = assignment.pod_cidrs.iter().map(IpNet::to_string).collect();
    NodeState { name: assignment.name.clone(), uid: assignment.uid.clone(), pod_cidrs, is_deleting: false }
}

fn quarantined(table: &NodeTable) -> Vec<&str> {
    table.quarantine().map(|(name, _)| name).collect()
}

#[test]
fn nodes_with_pod_cidrs_keep_them_and_others_get_the_rest() {
    let mut table = table("10.0.0.0/22");
    table.replace(vec![
        seen("a", &[]),
        seen("b", &["10.0.0.0/24"]),
        seen("c", &["10.0.2.0/24"]),
        seen("d", &[]),
    ]);
    let (first, second) = (assignment(&mut table), assignment(&mut table));
    assert_eq!((first.name.as_str(), cidrs(&first)), ("a", "10.0.1.0/24".into()));
    assert_eq!((second.name.as_str(), cidrs(&second)), ("d", "10.0.3.0/24".into()));
    assert_eq!(table.next_step(), None);
    assert!(!table.patched(&first, done(&first)));
    assert_eq!(table.waiting(), ["d"]);
}

#[test]
fn old_observations_change_nothing() {
    let mut table = table("10.0.0.0/23");
    table.update(seen("a", &[]));
    let first = assignment(&mut table);
    // A heartbeat from before the write, the response, then another such heartbeat.
    table.update(seen("a", &[]));
    assert!(!table.patched(&first, done(&first)));
    let version = table.version();
    table.update(seen("a", &[]));
    assert_eq!((table.next_step(), table.version()), (None, version), "nothing has changed");
    table.update(seen("b", &[]));
    assert_eq!(cidrs(&assignment(&mut table)), "10.0.1.0/24");
    assert!(table.version() > version);
}

#[test]
fn an_assignment_with_unknown_outcome_is_retried_with_the_same_cidr() {
    let mut table = table("10.0.0.0/23");
    table.update(seen("a", &[]));
    let first = assignment(&mut table);
    assert!(table.suspend(&first));
    table.update(seen("b", &[]));
    assert_eq!(cidrs(&assignment(&mut table)), "10.0.1.0/24", "not the other's");
    assert!(table.retry(&first) && !table.is_done(&first));
    assert_eq!(assignment(&mut table), first);
    // The watch shows that it was written before the pause ends.
    assert!(table.suspend(&first));
    table.update(done(&first));
    assert!(!table.retry(&first) && table.is_done(&first));
    assert_eq!(table.next_step(), None);
}

#[test]
fn the_choice_of_another_controller_is_accepted_and_frees_ours() {
    let mut table = table("10.0.0.0/23");
    table.replace(vec![seen("a", &[]), seen("b", &[]), seen("c", &[])]);
    let (a, b) = (assignment(&mut table), assignment(&mut table));
    assert_eq!(event(&mut table).name, "c");
    assert!(!table.patched(&a, done(&a)));
    // Another controller assigned b a CIDR of another network; the one reserved for b goes to c.
    assert!(!table.patched(&b, seen("b", &["10.9.0.0/24"])));
    assert!(table.is_done(&a) && !table.is_done(&b));
    assert_eq!((assignment(&mut table).name.as_str(), table.review().len()), ("c", 1));
}

#[test]
fn a_full_network_is_reported_once_and_a_freed_cidr_is_assigned() {
    let mut table = table("10.0.0.0/24");
    table.replace(vec![seen("a", &["10.0.0.0/24"]), seen("b", &[]), seen("c", &[])]);
    let first = event(&mut table);
    assert_eq!((first.name.as_str(), first.reason.as_str()), ("b", "CIDRNotAvailable"));
    assert!(
        first.note.starts_with("Node b status is now: CIDRNotAvailable: 10.0.0.0/24 has no CIDR left"),
        "{}",
        first.note
    );
    assert_eq!(event(&mut table).name, "c");
    assert_eq!(table.next_step(), None);
    table.delete("a", "uid of an earlier a");
    assert_eq!(table.next_step(), None, "that was another node of the name");
    table.delete("a", "uid of a");
    assert_eq!(assignment(&mut table).name, "b");
    assert_eq!(table.next_step(), None, "c has been reported already");
    assert_eq!(table.waiting(), ["b", "c"]);
    table.delete("b", "uid of b");
    assert_eq!(assignment(&mut table).name, "c");
}

#[test]
fn a_new_node_with_an_old_name_is_another_node() {
    let mut table = table("10.0.0.0/22");
    table.update(seen("a", &[]));
    let first = assignment(&mut table);
    let again = NodeState { uid: "another".into(), ..seen("a", &[]) };
    table.update(again.clone());
    let second = assignment(&mut table);
    assert_eq!((second.uid.as_str(), cidrs(&second)), ("another", "10.0.1.0/24".into()));
    assert!(!table.suspend(&first), "the first node does not exist any more");
    assert!(table.suspend(&second));
    table.replace(vec![again]);
    assert_eq!(table.len(), 1);
}

#[test]
fn duplicates_are_reported_for_both_nodes_and_not_assigned() {
    let mut table = table("10.0.0.0/23");
    table.replace(vec![seen("a", &["10.0.0.0/24"]), seen("b", &["10.0.0.0/24"]), seen("c", &[])]);
    let events = table.review();
    assert_eq!(events.iter().map(|event| event.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(events.iter().all(|event| event.reason == Reason::DuplicatePodCidr));
    assert!(
        events[0].note.starts_with("podCIDR 10.0.0.0/24 of node a overlaps that of b"),
        "{}",
        events[0].note
    );
    assert_eq!(table.review(), [], "once");
    assert_eq!(cidrs(&assignment(&mut table)), "10.0.1.0/24");
    table.delete("a", "uid of a");
    assert_eq!(table.review(), []);
    assert!(quarantined(&table).is_empty(), "b is alone with it now");
    table.update(seen("d", &[]));
    assert_eq!(event(&mut table).name, "d", "b still has it");
    table.delete("b", "uid of b");
    assert_eq!(cidrs(&assignment(&mut table)), "10.0.0.0/24");
}

#[test]
fn invalid_pod_cidrs_do_not_block_other_nodes() {
    let mut table = table("10.0.0.0/8");
    table.replace(vec![
        seen("garbage", &["pods"]),
        seen("outside", &["192.168.0.0/24"]),
        seen("services", &["10.96.7.0/24"]),
        seen("other-family", &["10.0.5.0/24", "fd00::/64"]),
        seen("fine", &["10.0.1.0/24"]),
        seen("new", &[]),
    ]);
    let events = table.review();
    assert!(events.iter().all(|event| event.reason == Reason::InvalidPodCidr));
    assert_eq!(quarantined(&table), ["garbage", "other-family", "outside", "services"]);
    assert!(
        events[0].note.starts_with("podCIDR \"pods\" of node garbage is not a CIDR"),
        "{}",
        events[0].note
    );
    assert_eq!(cidrs(&assignment(&mut table)), "10.0.0.0/24");
    assert_eq!(table.waiting(), ["new"]);
    table.delete("garbage", "uid of garbage");
    table.review();
    assert_eq!(quarantined(&table).len(), 3);
}

#[test]
fn a_node_that_is_being_deleted_gets_no_cidr() {
    let mut table = table("10.0.0.0/22");
    let deleting = |name: &str| NodeState { is_deleting: true, ..seen(name, &[]) };
    table.update(deleting("a"));
    table.update(seen("b", &[]));
    table.update(deleting("b"));
    assert_eq!(table.next_step(), None);
    assert_eq!(table.waiting(), Vec::<&str>::new());
}

#[test]
fn both_families_or_none() {
    let mut table = table("10.0.0.0/22,fd00::/63");
    table.replace(vec![seen("a", &[]), seen("b", &[]), seen("c", &[])]);
    assert_eq!(cidrs(&assignment(&mut table)), "10.0.0.0/24 fd00::/64");
    assert_eq!(cidrs(&assignment(&mut table)), "10.0.1.0/24 fd00:0:0:1::/64");
    assert!(event(&mut table).note.contains("fd00::/63 has no CIDR left"));
    assert_eq!(table.usage().iter().map(|usage| usage.taken).collect::<Vec<_>>(), [2.0, 2.0]);
}
