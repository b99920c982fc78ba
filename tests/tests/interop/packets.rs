//! Packets behave the same with the Go plugins and with Podwire's.

use podwire_tests::{ours, Chain, Node, GO};
use serde_json::{json, Value};

use crate::bridge::{bridge, pool, V4, V6};

/// Runs `test` on a node of each kind.
fn on_both(test: impl Fn(&Node, &str) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| test(&Node::new(), GO));
        test(&Node::new(), &ours());
    });
}

/// A machine behind the node's uplink.
const NEAR: [&str; 2] = ["192.0.2", "2001:db8:a"];
/// A machine behind another interface of the node.
const FAR: [&str; 2] = ["198.51.100", "2001:db8:b"];

/// (A pod reaches itself by a mapped port only in hairpin mode, where the kernel passes bridged packets to the
/// firewall.)
fn gateway() -> Value {
    bridge(json!({"isDefaultGateway": true, "ipMasq": true, "hairpinMode": true}), &[V4, V6])
}

fn ports(keys: Value) -> Value {
    let ports = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
        {"hostPort": 9090, "containerPort": 80, "protocol": "tcp", "hostIP": "198.51.100.1"},
    ]);
    let mut config = json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}});
    for (key, value) in keys.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn pods_on_a_bridge_reach_each_other_and_their_gateway() {
    on_both(|node, path| {
        let chain = Chain::new(path, "pods", &[gateway()]);
        let (one, other) = (node.pod("p1"), node.pod("p2"));
        chain.add(node, &one);
        chain.add(node, &other);
        for (from, to) in [
            (&one, "10.1.0.1"),
            (&one, "10.1.0.3"),
            (&other, "10.1.0.2"),
            (&one, "fd00:1::1"),
            (&one, "fd00:1::3"),
        ] {
            assert!(node.pings(Some(from), to), "{path}: {} to {to}", from.name);
        }
        assert!(node.pings(None, "10.1.0.2") && node.pings(None, "fd00:1::3"), "{path}: from the node");
        let _listens = node.listen(Some(&other), "tcp/80");
        assert_eq!(node.ask(Some(&one), "10.1.0.3", "tcp/80"), "p2 10.1.0.2", "{path}: no NAT between pods");
        assert_eq!(
            node.ask(Some(&one), "fd00:1::3", "tcp/80"),
            "p2 fd00:1::2",
            "{path}: no NAT between pods"
        );
    });
}

