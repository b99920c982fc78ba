//! `podwire agent flannel` on three nodes: it sets up routes and tunnels, carries packets and repairs damage.

mod api;
mod api_away;
mod api_server;
mod bad_input;
mod bgp;
mod blocks;
mod calico;
mod claims;
mod continuous_probe;
mod crowd;
mod cutting;
mod failsafe;
mod fast_path;
mod faults;
mod gone;
mod kubernetes;
mod migration;
mod pings;
mod policies;
mod policy_chains;
mod policy_reports;
mod readiness;
mod stage;
mod unbroken;

use podwire_tests::{ours, podwire, project};
use podwire_verify::Count;
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
fn a_peer_on_the_link_is_reached_directly_and_one_behind_a_router_through_a_tunnel() {
    let stage = Stage::ready(Store::Embedded, json!({"Type": "direct-or-vxlan"}));
    stage.assert_model_holds();
    let routes = stage.node(1).sh("ip route show proto 112");
    assert!(routes.contains("via 192.168.10.12 dev eth0"), "{routes}");
    assert_eq!(routes.lines().filter(|line| line.contains("dev flannel.1")).count(), 1, "{routes}");
}

#[test]
fn with_host_gw_a_peer_behind_a_router_is_reported_as_unreachable() {
    let stage = Stage::ready(Store::Embedded, json!({"Type": "host-gw"}));
    stage.wait_until("n1 knows both peers", |stage| {
        stage.status(1)["unreachable"].as_array().is_some_and(|unreachable| !unreachable.is_empty())
    });
    let status = stage.status(1);
    assert!(status["unreachable"].to_string().contains("n3"), "{status}");
    let report = stage.verify();
    let between = |one: usize, other: usize| report.matrix().get(&(one, other)).copied().unwrap_or_default();
    // The endpoints are pod1, n1, pod2, n2, pod3, n3.
    for pair in [(0, 2), (2, 0), (1, 2)] {
        let Count { sent, passed, .. } = between(pair.0, pair.1);
        assert!(passed == sent && sent > 0, "{pair:?}: {passed} of {sent}");
    }
}

