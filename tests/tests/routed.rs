//! Pods of calico and calico-ipam: with the block allocator of the node, and without it.

use std::time::{Duration, Instant};

use podwire_tests::{ours, podwire, Chain, Invocation, Node, Pod, Process};
use serde_json::{json, Value};

const STORE: &str = "/var/lib/podwire/ipam.db";
const ENDPOINTS: &str = "/var/lib/podwire/addresses/endpoints";
const RELEASED: &str = "/var/lib/podwire/addresses/released";

/// A node with pools of both families.
fn node() -> Node {
    let node = Node::new();
    node.sh("ip address add 192.0.2.1/32 dev lo && ip address add 2001:db8::1/128 dev lo");
    for (name, cidr) in [("v4", "10.244.0.0/24"), ("v6", "fd44::/112")] {
        node.sh(&format!("{} ipam pool {name} {cidr} --store {STORE}", podwire()));
    }
    node
}

fn network() -> Chain {
    let plugin = json!({
        "type": "calico", "mtu": 1400, "datastore_type": "sqlite", "nodename": "node1",
        "ipam": { "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" },
    });
    Chain::new(&ours(), "k8s-pod-network", &[plugin])
}

/// The block allocator of the node, with a warm pool.
fn serve(node: &Node) -> Process {
    let mut command = node.command(&podwire());
    command.args(["ipam", "serve", "--store", STORE, "--node", "node1", "--warm-addresses", "8"]);
    let process = Process::start(command);
    eventually(node, "a warm pool", |node| in_use(node) >= 12);
    process
}

