//! Labs whose pods are routed: `podwire node` on every node, addresses of blocks, and the same proofs and faults as elsewhere.

use std::time::{Duration, Instant};

use podwire_tests::{needs, podwire};
use serde_json::json;

use super::faults::each_heals;
use super::laboratory::{lab, text, Laboratory};

const ROUTED: [&str; 2] = ["--cni-network", "calico"];

fn up(words: &[&str]) -> Laboratory {
    Laboratory::up(&[&ROUTED, words].concat())
}

/// What `podwire ipam …` says on the router of a lab with an embedded store.
fn ipam(lab: &Laboratory, words: &str) -> String {
    lab.sh("router", &format!("{} ipam {words} --store /var/lib/podwire/lab/ipam.db", podwire()))
}

#[test]
fn all_routed_pods_reach_each_other_over_every_store_and_backend() {
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
fn one_family_alone_is_enough_for_routed_pods() {
    up(&["--family", "ipv4"]).assert_model_holds(2, 4, 1);
    // There is nothing of flannel's in this etcd, which would have no place for it.
    up(&["--family", "ipv6", "--store", "etcd"]).assert_model_holds(2, 4, 1);
    if needs("ipip") {
        up(&["--family", "ipv4", "--backend", "ipip"]).assert_model_holds(2, 4, 1);
    }
}

#[test]
fn more_pods_than_a_block_has_addresses_are_reached() {
    let lab = up(&["--pods", "70"]);
    let status = lab.status();
    assert_eq!(status["whole"], true, "{status}");
    let blocks = status["nodes"][0]["ranges"].as_array().expect("blocks").len();
    assert!(blocks >= 4, "two of each family: {status}");
    let last = lab.address("n2-pod70");
    lab.sh("n1-pod1", &format!("ping -c 1 -W 5 {last}"));
    let check = ipam(&lab, "check");
    assert!(check.contains("everything fits together"), "{check}");
}

#[test]
fn what_is_taken_from_a_node_with_routed_pods_comes_back() {
    each_heals(&ROUTED, &["delete-device", "flush-routes", "flush-rules", "poison-neighbours", "kill-agent"]);
}

#[test]
fn a_node_with_routed_pods_that_is_moved_cut_off_restarted_or_removed_comes_back() {
    let words = [&ROUTED[..], &["--store", "etcd"]].concat();
    each_heals(&words, &["stop-store", "change-address", "link-down", "reboot-node", "remove-node"]);
}

#[test]
fn what_a_removed_node_had_is_released() {
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
fn the_end_of_a_tunnel_that_was_released_meanwhile_is_not_believed_in() {
    let lab = up(&["--pods", "1"]);
    let ends = || lab.sh("n2", "ip -4 -o addr show dev vxlan.calico | grep -o '10[0-9.]*' || true");
    // While one takes the other's place there may be none, or two.
    let is_its_own = || match ends().lines().collect::<Vec<_>>()[..] {
        [end] => ipam(&lab, &format!("show --ip {end}")).contains("vxlan-tunnel-addr-n2"),
        _ => false,
    };
    let wait = || {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_its_own() {
            assert!(Instant::now() < deadline, "{} is nobody's: {}", ends(), ipam(&lab, "show --blocks"));
        }
    };
    wait();
    assert!(lab.run(&["break", "kill-agent", "n2"]).status.success());
    ipam(&lab, "release --handle vxlan-tunnel-addr-n2");
    assert!(!is_its_own());
    assert!(lab.run(&["heal"]).status.success());
    wait();
    lab.assert_model_holds(2, 2, 2);
}

#[test]
fn what_routed_pods_do_not_have_is_refused_with_a_way_out() {
    for (words, says, hint) in [
        (&["--store", "static"][..], "no place for blocks", "--store embedded"),
        (&["--backend", "wireguard"], "no pool of addresses has the backend wireguard", "direct-or-vxlan"),
        (&["--backend", "alloc"], "no pool of addresses has the backend alloc", "host-gw"),
        (&["--backend", "ipip"], "IPIP carries IPv4 only", "--family ipv4"),
    ] {
        let said = text(&lab(&[&["up"], &ROUTED[..], words].concat()).stderr);
        assert!(said.contains(says) && said.contains(hint), "{words:?}: {said}");
    }
    let lab = up(&["--nodes", "1", "--pods", "0", "--backend", "host-gw"]);
    for (fault, says) in [
        ("duplicate-range", "a block has one owner"),
        ("foreign-config", "no agent looks at it"),
        ("delete-device", "this backend has no device"),
        ("stop-store", "the store embedded is a file"),
    ] {
        let said = text(&lab.run(&["break", fault]).stderr);
        assert!(said.contains(says), "{fault}: {said}");
    }
    assert_eq!(lab.status()["broken"], json!([]));
}
