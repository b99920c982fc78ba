//! A node that was switched off and on again.

use std::fs::FileTimes;
use std::time::{Duration, UNIX_EPOCH};

use super::*;

impl Node {
    /// The node boots: the kernel has a new id, and whatever was in /run is gone.
    fn boot(&self, id: &str, began: u64) {
        self.boot_as("machine", id, began);
    }

    fn boot_as(&self, machine: &str, id: &str, began: u64) {
        let proc = self.home.join("proc");
        fs::create_dir_all(proc.join("sys/kernel/random")).unwrap();
        fs::write(proc.join("sys/kernel/random/boot_id"), format!("{id}\n")).unwrap();
        fs::write(proc.join("sys/kernel/hostname"), format!("{machine}\n")).unwrap();
        fs::write(proc.join("stat"), format!("cpu 1 2 3\nbtime {began}\nprocesses 5\n")).unwrap();
        let _ = fs::remove_dir_all(self.index_root());
    }

    /// The address was given at this time.
    fn given_at(&self, ip: &str, time: u64) {
        let file = fs::File::options().write(true).open(self.folder().join(ip)).unwrap();
        file.set_times(FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(time))).unwrap();
    }
}

#[test]
fn what_was_given_before_the_boot_is_free_after_it() {
    let node = Node::subnet("10.1.0.0/24");
    node.boot("one", 1000);
    node.add("a");
    node.add("b");
    node.given_at("10.1.0.2", 1100);
    node.given_at("10.1.0.3", 1200);
    node.boot("two", 2000);
    assert_eq!(node.add("c"), ["10.1.0.4/24"], "the round goes on");
    assert_eq!(node.taken(), ["10.1.0.4"]);
    assert_eq!(node.read("podwire.boot"), "boot two on machine\n");
    assert_eq!(mode(&node.folder().join("podwire.boot")), 0o600);
    assert_eq!(scans(|| drop(node.add("d"))), 0, "once a boot");
}

#[test]
fn what_was_given_since_the_boot_stays() {
    let node = Node::subnet("10.1.0.0/24");
    node.boot("one", 1000);
    node.add("a");
    node.given_at("10.1.0.2", 1100);
    node.boot("two", 2000);
    // The Go plugin was the first in this boot.
    node.write("10.1.0.3", "go\r\neth0");
    node.given_at("10.1.0.3", 2000);
    node.add("b");
    assert_eq!(node.taken(), ["10.1.0.3", "10.1.0.4"]);
    // Nobody is swept later in the same boot, whatever a clock that was set says.
    node.given_at("10.1.0.3", 1500);
    fs::remove_dir_all(node.index_root()).unwrap();
    node.add("c");
    assert_eq!(node.taken().len(), 3);
}

#[test]
fn a_folder_of_which_nothing_is_known_is_not_swept() {
    let node = Node::subnet("10.1.0.0/24");
    node.write("10.1.0.2", "go\r\neth0");
    node.given_at("10.1.0.2", 500);
    node.boot("one", 1000);
    node.add("a");
    assert_eq!(node.taken(), ["10.1.0.2", "10.1.0.3"], "it was Go's, and may have been restored or shared");
    for note in ["", "two words", "\0\0\0"] {
        node.write("podwire.boot", note);
        node.boot("two", 2000);
        node.check("a").unwrap();
        assert_eq!(node.taken().len(), 2, "{note:?}");
    }
}

#[test]
fn a_folder_that_another_machine_used_last_is_not_swept() {
    let node = Node::subnet("10.1.0.0/24");
    node.boot_as("north", "one", 1000);
    node.add("a");
    node.given_at("10.1.0.2", 1100);
    node.boot_as("south", "other", 2000);
    node.add("b");
    assert_eq!(node.taken(), ["10.1.0.2", "10.1.0.3"]);
}

#[test]
fn strangers_and_notes_outlive_a_boot() {
    let node = Node::new(json!({"subnet": "10.1.0.0/24", "sticky": true, "cooldown": 60}));
    node.boot("one", 1000);
    node.add("a");
    node.write("notes", "x");
    for name in ["10.1.0.2", "notes", "last_reserved_ip.0", "lock"] {
        node.given_at(name, 1100);
    }
    fs::create_dir(node.folder().join("10.1.0.9")).unwrap();
    node.boot("two", 1 << 40);
    node.del("nobody");
    assert_eq!(node.taken(), ["10.1.0.9"], "whichever verb comes first");
    assert_eq!((node.read("notes"), node.read("last_reserved_ip.0")), ("x".into(), "10.1.0.2".into()));
}

#[test]
fn a_full_node_that_was_rebooted_takes_pods_again() {
    let mut node = Node::subnet("10.1.0.0/30");
    node.boot("one", 1000);
    node.add("a");
    assert_eq!(node.status().unwrap_err().0, 50);
    node.given_at("10.1.0.2", 1100);
    node.boot("two", 2000);
    assert_eq!(node.status(), Ok(()), "or nobody would send it a pod");
    assert_eq!(node.add("b"), ["10.1.0.2/30"]);
    node.boot("three", 1 << 40);
    node.gc(&[("b", "eth0")]);
    assert!(node.taken().is_empty(), "no runtime's list makes a dead container live");
}

#[test]
fn a_container_that_keeps_its_id_over_a_boot_is_attached_anew() {
    let node = Node::subnet("10.1.0.0/24");
    node.boot("one", 1000);
    node.add("podman");
    assert!(node.refused("podman").1.contains("duplicate"));
    node.given_at("10.1.0.2", 1100);
    node.boot("two", 2000);
    assert_eq!(node.add("podman"), ["10.1.0.3/24"]);
    node.del("podman");
    assert!(node.taken().is_empty());
}
