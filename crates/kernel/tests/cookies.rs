//! A namespace is told from another one that is found under its path later. It needs root.

use podwire_kernel::Netns;
use podwire_netlink::sys;

#[test]
fn a_path_that_leads_to_another_namespace_leads_nowhere() {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes network namespaces");
    let own = "/proc/thread-self/ns/net";
    std::thread::spawn(move || {
        let before = Netns::current().expect("this namespace").cookie().expect("its cookie");
        sys::new_network_namespace().expect("a new network namespace");
        let now = Netns::current().expect("this namespace").cookie().expect("its cookie");
        if before.is_none() {
            println!("left out: cookies, which this kernel does not have");
            return;
        }
        assert_ne!(before, now);
        assert!(Netns::find_again(own, before).expect("a look").is_none(), "it was another");
        assert!(Netns::find_again(own, now).expect("a look").is_some());
        assert!(Netns::find_again(own, None).expect("a look").is_none(), "the node's own is no pod's");
    })
    .join()
    .expect("the thread");
}
