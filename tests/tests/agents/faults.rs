//! Faults of the kernel's state, the agent and its source: the agent repairs them, and packets on intact paths are not
//! lost.

use serde_json::json;

use super::stage::{Stage, Store};

fn stage(store: Store) -> Stage {
    Stage::ready(store, json!({"Type": "vxlan"}))
}

#[test]
fn a_killed_and_restarted_agent_loses_no_packet() {
    let mut stage = stage(Store::Embedded);
    let mac = |stage: &Stage| {
        stage.node(1).sh("cat /sys/class/net/flannel.1/address; ip -o link show flannel.1 | sed 's/.*ether \\([0-9a-f:]*\\).*/\\1/'")
    };
    let (before, env) = (mac(&stage), stage.node(1).sh("cat /run/flannel/subnet.env"));
    let lost = stage.lost_while(1, 3, |stage| {
        stage.kill_agent(1);
        stage.start_agent(1, &[]);
        stage.wait_ready(1);
    });
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!((mac(&stage), stage.node(1).sh("cat /run/flannel/subnet.env")), (before, env));
    stage.assert_model_holds();
}

#[test]
fn every_damage_in_the_kernel_is_repaired() {
    let stage = stage(Store::Embedded);
    for damage in [
        "ip link del flannel.1",
        "ip link set flannel.1 down",
        "ip route flush proto 112",
        "ip -6 route flush proto 112",
        "ip neigh flush dev flannel.1 nud permanent",
        "bridge fdb show dev flannel.1 | while read mac rest; do bridge fdb del $mac dev flannel.1 $(echo $rest | grep -o 'dst [^ ]*'); done",
        "ip neigh replace $(ip neigh show dev flannel.1 | head -1 | cut -d' ' -f1) lladdr 02:00:00:00:00:01 dev flannel.1 nud permanent",
        "ip -4 address flush dev flannel.1",
        "nft flush ruleset",
        "ip link set flannel.1 mtu 1280",
    ] {
        let picture = |stage: &Stage| {
            let node = stage.node(1);
            let all = "ip -o address show dev flannel.1 | sed 's/^[0-9]*: //; s/valid_lft.*//'; ip -o link show dev flannel.1 | grep -o 'mtu [0-9]*\\|state [A-Z]*\\|LOWER_UP'
                 ip route show proto 112; ip -6 route show proto 112; ip neigh show dev flannel.1 nud permanent | sort; bridge fdb show dev flannel.1 | grep dst | sort
                 nft list tables | grep -v podwire_masq | sort";
            String::from_utf8_lossy(&node.try_sh(all).stdout).into_owned()
        };
        let before = picture(&stage);
        stage.node(1).sh(damage);
        stage.wait_until(&format!("{damage} is repaired"), |stage| picture(stage) == before);
    }
    stage.assert_model_holds();
}

#[test]
fn a_node_that_gets_another_address_is_found_there() {
    let stage = stage(Store::Embedded);
    stage.node(1).sh("ip address del 192.168.10.11/24 dev eth0; ip address add 192.168.10.77/24 dev eth0
                      ip route replace default via 192.168.10.1");
    stage.wait_until("n3 knows the new address", |stage| {
        stage.node(3).can("bridge fdb show dev flannel.1 | grep -q 192.168.10.77")
    });
    let target = stage.address(1, "pod1");
    stage.wait_until("pod3 reaches pod1", |stage| {
        stage.node(3).can(&format!("ip netns exec pod3 ping -c 1 -W 1 {target}"))
    });
}

#[test]
fn an_uplink_that_was_down_carries_packets_again() {
    let stage = stage(Store::Embedded);
    stage.node(1).sh("ip link set eth0 down");
    stage.node(1).sh("ip link set eth0 up && ip route replace default via 192.168.10.1; ip -6 address replace fd10::11/64 dev eth0 nodad; ip -6 route replace default via fd10::1");
    let target = stage.address(3, "pod3");
    stage.wait_until("pod1 reaches pod3", |stage| {
        stage.node(1).can(&format!("ip netns exec pod1 ping -c 1 -W 1 {target}"))
    });
    stage.wait_ready(1);
}

#[test]
fn a_node_that_left_while_another_agent_was_down_loses_its_routes() {
    let mut stage = stage(Store::Etcd);
    let cidr = stage.status(3)["podCidrs"][0].as_str().expect("a pod CIDR").to_string();
    stage.kill_agent(1);
    stage.kill_agent(3);
    let all = stage.etcdctl("get --prefix /coreos.com/network/subnets/");
    let lines: Vec<&str> = all.lines().collect();
    let of_n3 = lines.windows(2).find(|two| two[1].contains("192.168.20.13")).expect("what n3 has");
    stage.etcdctl(&format!("del '{}'", of_n3[0]));
    stage.wait_until("n2 forgets n3", |stage| {
        !stage.node(2).can(&format!("ip route show proto 112 | grep -q '^{cidr}'"))
    });
    assert!(stage.node(1).can(&format!("ip route show proto 112 | grep -q '^{cidr}'")), "n1's agent is down");
    stage.start_agent(1, &[]);
    stage.wait_until("n1 forgets n3", |stage| {
        !stage.node(1).can(&format!("ip route show proto 112 | grep -q '^{cidr}'"))
    });
    assert!(!stage.node(1).can("bridge fdb show dev flannel.1 | grep -q 192.168.20.13"));
}

#[test]
fn while_etcd_is_down_packets_flow_and_agents_can_restart() {
    let mut stage = stage(Store::Etcd);
    let lost = stage.lost_while(1, 3, |stage| {
        stage.etcd = None;
        stage.wait_until("n2 notices", |stage| stage.status(2)["store"]["synced"] == false);
        // An agent that starts without its source changes nothing.
        stage.kill_agent(1);
        stage.start_agent(1, &[]);
        stage.wait_until("n1 reports", |stage| {
            stage.status(1)["problems"].to_string().contains("192.168.10.1:2379")
        });
        stage.start_etcd();
        stage.wait_ready(1);
        stage.wait_until("n2 is current", |stage| stage.status(2)["store"]["synced"] == true);
    });
    assert!(lost.is_empty(), "{lost:?}");
    stage.assert_model_holds();
}

#[test]
fn a_conflist_that_sorts_before_ours_is_reported() {
    let stage = stage(Store::Embedded);
    stage.node(2).sh("echo '{}' > /run/cni-conf/05-other.conflist");
    stage.node(2).sh("ip route flush proto 112"); // Starts a reconcile.
    stage.wait_until("the competing conflist is reported", |stage| {
        stage.status(2)["problems"].to_string().contains("05-other.conflist sorts before")
    });
}

#[test]
fn foreign_routes_are_left_alone() {
    let stage = stage(Store::Embedded);
    stage.node(1).sh("ip route add 10.99.0.0/16 via 192.168.10.1; ip route add 203.0.113.0/24 via 192.168.10.12 proto static");
    stage.node(1).sh("ip route flush proto 112");
    stage.wait_until("the agent's routes are restored", |stage| {
        stage.node(1).sh("ip route show proto 112 | wc -l").trim() == "2"
    });
    let routes = stage.node(1).sh("ip route");
    assert!(routes.contains("10.99.0.0/16") && routes.contains("203.0.113.0/24"), "{routes}");
}
