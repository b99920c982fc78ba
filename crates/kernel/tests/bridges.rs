//! New bridges. Needs root.

use std::net::IpAddr;

use podwire_kernel::{bridge::Bridge, sysctl, Host};
use podwire_netlink::rt::{address, link::Link};
use podwire_netlink::sys;

const BRIDGE: Bridge<'static> = Bridge { name: "br0", mtu: 0, promiscuous: false, vlan_filtering: false };

/// Creates the bridge in a new namespace, prepared with sysctls, and passes it on.
fn with_bridge(bridge: Bridge<'static>, sysctls: &[(&str, &str)], check: fn(&mut Host, Link)) {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes network namespaces");
    let sysctls: Vec<_> = sysctls.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let work = move || {
        sys::new_network_namespace().expect("a new network namespace");
        for (key, value) in &sysctls {
            sysctl::write(key, value).unwrap();
        }
        let mut host = Host::here().expect("this namespace");
        let created = bridge.ensure(&mut host).expect("a bridge");
        check(&mut host, created);
    };
    std::thread::spawn(work).join().unwrap();
}

fn addresses(host: &mut Host, link: &Link) -> Vec<(IpAddr, u8)> {
    let listed = address::list(&mut host.route, link.index).expect("addresses");
    listed.iter().map(|address| (address.ip, address.prefix)).collect()
}

#[test]
fn a_bridge_without_ports_has_its_link_local_address() {
    with_bridge(BRIDGE, &[], |host, link| {
        let expected = BRIDGE.mac(host).unwrap().link_local();
        assert_eq!(addresses(host, &link), [(IpAddr::from(expected), 64)]);
    });
}

#[test]
fn a_bridge_has_none_where_the_kernel_adds_none() {
    for setting in [("net/ipv6/conf/default/disable_ipv6", "1"), ("net/ipv6/conf/default/addr_gen_mode", "1")]
    {
        with_bridge(BRIDGE, &[setting], |host, link| assert_eq!(addresses(host, &link), []));
    }
    with_bridge(Bridge { mtu: 1000, ..BRIDGE }, &[], |host, link| assert_eq!(addresses(host, &link), []));
}
