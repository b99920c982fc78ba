//! The same folder used by the reference plugin, by people, and without an index.

use super::*;

#[test]
fn files_written_by_another_plugin_are_noticed() {
    let node = Node::subnet("10.1.0.0/24");
    node.add("a");
    node.write("10.1.0.3", "other\r\neth0");
    node.write("last_reserved_ip.0", "10.1.0.3");
    assert_eq!(scans(|| assert_eq!(node.add("b"), ["10.1.0.4/24"])), 1);
    assert!(node.refused("other").1.contains("10.1.0.3 has been allocated to other, duplicate"));
    assert_eq!(scans(|| node.del("other")), 0, "once read it is known");
    assert_eq!(node.taken(), ["10.1.0.2", "10.1.0.4"]);
}

#[test]
fn files_removed_by_another_plugin_are_noticed() {
    let node = Node::subnet("10.1.0.0/24");
    node.add("a");
    fs::remove_file(node.folder().join("10.1.0.2")).unwrap();
    assert_eq!(node.add("a"), ["10.1.0.3/24"], "not a duplicate");
    node.write("10.1.0.3", "b\r\neth0");
    node.del("a");
    assert_eq!(node.read("10.1.0.3"), "b\r\neth0", "a hint that is wrong removes nothing");
}

#[test]
fn a_foreign_change_between_two_calls_is_noticed() {
    let node = Node::subnet("10.1.0.0/16");
    for i in 0..50 {
        node.add(&format!("ours-{i}"));
        node.write(&format!("10.1.9.{i}"), &format!("theirs-{i}\r\neth0"));
        assert_eq!(scans(|| node.del(&format!("theirs-{i}"))), 1);
    }
    assert_eq!(node.taken().len(), 50);
}

#[test]
fn entries_without_an_interface_are_supported() {
    let node = Node::subnet("10.1.0.0/24");
    node.write("10.1.0.9", "old");
    node.write("10.1.0.10", "old\n");
    assert!(node.refused("old").1.contains("has been allocated to old, duplicate"));
    node.check("old").unwrap();
    node.del("old");
    assert!(node.taken().is_empty());
    node.write("10.1.0.9", "both");
    node.write("10.1.0.10", "both\r\neth0");
    node.del("both");
    assert_eq!(node.taken(), ["10.1.0.9"], "the interface has an entry of its own");
    node.del("both");
    assert!(node.taken().is_empty());
}

#[test]
fn unknown_files_are_kept() {
    let mut node = Node::subnet("10.1.0.0/29");
    node.write("10.1.0.2", "two words");
    fs::create_dir(node.folder().join("10.1.0.3")).unwrap();
    std::os::unix::fs::symlink("/dev/null", node.folder().join("10.1.0.4")).unwrap();
    node.write("notes.txt", "c");
    fs::create_dir(node.folder().join("folder")).unwrap();
    assert_eq!(node.add("c"), ["10.1.0.5/29"]);
    node.del("c");
    node.gc(&[]);
    assert_eq!(node.taken(), ["10.1.0.2", "10.1.0.3", "10.1.0.4"]);
    assert_eq!(node.read("notes.txt"), "c");
}

#[test]
fn without_an_index_the_folder_is_read() {
    let mut node = Node::subnet("10.1.0.0/24");
    fs::write(node.home.join("run"), "not a folder").unwrap();
    node.add("a");
    node.write("10.1.0.9", "");
    assert_eq!(scans(|| assert_eq!(node.add("b"), ["10.1.0.3/24"])), 1);
    assert_eq!(node.taken(), ["10.1.0.2", "10.1.0.3"]);
    assert!(node.refused("a").1.contains("duplicate"));
    node.check("a").unwrap();
    node.del("a");
    node.gc(&[]);
    assert!(node.taken().is_empty());
}

#[test]
fn a_lost_or_damaged_index_is_rebuilt() {
    let node = Node::subnet("10.1.0.0/24");
    node.add("a");
    node.write("10.1.0.9", "b\r\neth0");
    node.add("c");
    let index = || fs::read_dir(node.index_root()).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(index().join("snapshot")).unwrap();
    assert_eq!(scans(|| node.check("b").unwrap()), 1);
    fs::remove_dir_all(node.index_root()).unwrap();
    assert_eq!(scans(|| node.check("a").unwrap()), 1);
    fs::write(index().join("token"), "0 an older format").unwrap();
    assert_eq!(scans(|| node.del("b")), 1);
    assert_eq!(scans(|| node.del("a")), 0);
    assert_eq!(node.taken(), ["10.1.0.3"]);
}
