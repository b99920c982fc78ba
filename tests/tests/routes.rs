//! The attributes of a route that spec 1.1 knows are applied, not only printed.

use podwire_tests::{ours, Chain, Node};
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
