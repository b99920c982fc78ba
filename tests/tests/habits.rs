//! Behaviour of container runtimes that the specification does not describe, or describes differently. Each was
//! observed with a real runtime: containerd (go-cni), CRI-O (ocicni), podman.

use std::collections::BTreeSet;
use std::thread;

use podwire_tests::{can_serve, ours, types, Chain, Invocation, Node, Pod};
use serde_json::{json, Value};

fn pool(subnet: &str) -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]})
}

/// A config of every plugin type that creates an interface and whose driver this kernel has. `up0` and `spare0` are the
/// node's.
fn interfaces(node: &Node) -> Vec<Value> {
    node.sh("ip link add up0 type veth peer up1 && ip link set up0 up && ip link set up1 up");
    node.sh("ip link add spare0 type veth peer spare1 && ip link set spare1 up");
    let all = [
        json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": pool("10.1.0.0/24")}),
        json!({"type": "ptp", "ipMasq": true, "ipam": pool("10.2.0.0/24")}),
        json!({"type": "calico", "ipam": pool("10.9.0.0/24")}),
        json!({"type": "macvlan", "master": "up0", "ipam": pool("10.3.0.0/24")}),
        json!({"type": "ipvlan", "master": "up1", "ipam": pool("10.4.0.0/24")}),
        json!({"type": "vlan", "master": "up1", "vlanId": 7, "ipam": pool("10.5.0.0/24")}),
        json!({"type": "dummy", "ipam": pool("10.6.0.0/24")}),
        json!({"type": "tap", "ipam": pool("10.7.0.0/24")}),
        json!({"type": "host-device", "device": "spare0", "ipam": pool("10.8.0.0/24")}),
    ];
    all.into_iter().filter(|config| can_serve(config["type"].as_str().unwrap())).collect()
}

fn network(config: &Value) -> Chain {
    Chain::new(&ours(), &format!("net-{}", config["type"].as_str().unwrap()), std::slice::from_ref(config))
}

fn is_mac(text: &str) -> bool {
    let parts: Vec<_> = text.split(':').collect();
    parts.len() == 6 && parts.iter().all(|part| part.len() == 2 && u8::from_str_radix(part, 16).is_ok())
}

/// containerd requires an interface with an address; podman reads the MAC of every interface in the pod.
#[test]
fn every_result_has_the_interface_with_an_address_and_a_mac() {
    let node = Node::new();
    let configs = interfaces(&node);
    assert!(configs.len() >= 4, "{configs:?}");
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        for config in &configs {
            let kind = config["type"].as_str().unwrap();
            let chain = Chain { version: version.into(), ..network(config) };
            let pod = node.pod(&format!("{kind}-{}", version.replace('.', "")));
            let result = chain.add(&node, &pod);
            let all = result["interfaces"].as_array().unwrap_or_else(|| panic!("{kind}: {result}"));
            let at = all
                .iter()
                .position(|one| one["name"] == "eth0")
                .unwrap_or_else(|| panic!("{kind}: {result}"));
            for interface in
                all.iter().filter(|one| one["sandbox"].as_str().is_some_and(|path| !path.is_empty()))
            {
                assert!(is_mac(interface["mac"].as_str().unwrap_or_default()), "{kind} {version}: {result}");
            }
            assert_eq!(all[at]["sandbox"], json!(pod.netns), "{kind} {version}");
            let ips = result["ips"].as_array().unwrap();
            assert!(ips.iter().any(|ip| ip["interface"] == json!(at)), "{kind} {version}: {result}");
            assert!(
                ips.iter().all(|ip| ip["interface"].as_u64().is_none_or(|n| (n as usize) < all.len())),
                "{result}"
            );
            chain.del(&node, &pod, Some(&result));
            node.remove(&pod);
        }
    }
}

/// containerd attaches its loopback and the first network at the same time.
#[test]
fn lo_and_eth0_are_attached_by_two_processes_at_once() {
    let node = Node::new();
    for config in interfaces(&node) {
        let kind = config["type"].as_str().unwrap().to_owned();
        let chain = network(&config);
        for round in 0..5 {
            let pod = node.pod(&format!("{kind}-{round}"));
            let lo = json!({"cniVersion": "0.3.1", "name": "cni-loopback", "type": "loopback"});
            let call =
                |verb: &str| Invocation::new(&node, &ours(), verb, &pod, &lo).env("CNI_IFNAME", "lo").run();
            let result = thread::scope(|scope| {
                let other = scope.spawn(|| call("ADD"));
                let result = chain.add(&node, &pod);
                assert!(other.join().unwrap().result()["interfaces"][0]["name"] == "lo", "{kind}");
                result
            });
            let up = node.sh(&format!("ip -n {} -o link show up", pod.name));
            assert!(up.contains(" lo:") && up.contains(" eth0"), "{kind}: {up}");
            thread::scope(|scope| {
                let other = scope.spawn(|| call("DEL"));
                chain.del(&node, &pod, Some(&result));
                assert_eq!(other.join().unwrap().status, 0, "{kind}");
            });
            node.remove(&pod);
        }
    }
}

/// What STATUS could change: files with their times, links, addresses, routes, firewall.
fn state(node: &Node) -> String {
    node.sh("find /run /var/lib -not -path '/run/test*' -printf '%p %y %s %T@\\n' | sort; ip addr; ip route show table all; nft list ruleset")
}

