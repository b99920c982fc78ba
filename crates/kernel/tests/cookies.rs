//! A path that leads to another namespace is detected by the cookie. Needs root.

use podwire_kernel::Netns;
use podwire_netlink::sys;

#[test]
fn a_reused_path_is_not_the_same_namespace() {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes network namespaces");
    let own = "/proc/thread-self/ns/net";
    std::thread::spawn(move || {
        let before = Netns::current().expect("this namespace").cookie().expect("its cookie");
        sys::new_network_namespace().expect("a new network namespace");
        let now = Netns::current().expect("this namespace").cookie().expect("its cookie");
        if before.is_none() {
            println!("skipped: this kernel has no namespace cookies");
            return;
        }
        assert_ne!(before, now);
        assert!(Netns::find_again(own, before).expect("lookup").is_none(), "another namespace");
        assert!(Netns::find_again(own, now).expect("lookup").is_some());
        assert!(Netns::find_again(own, None).expect("lookup").is_none(), "the node's own namespace");
    })
    .join()
    .expect("the thread");
}
