//! The plugins of a node are replaced while pods run: the other plugins find an attachment intact, and detach it
//! without leftovers.

use podwire_tests::{assert_same, ours, Chain, Invocation, Node, Pod, GO};
use serde_json::{json, Value};

const BRIDGE: &str = "br0";

/// A chain with all kinds of objects on the node: a bridge with masquerading, a port, limits, firewall, sysctls.
fn everything(path: &str, port: u16) -> Chain {
    let pool =
        json!({"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]});
    let ports = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    // Rates that need exact rounding.
    let limits = json!({"ingressRate": 123_456_789, "ingressBurst": 1_234_567, "egressRate": 1_234_567_890, "egressBurst": 12_345_678});
    Chain::new(
        path,
        "pods",
        &[
            json!({"type": "bridge", "bridge": BRIDGE, "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": pool}),
            json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}}),
            json!({"type": "bandwidth", "runtimeConfig": {"bandwidth": limits}}),
            json!({"type": "firewall", "backend": "iptables"}),
            json!({"type": "tuning", "mtu": 1400, "sysctl": {"net.core.somaxconn": "500"}}),
        ],
    )
}

/// A node with a neighbour, after a first pod with both kinds of plugins: the empty iptables chains of Go's and
/// nftables chains of Podwire's stay after the last pod.
fn used_node() -> (Node, Pod) {
    let node = Node::new();
    let outside = node.neighbour("outside", "192.0.2", "2001:db8:a");
    let pod = node.pod("before");
    for path in [GO, &ours()] {
        let chain = everything(path, 8000);
        let result = chain.add(&node, &pod);
        chain.del(&node, &pod, Some(&result));
    }
    node.remove(&pod);
    (node, outside)
}

/// The pod as a runtime passes it after its namespace was deleted.
fn gone(node: &Node, pod: &Pod) -> Pod {
    node.remove(pod);
    Pod { netns: String::new(), ..pod.clone() }
}

/// DEL by the Go plugins, of a pod that Podwire's attached. After everything else is done, Go's bridge reports a
/// missing iptables chain. The runtime repeats the DEL, which then succeeds.
fn detach_by_go(node: &Node, pod: &Pod, chain: &Chain, result: &Value) {
    for n in (0..chain.plugins.len()).rev() {
        let del = || Invocation::new(node, GO, "DEL", pod, &chain.config(n)).prev(result).run();
        let first = del();
        if first.status == 0 {
            continue;
        }
        assert!(
            first.stdout.contains("Chain 'CNI-") && first.stdout.contains("does not exist"),
            "{}",
            first.stdout
        );
        let second = del();
        assert_eq!(second.status, 0, "{}{}", second.stdout, second.stderr);
    }
}

/// No iptables chain has a container's name, and no rule has an address of the pods.
fn assert_no_rules(node: &Node) {
    let saved = node.sh("iptables-save; ip6tables-save");
    for line in saved.lines().filter(|line| line.starts_with(':') || line.starts_with("-A")) {
        let of_container = |word: &str| {
            let digits =
                word.trim_start_matches(':').strip_prefix("CNI-").map(|name| name.trim_start_matches("DN-"));
            digits.is_some_and(|digits| {
                digits.len() >= 21 && digits.chars().all(|digit| digit.is_ascii_hexdigit())
            })
        };
        assert!(!line.split(' ').any(of_container), "a container's chain: {line}");
        assert!(!line.contains("10.1.0.") && !line.contains("fd00:1::"), "a pod's rule: {line}");
    }
}

/// The pod reaches the outside as the node, and the outside reaches the pod by its port.
fn assert_served(node: &Node, outside: &Pod, pod: &Pod, port: u16) {
    let _listen = [node.listen(Some(outside), "tcp/80"), node.listen(Some(pod), "tcp/80")];
    assert_eq!(node.ask(Some(pod), "192.0.2.2", "tcp/80"), "outside 192.0.2.1");
    let port = format!("tcp/{port}");
    assert_eq!(node.ask(Some(outside), "192.0.2.1", &port), format!("{} 192.0.2.2", pod.name));
    assert_eq!(node.ask(Some(outside), "2001:db8:a::1", &port), format!("{} 2001:db8:a::2", pod.name));
}

