//! flannel: pods in the node's subnet of a flannel network, with all families. Podwire's plugin detaches pods of the Go
//! plugin, and the Go plugin those of Podwire's.

use podwire_tests::{assert_same, go_flannel, ours, Chain, Invocation, Node, Pod, GO};
use serde_json::{json, Value};

const V4: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n";
const V6: &str = "FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n";
const REST: &str = "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
const ENV: &str = "/run/flannel/subnet.env";
const SCRATCH: &str = "/var/lib/cni/flannel";

/// The families of a network, and the file that flanneld writes.
fn families() -> [(&'static str, String); 3] {
    [("IPv4", format!("{V4}{REST}")), ("IPv6", format!("{V6}{REST}")), ("both", format!("{V4}{V6}{REST}"))]
}

/// A node with this file of flanneld.
fn node(env: &str) -> Node {
    let node = Node::new();
    node.write(ENV, env);
    node
}

fn both() -> Node {
    node(&families()[2].1)
}

/// A flannel network with a bridge, as in Kubernetes' manifests.
fn network(name: &str) -> Chain {
    Chain::new(&ours(), name, &[json!({"type": "flannel", "delegate": {"isDefaultGateway": true}})])
}

/// A node where a pod of that network was attached and detached, so that what stays by design exists.
fn prepared() -> (Node, Chain) {
    let (node, chain) = (both(), network("cbr0"));
    let first = node.pod("first");
    let result = chain.add(&node, &first);
    chain.del(&node, &first, Some(&result));
    (node, chain)
}

fn call<'n>(node: &'n Node, chain: &Chain, verb: &str, pod: &Pod) -> Invocation<'n> {
    let mut config = chain.config(0);
    if matches!(verb, "STATUS" | "GC") {
        config["cniVersion"] = json!("1.1.0");
    }
    Invocation::new(node, &chain.path, verb, pod, &config)
}

fn no_pod() -> Pod {
    Pod { name: String::new(), netns: String::new() }
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().expect("addresses");
    ips.iter()
        .map(|ip| ip["address"].as_str().expect("an address").split('/').next().unwrap().into())
        .collect()
}

fn files(node: &Node) -> Vec<String> {
    node.sh(&format!("ls -A {SCRATCH} 2>/dev/null || true")).lines().map(String::from).collect()
}

