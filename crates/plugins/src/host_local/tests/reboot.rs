//! A node that was rebooted.

use std::fs::FileTimes;
use std::time::{Duration, UNIX_EPOCH};

use super::*;

impl Node {
    /// Reboots the node: a new boot id, and an empty /run.
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

    /// Sets the time at which the address was assigned.
    fn given_at(&self, ip: &str, time: u64) {
        let file = fs::File::options().write(true).open(self.folder().join(ip)).unwrap();
        file.set_times(FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(time))).unwrap();
    }
}

#[test]
fn addresses_of_an_earlier_boot_are_free() {
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
fn a_release_that_fails_is_tried_again_by_the_next_call() {
    let node = Node::subnet("10.1.0.0/24");
    node.boot("one", 1000);
    node.add("a");
    node.given_at("10.1.0.2", 1100);
    node.boot("two", 2000);
    // A link into a missing directory: the boot can neither be read nor recorded.
    let (record, elsewhere) = (node.folder().join("podwire.boot"), node.home.join("elsewhere"));
    fs::remove_file(&record).unwrap();
    std::os::unix::fs::symlink(elsewhere.join("boot"), &record).unwrap();
    node.add("b");
    assert_eq!(node.taken(), ["10.1.0.2", "10.1.0.3"]);
    // This does not change the network's directory, so an index that was marked valid would still be used.
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("boot"), "boot one on machine\n").unwrap();
    node.add("c");
    assert_eq!(node.taken(), ["10.1.0.3", "10.1.0.4"]);
    assert_eq!(scans(|| drop(node.add("d"))), 0, "the index is valid again");
}

#[test]
fn addresses_of_the_current_boot_stay() {
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
    // Nothing is removed later in the same boot, even if the clock is set.
    node.given_at("10.1.0.3", 1500);
    fs::remove_dir_all(node.index_root()).unwrap();
    node.add("c");
    assert_eq!(node.taken().len(), 3);
}

#[test]
fn a_folder_without_a_recorded_boot_is_not_changed() {
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
fn a_folder_of_another_machine_is_not_changed() {
    let node = Node::subnet("10.1.0.0/24");
    node.boot_as("north", "one", 1000);
    node.add("a");
    node.given_at("10.1.0.2", 1100);
    node.boot_as("south", "other", 2000);
    node.add("b");
    assert_eq!(node.taken(), ["10.1.0.2", "10.1.0.3"]);
}

#[test]
fn other_files_survive_a_reboot() {
    let node = Node::new(json!({"subnet": "10.1.0.0/24", "sticky": true, "cooldown": 60}));
    node.boot("one", 1000);
    node.add("a");
    node.write("notes", "x");
    for name in ["10.1.0.2", "notes", "last_reserved_ip.0", "lock"] {
        node.given_at(name, 1100);
    }
    fs::create_dir(node.folder().join("10.1.0.9")).unwrap();
    node.boot("two", 1 << 40);
    node.del("unknown");
    assert_eq!(node.taken(), ["10.1.0.9"], "whichever verb comes first");
    assert_eq!((node.read("notes"), node.read("last_reserved_ip.0")), ("x".into(), "10.1.0.2".into()));
}

#[test]
fn a_full_node_has_free_addresses_after_a_reboot() {
    let mut node = Node::subnet("10.1.0.0/30");
    node.boot("one", 1000);
    node.add("a");
    assert_eq!(node.status().unwrap_err().0, 50);
    node.given_at("10.1.0.2", 1100);
    node.boot("two", 2000);
    assert_eq!(node.status(), Ok(()), "or the runtime would not schedule pods");
    assert_eq!(node.add("b"), ["10.1.0.2/30"]);
    node.boot("three", 1 << 40);
    node.gc(&[("b", "eth0")]);
    assert!(node.taken().is_empty(), "no runtime's list makes a dead container live");
}

#[test]
fn a_container_that_keeps_its_id_over_a_reboot_can_be_added_again() {
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
