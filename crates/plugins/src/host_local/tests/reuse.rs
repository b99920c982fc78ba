//! Addresses that are excluded, reserved for requests, in cooldown, or sticky.

use super::*;

impl Node {
    /// ADD of a pod by its name.
    fn add_pod(&mut self, name: &str, container: &str) -> String {
        self.args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
        let given = self.add(container).remove(0);
        self.args.clear();
        given.split('/').next().unwrap().to_owned()
    }
}

#[test]
fn excluded_addresses_are_never_assigned() {
    let mut node = Node::new(json!({"ranges": [[
        {"subnet": "10.1.0.0/29", "exclude": ["10.1.0.2-10.1.0.3", "10.1.0.5"]}]]}));
    assert_eq!([node.add("a"), node.add("b")].concat(), ["10.1.0.4/29", "10.1.0.6/29"]);
    assert_eq!(node.refused("c").0, 11);
    assert_eq!(node.status(), Err((50, "no IP addresses available in range set: 10.1.0.1-10.1.0.6".into())));
    node.args = "IP=10.1.0.5".into();
    let (code, text) = node.refused("c");
    assert_eq!(
        (code, &*text),
        (7, "failed to allocate for range 0: requested ip 10.1.0.5 is excluded (exclude)")
    );
}

#[test]
fn reserved_addresses_are_assigned_on_request_only() {
    let mut node =
        Node::new(json!({"subnet": "10.1.0.0/29", "reserve": ["10.1.0.2/31", "10.1.0.5"], "sticky": true}));
    assert_eq!(node.add("a"), ["10.1.0.4/29"]);
    node.args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=vip;IP=10.1.0.5".into();
    assert_eq!(node.add("b"), ["10.1.0.5/29"]);
    node.del("b");
    assert_eq!(node.add_pod("vip", "b2"), "10.1.0.6", "it did not ask again");
    assert_eq!(node.refused("c").0, 11);
    assert_eq!(node.status().unwrap_err().0, 50);
}

#[test]
fn invalid_lists_are_refused_with_their_key() {
    let refused = |ipam: Value| Node::new(ipam).refused("a");
    let (code, text) = refused(json!({"ranges": [[{"subnet": "10.1.0.0/24", "exclude": ["ten"]}]]}));
    assert_eq!(code, 7);
    assert!(text.contains("ipam.ranges[0][0].exclude: \"ten\" is invalid for 10.1.0.0/24"), "{text}");
    assert!(refused(json!({"subnet": "10.1.0.0/24", "reserve": "10.1.0.5"})).1.contains("ipam.reserve"));
    let lost = refused(json!({"ranges": [[{"subnet": "10.1.0.0/24"}]], "exclude": ["10.1.0.5"]}));
    assert!(lost.0 == 7 && lost.1.starts_with("ipam.exclude, ipam.reserve"), "{lost:?}");
    for (cooldown, word) in
        [(json!(-1), "-1"), (json!("soon"), "soon"), (json!("5d"), "5d"), (json!([]), "[]")]
    {
        let (code, text) = refused(json!({"subnet": "10.1.0.0/24", "cooldown": cooldown}));
        assert!(code == 7 && text.contains("ipam.cooldown") && text.contains(word), "{text}");
    }
    assert!(refused(json!({"subnet": "10.1.0.0/24", "sticky": "often"})).1.contains("ipam.sticky"));
}

#[test]
fn an_address_is_not_assigned_during_its_cooldown() {
    for cooldown in [json!(300), json!("300"), json!("5m"), json!("4m60s")] {
        let mut node = Node::new(json!({"subnet": "10.1.0.0/30", "cooldown": cooldown}));
        node.add("a");
        node.del("a");
        node.now += 299;
        let error = node.try_add("b").unwrap_err().to_cni();
        assert_eq!(error.code, 11);
        assert!(error.hint.contains("all 1 are taken, 1 of them until ipam.cooldown is over"), "{error}");
        assert_eq!(node.status().unwrap_err().0, 50);
        node.now += 1;
        assert_eq!(node.status(), Ok(()));
        assert_eq!(node.add("b"), ["10.1.0.2/30"]);
    }
}

#[test]
fn requests_and_wrong_clocks_ignore_the_cooldown() {
    let mut node = Node::new(json!({"subnet": "10.1.0.0/30", "cooldown": 300}));
    node.add("a");
    node.del("a");
    node.args = "IP=10.1.0.2".into();
    node.add("b");
    node.del("b");
    node.args.clear();
    assert_eq!(node.refused("c").0, 11);
    node.now -= 100_000;
    assert_eq!(node.add("c"), ["10.1.0.2/30"]);
}

#[test]
fn addresses_released_by_gc_have_a_cooldown() {
    let mut node = Node::new(json!({"subnet": "10.1.0.0/30", "cooldown": 300}));
    node.add("a");
    node.gc(&[]);
    assert_eq!(node.refused("b").0, 11);
}