/// Go's random veth name is in no record: the kernel deletes the pair with the namespace, with a delay.
#[track_caller]
fn assert_soon(before: &str, now: impl Fn() -> String, what: &str) {
    for _ in 0..200 {
        if now() == before {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_same(before, &now(), what);
}

#[test]
fn ours_finds_pods_of_go_as_they_should_be_and_removes_them() {
    let (node, outside) = used_node();
    let before = node.leftovers();
    let (one, other) = (node.pod("one"), node.pod("other"));
    let result = everything(GO, 8081).add(&node, &one);
    let of_other = everything(GO, 8082).add(&node, &other);
    everything(&ours(), 8081)
        .check(&node, &one, &result)
        .unwrap_or_else(|failed| panic!("{}", failed.stdout));

    everything(&ours(), 8081).del(&node, &one, Some(&result));
    assert!(!node.can("ip -n one link show eth0"), "its interface is gone");
    assert!(node.is_silent(Some(&outside), "192.0.2.1", "tcp/8081"));
    // The other pod is not affected.
    everything(&ours(), 8082)
        .check(&node, &other, &of_other)
        .unwrap_or_else(|failed| panic!("{}", failed.stdout));
    assert_served(&node, &outside, &other, 8082);

    everything(&ours(), 8082).del(&node, &other, Some(&of_other));
    assert_no_rules(&node);
    assert_same(&before, &node.leftovers(), "after the last DEL");
}

#[test]
fn ours_removes_pods_of_go_whose_namespace_is_gone() {
    let (node, _) = used_node();
    let before = node.leftovers();
    let pod = node.pod("one");
    let result = everything(GO, 8081).add(&node, &pod);
    everything(&ours(), 8081).del(&node, &gone(&node, &pod), Some(&result));
    assert_no_rules(&node);
    assert_same(&before, &node.leftovers(), "after DEL without namespace");
}

#[test]
fn ours_removes_a_pod_of_go_whose_record_was_lost() {
    let (node, _) = used_node();
    let before = node.leftovers();
    // Rules of Go's firewall have only the pod's addresses: without a record they cannot be found.
    let without_firewall = |path: &str| {
        let mut chain = everything(path, 8081);
        chain.plugins.retain(|plugin| plugin["type"] != "firewall");
        chain
    };
    let (one, other) = (node.pod("one"), node.pod("other"));
    without_firewall(GO).add(&node, &one);
    without_firewall(&ours()).del(&node, &one, None);
    assert_same(&before, &node.leftovers(), "after DEL without record");
    without_firewall(GO).add(&node, &other);
    without_firewall(&ours()).del(&node, &gone(&node, &other), None);
    assert_no_rules(&node);
    assert_soon(&before, || node.leftovers(), "after DEL without record and namespace");
}

#[test]
fn a_second_del_of_a_pod_of_go_finds_nothing_and_succeeds() {
    let (node, _) = used_node();
    let before = node.leftovers();
    let pod = node.pod("one");
    let result = everything(GO, 8081).add(&node, &pod);
    everything(GO, 8081).del(&node, &pod, Some(&result));
    everything(&ours(), 8081).del(&node, &pod, Some(&result));
    everything(&ours(), 8081).del(&node, &gone(&node, &pod), None);
    assert_same(&before, &node.leftovers(), "after the third DEL");
}

#[test]
fn pods_of_both_kinds_share_a_bridge() {
    let (node, outside) = used_node();
    let before = node.leftovers();
    let (old, new) = (node.pod("old"), node.pod("new"));
    let of_old = everything(GO, 8081).add(&node, &old);
    let of_new = everything(&ours(), 8082).add(&node, &new);
    assert_served(&node, &outside, &old, 8081);
    assert_served(&node, &outside, &new, 8082);
    let _listens = node.listen(Some(&new), "tcp/81");
    assert_eq!(node.ask(Some(&old), "10.1.0.5", "tcp/81"), format!("new {}", address(&of_old, 0)));
    // Each is detached by the other kind.
    everything(&ours(), 8081).del(&node, &old, Some(&of_old));
    assert_served(&node, &outside, &new, 8082);
    detach_by_go(&node, &new, &everything(GO, 8082), &of_new);
    everything(&ours(), 8082).gc(&node, &[]);
    assert_no_rules(&node);
    assert_same(&before, &node.leftovers(), "after both are gone");
}

fn address(result: &Value, n: usize) -> &str {
    result["ips"][n]["address"].as_str().and_then(|text| text.split('/').next()).expect("an address")
}

#[test]
fn go_finds_pods_of_ours_as_they_should_be() {
    let node = Node::new();
    let pool = |n: u8| {
        let (v4, v6) = (format!("10.{n}.0.0/24"), format!("fd00:{n}::/64"));
        json!({"type": "host-local", "ranges": [[{"subnet": v4}], [{"subnet": v6}]]})
    };
    let limits = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000});
    let mut limited = limits.clone();
    limited["type"] = json!("bandwidth");
    let bridged = [
        json!({"type": "bridge", "bridge": BRIDGE, "isDefaultGateway": true, "ipam": pool(1)}),
        limited,
        json!({"type": "tuning", "mtu": 1400, "promisc": true, "sysctl": {"net.core.somaxconn": "500"}}),
    ];
    let cabled = [json!({"type": "ptp", "ipam": pool(2)})];
    for (name, plugins) in [("bridged", &bridged[..]), ("cabled", &cabled[..])] {
        let pod = node.pod(name);
        let result = Chain::new(&ours(), name, plugins).add(&node, &pod);
        let checked = Chain::new(GO, name, plugins).check(&node, &pod, &result);
        checked.unwrap_or_else(|failed| panic!("{name}: {}{}", failed.stdout, failed.stderr));
    }
}

