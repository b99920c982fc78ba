//! Every verb, for every plugin and every family.

use podwire_tests::{assert_same, drivers, Chain, Invocation, Node, Pod};
use serde_json::{json, Value};

use super::*;

/// Runs a test for every plugin and every family, several at a time because they mostly wait for duplicate address
/// detection.
fn everywhere(test: impl Fn(&str, &Node, &Chain) + Sync) {
    for kind in kinds() {
        std::thread::scope(|scope| {
            for subnets in FAMILIES {
                let test = &test;
                scope.spawn(move || {
                    let (node, _) = node_for(kind);
                    test(&format!("{kind}, {subnets:?}"), &node, &network("net", &config(kind, subnets)));
                });
            }
        });
    }
}

fn status(node: &Node, chain: &Chain) -> podwire_tests::Output {
    let no_pod = Pod { name: String::new(), netns: String::new() };
    Invocation::new(node, &chain.path, "STATUS", &no_pod, &chain.config(0)).run()
}

#[test]
fn a_pod_is_attached_checked_and_detached_and_nothing_is_left() {
    everywhere(|what, node, chain| {
        let pod = node.pod("blue");
        let before = node.state(&pod);
        let result = chain.add(node, &pod);
        assert_eq!(result["interfaces"].as_array().map(Vec::len), Some(1), "{what}: {result}");
        let (reported, found) = (&result["interfaces"][0], link(node, &pod, "eth0"));
        assert_eq!(reported["name"], "eth0", "{what}");
        assert_eq!(reported["sandbox"], pod.netns, "{what}");
        assert_eq!((&reported["mac"], &reported["mtu"]), (&found["address"], &found["mtu"]), "{what}");
        assert_eq!(found["linkinfo"]["info_kind"], chain.plugins[0]["type"], "{what}");
        assert_eq!(found["ifalias"], "net/blue/eth0", "{what}");
        assert!(result["ips"].as_array().unwrap().iter().all(|ip| ip["interface"] == 0), "{what}: {result}");
        let tentative = node.sh("ip -n blue address show dev eth0 scope global");
        assert!(!tentative.contains("tentative"), "{what}: {tentative}");
        chain.check(node, &pod, &result).unwrap_or_else(|said| panic!("{what}: {}", said.stdout));
        // DEL; again; without a record; without a namespace.
        for (pod, prev) in [
            (pod.clone(), Some(&result)),
            (pod.clone(), Some(&result)),
            (pod.clone(), None),
            (without_netns(&pod), None),
        ] {
            chain.del(node, &pod, prev);
            assert_same(&before, &node.state(&Pod { netns: "/run/netns/blue".into(), ..pod }), what);
        }
    });
}

#[test]
fn a_pod_whose_namespace_is_gone_is_detached() {
    everywhere(|what, node, chain| {
        let before = node.leftovers();
        let (reported, vanished) = (node.pod("present"), node.pod("vanished"));
        for pod in [&reported, &vanished] {
            let result = chain.add(node, pod);
            node.remove(pod);
            let del = if pod == &reported { without_netns(pod) } else { pod.clone() };
            chain.del(node, &del, Some(&result));
            assert_same(&before, &node.leftovers(), what);
            // The kernel deletes a namespace's interfaces after its name.
            wait_for_the_vlan(node, chain);
        }
    });
}

/// Waits until the VLAN that a namespace had is free.
fn wait_for_the_vlan(node: &Node, chain: &Chain) {
    if chain.plugins[0]["type"] == "vlan" {
        let attempt = "ip link add link uplink name probe type vlan id 5 && ip link delete probe";
        assert!((0..500).any(|_| {
            node.can(attempt) || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                false
            }
        }));
    }
}

#[test]
fn a_pod_whose_config_has_lost_its_master_is_detached() {
    everywhere(|what, node, chain| {
        let pod = node.pod("blue");
        let before = node.state(&pod);
        let lost = |config: &Value| {
            let mut config = config.clone();
            for key in ["master", "vlanId"] {
                config.as_object_mut().unwrap().remove(key);
            }
            with(config, json!({"mode": 5, "mtu": "large"}))
        };
        let spoilt = Chain { plugins: vec![lost(&chain.plugins[0])], ..chain.clone() };
        chain.add(node, &pod);
        spoilt.del(node, &pod, None);
        assert_same(&before, &node.state(&pod), what);
        spoilt.del(node, &pod, None);
    });
}

