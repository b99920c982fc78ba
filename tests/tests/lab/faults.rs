//! Every fault is repaired within two seconds after its cause is removed, and pings whose path is intact lose no
//! packet.

use std::sync::RwLock;

use super::laboratory::{lab, text, Laboratory};

/// The limit on an idle machine. On a busy machine one of the tries must meet it.
const LIMIT: f64 = 2.0;
const TRIES: usize = 40;

/// Faults that interrupt no path, not even that of the node itself.
const HARMLESS: &[&str] = &["kill-agent", "flush-rules", "stop-store", "duplicate-range", "foreign-config"];

/// A test that keeps the machine busy for minutes takes this for writing. Meanwhile no try would meet the limit.
pub static QUIET: RwLock<()> = RwLock::new(());

/// A lab with three nodes in two subnets.
fn three_nodes(words: &[&str]) -> Laboratory {
    Laboratory::up(&[&["--nodes", "3", "--pods", "1", "--subnets", "2"], words].concat())
}

/// Injects a fault on n1 and heals it while pings run. Returns the time until the lab was healthy.
fn break_and_heal(lab: &Laboratory, fault: &str) -> f64 {
    let mut pings = vec![lab.ping("n2-pod1", "n3-pod1")];
    if HARMLESS.contains(&fault) {
        pings.push(lab.ping("n1-pod1", "n3-pod1"));
        pings.push(lab.ping("n2-pod1", "n1-pod1"));
    }
    let (broken, done) = lab.json(&["break", fault, "n1"]);
    assert!(done, "{fault}: {broken}");
    if broken["selfHealing"] == false {
        assert_eq!(lab.status()["faults"][0]["fault"], fault);
        // A fault cannot be injected twice.
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
        status["healthy"] == true && status["faults"].as_array().is_some_and(Vec::is_empty),
        "{fault}: {status}"
    );
    healed["seconds"].as_f64().expect("seconds")
}

/// Waits until the other nodes have n1's new address and the lab is healthy.
#[track_caller]
fn wait_until_found(lab: &Laboratory) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let is_found = || lab.sh("n3", "bridge fdb show").contains("192.168.10.111");
    while !is_found() || lab.status()["healthy"] != true {
        assert!(std::time::Instant::now() < end, "n3 does not know the new address: {}", lab.status());
    }
}

#[track_caller]
pub fn each_heals(words: &[&str], faults: &[&str]) {
    let _quiet = QUIET.read();
    let lab = three_nodes(words);
    for fault in faults {
        let mut took = Vec::new();
        while took.len() < TRIES && !took.iter().any(|one| *one <= LIMIT) {
            took.push(break_and_heal(&lab, fault));
        }
        assert!(took.iter().any(|one| *one <= LIMIT), "{words:?}, {fault}: healthy only after {took:?} s");
        lab.assert_model_holds(3, 3, 2);
    }
}

#[test]
fn deleted_kernel_objects_are_restored() {
    each_heals(&[], &["delete-device", "flush-routes", "flush-rules", "poison-neighbours"]);
}

#[test]
fn a_node_recovers_from_faults_of_the_node() {
    each_heals(&[], &["kill-agent", "change-address", "link-down", "reboot-node", "remove-node"]);
}

#[test]
fn a_node_recovers_from_faults_with_etcd() {
    each_heals(&["--store", "etcd"], &["stop-store", "change-address", "reboot-node", "remove-node"]);
}

#[test]
fn a_duplicate_pod_cidr_and_a_foreign_config_are_reported() {
    for store in ["embedded", "etcd", "static"] {
        each_heals(&["--store", store], &["duplicate-range"]);
    }
    let lab = three_nodes(&[]);
    lab.run(&["break", "foreign-config", "n2"]);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !lab.status()["nodes"][1]["problems"].to_string().contains("00-foreign.conflist") {
        assert!(std::time::Instant::now() < end, "{}", lab.status());
    }
    assert!(!lab.run(&["status"]).status.success(), "a lab with a problem is not healthy");
    assert!(lab.run(&["heal"]).status.success());
}

#[test]
fn agents_learn_a_new_node_address_without_heal() {
    let lab = three_nodes(&["--store", "etcd"]);
    let pings = lab.ping("n2-pod1", "n3-pod1");
    assert!(lab.run(&["break", "change-address", "n1"]).status.success());
    // Without heal the network works with the new address.
    wait_until_found(&lab);
    lab.assert_model_holds(3, 3, 2);
    let lost = pings.lost();
    assert!(lost.is_empty(), "{lost:?}");
}

#[test]
fn unsupported_faults_are_refused() {
    let lab = Laboratory::up(&["--nodes", "1", "--pods", "0", "--backend", "host-gw"]);
    for (fault, says) in
        [("delete-device", "this backend has no device"), ("stop-store", "the store embedded is a file")]
    {
        let said = text(&lab.run(&["break", fault]).stderr);
        assert!(said.contains(says), "{fault}: {said}");
    }
}

#[test]
fn faults_are_listed_with_their_repair() {
    let output = lab(&["break"]);
    let said = text(&output.stdout);
    assert!(output.status.success());
    assert_eq!(said.lines().count(), 13, "{said}");
    for words in ["kill-agent", "nft flush ruleset", "the agent", "heal: start etcd"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
