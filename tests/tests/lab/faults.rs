//! Whatever is broken heals within two seconds of its cause going away, and pings whose path is not cut lose nothing.

use std::sync::RwLock;

use super::laboratory::{lab, text, Laboratory};

/// On an idle machine. Another one may be busy: then one try of these must make it.
const PROMISE: f64 = 2.0;
const TRIES: usize = 40;

/// Faults that cut no path, not even that of the node itself.
const HARMLESS: &[&str] = &["kill-agent", "flush-rules", "stop-store", "duplicate-range", "foreign-config"];

/// Whoever keeps the whole machine busy for minutes has it for himself: so long none of the tries would make it.
pub static QUIET: RwLock<()> = RwLock::new(());

/// Three nodes on two wires, and what else is wished.
fn stage(words: &[&str]) -> Laboratory {
    Laboratory::up(&[&["--nodes", "3", "--pods", "1", "--subnets", "2"], words].concat())
}

/// Breaks and heals n1 while pings run; returns how long it took to be whole.
fn break_and_heal(lab: &Laboratory, fault: &str) -> f64 {
    let mut pings = vec![lab.ping("n2-pod1", "n3-pod1")];
    if HARMLESS.contains(&fault) {
        pings.push(lab.ping("n1-pod1", "n3-pod1"));
        pings.push(lab.ping("n2-pod1", "n1-pod1"));
    }
    let (broken, done) = lab.json(&["break", fault, "n1"]);
    assert!(done, "{fault}: {broken}");
    if broken["healsItself"] == false {
        assert_eq!(lab.status()["broken"][0]["fault"], fault);
        // It can be broken once.
        let again = lab.run(&["break", fault, "n1"]);
        assert!(!again.status.success(), "{fault}");
    }
    if fault == "change-address" {
        wait_until_found(lab);
    }
    let (healed, done) = lab.json(&["heal"]);
    assert!(done, "{fault}: {healed}");
    for ping in pings {
        let (what, lost) = (ping.what.clone(), ping.lost());
        assert!(lost.is_empty(), "{fault}: {what}: {lost:?}");
    }
    let status = lab.status();
    assert!(
        status["whole"] == true && status["broken"].as_array().is_some_and(Vec::is_empty),
        "{fault}: {status}"
    );
    healed["seconds"].as_f64().expect("seconds")
}

/// The others know n1's new address, and all is well there.
#[track_caller]
fn wait_until_found(lab: &Laboratory) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let is_found = || lab.sh("n3", "bridge fdb show").contains("192.168.10.111");
    while !is_found() || lab.status()["whole"] != true {
        assert!(std::time::Instant::now() < end, "n3 does not know the new address: {}", lab.status());
    }
}

#[track_caller]
pub fn each_heals(words: &[&str], faults: &[&str]) {
    let _quiet = QUIET.read();
    let lab = stage(words);
    for fault in faults {
        let mut took = Vec::new();
        while took.len() < TRIES && !took.iter().any(|one| *one <= PROMISE) {
            took.push(break_and_heal(&lab, fault));
        }
        assert!(took.iter().any(|one| *one <= PROMISE), "{words:?}, {fault}: whole only after {took:?} s");
        lab.assert_model_holds(3, 3, 2);
    }
}

#[test]
fn what_is_taken_from_a_nodes_kernel_comes_back() {
    each_heals(&[], &["delete-device", "flush-routes", "flush-rules", "poison-neighbours"]);
}

#[test]
fn a_node_that_is_moved_cut_off_restarted_or_removed_comes_back() {
    each_heals(&[], &["kill-agent", "change-address", "link-down", "reboot-node", "remove-node"]);
}

#[test]
fn the_same_with_etcd_which_may_be_away() {
    each_heals(&["--store", "etcd"], &["stop-store", "change-address", "reboot-node", "remove-node"]);
}

#[test]
fn a_claim_on_a_nodes_range_and_a_foreign_config_are_told_and_harm_nobody() {
    for store in ["embedded", "etcd", "static"] {
        each_heals(&["--store", store], &["duplicate-range"]);
    }
    let lab = stage(&[]);
    lab.run(&["break", "foreign-config", "n2"]);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !lab.status()["nodes"][1]["problems"].to_string().contains("00-foreign.conflist sorts before") {
        assert!(std::time::Instant::now() < end, "{}", lab.status());
    }
    assert!(!lab.run(&["status"]).status.success(), "a lab with a problem is not whole");
    assert!(lab.run(&["heal"]).status.success());
}

#[test]
fn a_node_is_found_at_its_new_address_without_any_remedy() {
    let lab = stage(&["--store", "etcd"]);
    let pings = lab.ping("n2-pod1", "n3-pod1");
    assert!(lab.run(&["break", "change-address", "n1"]).status.success());
    // Not healed: the model holds with the address that the node has now.
    wait_until_found(&lab);
    lab.assert_model_holds(3, 3, 2);
    let lost = pings.lost();
    assert!(lost.is_empty(), "{lost:?}");
}

#[test]
fn what_a_lab_does_not_have_cannot_be_broken() {
    let lab = Laboratory::up(&["--nodes", "1", "--pods", "0", "--backend", "host-gw"]);
    for (fault, says) in
        [("delete-device", "this backend has no device"), ("stop-store", "the store embedded is a file")]
    {
        let said = text(&lab.run(&["break", fault]).stderr);
        assert!(said.contains(says), "{fault}: {said}");
    }
}

#[test]
fn faults_are_listed_with_what_heals_them() {
    let output = lab(&["break"]);
    let said = text(&output.stdout);
    assert!(output.status.success());
    assert_eq!(said.lines().count(), 13, "{said}");
    for words in ["kill-agent", "nft flush ruleset", "by itself", "heal: etcd is started"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
