//! Detached deletions in a long-running program leave no zombie processes and no open descriptors. Needs root.

use std::thread;
use std::time::{Duration, Instant};

use podwire_kernel::{detached, veth, Host, Netns, Owner};
use podwire_netlink::sys;

/// The children of this process, including zombies.
fn children() -> usize {
    let parent = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    // pid (name) state parent …
    stats
        .filter(|stat| stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)) == Some(&parent))
        .count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc/self/fd").count()
}

#[test]
fn a_hundred_deletions_leave_no_child_and_no_open_descriptor() {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes network namespaces");
    let before = descriptors();
    let deletions = || {
        sys::new_network_namespace().expect("a new network namespace");
        let mut node = Host::here().expect("this namespace");
        node.nft().expect("a netfilter socket");
        let pod = Netns::open("/proc/thread-self/ns/net").expect("this namespace");
        for number in 0..100 {
            let owner = Owner::new("pods", number.to_string(), "eth0");
            let pair = veth::Veth { name: "eth0", owner: &owner, mtu: 0, mac: None, port: None, end: None };
            let pair = pair.create(&mut node, &pod).expect("a veth pair");
            let end = node.get_link(&pair.host).expect("its end");
            let mut links = Host::here().expect("this namespace");
            detached::delete_link(&mut links, &end, node.used_nft()).expect("the deletion");
            detached::after_deleting(&node);
            detached::after_adding(&node);
        }
    };
    thread::spawn(deletions).join().expect("the deletions");
    assert_eq!(children(), 0, "children of this process");
    // The helper threads end when the kernel has finished, and close their descriptors.
    let end = Instant::now() + Duration::from_secs(10);
    while descriptors() > before && Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(descriptors(), before, "open descriptors of this process");
}
