//! Labs with `podwire agent calico` on every node: the same tests and faults as with the flannel agent.

use std::time::{Duration, Instant};

use podwire_tests::{needs, podwire};
use serde_json::json;

use super::faults::each_heals;
use super::laboratory::{lab, text, Laboratory};

const CALICO: [&str; 2] = ["--cni-network", "calico"];

fn up(words: &[&str]) -> Laboratory {
    Laboratory::up(&[&CALICO, words].concat())
}

/// The output of `podwire ipam …` on the router of a lab with an embedded store.
fn ipam(lab: &Laboratory, words: &str) -> String {
    lab.sh("router", &format!("{} ipam {words} --store /var/lib/podwire/lab/ipam.db", podwire()))
}

#[test]
fn all_pods_reach_each_other_over_every_store_and_backend() {
    for (store, backend, subnets) in [
        ("embedded", "vxlan", "2"),
        ("embedded", "direct-or-vxlan", "2"),
        ("embedded", "host-gw", "1"),
        ("etcd", "vxlan", "2"),
        ("etcd", "host-gw", "1"),
    ] {
        let words = ["--nodes", "3", "--subnets", subnets, "--store", store, "--backend", backend];
        let lab = up(&words);
        lab.assert_model_holds(3, 6, 2);
        let links = lab.sh("n1", "ls /sys/class/net");
        assert_eq!(links.contains("vxlan.calico"), backend != "host-gw", "{links}");
        assert!(!links.contains("cni0") && links.matches("cali").count() >= 2, "no bridge: {links}");
    }
}

#[test]
fn single_stack_labs_work() {
    up(&["--family", "ipv4"]).assert_model_holds(2, 4, 1);
    // Unlike flannel's keys, blocks in etcd support IPv6 without IPv4.
    up(&["--family", "ipv6", "--store", "etcd"]).assert_model_holds(2, 4, 1);
    if needs("ipip") {
        up(&["--family", "ipv4", "--backend", "ipip"]).assert_model_holds(2, 4, 1);
    }
}

#[test]
fn pods_of_a_second_block_are_reachable() {
    let lab = up(&["--pods", "70"]);
    let status = lab.status();
    assert_eq!(status["healthy"], true, "{status}");
    let blocks = status["nodes"][0]["podCidrs"].as_array().expect("blocks").len();
    assert!(blocks >= 4, "two of each family: {status}");
    let last = lab.address("n2-pod70");
    lab.sh("n1-pod1", &format!("ping -c 1 -W 5 {last}"));
    let check = ipam(&lab, "check");
    assert!(check.contains("no problems"), "{check}");
}

#[test]
fn deleted_kernel_objects_are_restored() {
    each_heals(&CALICO, &["delete-device", "flush-routes", "flush-rules", "poison-neighbours", "kill-agent"]);
}

#[test]
fn a_node_recovers_from_faults_of_the_node() {
    let words = [&CALICO[..], &["--store", "etcd"]].concat();
    each_heals(&words, &["stop-store", "change-address", "link-down", "reboot-node", "remove-node"]);
}

#[test]
fn the_addresses_of_a_removed_node_are_released() {
    let lab = up(&["--pods", "1"]);
    let show = || ipam(&lab, "show --blocks");
    assert!(show().contains("n2"));
    assert!(lab.run(&["break", "remove-node", "n2"]).status.success());
    assert!(!show().contains("n2"), "{}", show());
    let healed = lab.run(&["heal"]);
    assert!(healed.status.success(), "{}", text(&healed.stderr));
    lab.assert_model_holds(2, 2, 2);
}

#[test]
fn a_released_tunnel_address_is_replaced() {
    let lab = up(&["--pods", "1"]);
    let addresses = || lab.sh("n2", "ip -4 -o addr show dev vxlan.calico | grep -o '10[0-9.]*' || true");
    // During the replacement the device may have no address, or two.
    let is_assigned = || match addresses().lines().collect::<Vec<_>>()[..] {
        [address] => ipam(&lab, &format!("show --ip {address}")).contains("vxlan-tunnel-addr-n2"),
        _ => false,
    };
    let wait = || {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_assigned() {
            assert!(
                Instant::now() < deadline,
                "{} is not assigned: {}",
                addresses(),
                ipam(&lab, "show --blocks")
            );
        }
    };
    wait();
    assert!(lab.run(&["break", "kill-agent", "n2"]).status.success());
    ipam(&lab, "release --handle vxlan-tunnel-addr-n2");
    assert!(!is_assigned());
    assert!(lab.run(&["heal"]).status.success());
    wait();
    lab.assert_model_holds(2, 2, 2);
}

#[test]
fn unsupported_specifications_and_faults_are_refused_with_a_hint() {
    for (words, says, hint) in [
        (&["--store", "static"][..], "cannot store address blocks", "--store embedded"),
        (&["--backend", "wireguard"], "IP pools do not support the backend wireguard", "direct-or-vxlan"),
        (&["--backend", "alloc"], "IP pools do not support the backend alloc", "host-gw"),
        (&["--backend", "ipip"], "IPIP carries IPv4 only", "--family ipv4"),
    ] {
        let said = text(&lab(&[&["up"], &CALICO[..], words].concat()).stderr);
        assert!(said.contains(says) && said.contains(hint), "{words:?}: {said}");
    }
    let lab = up(&["--nodes", "1", "--pods", "0", "--backend", "host-gw"]);
    for (fault, says) in [
        ("duplicate-range", "a block has one owner"),
        ("foreign-config", "does not check the conflist"),
        ("delete-device", "this backend has no device"),
        ("stop-store", "the store embedded is a file"),
    ] {
        let said = text(&lab.run(&["break", fault]).stderr);
        assert!(said.contains(says), "{fault}: {said}");
    }
    assert_eq!(lab.status()["faults"], json!([]));
}