/// Without host-local's index: the Go plugin does not maintain it, and Podwire's creates it again.
fn unindexed(state: &str) -> String {
    let lines = state.lines().filter(|line| !line.starts_with("/run/podwire/"));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn pods_reach_each_other_and_the_node_in_every_family() {
    for (family, env) in families() {
        let (node, chain) = (node(&env), network("cbr0"));
        let (a, b) = (node.pod("a"), node.pod("b"));
        let before = node.leftovers();
        let (in_a, in_b) = (chain.add(&node, &a), chain.add(&node, &b));
        assert_eq!(addresses(&in_a).len(), if family == "both" { 2 } else { 1 }, "{family}: {in_a}");
        for address in addresses(&in_b) {
            assert!(node.pings(Some(&a), &address), "{family}: pod to pod {address}");
            assert!(node.pings(None, &address), "{family}: node to pod {address}");
        }
        assert_eq!(node.json("ip -n a -j link show eth0")[0]["mtu"], 1450, "{family}");
        for (other, net) in [("IPv6", "10.244.0.0/16"), ("IPv4", "fd00:244::/48")] {
            let routed = node.can(&format!("ip -n a route show {net} | grep -q via"))
                || node.can(&format!("ip -n a -6 route show {net} | grep -q via"));
            assert_eq!(routed, family != other, "{family}: {net}");
        }
        assert_eq!(files(&node), ["a", "b"], "{family}");
        assert_eq!(node.sh(&format!("stat -c %a {SCRATCH} {SCRATCH}/a")), "700\n600\n");
        assert!(chain.check(&node, &a, &in_a).is_ok(), "{family}");
        chain.del(&node, &a, Some(&in_a));
        chain.del(&node, &b, None);
        node.sh("ip link delete cni0");
        assert_same(&before, &node.leftovers(), family);
    }
}

#[test]
fn every_network_of_a_list_is_a_route() {
    let node = node(&format!(
        "FLANNEL_NETWORK=10.244.0.0/16,10.99.0.0/16,10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n{REST}"
    ));
    let pod = node.pod("blue");
    let result = network("cbr0").add(&node, &pod);
    let routes: Vec<_> = result["routes"].as_array().unwrap().iter().map(|route| &route["dst"]).collect();
    assert_eq!(routes, ["10.244.0.0/16", "10.99.0.0/16", "0.0.0.0/0"]);
}

#[test]
fn the_delegate_masquerades_if_flanneld_does_not() {
    for (word, expected) in [("true", false), ("false", true)] {
        let node = node(&format!("{V4}FLANNEL_MTU=1450\nFLANNEL_IPMASQ={word}\n"));
        network("cbr0").add(&node, &node.pod("blue"));
        assert_eq!(node.can("nft list table inet podwire_masq | grep -q 10.244.1.2"), expected, "{word}");
    }
}

#[test]
fn another_delegate_another_folder_and_addresses_of_the_runtime() {
    let node = node(&format!("{V4}{REST}"));
    let config = json!({"type": "flannel", "dataDir": "/var/lib/elsewhere", "subnetFile": "/run/flannel/other.env",
        "delegate": {"type": "ptp", "mtu": 1400}, "ipam": {"dataDir": "/var/lib/pools"},
        "capabilities": {"ips": true}, "runtimeConfig": {"ips": ["10.244.1.77"]}});
    node.sh(&format!("mv {ENV} /run/flannel/other.env"));
    let chain = Chain::new(&ours(), "ptp", &[config]);
    let pod = node.pod("blue");
    let result = chain.add(&node, &pod);
    assert_eq!(addresses(&result), ["10.244.1.77"]);
    assert_eq!(node.json("ip -n blue -j link show eth0")[0]["mtu"], 1400);
    node.sh("test -f /var/lib/elsewhere/blue && test -f /var/lib/pools/ptp/10.244.1.77");
    chain.del(&node, &pod, None);
    assert_eq!(node.sh("ls -A /var/lib/elsewhere"), "");
    assert!(!node.can("test -e /var/lib/pools/ptp/10.244.1.77"));
}

#[test]
fn a_container_may_have_several_interfaces_of_flannels() {
    for order in [["eth0", "net1"], ["net1", "eth0"]] {
        let (node, chain) = prepared();
        let pod = node.pod("blue");
        let before = node.state(&pod);
        let other = Chain { name: "second".into(), ..network("second") };
        // Another network needs a separate pool, or it would get the first one's addresses.
        node.write(
            "/run/flannel/second.env",
            &format!("FLANNEL_NETWORK=10.9.0.0/16\nFLANNEL_SUBNET=10.9.1.1/24\n{REST}"),
        );
        let mut second = other.clone();
        second.plugins[0]["subnetFile"] = json!("/run/flannel/second.env");
        second.plugins[0]["delegate"] = json!({"type": "ptp"});
        let before = before + "/run/flannel/second.env\n";
        let of = |ifname: &str| if ifname == "eth0" { &chain } else { &second };
        for ifname in ["eth0", "net1"] {
            call(&node, of(ifname), "ADD", &pod).env("CNI_IFNAME", ifname).run().result();
        }
        assert_eq!(files(&node), ["blue", "blue@net1"]);
        for ifname in order {
            for _ in 0..2 {
                call(&node, of(ifname), "DEL", &pod).env("CNI_IFNAME", ifname).run().result();
            }
            let left: usize = if ifname == order[0] { 1 } else { 0 };
            assert_eq!(files(&node).len(), left, "{ifname}: {:?}", files(&node));
        }
        assert_same(&before, &node.state(&pod), &format!("{order:?}"));
    }
}

#[test]
fn a_pod_is_detached_without_flannels_files() {
    for lost in [
        format!("rm {SCRATCH}/blue"),
        format!("rm {ENV}"),
        format!("rm -r {SCRATCH} {ENV}"),
        format!(": > {SCRATCH}/blue"),
        format!("echo '[]' > {SCRATCH}/blue; echo FLANNEL_MTU=large > {ENV}"),
        format!("sed -i 's/10.244.1.1/10.244.7.1/' {ENV}"),
    ] {
        for netns in [true, false] {
            let (node, chain) = prepared();
            let pod = node.pod("blue");
            let env = node.sh(&format!("cat {ENV}"));
            let before = node.state(&pod);
            let result = chain.add(&node, &pod);
            node.sh(&lost);
            let reported = if netns { pod.clone() } else { Pod { netns: String::new(), ..pod.clone() } };
            chain.del(&node, &reported, Some(&result).filter(|_| netns));
            node.write(ENV, &env);
            assert_same(&before, &node.state(&pod), &lost);
        }
    }
}

#[test]
fn a_failed_add_leaves_nothing_and_keeps_other_attachments() {
    let (node, chain) = prepared();
    let pod = node.pod("blue");
    node.sh("ip -n blue link add eth0 type bridge");
    let before = node.state(&pod);
    let (code, text) = chain.try_add(&node, &pod).unwrap_err().error();
    assert_eq!(code, 999);
    assert!(text.starts_with("failed to delegate add: failed to make veth pair"), "{text}");
    assert_same(&before, &node.state(&pod), &text);
    node.sh("ip -n blue link delete eth0");

    let result = chain.add(&node, &pod);
    let (attached, written) = (node.state(&pod), node.sh(&format!("cat {SCRATCH}/blue")));
    let mut again = chain.clone();
    again.plugins[0]["delegate"]["mtu"] = json!(1300);
    again.try_add(&node, &pod).unwrap_err();
    assert_eq!(node.sh(&format!("cat {SCRATCH}/blue")), written, "the record of the attached pod");
    assert_same(&attached, &node.state(&pod), "the attached pod");
    chain.check(&node, &pod, &result).unwrap();
}

#[test]
fn invalid_configs_fail_with_the_errors_of_the_go_plugin() {
    let node = both();
    let pod = node.pod("blue");
    let before = node.state(&pod);
    let refusal = |config: Value| {
        let config = config.as_object().unwrap().clone();
        let mut chain = network("cbr0");
        chain.plugins[0].as_object_mut().unwrap().extend(config);
        chain.try_add(&node, &pod).unwrap_err().error()
    };
    for (config, code, words) in [
        (json!({"delegate": {"name": "x"}}), 7, "'delegate' dictionary must not have 'name' field"),
        (json!({"delegate": {"ipam": {}}}), 7, "'delegate' dictionary must not have 'ipam' field"),
        (
            json!({"delegate": {"type": 5}}),
            7,
            "'delegate' dictionary, if present, must have (string) 'type' field",
        ),
        (
            json!({"delegate": {"type": "nowhere"}}),
            7,
            "failed to delegate add: failed to find plugin \"nowhere\"",
        ),
        (json!({"delegate": []}), 7, "delegate: "),
        (json!({"subnetFile": 5}), 7, "subnetFile: "),
        (json!({"dataDir": 5}), 7, "dataDir: "),
        (
            json!({"subnetFile": "/run/none"}),
            11,
            "failed to load flannel 'subnet.env' file: open /run/none: no such file or directory",
        ),
        (json!({"subnetFile": "/run"}), 5, "failed to load flannel 'subnet.env' file: read /run"),
        (
            json!({"subnetFile": "/dev/null"}),
            7,
            "failed to load flannel 'subnet.env' file: /dev/null is missing FLANNEL_NETWORK",
        ),
    ] {
        let reported = refusal(config.clone());
        assert!(reported.0 == code && reported.1.starts_with(words), "{config}: {reported:?}");
    }
    assert_same(&before, &node.state(&pod), "refused");
}

#[test]
fn check_runs_the_delegate_and_reports_a_missing_record() {
    let (node, chain) = prepared();
    let pod = node.pod("blue");
    let result = chain.add(&node, &pod);
    chain.check(&node, &pod, &result).unwrap();
    node.sh(&format!("mv {SCRATCH}/blue /run/test/"));
    let (_, text) = chain.check(&node, &pod, &result).unwrap_err().error();
    assert_eq!(text, "the delegate's config of container blue is not recorded");
    node.sh(&format!("mv /run/test/blue {SCRATCH}/; ip -n blue address flush dev eth0"));
    let (_, text) = chain.check(&node, &pod, &result).unwrap_err().error();
    assert!(text.contains(&addresses(&result)[0]), "{text}");
}

#[test]
fn gc_removes_only_invalid_attachments() {
    for flanneld in [true, false] {
        let (node, chain) = prepared();
        let other = Chain { name: "other".into(), ..chain.clone() };
        let mut other = other;
        other.plugins[0]["delegate"] = json!({"type": "ptp"});
        let (kept, foreign) = (node.pod("kept"), node.pod("foreign"));
        let result = chain.add(&node, &kept);
        other.add(&node, &foreign);
        let before = node.leftovers();
        let gone = node.pod("gone");
        chain.add(&node, &gone);
        node.remove(&gone);
        // The records that a Go plugin and a killed plugin leave.
        let written = node.sh(&format!("sed 's/,\"podwire.ifname\":\"eth0\"//' {SCRATCH}/kept"));
        node.write(&format!("{SCRATCH}/of-go"), &written);
        node.sh(&format!("touch {SCRATCH}/.gone@eth0.new"));
        let env = node.sh(&format!("cat {ENV}"));
        if !flanneld {
            node.sh(&format!("rm {ENV}"));
        }
        chain.gc(&node, &[("kept", "eth0")]);
        node.write(ENV, &env);
        let (before, after) = (unindexed(&before), unindexed(&node.leftovers()));
        assert_same(&before, &after, &format!("flanneld: {flanneld}"));
        chain.check(&node, &kept, &result).unwrap();
    }
}

#[test]
fn status_asks_for_flanneld_and_then_the_delegate() {
    let (node, chain) = prepared();
    let status = || call(&node, &chain, "STATUS", &no_pod()).run();
    status().result();
    node.sh(&format!("mv {ENV} /run/test/"));
    let output = status();
    let (code, text) = output.error();
    assert_eq!(code, 50);
    assert!(
        text.starts_with("failed to load flannel 'subnet.env' file: open /run/flannel/subnet.env"),
        "{text}"
    );
    assert!(output.stdout.contains("is flanneld running?"), "{}", output.stdout);
    node.write(ENV, "FLANNEL_MTU=1450\n");
    assert_eq!(status().error().0, 50);
    node.write(ENV, &format!("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/30\n{REST}"));
    status().result();
    node.sh("mkdir -p /var/lib/cni/networks/cbr0; printf 'x\\r\\ny' > /var/lib/cni/networks/cbr0/10.244.1.2");
    let (code, text) = status().error();
    assert!(code == 50 && text.contains("10.244.1.1-10.244.1.2"), "{text}");
}

/// The plugins that attach, and those that detach.
fn peers() -> Option<[(String, String); 2]> {
    let go = format!("{}:{GO}", go_flannel()?);
    Some([(go.clone(), ours()), (ours(), go)])
}

#[test]
fn ours_detaches_pods_of_go_and_go_detaches_ours() {
    for (from, to) in peers().into_iter().flatten() {
        for (family, env) in families() {
            let node = node(&env);
            let mut chain = network("cbr0");
            chain.version = "0.4.0".into();
            let with = |path: &str| Chain { path: path.into(), ..chain.clone() };
            let first = node.pod("first");
            with(&from).add(&node, &first);
            with(&from).del(&node, &first, None);
            let pod = node.pod("blue");
            let before = node.state(&pod);
            let result = with(&from).add(&node, &pod);
            let context = format!("{family}: {from} to {to}");
            assert_eq!(files(&node), ["blue"], "{context}");
            with(&to).del(&node, &pod, Some(&result));
            assert_eq!(files(&node), [""; 0], "{context}");
            assert_same(&unindexed(&before), &unindexed(&node.state(&pod)), &context);
        }
    }
}

#[test]
fn ours_renders_what_go_renders() {
    let Some(go) = go_flannel() else { return };
    let configs = [
        json!({"type": "flannel"}),
        json!({"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true, "mtu": 1400}}),
        json!({"type": "flannel", "delegate": {"bridge": "other0", "ipMasq": true},
               "ipam": {"routes": [{"dst": "192.168.0.0/16"}], "dataDir": "/var/lib/cni/pools"},
               "runtimeConfig": {"ips": []}}),
    ];
    for (family, env) in families() {
        for config in &configs {
            let rendered = |path: &str| {
                let node = node(&env);
                let mut chain = Chain::new(path, "cbr0", std::slice::from_ref(config));
                chain.version = "0.3.1".into();
                chain.add(&node, &node.pod("blue"));
                let mut written = node.json(&format!("cat {SCRATCH}/blue"));
                written.as_object_mut().unwrap().remove("podwire.ifname");
                written
            };
            assert_eq!(rendered(&ours()), rendered(&format!("{go}:{GO}")), "{family}: {config}");
        }
    }
}