#[test]
fn a_sticky_pod_gets_the_address_that_it_had() {
    let mut node = Node::new(json!({"sticky": true, "cooldown": "1h",
        "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}));
    assert_eq!(node.add_pod("web-0", "a"), "10.1.0.2");
    assert_eq!(node.add_pod("web-1", "b"), "10.1.0.3");
    node.del("a");
    assert_eq!(node.add_pod("other", "c"), "10.1.0.4");
    assert_eq!(node.add_pod("web-0", "a2"), "10.1.0.2", "a cooldown is for others");
    assert_eq!(node.taken(), ["10.1.0.2", "10.1.0.3", "10.1.0.4", "fd00::2", "fd00::3", "fd00::4"]);
    // Its first container still has the address: the pod gets another one, and keeps it.
    assert_eq!(node.add_pod("web-0", "a3"), "10.1.0.5");
    node.del("a2");
    node.del("a3");
    assert_eq!(node.add_pod("web-0", "a4"), "10.1.0.5");
}

#[test]
fn addresses_of_absent_sticky_pods_are_assigned_last() {
    let mut node = Node::new(json!({"subnet": "10.1.0.0/29", "sticky": true}));
    for (name, container) in [("a", "1"), ("b", "2"), ("c", "3")] {
        node.add_pod(name, container);
        node.del(container);
    }
    // 10.1.0.2, .3 and .4 belong to pods, .5 and .6 do not; pods without names are added.
    assert_eq!([node.add("x"), node.add("y")].concat(), ["10.1.0.5/29", "10.1.0.6/29"]);
    assert_eq!(node.add_pod("b", "2b"), "10.1.0.3");
    assert_eq!(node.add("z"), ["10.1.0.4/29"], "there is no other left");
    assert_eq!(node.add_pod("c", "3b"), "10.1.0.2");
    assert_eq!(node.refused("another").0, 11);
}

#[test]
fn without_a_name_or_the_key_nothing_is_remembered() {
    let mut node = Node::new(json!({"subnet": "10.1.0.0/24"}));
    node.add_pod("web-0", "a");
    node.del("a");
    assert!(!node.folder().join("podwire.history").exists());
    assert_eq!(node.add_pod("web-0", "a"), "10.1.0.3");
    let node = Node::new(json!({"subnet": "10.1.0.0/24", "sticky": true}));
    node.add("a");
    node.del("a");
    assert!(!node.folder().join("podwire.history").exists());
}

#[test]
fn the_history_stays_short_and_can_be_lost() {
    let mut node = Node::new(json!({"subnet": "10.1.0.0/24", "sticky": true, "cooldown": 10}));
    for round in 0..200 {
        node.now += 20;
        let given = node.add_pod(&format!("web-{}", round % 3), "a");
        assert_eq!(given, format!("10.1.0.{}", 2 + round % 3), "round {round}");
        node.del("a");
    }
    assert!(node.read("podwire.history").lines().count() < 80);
    assert_eq!(mode(&node.folder().join("podwire.history")), 0o600);
    for content in ["", "nonsense\n10.1.0.9\n\n10.1.0.9 given\nx y z\n", "\0\0"] {
        node.write("podwire.history", content);
        node.add_pod("web-0", "a");
        node.del("a");
    }
}

#[test]
fn the_history_of_a_large_range_is_limited() {
    let mut node = Node::new(json!({"subnet": "fd00::/64", "sticky": true}));
    let lines: String = (2..20_002u32).map(|i| format!("fd00::{i:x} given shop/p{i}/eth0\n")).collect();
    node.write("podwire.history", &lines);
    assert_eq!(node.add_pod("p20001", "a"), "fd00::4e21", "the newest are known");
    assert_eq!(node.read("podwire.history").lines().count(), 16_384);
    node.write("last_reserved_ip.0", "fd00::4e21");
    assert_eq!(node.add_pod("p2", "b"), "fd00::4e22", "the oldest are not");
}

#[test]
fn the_history_needs_no_scan_of_the_folder() {
    let mut node = Node::new(json!({"subnet": "10.1.0.0/16", "sticky": true, "cooldown": 60}));
    let lines: String = (0..10_000u32)
        .map(|i| format!("10.1.{}.{} given shop/p{i}/eth0\n", 4 + i / 250, 2 + i % 250))
        .collect();
    node.write("podwire.history", &lines);
    node.add("first");
    let work = || {
        for i in 0..20 {
            assert_eq!(node.add_pod(&format!("p{i}"), &format!("c{i}")), format!("10.1.4.{}", 2 + i));
            node.del(&format!("c{i}"));
        }
    };
    assert_eq!(scans(work), 0);
}

#[test]
fn a_point_to_point_subnet_assigns_both_addresses() {
    for (subnet, both) in
        [("10.1.0.4/31", ["10.1.0.4/31", "10.1.0.5/31"]), ("fd00::6/127", ["fd00::6/127", "fd00::7/127"])]
    {
        let node = Node::subnet(subnet);
        let first = node.try_add("a").unwrap();
        assert_eq!(first.ips[0].gateway, None, "none is configured");
        assert_eq!([first.ips[0].address.to_string(), node.add("b").remove(0)], both);
        assert_eq!(node.status().unwrap_err().0, 50);
    }
    let node = Node::new(json!({"subnet": "10.1.0.4/31", "gateway": "10.1.0.4"}));
    let only = node.try_add("a").unwrap();
    assert_eq!(
        (only.ips[0].address.to_string(), only.ips[0].gateway),
        ("10.1.0.5/31".into(), "10.1.0.4".parse().ok())
    );
    assert_eq!(node.refused("b").0, 11);
}