#[test]
fn go_detaches_our_pods_and_our_gc_removes_what_go_leaves() {
    let (node, outside) = used_node();
    let before = node.leftovers();
    let (one, other) = (node.pod("one"), node.pod("other"));
    let result = everything(&ours(), 8081).add(&node, &one);
    everything(&ours(), 8082).add(&node, &other);
    detach_by_go(&node, &one, &everything(GO, 8081), &result);
    assert!(!node.can("ip -n one link show eth0"), "its interface is gone");
    let lease = address(&result, 0);
    assert!(!node.can(&format!("test -e /var/lib/cni/networks/pods/{lease}")), "its lease is gone");
    let left = node.leftovers();
    assert!(left.contains("pods/one/eth0"), "Go knows nothing of our sets:\n{left}");

    everything(&ours(), 8082).gc(&node, &[("other", "eth0")]);
    let left = node.leftovers();
    assert!(!left.contains("pods/one/eth0") && left.contains("pods/other/eth0"), "{left}");
    assert_served(&node, &outside, &other, 8082);
    everything(&ours(), 8082).gc(&node, &[]);
    assert_same(&before, &node.leftovers(), "after GC of everything");
}

/// Podwire's ledger still has the attachment when GC runs after a DEL by Go's plugins.
#[test]
fn our_gc_of_a_pod_that_go_detached_keeps_newer_attachments_of_go() {
    let with_sbr = |path: &str, port: u16| {
        let mut chain = everything(path, port);
        chain.plugins.push(json!({"type": "sbr"}));
        chain
    };
    let (node, outside) = used_node();
    let pod = node.pod("one");
    let result = with_sbr(&ours(), 8081).add(&node, &pod);
    detach_by_go(&node, &pod, &with_sbr(GO, 8081), &result);
    // The same interface, and the same address, in another network.
    let mut asked = Chain { name: "others".into(), ..with_sbr(GO, 8082) };
    asked.plugins[0]["args"] = json!({"cni": {"ips": [address(&result, 0), address(&result, 1)]}});
    let of_now = asked.add(&node, &pod);
    assert_eq!(address(&of_now, 0), address(&result, 0));
    with_sbr(&ours(), 8081).gc(&node, &[]);
    let checked = Chain { path: ours(), ..asked }.check(&node, &pod, &of_now);
    checked.unwrap_or_else(|failed| panic!("{}", failed.stdout));
    let _listens = node.listen(Some(&pod), "tcp/80");
    assert_eq!(node.ask(Some(&outside), "192.0.2.1", "tcp/8082"), "one 192.0.2.2");
}

#[test]
fn the_next_pod_with_an_address_takes_over_what_go_left() {
    let (node, outside) = used_node();
    let mut asked = everything(&ours(), 8081);
    asked.plugins[0]["args"] = json!({"cni": {"ips": ["10.1.0.77", "fd00:1::77"]}});
    let (one, next) = (node.pod("one"), node.pod("next"));
    let result = asked.add(&node, &one);
    detach_by_go(&node, &one, &everything(GO, 8081), &result);
    let of_next = asked.add(&node, &next);
    assert_eq!(address(&of_next, 0), "10.1.0.77");
    let left = node.leftovers();
    assert!(!left.contains("pods/one/eth0"), "everything of these addresses is the next pod's:\n{left}");
    assert_served(&node, &outside, &next, 8081);
}

#[test]
fn our_gc_removes_what_go_left_and_keeps_attached_pods() {
    let (node, outside) = used_node();
    let before = node.leftovers();
    let (removed, kept) = (node.pod("removed"), node.pod("kept"));
    let removed_result = everything(GO, 8081).add(&node, &removed);
    let kept_result = everything(GO, 8082).add(&node, &kept);
    node.remove(&removed);
    everything(&ours(), 8082).gc(&node, &[("kept", "eth0")]);
    assert!(node.is_silent(Some(&outside), "192.0.2.1", "tcp/8081"));
    assert_served(&node, &outside, &kept, 8082);
    everything(&ours(), 8082)
        .check(&node, &kept, &kept_result)
        .unwrap_or_else(|failed| panic!("{}", failed.stdout));
    everything(&ours(), 8082).del(&node, &kept, Some(&kept_result));
    // Objects of Go's firewall, bandwidth and tuning do not name their network: they stay until the DEL.
    let unnamed = ["-A CNI-FORWARD", "link bwp", "queue tbf of bwp", "/run/cni/tuning/removed_eth0.json"];
    let named = |text: &str| -> String {
        let lines = text.lines().filter(|line| !unnamed.iter().any(|start| line.starts_with(start)));
        lines.map(|line| format!("{line}\n")).collect()
    };
    assert_soon(&named(&before), || named(&node.leftovers()), "after GC and DEL");
    let without_netns = Pod { netns: String::new(), ..removed };
    everything(&ours(), 8081).del(&node, &without_netns, Some(&removed_result));
    assert_same(&before, &node.leftovers(), "after DEL of the removed pod");
}