fn eventually(node: &Node, what: &str, is_reached: impl Fn(&Node) -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_reached(node) {
        assert!(
            Instant::now() < end,
            "{what}: {}",
            node.sh(&format!("{} ipam show --blocks --store {STORE}", podwire()))
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The handle that holds an address in the store.
fn holder(node: &Node, ip: &str) -> Option<String> {
    let shown = node.json(&format!("{} --json ipam show --ip {ip} --store {STORE}", podwire()));
    shown["handle"].as_str().map(str::to_owned)
}

/// The number of addresses that are assigned or in the warm pool.
fn in_use(node: &Node) -> u64 {
    let shown = node.json(&format!("{} --json ipam show --store {STORE}", podwire()));
    let number = |pool: &Value| pool["inUse"].as_str().and_then(|text| text.parse::<u64>().ok());
    shown["pools"].as_array().expect("pools").iter().filter_map(number).sum()
}

/// The number of pending releases of the node.
fn pending_releases(node: &Node) -> usize {
    node.sh(&format!("ls {RELEASED} 2>/dev/null | wc -l")).trim().parse().expect("a number")
}

fn address(result: &Value, v6: bool) -> String {
    let all = result["ips"].as_array().expect("ips");
    let text = all.iter().filter_map(|ip| ip["address"].as_str()).find(|text| text.contains(':') == v6);
    let text = text.expect("an address of each family");
    text.split('/').next().expect("an address").to_owned()
}

fn ping(node: &Node, pod: &Pod, target: &str) {
    node.sh(&format!("ip netns exec {} ping -c 1 -W 5 {target}", pod.name));
}

/// Attaches two pods, checks that they reach each other and the node and look as with Calico, and detaches them.
fn attach_and_detach(node: &Node) {
    let (one, other) = (node.pod("one"), node.pod("other"));
    let chain = network();
    let (first, second) = (chain.add(node, &one), chain.add(node, &other));
    for v6 in [false, true] {
        ping(node, &one, &address(&second, v6));
        ping(node, &other, &address(&first, v6));
        let target = address(&first, v6);
        node.sh(&format!("ping -c 1 -W 5 {target}"));
        let route = node.sh(&format!("ip -{} route get {target}", if v6 { 6 } else { 4 }));
        assert!(route.contains("dev calione"), "{route}");
    }
    assert!(first["ips"][0]["address"].as_str().expect("address").ends_with("/32"), "{first:#}");
    assert_eq!(node.json("ip -j link show calione")[0]["address"], "ee:ee:ee:ee:ee:ee");
    let routes = node.sh("ip netns exec one ip route");
    assert!(
        routes.contains("default via 169.254.1.1 dev eth0") && routes.contains("169.254.1.1 dev eth0"),
        "{routes}"
    );
    chain.check(node, &one, &first).expect("CHECK passes");
    chain.del(node, &one, Some(&first));
    chain.del(node, &other, Some(&second));
    let addresses = [address(&first, false), address(&first, true), address(&second, false)];
    eventually(node, "the addresses are released", |node| {
        addresses.iter().all(|ip| holder(node, ip).is_none()) && pending_releases(node) == 0
    });
    eventually(node, "both endpoints are withdrawn", |node| {
        !node.can(&format!("ls {ENDPOINTS}/leases {ENDPOINTS}/released 2>/dev/null | grep -q json"))
    });
    assert!(!node.can("ip link show calione || ip route | grep -q cali"));
}

#[test]
fn pods_get_addresses_of_the_warm_pool() {
    let node = node();
    let _allocator = serve(&node);
    attach_and_detach(&node);
}

#[test]
fn without_an_agent_pods_get_addresses_from_the_datastore() {
    attach_and_detach(&node());
}

/// STATUS of calico-ipam and of calico, which calls it: the code and the reason, or `None` if the node is ready.
fn status(node: &Node, config: &Value) -> Option<(u64, String)> {
    let run = |kind: &str| {
        let mut config = config.clone();
        config["type"] = kind.into();
        let no_pod = Pod { name: String::new(), netns: String::new() };
        Invocation::new(node, &ours(), "STATUS", &no_pod, &config).run()
    };
    let answer = |kind: &str| {
        let ran = run(kind);
        (ran.status != 0).then(|| ran.error())
    };
    let (ipam, calico) = (answer("calico-ipam"), answer("calico"));
    // The agent may have found a pool between the two, or changed its reason.
    if answer("calico-ipam") != ipam {
        return status(node, config);
    }
    assert_eq!(ipam, calico);
    ipam
}

/// With the allocator and without it: a runtime tries ADD again after code 11, and the node is not ready by code 50.
#[test]
fn without_free_addresses_add_fails_with_11_and_status_with_50() {
    for is_served in [true, false] {
        let node = Node::new();
        node.sh("ip address add 192.0.2.1/32 dev lo");
        let pool = |words: &str| node.sh(&format!("{} ipam pool {words} --store {STORE}", podwire()));
        pool("elsewhere 10.250.0.0/24 --nodes 'has(nothing)'");
        let plugin = json!({
            "type": "calico", "mtu": 1400, "datastore_type": "sqlite", "nodename": "node1",
            "ipam": { "type": "calico-ipam" },
        });
        let chain = Chain { version: "1.1.0".into(), ..Chain::new(&ours(), "k8s-pod-network", &[plugin]) };
        let config = chain.config(0);
        let _allocator = is_served.then(|| {
            let mut command = node.command(&podwire());
            command.args(["ipam", "serve", "--store", STORE, "--node", "node1"]);
            Process::start(command)
        });
        let is_refused = |node: &Node, words: &str| {
            let refused = status(node, &config);
            refused.is_some_and(|(code, text)| code == 50 && text.starts_with(words))
        };
        let late = node.pod("late");
        for (words, pods) in [("no configured Calico pools", 0), ("No Free Blocks", 4)] {
            if pods > 0 {
                pool("small 10.244.0.0/30 --block-size 30");
                eventually(&node, "the node is ready", |node| status(node, &config).is_none());
            }
            let attached: Vec<Pod> = (0..pods).map(|number| node.pod(&format!("pod{number}"))).collect();
            attached.iter().for_each(|pod| drop(chain.add(&node, pod)));
            eventually(&node, "STATUS fails", |node| is_refused(node, words));
            let (code, text) = chain.try_add(&node, &late).unwrap_err().error();
            assert!(code == 11 && text.starts_with(words), "served: {is_served}: {code}: {text}");
            if let Some(pod) = attached.first() {
                chain.del(&node, pod, None);
                eventually(&node, "the node is ready again", |node| status(node, &config).is_none());
            }
        }
    }
}

#[test]
fn a_del_without_agent_and_store_succeeds_and_is_completed_later() {
    let node = node();
    let chain = network();
    let pod = node.pod("one");
    let allocator = serve(&node);
    let result = chain.add(&node, &pod);
    let ip = address(&result, false);
    let has_it = |node: &Node| holder(node, &ip).as_deref() == Some("k8s-pod-network.one");
    eventually(&node, "the store has the lease", has_it);
    // A killed allocator leaves its socket, as an agent does while it restarts.
    node.sh(&format!("kill -9 {}", allocator.id()));
    allocator.wait();
    let (code, text) = chain.try_add(&node, &node.pod("late")).unwrap_err().error();
    assert_eq!(code, 11, "{text}");
    chain.del(&node, &pod, Some(&result));
    assert_eq!(pending_releases(&node), 1);
    assert!(has_it(&node));
    let _allocator = serve(&node);
    eventually(&node, "the pending release is done", |node| !has_it(node) && pending_releases(node) == 0);
}

#[test]
fn a_late_del_of_an_old_sandbox_does_not_affect_the_new_sandbox_of_the_pod() {
    let node = node();
    let _allocator = serve(&node);
    let (old, new) = (node.pod("old"), node.pod("new"));
    let config = network().config(0);
    let call = |verb: &str, pod: &Pod| {
        Invocation::new(&node, &ours(), verb, pod, &config)
            .env("CNI_ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=nginx")
    };
    let before = call("ADD", &old).run().result();
    let after = call("ADD", &new).run().result();
    assert_eq!(after["interfaces"][0]["name"], "calic440f455693");
    assert_eq!(call("DEL", &old).prev(&before).run().status, 0);
    node.sh("ip link show calic440f455693");
    let checked = call("CHECK", &new).prev(&after).run();
    assert_eq!(checked.status, 0, "{}", checked.stdout);
    assert_eq!(call("DEL", &new).prev(&after).run().status, 0);
    assert!(!node.can("ip link show calic440f455693"));
}

/// Whether an endpoint in the node's lease directory has a profile.
fn has_profile(node: &Node, name: &str) -> bool {
    node.can(&format!("grep -h -A3 profiles {ENDPOINTS}/leases/*.json | grep -q '\"{name}\"'"))
}

/// Adds and removes a second network on the interface of a container. As with Calico, the endpoint gets the second
/// network's profile, and the addresses stay.
fn join_and_leave(node: &Node, is_served: bool) {
    let (one, other) = (node.pod("one"), node.pod("other"));
    let (first, second) = (network(), Chain { name: "second".into(), ..network() });
    let added = first.add(node, &one);
    let joined = second.add(node, &one);
    assert_eq!((&joined["ips"], &joined["interfaces"]), (&added["ips"], &added["interfaces"]));
    second.check(node, &one, &joined).expect("CHECK passes");
    assert!(!is_served || has_profile(node, "second"));
    second.del(node, &one, Some(&joined));
    assert!(!has_profile(node, "second"));
    first.check(node, &one, &added).expect("CHECK of the first network still passes");
    let peer = first.add(node, &other);
    ping(node, &other, &address(&added, false));
    // Join again, and detach the first network before the second.
    second.add(node, &one);
    first.del(node, &one, Some(&added));
    second.del(node, &one, None);
    first.del(node, &other, Some(&peer));
    eventually(node, "the addresses are released", |node| {
        [&added, &peer].iter().all(|one| holder(node, &address(one, false)).is_none())
            && pending_releases(node) == 0
    });
    assert!(!node.can("ip -o link | grep ': cali'"));
}

#[test]
fn a_second_network_joins_the_first() {
    let node = node();
    let _allocator = serve(&node);
    join_and_leave(&node, true);
}

#[test]
fn without_an_agent_a_secondary_network_joins_the_first() {
    join_and_leave(&node(), false);
}

#[test]
fn containers_with_the_same_id_prefix_have_separate_veth_pairs() {
    let node = node();
    let _allocator = serve(&node);
    let (one, other) = (node.pod("container-one"), node.pod("container-other"));
    let chain = network();
    let (first, second) = (chain.add(&node, &one), chain.add(&node, &other));
    assert_eq!(first["interfaces"][0]["name"], "calicontainer-o");
    assert_ne!(second["interfaces"][0]["name"], "calicontainer-o");
    ping(&node, &one, &address(&second, false));
    chain.del(&node, &one, Some(&first));
    chain.check(&node, &other, &second).expect("CHECK of the other container still passes");
    node.sh(&format!("ping -c 1 -W 5 {}", address(&second, true)));
    chain.del(&node, &other, Some(&second));
    assert!(!node.can("ip -o link | grep ': cali'"));
}
