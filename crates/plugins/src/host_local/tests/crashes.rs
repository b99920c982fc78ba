//! What killed processes leave, and its cleanup.

use super::super::entry::AttachmentId;
use super::super::store::Store;
use super::*;

#[test]
fn files_without_an_owner_are_freed() {
    let node = Node::new(json!({"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.3"}));
    node.write("10.1.0.2", "");
    node.write("10.1.0.3", "\0\0\0\0");
    assert_eq!([node.add("a"), node.add("b")].concat(), ["10.1.0.2/24", "10.1.0.3/24"]);
    node.write("10.1.0.9", "");
    node.del("unknown");
    assert_eq!(node.taken(), ["10.1.0.2", "10.1.0.3"], "even by the DEL of another container");
}

#[test]
fn an_address_with_an_empty_file_can_be_requested() {
    let mut node = Node::subnet("10.1.0.0/24");
    node.add("a");
    // In place, so that the directory's modification time does not change.
    fs::write(node.folder().join("10.1.0.2"), "").unwrap();
    node.args = "IP=10.1.0.2".into();
    assert_eq!(scans(|| assert_eq!(node.add("b"), ["10.1.0.2/24"])), 0);
    assert_eq!(node.read("10.1.0.2"), "b\r\neth0");
}

/// An ADD that dies after each of its steps, followed by the DEL that the runtime sends.
#[test]
fn del_cleans_up_after_an_add_that_died_anywhere() {
    for step in 0..5 {
        let node = Node::subnet("10.1.0.0/24");
        node.add("before");
        let owner = AttachmentId::new("died", "eth0");
        let ip = "10.1.0.3".parse().unwrap();
        {
            let mut store = Store::open_or_create(&node.folder(), &node.env()).unwrap();
            store.addresses_of(&owner).unwrap();
            match step {
                0 => {}
                1 => node.write("10.1.0.3", ""),
                _ => assert!(store.claim(ip, &owner).unwrap()),
            }
            if step >= 3 {
                store.last_reserved(0).set(ip).unwrap();
            }
            if step == 4 {
                // Recorded, and no token.
                store.update_index(&owner, &[ip]);
                node.write("token", "");
                fs::remove_file(node.folder().join("token")).unwrap();
            }
        }
        node.del("died");
        assert_eq!(node.taken(), ["10.1.0.2"], "step {step}");
        assert_eq!(node.add("died").len(), 1, "step {step}");
        node.del("died");
        node.del("before");
        assert!(node.taken().is_empty());
        assert_eq!(node.owners(), 0, "step {step}");
    }
}

#[test]
fn an_index_that_could_not_be_written_is_not_used() {
    let node = Node::subnet("10.1.0.0/24");
    node.add("a");
    let index = fs::read_dir(node.index_root()).unwrap().next().unwrap().unwrap().path();
    let mut files = fs::read_dir(index).unwrap().map(|file| file.unwrap().path());
    let of_a = files.find(|file| file.file_name().unwrap().len() == 32).unwrap();
    // A directory of this name makes the write fail. The network's directory stays unchanged.
    fs::remove_file(&of_a).unwrap();
    fs::create_dir(&of_a).unwrap();
    {
        let mut store = Store::open_or_create(&node.folder(), &node.env()).unwrap();
        store.update_index(&AttachmentId::new("a", "eth0"), &["10.1.0.2".parse().unwrap()]);
        store.mark_index_valid();
    }
    fs::remove_dir(&of_a).unwrap();
    assert_eq!(scans(|| node.del("a")), 1);
    assert!(node.taken().is_empty());
}

#[test]
fn del_needs_nothing_but_the_folder() {
    let mut node = Node::subnet("10.1.0.0/24");
    node.del("never-was");
    assert!(!node.folder().exists(), "and makes none");
    node.add("a");
    fs::remove_file(node.folder().join("lock")).unwrap();
    let data_dir = node.config["ipam"]["dataDir"].clone();
    node.config["ipam"] = json!({"subnet": 5, "ranges": "?", "routes": {}, "dataDir": data_dir});
    node.args = "NONSENSE=1".into();
    node.del("a");
    assert!(node.taken().is_empty());
    node.del("a");
    node.config["ipam"]["dataDir"] = json!(node.folder().join("lock"));
    node.del("a");
}

#[test]
fn an_io_error_names_the_file_and_leaves_nothing_behind() {
    let node = Node::new(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}));
    // The second set's record cannot be written.
    fs::create_dir_all(node.folder().join("last_reserved_ip.1")).unwrap();
    let (code, text) = node.refused("c");
    let file = node.folder().join("last_reserved_ip.1");
    assert_eq!(code, 5);
    assert!(
        text.starts_with(&format!("failed to allocate for range 1: write {}: ", file.display())),
        "{text}"
    );
    assert!(node.taken().is_empty());
}

#[test]
fn a_data_dir_that_is_a_file_is_named() {
    let node = Node::subnet("10.1.0.0/24");
    fs::write(node.home.join("networks"), "").unwrap();
    let (code, text) = node.refused("c");
    assert!(code == 5 && text.contains(&*node.folder().to_string_lossy()), "{text}");
    node.del("c");
}
