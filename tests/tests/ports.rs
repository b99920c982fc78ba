//! Host ports of a container with several interfaces. podman publishes a container's ports on each of its networks, so
//! the same container requests its port again, which is not a conflict. Also host ports without a route to the pod,
//! without the runtime's record, and after the last pod.

use podwire_tests::{assert_same, ours, podwire, Chain, Node, Output};
use serde_json::{json, Value};

/// A node with a neighbour, the networks `one` and `two`, and the pods `web` and `other`.
fn node() -> Node {
    let node = Node::new();
    node.neighbour("outside", "192.0.2", "2001:db8:a");
    for (n, name) in [(1, "one"), (2, "two")] {
        let pool = json!({"type": "host-local", "subnet": format!("10.{n}.0.0/24"), "routes": [{"dst": "192.0.2.0/24"}]});
        let plugins = json!([{"type": "bridge", "bridge": format!("br{n}"), "isGateway": true, "hairpinMode": true, "ipam": pool},
            {"type": "portmap", "capabilities": {"portMappings": true}}]);
        let network = json!({"cniVersion": "0.4.0", "name": name, "plugins": plugins});
        node.write(&format!("/run/test/net.d/{name}.conflist"), &network.to_string());
    }
    for name in ["web", "other"] {
        node.pod(name);
    }
    node
}

fn run(node: &Node, line: &str) -> Output {
    let (program, plugins) = (podwire(), ours());
    let mut words = vec![program.as_str(), "cni"];
    words.extend(line.split(' '));
    words.extend(["--conf-dir", "/run/test/net.d", "--plugin-dir", &plugins]);
    node.output(&words, &[])
}

#[track_caller]
fn must(node: &Node, line: &str) {
    let output = run(node, line);
    assert_eq!(output.status, 0, "{line}: {}{}", output.stdout, output.stderr);
}

const ONE: &str = "add one web --container web --publish 8080:80";
const TWO: &str = "add two web --container web --ifname eth1 --publish 8080:80";

/// The port maps to the container's address on this network.
#[track_caller]
fn leads_to(node: &Node, network: &str) {
    let maps = node.sh("nft list map inet podwire_ports ports4");
    assert_eq!(maps.matches("8080").count(), 1, "{maps}");
    assert!(maps.contains(&format!("\"{network}/web/")), "{maps}");
    let outside = podwire_tests::Pod { name: "outside".into(), netns: "/run/netns/outside".into() };
    assert_eq!(node.ask(Some(&outside), "192.0.2.1", "tcp/8080"), "web 192.0.2.2");
    must(node, "check one web --container web");
    must(node, "check two web --container web --ifname eth1");
    must(node, "audit");
}

#[test]
fn a_port_that_two_interfaces_of_a_container_want_leads_to_the_first_and_then_to_the_other() {
    let node = node();
    // What stays of networks that were used once.
    for line in [ONE, TWO, "del one web --container web", "del two web --container web --ifname eth1"] {
        must(&node, line);
    }
    let before = node.leftovers();
    let web = podwire_tests::Pod { name: "web".into(), netns: "/run/netns/web".into() };
    let _listener = node.listen(Some(&web), "tcp/80");
    must(&node, ONE);
    must(&node, TWO);
    leads_to(&node, "one");

    // Another container conflicts on either network.
    for network in ["one", "two"] {
        let refused = run(&node, &format!("add {network} other --container other --publish 8080:80"));
        assert!(refused.stderr.contains("host port 8080/tcp is taken by one/web/eth0"), "{}", refused.stderr);
    }

    must(&node, "del one web --container web");
    assert!(
        node.sh("nft list map inet podwire_ports ports4").contains("\"two/web/eth1\""),
        "the mapping is unchanged"
    );
    must(&node, ONE);
    leads_to(&node, "two");
    must(&node, "del two web --container web --ifname eth1");
    assert!(
        node.sh("nft list map inet podwire_ports ports4").contains("\"one/web/eth0\""),
        "the mapping is unchanged"
    );
    must(&node, TWO);
    leads_to(&node, "one");

    // Flushed rules are restored, each once.
    node.sh("nft flush ruleset");
    assert_eq!(node.output(&[&podwire(), "cni", "reload"], &[]).status, 0);
    assert_eq!(run(&node, "audit --fix").status, 0);
    let maps = node.sh("nft list map inet podwire_ports ports4");
    assert_eq!(maps.matches("8080").count(), 1, "{maps}");

    // A container that is detached from both networks after its namespace was deleted.
    must(&node, "del two web --container web --ifname eth1");
    must(&node, "del one web --container web");
    assert_same(&before, &node.leftovers(), "after both");
    assert!(!node.can("ls /run/podwire/ports"), "a note is left");
}

#[test]
fn a_container_that_vanished_with_all_its_interfaces_leaves_no_note() {
    let node = node();
    let before = node.leftovers();
    must(&node, ONE);
    must(&node, TWO);
    node.sh("ip netns delete web");
    assert_eq!(run(&node, "audit --fix").status, 0);
    node.sh("ip link delete br1; ip link delete br2");
    assert_same(&before, &node.leftovers(), "after the audit");
    assert!(!node.can("ls /run/podwire/ports"), "a note is left");
}

const PORT: &str = "nft list map inet podwire_ports ports4";