/// containerd 2.x calls STATUS whenever kubelet requests its status, CRI-O every few seconds.
#[test]
fn status_leaves_nothing_behind() {
    let node = Node::new();
    // The kernel adds link-local addresses with a delay.
    node.sh("for when in all default; do echo 1 > /proc/sys/net/ipv6/conf/$when/disable_ipv6; done");
    let no_pod = Pod { name: String::new(), netns: String::new() };
    let configs = interfaces(&node);
    node.settle(&[]);
    let chained =
        ["portmap", "bandwidth", "firewall", "tuning", "sbr", "loopback"].map(|kind| json!({"type": kind}));
    // A network that was never used, and one that is in use.
    let pod = node.pod("attached");
    for used in [false, true] {
        if used {
            network(&configs[0]).add(&node, &pod);
            node.settle(&[]);
        }
        for config in configs.iter().chain(&chained) {
            let mut config = config.clone();
            config["cniVersion"] = json!("1.1.0");
            config["name"] = json!(format!("net-{}", config["type"].as_str().unwrap()));
            let before = state(&node);
            let output = Invocation::new(&node, &ours(), "STATUS", &no_pod, &config)
                .without("CNI_CONTAINERID")
                .without("CNI_NETNS")
                .without("CNI_IFNAME")
                .run();
            assert_eq!(output.status, 0, "{}: {}", config["type"], output.stdout);
            assert_eq!(output.stdout, "", "{}", config["type"]);
            let after = state(&node);
            let (old, new): (BTreeSet<_>, BTreeSet<_>) = (before.lines().collect(), after.lines().collect());
            let changed: Vec<_> = old.symmetric_difference(&new).collect();
            assert!(changed.is_empty(), "{} used {used}: {changed:#?}", config["type"]);
        }
    }
}

/// containerd sends DEL at StopPodSandbox, and again at RemovePodSandbox with an empty namespace and no result; always
/// with the config that is in the directory at that time.
#[test]
fn del_is_repeated_without_a_namespace_and_with_another_config() {
    let node = Node::new();
    for config in interfaces(&node) {
        let kind = config["type"].as_str().unwrap();
        let pod = node.pod(&format!("{kind}-twice"));
        network(&config).add(&node, &pod);
        let mut now = config.clone();
        now["ipam"] = pool("10.99.0.0/24");
        now["mtu"] = json!(1300);
        now["ipMasq"] = json!(false);
        node.remove(&pod);
        for _ in 0..2 {
            network(&now).del(&node, &Pod { netns: String::new(), ..pod.clone() }, None);
        }
        let left = node.sh(&format!("ls /var/lib/cni/networks/net-{kind}"));
        assert!(!left.lines().any(|name| name.starts_with("10.")), "{kind}: {left}");
        assert!(!node.sh("nft list ruleset").contains(&pod.name), "{kind}");
    }
}

/// go-cni writes CNI_ARGS from a map: in random order.
#[test]
fn arguments_come_in_any_order() {
    let node = Node::new();
    let args = [
        "IgnoreUnknown=1",
        "K8S_POD_NAMESPACE=default",
        "K8S_POD_NAME=web",
        "K8S_POD_UID=7f",
        "IP=10.1.0.77",
    ];
    let config =
        json!({"cniVersion": "1.0.0", "name": "pods", "type": "bridge", "ipam": pool("10.1.0.0/24")});
    for turn in 0..args.len() {
        let mut order = args.to_vec();
        order.rotate_left(turn);
        let pod = node.pod(&format!("turn-{turn}"));
        let call = |verb: &str| {
            Invocation::new(&node, &ours(), verb, &pod, &config).env("CNI_ARGS", &order.join(";"))
        };
        let result = call("ADD").run().result();
        assert_eq!(result["ips"][0]["address"], "10.1.0.77/24", "{order:?}");
        assert_eq!(call("DEL").prev(&result).run().status, 0, "{order:?}");
    }
}

/// go-cni searches a plugin's error for these texts, and then assumes that the pod does not exist.
#[test]
fn errors_have_the_texts_that_runtimes_look_for() {
    let node = Node::new();
    let gone = Pod { name: "gone".into(), netns: "/run/netns/gone".into() };
    for config in interfaces(&node) {
        let failed = network(&config).try_add(&node, &gone).unwrap_err();
        let (_, text) = failed.error();
        assert!(text.contains("no such file or directory"), "{}: {text}", config["type"]);
        // For DEL a missing namespace is not an error.
        network(&config).del(&node, &gone, None);
    }
    let config = json!({"type": "bridge", "ipam": {"type": "nowhere"}});
    let (_, text) = network(&config).try_add(&node, &node.pod("blue")).unwrap_err().error();
    assert!(text.contains("failed to find plugin"), "{text}");
}

#[test]
fn every_type_that_makes_an_interface_is_in_the_table() {
    let node = Node::new();
    let tried: BTreeSet<String> =
        interfaces(&node).iter().map(|one| one["type"].as_str().unwrap().to_owned()).collect();
    // These plugins create no interface, or delegate it to another plugin.
    let others = [
        "bandwidth",
        "calico-ipam",
        "debug",
        "dhcp",
        "firewall",
        "flannel",
        "host-local",
        "loopback",
        "noop",
        "portmap",
        "sbr",
        "static",
        "tuning",
        "vrf",
    ];
    for kind in types().iter().filter(|kind| !others.contains(&kind.as_str()) && can_serve(kind)) {
        assert!(tried.contains(kind), "{kind}");
    }
}
