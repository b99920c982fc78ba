//! The route attributes of spec 1.1 are applied, not only printed.

use podwire_tests::{ours, Chain, Invocation, Node, GO};
use serde_json::json;

#[test]
fn mtu_advmss_priority_and_table_of_a_route_reach_the_kernel() {
    let node = Node::new();
    let pod = node.pod("pod");
    let routes = json!([
        {"dst": "0.0.0.0/0", "mtu": 1300, "advmss": 1200, "priority": 77},
        {"dst": "192.0.2.0/24", "table": 1234},
        {"dst": "::/0", "mtu": 1320, "priority": 88},
    ]);
    let ranges = json!([[{"subnet": "10.5.0.0/24"}], [{"subnet": "fd00:5::/64"}]]);
    for kind in ["bridge", "ptp"] {
        let plugin = json!({
            "type": kind, "bridge": "br0", "isGateway": true,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
        });
        let mut chain = Chain::new(&ours(), kind, &[plugin]);
        chain.version = "1.1.0".into();
        let result = chain.add(&node, &pod);
        assert_eq!(result["routes"][0]["mtu"], 1300, "{kind}");

        let inside = |what: &str| node.json(&format!("ip -n {} -j {what}", pod.name));
        let default = &inside("route show default")[0];
        assert_eq!(
            (&default["gateway"], &default["metric"]),
            (&json!("10.5.0.1"), &json!(77)),
            "{kind}: {default}"
        );
        let metrics = &default["metrics"][0];
        assert_eq!((&metrics["mtu"], &metrics["advmss"]), (&json!(1300), &json!(1200)), "{kind}: {default}");
        let other = &inside("route show table 1234")[0];
        assert_eq!(
            (&other["dst"], &other["gateway"]),
            (&json!("192.0.2.0/24"), &json!("10.5.0.1")),
            "{kind}"
        );
        let six = &inside("-6 route show default")[0];
        assert_eq!((&six["metric"], &six["metrics"][0]["mtu"]), (&json!(88), &json!(1320)), "{kind}: {six}");

        assert!(chain.check(&node, &pod, &result).is_ok(), "{kind}: CHECK finds routes in any table");
        chain.del(&node, &pod, Some(&result));
    }
}

/// The route without a gateway gets the bridge's, and is the default route that `isDefaultGateway` adds.
#[test]
fn a_default_route_that_is_configured_twice_is_added_once() {
    let node = Node::new();
    let pod = node.pod("pod");
    let plugin = json!({"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipam": {"type": "host-local",
        "ranges": [[{"subnet": "10.5.0.0/24"}], [{"subnet": "fd00:5::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}});
    let chain = Chain::new(&ours(), "net", &[plugin]);
    let result = chain.add(&node, &pod);
    for (family, gateway) in [("-4", "10.5.0.1"), ("-6", "fd00:5::1")] {
        let found = node.json(&format!("ip -n {} -j {family} route show default", pod.name));
        assert_eq!(
            (found.as_array().map(Vec::len), &found[0]["gateway"]),
            (Some(1), &json!(gateway)),
            "{found}"
        );
    }
    assert!(chain.check(&node, &pod, &result).is_ok());
    chain.del(&node, &pod, Some(&result));
}

/// When several networks have a route to the same destination, the network that was attached last is used.
#[test]
fn a_pod_in_two_networks_leaves_by_the_same_one_as_with_go() {
    for kind in ["bridge", "ptp"] {
        let routes = [GO, &ours()].map(|path| {
            let node = Node::new();
            let pod = node.pod("pod");
            for n in [1, 2] {
                let pool = json!({"type": "host-local", "subnet": format!("10.{n}.0.0/24"), "dataDir": "/run/test/pool",
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.168.0.0/16"}]});
                let plugin = json!({"type": kind, "bridge": format!("br{n}"), "isGateway": true, "ipam": pool});
                let config = Chain::new(path, &format!("net{n}"), &[plugin]).config(0);
                Invocation::new(&node, path, "ADD", &pod, &config)
                    .env("CNI_IFNAME", &format!("eth{n}"))
                    .run()
                    .result();
            }
            ["203.0.113.1", "192.168.1.1"].map(|to| {
                let route = &node.json(&format!("ip -n pod -j route get {to}"))[0];
                (route["dev"].clone(), route["gateway"].clone())
            })
        });
        assert_eq!(routes[0], routes[1], "{kind}");
        assert_eq!(routes[0][0].0, "eth2", "{kind}");
    }
}