#[test]
fn the_conflist_is_written_when_the_routes_are_set_up() {
    let mut stage = Stage::new(Store::Embedded, &net_conf(json!({"Type": "vxlan", "MTU": 1400})));
    stage.start_agent(1, &[]);
    stage.wait_ready(1);
    let env = stage.node(1).sh("cat /run/flannel/subnet.env");
    for line in ["FLANNEL_NETWORK=10.244.0.0/16", "FLANNEL_IPMASQ=true", "FLANNEL_IPV6_NETWORK=fd00:244::/48"]
    {
        assert!(env.contains(line), "{env}");
    }
    // The smaller MTU of both families: IPv6 has twenty bytes more overhead.
    assert!(env.contains("FLANNEL_MTU=1330"), "{env}");
    let list = stage.node(1).json("cat /run/cni-conf/10-podwire.conflist");
    assert_eq!(list["plugins"][0]["type"], "flannel");
    let metrics = stage.metrics(1);
    for line in ["podwire_agent_ready 1", "podwire_agent_peers 0", "podwire_agent_reconcile_seconds_count"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[test]
fn metrics_count_plugin_calls_and_used_addresses() {
    let stage = Stage::ready(Store::Embedded, json!({"Type": "vxlan"}));
    let taken =
        [&podwire(), "cni", "del", "cbr0", "pod1", "--plugin-dir", &ours(), "--conf-dir", "/run/cni-conf"];
    let counted = |line: &str| {
        let metrics = stage.metrics(1);
        assert!(metrics.lines().any(|one| one == line), "{line}: {metrics}");
    };
    counted("podwire_agent_plugin_call_seconds_count{verb=\"ADD\",plugin=\"flannel\"} 1");
    counted("podwire_agent_plugin_call_seconds_count{verb=\"ADD\",plugin=\"portmap\"} 1");
    // One address of each family. The bridge's own addresses do not count.
    counted("podwire_agent_pod_cidr_addresses_used 2");
    // Two peers, in both families.
    counted("podwire_agent_kernel_objects{kind=\"route\"} 4");
    counted("podwire_agent_kernel_objects{kind=\"device\"} 2");
    assert_eq!(stage.node(1).output(&taken, &[]).status, 0);
    // The plugin does not wait for the agent.
    let deleted = "podwire_agent_plugin_call_seconds_count{verb=\"DEL\",plugin=\"flannel\"} 1";
    stage.wait_until("DEL is counted", |stage| stage.metrics(1).lines().any(|line| line == deleted));
    counted("podwire_agent_pod_cidr_addresses_used 0");
}

#[test]
fn ip_blackhole_route_drops_packets_to_missing_pods() {
    let mut stage = Stage::new(Store::Embedded, &net_conf(json!({"Type": "vxlan"})));
    stage.start_agent(1, &["--ip-blackhole-route"]);
    stage.wait_ready(1);
    let cidr = stage.status(1)["podCidrs"][0].as_str().expect("a pod CIDR").to_string();
    let node = stage.node(1);
    let holes = node.sh("ip route show proto 112 type blackhole; ip -6 route show proto 112 type blackhole");
    assert!(holes.contains(&cidr) && holes.lines().count() == 2, "{holes}");
    // The route of a pod takes precedence.
    stage.add_pod(1, "pod1");
    let address = stage.address(1, "pod1");
    let route = stage.node(1).sh(&format!("ip route get {address}"));
    assert!(route.contains("dev cni0"), "{route}");
    // The state is as desired: further reconciles change nothing.
    let changes = |stage: &Stage| {
        let metrics = stage.metrics(1);
        metrics.lines().find(|line| line.starts_with("podwire_agent_kernel_changes_total")).map(String::from)
    };
    let before = changes(&stage);
    stage.node(1).sh("ip link set eth0 txqueuelen 900");
    let reconciles = |stage: &Stage| {
        let metrics = stage.metrics(1);
        metrics.lines().find(|line| line.starts_with("podwire_agent_reconciles_total")).map(String::from)
    };
    let count = reconciles(&stage);
    stage.node(1).sh("ip link set eth0 txqueuelen 901");
    stage.wait_until("a reconcile", |stage| reconciles(stage) != count);
    assert_eq!(changes(&stage), before);
}

#[test]
fn the_extension_backend_runs_the_configured_commands() {
    let verb = |verb: &str| format!("sh /run/backend {verb} $PUBLIC_IP $SUBNET");
    let backend = json!({
        "Type": "extension", "PreStartupCommand": "echo hello from here", "PostStartupCommand": verb("start"),
        "SubnetAddCommand": verb("add"), "SubnetRemoveCommand": verb("remove"),
    });
    let conf = json!({"Network": "10.244.0.0/16", "Backend": backend});
    let mut stage = Stage::new(Store::Etcd, &conf);
    for number in [1, 2] {
        // The commands do the same as the backend host-gw.
        let script = "cat >> /run/input; echo \"$*\" >> /run/calls; \
                      case $1 in add) exec ip route replace $3 via $2;; remove) exec ip route del $3;; esac";
        stage.node(number).write("/run/backend", script);
        stage.start_agent(number, &[]);
    }
    for number in [1, 2] {
        stage.wait_ready(number);
        stage.add_pod(number, &format!("pod{number}"));
    }
    let target = stage.address(2, "pod2");
    stage.wait_until("pod1 reaches pod2", |stage| {
        stage.node(1).can(&format!("ip netns exec pod1 ping -c 1 -W 1 {target}"))
    });
    assert!(stage.node(1).sh("cat /run/input").contains("hello from here"));
    let cidr = stage.status(2)["podCidrs"][0].as_str().expect("a pod CIDR").to_string();
    assert_eq!(stage.node(1).sh(&format!("grep -c 'add 192.168.10.12 {cidr}' /run/calls")).trim(), "1");

    // Node 2 leaves while the agent of node 1 is down.
    stage.kill_agent(1);
    stage.kill_agent(2);
    stage.etcdctl(&format!("del /coreos.com/network/subnets/{}", cidr.replace('/', "-")));
    stage.start_agent(1, &[]);
    stage.wait_until("the route of node 2 is removed", |stage| {
        stage.node(1).can(&format!("grep -q 'remove 192.168.10.12 {cidr}' /run/calls"))
            && !stage.node(1).can(&format!("ip route show | grep -q '^{cidr} via'"))
    });
}

#[test]
fn failures_are_reported_and_retried() {
    let mut stage = Stage::new(Store::Embedded, &net_conf(json!({"Type": "vxlan"})));
    stage.node(1).sh("ip route del default");
    stage.start_agent(1, &[]);
    stage.wait_until("the missing default route is reported", |stage| {
        stage.status(1)["problems"].to_string().contains("no interface has the IPv4 default route")
    });
    assert!(!stage
        .node(1)
        .can("test -e /run/flannel/subnet.env || test -e /run/cni-conf/10-podwire.conflist"));
    stage.node(1).sh("ip route add default via 192.168.10.1");
    stage.wait_ready(1);

    // A device of another kind with the name of the agent's device.
    stage.node(2).sh("ip link add flannel.1 type bridge");
    stage.start_agent(2, &[]);
    stage.wait_until("the foreign device is reported", |stage| {
        stage.status(2)["problems"].to_string().contains("flannel.1")
    });
    assert!(!stage.node(2).can("test -e /run/cni-conf/10-podwire.conflist"));
    stage.node(2).sh("ip link del flannel.1");
    stage.wait_ready(2);
}

#[test]
fn an_invalid_config_is_reported() {
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

/// The capabilities that a systemd unit grants a daemon, as a flag of setpriv.
fn rights_of(unit: &str) -> String {
    let unit = std::fs::read_to_string(project(&format!("deploy/systemd/{unit}"))).expect("the unit");
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("its rights");
    let rights: Vec<String> = line
        .split(' ')
        .map(|right| format!("+{}", right.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    format!("--bounding-set=-all,{}", rights.join(","))
}

/// Fails if the unit no longer grants the agent the capabilities that it needs.
#[test]
fn the_agent_works_with_the_capabilities_of_its_systemd_unit() {
    let mut stage = Stage::new(Store::Embedded, &net_conf(json!({"Type": "vxlan"})));
    let bounds = rights_of("podwire-agent-flannel.service");
    for number in [1, 3] {
        stage.start_agent_behind(number, &["setpriv", &bounds, "--no-new-privs"], &["--not-ready", "status"]);
    }
    for number in [1, 3] {
        stage.wait_ready(number);
        stage.add_pod(number, &format!("pod{number}"));
    }
    let target = stage.address(3, "pod3");
    stage.wait_until("pod1 reaches pod3", |stage| {
        stage.node(1).can(&format!("ip netns exec pod1 ping -c 1 -W 1 {target}"))
    });
}

#[test]
fn verify_tests_paths_to_pods_of_another_node() {
    let stage = Stage::ready(Store::Embedded, json!({"Type": "vxlan"}));
    let _answering = stage.answer(3, 1);
    let probes = stage.verify_with_answer(1, "10s");
    let over_there = |one: &&serde_json::Value| one["from"] == "pod1" && one["to"] == "pod3@n3";
    let asked: Vec<_> = probes.iter().filter(over_there).collect();
    assert_eq!(asked.len(), 8, "two families, four protocols: {probes:?}");
    assert!(asked.iter().all(|one| one["failure"].is_null()), "{asked:?}");
    // A file with other content is rejected with its name.
    stage.node(1).write("/run/test/odd.json", "{}");
    let said = stage.node(1).output(&[&podwire(), "verify", "--with", "/run/test/odd.json"], &[]);
    assert!(said.status != 0 && said.stderr.contains("/run/test/odd.json"), "{}", said.stderr);
}
