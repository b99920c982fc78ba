//! Packets to the node's link-local address, and unusual sources.

use serde_json::json;

use crate::attachment::{apply, port};
use crate::testbed::Outcome::Timeout;
use crate::testbed::{cluster_policy, connect_tcp_denied, on_node, pod, run, serve, Endpoint};

#[test]
fn link_local_and_unspecified_sources_do_not_bypass_egress_isolation() {
    on_node(|nft| {
        let (a, b, c) = (Endpoint::bridged(10), Endpoint::routed(11), Endpoint::calico(12));
        serve(90);
        let ports =
            [port(&a, "veth10", "a", true), port(&b, "ptp11", "b", false), port(&c, "cali12", "c", false)];
        let pods = [pod("a", json!({}), &a), pod("b", json!({}), &b), pod("c", json!({}), &c)];
        let devices = ["br0", "ptp11", "cali12"].map(|device| {
            let line =
                format!("ip -6 -o addr show dev {device} scope link | grep -o \"fe80[^/]*\" | head -1");
            run(&line).trim().to_owned()
        });
        let node = |n: usize| format!("[{}%2]:90", devices[n]);
        let closed = cluster_policy(
            "closed",
            json!({ "tier": "Admin", "priority": 1, "subject": { "namespaces": {} },
                "egress": [{ "action": "Deny", "to": [{ "networks": ["0.0.0.0/0", "::/0"] }] }] }),
        );
        apply(nft, &[&pods[..], &[closed]].concat(), &ports);
        for (n, endpoint) in [&a, &b, &c].into_iter().enumerate() {
            let index: u32 =
                endpoint.sh("ip -o link show dev eth0").split(':').next().unwrap().parse().unwrap();
            let to = std::net::SocketAddrV6::new(devices[n].parse().unwrap(), 90, 0, index);
            let outcome = endpoint.run_inside(move || {
                std::net::TcpStream::connect_timeout(&to.into(), std::time::Duration::from_secs(2)).is_ok()
            });
            assert!(!outcome, "{} by its link-local address", node(n));
            assert_eq!(endpoint.run_inside(|| connect_tcp_denied("10.1.0.1", 90)), Timeout);
        }
    });
}