/// A network with a host port, on a bridge with these keys.
fn mapped(keys: Value) -> Chain {
    let mut bridge =
        json!({"type": "bridge", "bridge": "br1", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}});
    bridge.as_object_mut().unwrap().extend(keys.as_object().cloned().unwrap());
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let portmap = json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}});
    Chain::new(&ours(), "net", &[bridge, portmap])
}

#[test]
fn a_port_is_mapped_to_a_pod_without_a_route_from_the_node() {
    let (node, chain) = (Node::new(), mapped(json!({})));
    let pod = node.pod("web");
    assert!(!node.can("ip route get 10.1.0.2"));
    let result = chain.add(&node, &pod);
    assert!(node.sh(PORT).contains("8080"));
    chain.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{}", said.stdout));
    chain.del(&node, &pod, Some(&result));
    assert!(!node.sh(PORT).contains("8080"));
}

#[test]
fn a_del_without_the_ports_or_the_addresses_of_the_add_frees_them_all_the_same() {
    let (node, chain) = (Node::new(), mapped(json!({"isGateway": true})));
    let pod = node.pod("web");
    let forgetful = |ports: Value| {
        let mut chain = mapped(json!({"isGateway": true}));
        chain.plugins[1]["runtimeConfig"]["portMappings"] = ports;
        chain
    };
    for ports in [json!([]), Value::Null] {
        let result = chain.add(&node, &pod);
        assert!(node.sh(PORT).contains("8080"));
        forgetful(ports.clone()).del(&node, &pod, Some(&result));
        assert!(!node.sh(PORT).contains("8080"), "{ports}");
    }
    let mut result = chain.add(&node, &pod);
    result["ips"] = json!([]);
    chain.del(&node, &pod, Some(&result));
    assert!(!node.sh(PORT).contains("8080"));
    // The same if the config of DEL has only one of the ports.
    let (one, other) =
        (json!({"hostPort": 8080, "containerPort": 80}), json!({"hostPort": 8081, "containerPort": 81}));
    let result = forgetful(json!([one, other])).add(&node, &pod);
    assert!(node.sh(PORT).contains("8081"));
    forgetful(json!([one])).del(&node, &pod, Some(&result));
    assert!(!node.sh(PORT).contains("808"), "{}", node.sh(PORT));
}

/// A routed pod is alone in its network. A set and a chain for each such network would never be removed, and every
/// connection would pass them.
#[test]
fn pods_that_are_alone_in_their_networks_have_their_rules_in_common() {
    let node = Node::new();
    let outside = node.neighbour("outside", "192.0.2", "2001:db8:a");
    let store = "/var/lib/podwire/ipam.db";
    for (name, cidr) in [("v4", "10.244.0.0/24"), ("v6", "fd44::/112")] {
        node.sh(&format!("{} ipam pool {name} {cidr} --store {store}", podwire()));
    }
    let chain = |n: u16| {
        let ipam = json!({"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"});
        let routed = json!({"type": "calico", "datastore_type": "sqlite", "nodename": "node1", "ipam": ipam});
        let ports = json!([{"hostPort": 8000 + n, "containerPort": 80}]);
        let portmap = json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}});
        Chain::new(&ours(), "net", &[routed, portmap])
    };
    let rules = || node.sh("nft list ruleset | grep -v -e elements -e comment -e '^$' | grep -c .");
    let one = node.pod("one");
    let first = chain(5).add(&node, &one);
    let after_one = rules();
    let others: Vec<_> = (6..9)
        .map(|n| {
            let pod = node.pod(&format!("pod{n}"));
            let result = chain(n).add(&node, &pod);
            (n, pod, result)
        })
        .collect();
    {
        let _listens = node.listen(Some(&one), "tcp/80");
        for host in ["192.0.2.1", "2001:db8:a::1"] {
            let client = host.strip_suffix('1').map(|net| format!("one {net}2")).unwrap();
            assert_eq!(node.ask(Some(&outside), host, "tcp/8005"), client);
            assert!(node.ask(Some(&one), host, "tcp/8005").starts_with("one "), "itself, by {host}");
            assert!(node.ask(Some(&others[0].1), host, "tcp/8005").starts_with("one "), "another, by {host}");
        }
        assert!(node.ask(None, "127.0.0.1", "tcp/8005").starts_with("one "), "the node's loopback");
    }
    chain(5).check(&node, &one, &first).unwrap_or_else(|said| panic!("{}", said.stdout));
    assert_eq!(rules(), after_one, "{}", node.sh("nft list ruleset"));
    chain(5).del(&node, &one, Some(&first));
    for (n, pod, result) in &others {
        chain(*n).del(&node, pod, Some(result));
    }
    assert!(!node.sh("nft list ruleset").contains("comment \"net/"), "{}", node.sh("nft list ruleset"));
}

/// The device to the pod accepts packets from loopback addresses from then on.
#[test]
fn the_loopback_guard_stays_while_a_port_is_open() {
    let node = node();
    must(&node, ONE);
    must(&node, "del one web --container web");
    let knob = "/proc/sys/net/ipv4/conf/br1/route_localnet";
    assert_eq!(node.sh(&format!("cat {knob}")).trim(), "1");
    must(&node, "gc one");
    assert!(node.sh("nft list chain inet podwire_ports guard").contains("drop"));
    node.sh(&format!("echo 0 > {knob}"));
    must(&node, "gc one");
    assert!(!node.can("nft list table inet podwire_ports"));
}