#[test]
fn pods_on_ptp_reach_each_other_through_the_node() {
    on_both(|node, path| {
        let ipam = json!({"type": "host-local", "ranges": [[{"subnet": V4}], [{"subnet": V6}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
        let chain = Chain::new(path, "pods", &[json!({"type": "ptp", "ipMasq": true, "ipam": ipam})]);
        let outside = node.neighbour("outside", NEAR[0], NEAR[1]);
        let (one, other) = (node.pod("p1"), node.pod("p2"));
        chain.add(node, &one);
        chain.add(node, &other);
        let _listen = [node.listen(Some(&other), "tcp/80"), node.listen(Some(&outside), "tcp/80")];
        assert!(node.pings(Some(&one), "10.1.0.1") && node.pings(Some(&one), "fd00:1::1"), "{path}: gateway");
        assert!(node.pings(None, "10.1.0.3") && node.pings(None, "fd00:1::3"), "{path}: from the node");
        assert_eq!(node.ask(Some(&one), "10.1.0.3", "tcp/80"), "p2 10.1.0.2", "{path}");
        assert_eq!(node.ask(Some(&one), "fd00:1::3", "tcp/80"), "p2 fd00:1::2", "{path}");
        assert_eq!(node.ask(Some(&one), "192.0.2.2", "tcp/80"), "outside 192.0.2.1", "{path}");
        assert_eq!(node.ask(Some(&one), "2001:db8:a::2", "tcp/80"), "outside 2001:db8:a::1", "{path}");
    });
}

#[test]
fn large_packets_pass_up_to_the_mtu_and_no_further() {
    on_both(|node, path| {
        let chain = Chain::new(path, "pods", &[bridge(json!({"isGateway": true, "mtu": 1400}), &[V4])]);
        let (one, other) = (node.pod("p1"), node.pod("p2"));
        chain.add(node, &one);
        chain.add(node, &other);
        assert!(node.pings_with(Some(&one), "10.1.0.3", 1400 - 28), "{path}");
        assert!(!node.pings_with(Some(&one), "10.1.0.3", 1400 - 27), "{path}");
    });
}

#[test]
fn the_outside_sees_the_node_in_place_of_a_pod() {
    on_both(|node, path| {
        let outside = node.neighbour("outside", NEAR[0], NEAR[1]);
        let pod = node.pod("p1");
        let chain = Chain::new(path, "pods", &[gateway()]);
        let result = chain.add(node, &pod);
        let _listen = [node.listen(Some(&outside), "tcp/80"), node.listen(Some(&outside), "udp/53")];
        assert_eq!(node.ask(Some(&pod), "192.0.2.2", "tcp/80"), "outside 192.0.2.1", "{path}");
        assert_eq!(node.ask(Some(&pod), "192.0.2.2", "udp/53"), "outside 192.0.2.1", "{path}");
        assert_eq!(node.ask(Some(&pod), "2001:db8:a::2", "tcp/80"), "outside 2001:db8:a::1", "{path}");
        chain.del(node, &pod, Some(&result));
        // The same address without ipMasq: the outside has no route to it.
        let bare = Chain::new(path, "pods", &[bridge(json!({"isDefaultGateway": true}), &[V4, V6])]);
        let next = node.pod("p2");
        bare.add(node, &next);
        assert!(node.is_silent(Some(&next), "192.0.2.2", "tcp/80"), "{path}");
    });
}

#[test]
fn a_mapped_port_leads_into_the_pod_from_everywhere() {
    on_both(|node, path| {
        let outside = node.neighbour("outside", NEAR[0], NEAR[1]);
        let far = node.neighbour("far", FAR[0], FAR[1]);
        let (pod, next) = (node.pod("p1"), node.pod("p2"));
        let result = Chain::new(path, "pods", &[gateway(), ports(json!({}))]).add(node, &pod);
        Chain::new(path, "pods", &[gateway()]).add(node, &next);
        let _listen = [node.listen(Some(&pod), "tcp/80"), node.listen(Some(&pod), "udp/53")];
        for (from, host, port, answer) in [
            // From outside, the pod sees the client's address.
            (Some(&outside), "192.0.2.1", "tcp/8080", "p1 192.0.2.2"),
            (Some(&outside), "192.0.2.1", "udp/5353", "p1 192.0.2.2"),
            (Some(&outside), "2001:db8:a::1", "tcp/8080", "p1 2001:db8:a::2"),
            (Some(&far), "198.51.100.1", "tcp/9090", "p1 198.51.100.2"),
            // The node itself, through its own addresses.
            (None, "192.0.2.1", "tcp/8080", "p1 192.0.2.1"),
            (None, "127.0.0.1", "tcp/8080", "p1 10.1.0.1"),
            (None, "127.0.0.1", "udp/5353", "p1 10.1.0.1"),
            // Connections of the pod itself and of its neighbour are masqueraded. Otherwise the response would not pass
            // the node.
            (Some(&pod), "192.0.2.1", "tcp/8080", "p1 10.1.0.1"),
            (Some(&next), "192.0.2.1", "tcp/8080", "p1 10.1.0.1"),
            (Some(&next), "10.1.0.1", "tcp/8080", "p1 10.1.0.1"),
        ] {
            let asker = from.map_or("node", |pod| &pod.name);
            assert_eq!(node.ask(from, host, port), answer, "{path}: {asker} asks {port} of {host}");
        }
        // A mapping with a host address applies to that address only.
        assert!(node.is_silent(Some(&outside), "192.0.2.1", "tcp/9090"), "{path}");
        Chain::new(path, "pods", &[gateway(), ports(json!({}))]).del(node, &pod, Some(&result));
        assert!(node.is_silent(Some(&outside), "192.0.2.1", "tcp/8080"), "{path}: after DEL");
    });
}

#[test]
fn a_mapped_port_takes_no_forwarded_packet() {
    on_both(|node, path| {
        let outside = node.neighbour("outside", NEAR[0], NEAR[1]);
        let far = node.neighbour("far", FAR[0], FAR[1]);
        node.sh("ip -n outside route add 198.51.100.0/24 via 192.0.2.1
                 ip -n far route add 192.0.2.0/24 via 198.51.100.1");
        let pod = node.pod("p1");
        Chain::new(path, "pods", &[gateway(), ports(json!({}))]).add(node, &pod);
        let _listen = [node.listen(Some(&pod), "tcp/80"), node.listen(Some(&far), "tcp/8080")];
        assert_eq!(
            node.ask(Some(&outside), "198.51.100.2", "tcp/8080"),
            "far 192.0.2.2",
            "{path}: in transit"
        );
        assert_eq!(
            node.ask(Some(&pod), "198.51.100.2", "tcp/8080"),
            "far 198.51.100.1",
            "{path}: from the pod"
        );
        assert_eq!(node.ask(None, "198.51.100.2", "tcp/8080"), "far 198.51.100.1", "{path}: from the node");
    });
}

#[test]
fn without_snat_a_mapped_port_is_for_the_outside_only() {
    on_both(|node, path| {
        let outside = node.neighbour("outside", NEAR[0], NEAR[1]);
        let pod = node.pod("p1");
        Chain::new(path, "pods", &[gateway(), ports(json!({"snat": false}))]).add(node, &pod);
        let _listens = node.listen(Some(&pod), "tcp/80");
        assert_eq!(node.ask(Some(&outside), "192.0.2.1", "tcp/8080"), "p1 192.0.2.2", "{path}");
        assert!(node.is_silent(None, "127.0.0.1", "tcp/8080"), "{path}");
    });
}

#[test]
fn a_firewalled_pod_passes_a_node_that_forwards_nothing() {
    on_both(|node, path| {
        let outside = node.neighbour("outside", NEAR[0], NEAR[1]);
        node.sh("ip -n outside route add 10.1.0.0/24 via 192.0.2.1; iptables -P FORWARD DROP; ip6tables -P FORWARD DROP");
        let open = Chain::new(path, "pods", &[gateway(), json!({"type": "firewall", "backend": "iptables"})]);
        let (pod, other) = (node.pod("p1"), node.pod("p2"));
        let result = open.add(node, &pod);
        Chain::new(path, "pods", &[gateway()]).add(node, &other);
        let _listen = [node.listen(Some(&outside), "tcp/80"), node.listen(Some(&pod), "tcp/80")];
        assert_eq!(node.ask(Some(&pod), "192.0.2.2", "tcp/80"), "outside 192.0.2.1", "{path}");
        assert_eq!(node.ask(Some(&pod), "2001:db8:a::2", "tcp/80"), "outside 2001:db8:a::1", "{path}");
        assert!(node.is_silent(Some(&other), "192.0.2.2", "tcp/80"), "{path}: a pod without the plugin");
        assert!(
            node.is_silent(Some(&outside), "10.1.0.2", "tcp/80"),
            "{path}: no connection from outside is allowed"
        );
        open.del(node, &pod, Some(&result));
        let again = node.pod("p3");
        Chain::new(path, "pods", &[gateway()]).add(node, &again);
        assert!(node.is_silent(Some(&again), "192.0.2.2", "tcp/80"), "{path}: after DEL");
    });
}

#[test]
fn a_host_port_stays_with_the_pod_that_has_it() {
    on_both(|node, path| {
        let outside = node.neighbour("outside", NEAR[0], NEAR[1]);
        let (first, second) = (node.pod("p1"), node.pod("p2"));
        let chain = Chain::new(path, "pods", &[gateway(), ports(json!({}))]);
        chain.add(node, &first);
        // Go's portmap maps the port again, without effect; Podwire's reports its owner.
        let again = chain.try_add(node, &second);
        match path {
            GO => assert!(again.is_ok()),
            _ => {
                assert!(again.unwrap_err().error().1.contains("host port 8080/tcp is taken by pods/p1/eth0"))
            }
        }
        let _listen = [node.listen(Some(&first), "tcp/80"), node.listen(Some(&second), "tcp/80")];
        assert_eq!(node.ask(Some(&outside), "192.0.2.1", "tcp/8080"), "p1 192.0.2.2", "{path}");
    });
}

#[test]
fn only_our_plugin_rejects_an_unknown_firewall_backend() {
    on_both(|node, path| {
        let chain = Chain::new(path, "pods", &[gateway(), json!({"type": "firewall", "backend": "magic"})]);
        let added = chain.try_add(node, &node.pod("p1"));
        match path {
            GO => assert!(added.is_ok()),
            _ => assert_eq!(added.unwrap_err().error().0, 7),
        }
    });
}

#[test]
fn a_bridge_without_gateway_connects_only_its_pods() {
    on_both(|node, path| {
        let chain =
            Chain::new(path, "pods", &[json!({"type": "bridge", "bridge": "br0", "ipam": pool(&[V4])})]);
        let (one, other) = (node.pod("p1"), node.pod("p2"));
        chain.add(node, &one);
        chain.add(node, &other);
        assert!(node.pings(Some(&one), "10.1.0.3"), "{path}");
        assert!(!node.can("ip route get 10.1.0.2"), "{path}: the node has no way there");
    });
}

#[test]
fn a_pods_loopback_answers() {
    on_both(|node, path| {
        let pod = node.pod("p1");
        Chain::new(path, "lo", &[json!({"type": "loopback"})]).add(node, &pod);
        assert!(node.pings(Some(&pod), "127.0.0.1") && node.pings(Some(&pod), "::1"), "{path}");
    });
}
