//! Objects of other programs, and failures during an ADD.

use podwire_tests::assert_same;

use super::*;

/// An interface that another program created makes ADD fail. The following DEL does not remove it, whatever its kind.
#[test]
fn an_interface_of_another_network_is_kept() {
    for kind in kinds() {
        let same_kind =
            with(fixed(kind, "10.6.0.9/24"), if kind == "vlan" { json!({"vlanId": 9}) } else { json!({}) });
        let veth = json!({"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.6.0.0/24"}});
        for other in [same_kind, veth] {
            let (node, _) = node_for(kind);
            let pod = node.pod("blue");
            let (theirs, ours) = (network("theirs", &other), network("ours", &config(kind, &[V4])));
            let result = theirs.add(&node, &pod);
            let before = node.state(&pod);
            let (_, msg) = ours.try_add(&node, &pod).expect_err("the name is taken").error();
            assert!(msg.contains(&format!("failed to create {kind}")) && msg.contains("eth0"), "{msg}");
            assert_same(&before, &node.state(&pod), kind);
            for _ in 0..2 {
                ours.del(&node, &pod, None);
                assert_same(&before, &node.state(&pod), kind);
            }
            theirs.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{kind}: {}", said.stdout));
        }
    }
}

/// Old kernels check the name on the node, although they create the interface in the pod.
#[test]
fn the_node_may_have_an_interface_of_the_same_name() {
    for kind in kinds() {
        let (node, _) = node_for(kind);
        node.sh("ip link set uplink down && ip link set uplink name eth0 && ip link set eth0 up");
        let pod = node.pod("blue");
        let before = node.state(&pod);
        let mut config = config(kind, &[V4]);
        if kind != "dummy" {
            config["master"] = json!("eth0");
        }
        let chain = network("net", &config);
        let result = chain.add(&node, &pod);
        assert_eq!(result["interfaces"][0]["name"], "eth0");
        assert_eq!(link(&node, &pod, "eth0")["ifalias"], "net/blue/eth0");
        chain.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{kind}: {}", said.stdout));
        assert!(kind == "dummy" || node.pings(Some(&pod), "10.5.0.1"), "{kind}");
        let (_, msg) = chain.try_add(&node, &pod).expect_err("twice").error();
        assert!(msg.contains("the pod's interface eth0 already exists"), "{msg}");
        chain.del(&node, &pod, Some(&result));
        assert_same(&before, &node.state(&pod), kind);
    }
}

#[test]
fn an_add_that_fails_leaves_nothing() {
    for kind in kinds() {
        let nowhere = json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}]);
        let mut lost = config(kind, &[V4]);
        lost["ipam"]["routes"] = nowhere;
        let spoilt = [
            ("", lost, "198.51.100.0/24"),
            ("", with(config(kind, &[V4]), json!({"ipam": {"type": "static"}})), "missing IP config"),
            ("ip link set uplink down", config(kind, &[V4]), "down"),
        ];
        for (spoil, config, said) in spoilt {
            // The other plugins accept a master that is down. Their interfaces are up when their master is.
            if !spoil.is_empty() && kind != "vlan" {
                continue;
            }
            let (node, _) = node_for(kind);
            let pod = node.pod("blue");
            node.sh(&format!("true\n{spoil}"));
            let before = node.state(&pod);
            let chain = network("net", &config);
            let (_, msg) = chain.try_add(&node, &pod).expect_err(said).error();
            assert!(msg.contains(said), "{kind}: {msg}");
            assert_same(&before, &node.state(&pod), &format!("{kind}: {msg}"));
            chain.del(&node, &pod, None);
            assert_same(&before, &node.state(&pod), &format!("{kind}: {msg}"));
        }
    }
}

#[test]
fn many_pods_are_attached_and_detached_at_once() {
    for kind in kinds().filter(|kind| *kind != "vlan") {
        let (node, _) = node_for(kind);
        let chain = network("net", &config(kind, &[V4]));
        let pods: Vec<_> = (0..8).map(|n| node.pod(&format!("pod{n}"))).collect();
        let attach = |pod| {
            let result = chain.add(&node, pod);
            chain.check(&node, pod, &result).unwrap_or_else(|said| panic!("{kind}: {}", said.stdout));
            chain.del(&node, pod, Some(&result));
        };
        std::thread::scope(|scope| pods.iter().for_each(|pod| drop(scope.spawn(|| attach(pod)))));
        assert!(pods.iter().all(|pod| !has(&node, pod, "eth0")), "{kind}");
    }
}