#[test]
fn a_pod_whose_master_is_gone_is_detached() {
    everywhere(|what, node, chain| {
        let pod = node.pod("blue");
        let before = node.inside(&pod);
        let result = chain.add(node, &pod);
        node.sh("ip link delete uplink");
        if what.starts_with("dummy") {
            return;
        }
        let (code, msg) = chain.check(node, &pod, &result).expect_err(what).error();
        assert!(msg.contains("no interface eth0"), "{what}: {code} {msg}");
        chain.del(node, &pod, Some(&result));
        assert_same(&before, &node.inside(&pod), what);
        assert!(!node.leftovers().contains("/var/lib/cni/networks/net/"), "{what}: {}", node.leftovers());
    });
}

#[test]
fn gc_keeps_valid_attachments_and_releases_the_other_addresses() {
    everywhere(|what, node, chain| {
        let leases = |node: &Node| {
            node.sh("cd /var/lib/cni/networks/net && ls | grep -v -e ^lock -e ^last -e ^podwire || true")
        };
        let (bare, pod) = (node.leftovers(), node.pod("blue"));
        let result = chain.add(node, &pod);
        let held = leases(node);
        assert_eq!(held.lines().count(), result["ips"].as_array().map_or(0, Vec::len), "{what}: {held}");
        chain.gc(node, &[("blue", "eth0")]);
        assert_eq!(leases(node), held, "{what}");
        chain.check(node, &pod, &result).unwrap_or_else(|said| panic!("{what}: {}", said.stdout));
        node.remove(&pod);
        chain.gc(node, &[("green", "eth0")]);
        assert_same(&bare, &node.leftovers(), what);
    });
}

#[test]
fn status_reports_whether_pods_can_be_attached() {
    everywhere(|what, node, chain| {
        assert_eq!(status(node, chain).status, 0, "{what}: {}", status(node, chain).stdout);
        let full = with(chain.plugins[0].clone(), json!({"ipam": {"type": "nowhere"}}));
        let (_, msg) = status(node, &network("net", &full)).error();
        assert!(msg.contains("nowhere"), "{what}: {msg}");
        if what.starts_with("dummy") {
            return;
        }
        node.sh("ip link set uplink down");
        let down = status(node, chain);
        match what.starts_with("vlan") {
            false => assert_eq!(down.status, 0, "{what}: it may wait for its master: {}", down.stdout),
            true => {
                assert!(down.error().0 == 50 && down.error().1.contains("uplink is down"), "{}", down.stdout)
            }
        }
        node.sh("ip link delete uplink");
        let (code, msg) = status(node, chain).error();
        assert!(code == 50 && msg.contains("\"uplink\""), "{what}: {code} {msg}");
    });
}

/// STATUS reports a missing driver before a pod needs it.
#[test]
fn status_reports_a_missing_driver() {
    let (node, _) = node();
    for kind in KINDS {
        let there = drivers::has(kind);
        let said = status(&node, &network("net", &config(kind, &[V4])));
        if there {
            assert_eq!(said.status, 0, "{kind}: {}", said.stdout)
        } else {
            assert!(said.error().0 == 50 && said.error().1.contains(kind), "{}", said.stdout)
        }
    }
}

#[test]
fn several_attachments_of_one_network_share_a_pod() {
    for kind in kinds().filter(|kind| *kind != "vlan") {
        let (node, _) = node_for(kind);
        let (chain, pod) = (network("net", &config(kind, &[V4])), node.pod("blue"));
        let before = node.state(&pod);
        let call = |verb: &str, ifname: &str| {
            Invocation::new(&node, &chain.path, verb, &pod, &chain.config(0)).env("CNI_IFNAME", ifname)
        };
        let first = chain.add(&node, &pod);
        let second = call("ADD", "net1").run().result();
        assert_ne!(address(&first, 0), address(&second, 0), "{kind}");
        call("DEL", "net1").prev(&second).run().result();
        assert!(!has(&node, &pod, "net1"), "{kind}");
        chain.check(&node, &pod, &first).unwrap_or_else(|said| panic!("{kind}: {}", said.stdout));
        chain.del(&node, &pod, None);
        let leased = node.leftovers();
        assert!(!leased.contains("/var/lib/cni/networks/net/10."), "{kind}: {leased}");
        assert_same(&before, &node.state(&pod), kind);
    }
}
