//! Ten thousand addresses: counted work, and (by hand) time.

use super::*;

/// `count` addresses of others, written by others, from 10.1.0.2 on.
fn occupy(node: &Node, count: u32) {
    for i in 0..count {
        let ip = std::net::Ipv4Addr::from_bits(0x0a01_0002 + i);
        node.write(&ip.to_string(), &format!("{i:064}\r\neth0"));
        if i + 1 == count {
            node.write("last_reserved_ip.0", &ip.to_string());
        }
    }
}

#[test]
fn ten_thousand_addresses_are_read_once() {
    let node = Node::subnet("10.1.0.0/16");
    occupy(&node, 10_000);
    assert_eq!(scans(|| assert_eq!(node.add("first"), ["10.1.39.18/16"])), 1);
    let work = || {
        for i in 0..100 {
            node.add(&format!("pod-{i}"));
            assert!(node.refused(&format!("pod-{i}")).1.contains("duplicate"));
            node.check(&format!("{i:064}")).unwrap();
            node.del(&format!("{i:064}"));
            node.del(&format!("pod-{i}"));
        }
    };
    assert_eq!(scans(work), 0);
    assert_eq!(node.taken().len(), 9_901);
}

#[test]
fn the_first_free_address_after_many_taken_ones_is_found() {
    let node = Node::subnet("10.1.0.0/16");
    occupy(&node, 5_000);
    fs::remove_file(node.folder().join("last_reserved_ip.0")).unwrap();
    assert_eq!(node.add("a"), ["10.1.19.138/16"]);
}
