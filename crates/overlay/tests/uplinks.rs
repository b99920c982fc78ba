//! The choice of the uplink on nodes with several interfaces.

#![allow(clippy::unwrap_used)] // A test that cannot continue panics.

mod lab;

use std::net::IpAddr;

use podwire_ip::IpFamily;
use podwire_overlay::{Error, Uplink, UplinkPreference};
use podwire_tests::Node;

/// A node with two interfaces, like a virtual machine with NAT: all machines share the address of the first, and the
/// second connects the machines.
fn node() -> Node {
    let node = Node::new();
    node.sh(
        "echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
         for link in nat lan; do ip link add $link type veth peer name far-$link; ip link set far-$link up; ip link set $link up; done
         ip link set lan mtu 9000
         ip address add 10.0.2.15/24 dev nat
         ip address add 192.168.56.11/24 dev lan
         ip address add 192.168.56.12/24 dev lan
         ip address add fd56::11/64 dev lan nodad
         ip route add default via 10.0.2.2 dev nat metric 100
         ip route add 172.16.0.0/12 via 192.168.56.1",
    );
    node
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| word.to_string()).collect()
}

fn choose(node: &Node, preference: UplinkPreference, family: IpFamily) -> Result<Uplink, Error> {
    preference.choose(&mut lab::host_of(node), family)
}

#[track_caller]
fn assert_chosen(node: &Node, preference: UplinkPreference, (name, address): (&str, &str)) {
    let family = IpFamily::of(ip(address));
    let uplink =
        choose(node, preference.clone(), family).unwrap_or_else(|error| panic!("{preference:?}: {error}"));
    assert_eq!((uplink.name.as_str(), uplink.address), (name, ip(address)), "{preference:?}");
    assert_eq!(uplink.mtu, if name == "lan" { 9000 } else { 1500 });
}

#[test]
fn settings_decide_in_order_of_precedence() {
    let node = node();
    let nothing = UplinkPreference::default;
    assert_chosen(&node, nothing(), ("nat", "10.0.2.15"));
    let named = |list: &[&str]| UplinkPreference { interfaces: words(list), ..nothing() };
    assert_chosen(&node, named(&["lan"]), ("lan", "192.168.56.11"));
    assert_chosen(&node, named(&["wlan0", "192.168.56.12"]), ("lan", "192.168.56.12"));
    // An address of one family also selects the interface for the other.
    assert_chosen(&node, named(&["192.168.56.12"]), ("lan", "fd56::11"));
    let pattern = |list: &[&str]| UplinkPreference { patterns: words(list), ..nothing() };
    assert_chosen(&node, pattern(&["^wlan", "^la"]), ("lan", "192.168.56.11"));
    assert_chosen(&node, pattern(&[r"^192\.168\..*\.12$"]), ("lan", "192.168.56.12"));
    assert_chosen(&node, pattern(&[r"^192\.168\..*\.12$"]), ("lan", "fd56::11"));
    let reach = |target: &str| UplinkPreference { can_reach: vec![ip(target)], ..nothing() };
    assert_chosen(&node, reach("172.20.0.1"), ("lan", "192.168.56.11"));
    assert_chosen(&node, reach("8.8.8.8"), ("nat", "10.0.2.15"));
    let known =
        UplinkPreference { node_addresses: vec![ip("203.0.113.5"), ip("192.168.56.12")], ..nothing() };
    assert_chosen(&node, known.clone(), ("lan", "192.168.56.12"));
    // The more explicit setting takes precedence.
    assert_chosen(
        &node,
        UplinkPreference { interfaces: words(&["nat"]), ..known.clone() },
        ("nat", "10.0.2.15"),
    );
    assert_chosen(&node, UplinkPreference { can_reach: vec![ip("8.8.8.8")], ..known }, ("nat", "10.0.2.15"));
}

#[test]
fn errors_list_the_existing_interfaces() {
    let node = node();
    let error = choose(
        &node,
        UplinkPreference { interfaces: words(&["wlan0"]), ..UplinkPreference::default() },
        IpFamily::V4,
    )
    .unwrap_err();
    assert!(matches!(error, Error::NoInterface { .. }));
    let text = error.to_string();
    assert!(text.starts_with("no interface matches wlan0; interfaces: "), "{text}");
    assert!(
        text.contains("nat (10.0.2.15/24") && text.contains("lan (192.168.56.11/24, 192.168.56.12/24"),
        "{text}"
    );

    let error = choose(&node, UplinkPreference::default(), IpFamily::V6).unwrap_err().to_string();
    assert!(error.starts_with("no interface has the IPv6 default route"), "{error}");

    node.sh("ip address flush dev lan");
    let error = choose(
        &node,
        UplinkPreference { interfaces: words(&["lan"]), ..UplinkPreference::default() },
        IpFamily::V4,
    )
    .unwrap_err();
    assert!(
        error.to_string().starts_with("interface lan has no usable IPv4 address; addresses: "),
        "{error}"
    );

    let error = choose(
        &node,
        UplinkPreference { patterns: words(&["("]), ..UplinkPreference::default() },
        IpFamily::V4,
    )
    .unwrap_err();
    assert!(error.to_string().starts_with("interface pattern \"(\""), "{error}");

    node.sh("ip route del default");
    let far = UplinkPreference { can_reach: vec![ip("8.8.8.8")], ..UplinkPreference::default() };
    let error = choose(&node, far, IpFamily::V4).unwrap_err();
    assert!(error.to_string().starts_with("no route to 8.8.8.8, which selects"), "{error}");
}

#[test]
fn ambiguity_is_an_error() {
    let node = node();
    let error = choose(
        &node,
        UplinkPreference { patterns: words(&["^(nat|lan)$"]), ..UplinkPreference::default() },
        IpFamily::V4,
    )
    .unwrap_err();
    assert!(matches!(error, Error::AmbiguousInterface { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("nat (10.0.2.15/24") && text.contains("lan (192.168.56.11/24"), "{text}");
    assert!(text.ends_with("select one by name or address"), "{text}");

    node.sh("ip route add default via 192.168.56.1 dev lan metric 200");
    assert_chosen(&node, UplinkPreference::default(), ("nat", "10.0.2.15"));
    node.sh("ip route del default via 192.168.56.1; ip route add default metric 100 nexthop via 10.0.2.2 nexthop via 192.168.56.1 2>/dev/null; ip route replace default metric 100 nexthop via 10.0.2.2 nexthop via 192.168.56.1");
    let error = choose(&node, UplinkPreference::default(), IpFamily::V4).unwrap_err().to_string();
    assert!(error.starts_with("several interfaces have an IPv4 default route with metric 100: "), "{error}");
}

#[test]
fn permanent_addresses_come_before_temporary_ones() {
    let node = node();
    node.sh("ip address flush dev lan scope global
         ip address add fd56::77/64 dev lan nodad valid_lft 900 preferred_lft 900
         ip address add fd56::88/64 dev lan nodad preferred_lft 0
         ip address add fd56::99/64 dev lan nodad
         ip -6 route add default via fd56::1 dev lan");
    assert_chosen(&node, UplinkPreference::default(), ("lan", "fd56::99"));
    node.sh("ip address del fd56::99/64 dev lan");
    assert_chosen(&node, UplinkPreference::default(), ("lan", "fd56::77"));
}
