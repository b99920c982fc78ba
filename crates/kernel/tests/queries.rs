//! Cheap queries give the same results as /proc. Needs root.

use std::time::{Duration, Instant};

use podwire_kernel::{bridge::Bridge, sysctl, Host, Netns};
use podwire_netlink::sys;

#[test]
fn socket_and_link_queries_agree_with_proc() {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes network namespaces");
    let node = Netns::current().expect("this namespace").identity().unwrap();
    let work = move || {
        sys::new_network_namespace().expect("a new network namespace");
        let own = Netns::current().expect("this namespace").identity().unwrap();
        let by_file = Netns::open("/proc/thread-self/ns/net").expect("this namespace").identity().unwrap();
        assert_eq!(own, by_file);
        assert_ne!(own, node, "namespaces belong to threads");

        let mut host = Host::here().expect("this namespace");
        let bridge = Bridge { name: "br0", mtu: 0, promiscuous: false, vlan_filtering: false };
        assert_eq!(
            bridge.ensure(&mut host).expect("a bridge").accept_ra,
            Some(0),
            "no router advertisements"
        );
        for value in [1, 0, 2] {
            sysctl::write("net/ipv6/conf/br0/accept_ra", &value.to_string()).unwrap();
            sysctl::write("net/ipv4/conf/br0/route_localnet", &(value % 2).to_string()).unwrap();
            let link = host.get_link("br0").unwrap();
            assert_eq!((link.accept_ra, link.route_localnet), (Some(value), Some(value == 1)));
        }
        assert!(host.get_link("br0").unwrap().has_ipv6());
        // A router has an anycast address in each network of its links.
        sysctl::enable_forwarding(&[podwire_ip::IpFamily::V6]).unwrap();
        let (br0, one) = (host.get_link("br0").unwrap(), "fd07::1".parse().unwrap());
        host.route.request(podwire_netlink::rt::link::up(&br0)).unwrap();
        host.route.request(podwire_netlink::rt::address::add(br0.index, one, 64, false)).unwrap();
        // The kernel joins it a moment later, in a worker.
        let (router, end) = ("fd07::".parse().unwrap(), Instant::now() + Duration::from_secs(10));
        while !podwire_netlink::rt::address::list_anycast(&mut host.route).unwrap().contains(&router) {
            assert!(Instant::now() < end, "{router} is not listed");
        }
        // Below 1280 bytes there is no IPv6.
        let small = podwire_netlink::rt::link::change(host.get_link("br0").unwrap().index, "a small MTU");
        host.route.request(small.u32(podwire_netlink::rt::link::attribute::MTU, 1000)).unwrap();
        assert!(!host.get_link("br0").unwrap().has_ipv6());
    };
    std::thread::spawn(work).join().unwrap();
}
