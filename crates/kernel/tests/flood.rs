//! Deletion of a link on a node with many other link changes. Needs root.

use std::thread;

use podwire_kernel::{detached, veth, Host, Netns, Owner};
use podwire_netlink::rt::{self, link};
use podwire_netlink::sys;

/// On a busy node, notices of other links may overflow the receive buffer before the first one is read.
#[test]
fn a_deletion_is_detected_after_a_receive_buffer_overflow() {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes network namespaces");
    let deletion = || {
        sys::new_network_namespace().expect("a new network namespace");
        let pod = Netns::open("/proc/thread-self/ns/net").expect("this namespace");
        let (mut flooded, mut node) = (Host::here().expect("here"), Host::here().expect("here"));
        let owner = Owner::new("pods", "a", "eth0");
        let pair = veth::Veth { name: "eth0", owner: &owner, mtu: 0, mac: None, port: None, end: None };
        let pair = pair.create(&mut node, &pod).expect("a veth pair");
        let (lo, end) = (flooded.get_link("lo").expect("lo"), node.get_link(&pair.host).expect("its end"));
        flooded.route.subscribe(rt::GROUP_LINK).expect("notices");
        for number in 0..1000 {
            let change =
                link::change(lo.index, "change the MTU of lo").u32(link::attribute::MTU, 2000 + number);
            node.route.request(change).expect("a change");
        }
        detached::delete_link(&mut flooded, &end, None).expect("the deletion");
        assert!(node.find_link(&pair.host).expect("an answer").is_none(), "it is gone");
    };
    thread::spawn(deletion).join().expect("the deletion");
}
