//! `podwire agent` on three nodes: the roads open by themselves, carry packets, and heal.

mod faults;
mod stage;

use serde_json::json;
use stage::{net_conf, Stage, Store};

#[test]
fn pods_of_all_nodes_reach_each_other_over_a_vxlan() {
    for store in [Store::Embedded, Store::Etcd] {
        let stage = Stage::ready(store, json!({"Type": "vxlan"}));
        stage.assert_model_holds();
        // Each peer is one route, one neighbour and one forwarding entry, and nothing else.
        let node = stage.node(1);
        assert_eq!(node.sh("ip route show proto 112 | wc -l").trim(), "2", "{store:?}");
        assert_eq!(node.sh("ip -6 route show proto 112 | wc -l").trim(), "2", "{store:?}");
        assert_eq!(node.sh("bridge fdb show dev flannel.1 | grep -c 'dst 192.168'").trim(), "2", "{store:?}");
        assert_eq!(node.sh("ip neigh show dev flannel.1 | grep -c PERMANENT").trim(), "2", "{store:?}");
    }
}

#[test]
fn a_peer_on_the_wire_is_reached_directly_and_one_behind_a_router_through_a_tunnel() {
    let stage = Stage::ready(Store::Embedded, json!({"Type": "direct-or-vxlan"}));
    stage.assert_model_holds();
    let routes = stage.node(1).sh("ip route show proto 112");
    assert!(routes.contains("via 192.168.10.12 dev eth0"), "{routes}");
    assert_eq!(routes.lines().filter(|line| line.contains("dev flannel.1")).count(), 1, "{routes}");
}

#[test]
fn with_host_gw_a_peer_behind_a_router_is_refused_and_told() {
    let stage = Stage::ready(Store::Embedded, json!({"Type": "host-gw"}));
    stage.wait_until("n1 knows both peers", |stage| {
        stage.status(1)["refused"].as_array().is_some_and(|refused| !refused.is_empty())
    });
    let status = stage.status(1);
    assert!(status["refused"].to_string().contains("n3"), "{status}");
    let report = stage.verify();
    let between = |one: usize, other: usize| report.matrix().get(&(one, other)).copied().unwrap_or_default();
    // The places are pod1, n1, pod2, n2, pod3, n3.
    for pair in [(0, 2), (2, 0), (1, 2)] {
        let (good, all) = between(pair.0, pair.1);
        assert!(good == all && all > 0, "{pair:?}: {good} of {all}");
    }
}

#[test]
fn the_node_is_announced_when_its_roads_are_open() {
    let mut stage = Stage::new(Store::Embedded, &net_conf(json!({"Type": "vxlan", "MTU": 1400})));
    stage.start_agent(1, &[]);
    stage.wait_ready(1);
    let env = stage.node(1).sh("cat /run/flannel/subnet.env");
    for line in ["FLANNEL_NETWORK=10.244.0.0/16", "FLANNEL_IPMASQ=true", "FLANNEL_IPV6_NETWORK=fd00:244::/48"]
    {
        assert!(env.contains(line), "{env}");
    }
    // The smaller of both families: over IPv6 twenty bytes more are needed.
    assert!(env.contains("FLANNEL_MTU=1330"), "{env}");
    let list = stage.node(1).json("cat /run/cni-conf/10-podwire.conflist");
    assert_eq!(list["plugins"][0]["type"], "flannel");
    let metrics = stage.node(1).sh("python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8081/metrics').read().decode())\"");
    for line in ["podwire_agent_ready 1", "podwire_agent_peers 0", "podwire_agent_comparison_seconds_count"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[test]
fn what_cannot_work_is_told_and_tried_again() {
    let mut stage = Stage::new(Store::Embedded, &net_conf(json!({"Type": "vxlan"})));
    stage.node(1).sh("ip route del default");
    stage.start_agent(1, &[]);
    stage.wait_until("the missing default route is told", |stage| {
        stage.status(1)["problems"].to_string().contains("no interface has the IPv4 default route")
    });
    assert!(!stage
        .node(1)
        .can("test -e /run/flannel/subnet.env || test -e /run/cni-conf/10-podwire.conflist"));
    stage.node(1).sh("ip route add default via 192.168.10.1");
    stage.wait_ready(1);

    // A device of our name that is not ours.
    stage.node(2).sh("ip link add flannel.1 type bridge");
    stage.start_agent(2, &[]);
    stage.wait_until("the foreign device is told", |stage| {
        stage.status(2)["problems"].to_string().contains("flannel.1")
    });
    assert!(!stage.node(2).can("test -e /run/cni-conf/10-podwire.conflist"));
    stage.node(2).sh("ip link del flannel.1");
    stage.wait_ready(2);
}

#[test]
fn a_config_that_makes_no_sense_is_told() {
    for (conf, says) in [
        (
            json!({"Network": "10.244.0.0/16", "Backend": {"Type": "carrier-pigeon"}}),
            "vxlan, direct-or-vxlan",
        ),
        (json!({"Network": "10.244.0.0/16"}), "use vxlan"),
        (json!({"Network": "10.244.0.0/29", "Backend": {"Type": "vxlan"}}), "10.244.0.0/29"),
    ] {
        let mut stage = Stage::new(Store::Embedded, &conf);
        let folder = stage.store;
        stage.start_agent(1, &[]);
        let process = stage.nodes[0].agent.as_mut().expect("the agent");
        let said = process.expect(&[says]);
        assert!(said.contains("ERROR") || said.contains("because"), "{folder:?}: {said}");
    }
}
