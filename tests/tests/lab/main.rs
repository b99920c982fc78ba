//! `podwire lab`: labs with every store, backend and address family, each tested with packets; and their creation and
//! removal, also after a crash.

mod calico;
mod clock;
mod faults;
mod json;
mod laboratory;
mod life;
mod looking;
mod mtu;
mod policies;
mod probe;
mod service_commands;
mod services;
#[path = "../../policies/tables.rs"]
mod tables;

use laboratory::{lab, text, Laboratory};

#[test]
fn all_pods_of_five_nodes_on_two_subnets_reach_each_other() {
    for (store, backend) in [("embedded", "vxlan"), ("etcd", "direct-or-vxlan")] {
        let words = ["--nodes", "5", "--pods", "1", "--subnets", "2", "--store", store, "--backend", backend];
        let lab = Laboratory::up(&words);
        lab.assert_model_holds(5, 5, 2);
    }
}

#[test]
fn all_pods_of_three_nodes_reach_each_other_over_every_store_and_backend() {
    for (store, backend, subnets) in [
        ("embedded", "direct-or-vxlan", "2"),
        ("embedded", "host-gw", "1"),
        ("etcd", "vxlan", "2"),
        ("etcd", "host-gw", "1"),
        ("static", "vxlan", "2"),
        ("static", "host-gw", "1"),
    ] {
        let lab = Laboratory::up(&[
            "--nodes",
            "3",
            "--pods",
            "1",
            "--store",
            store,
            "--backend",
            backend,
            "--subnets",
            subnets,
        ]);
        lab.assert_model_holds(3, 3, 2);
    }
}

#[test]
fn single_stack_labs_work() {
    for family in ["ipv4", "ipv6"] {
        let lab = Laboratory::up(&["--nodes", "2", "--pods", "2", "--family", family]);
        lab.assert_model_holds(2, 4, 1);
        let other = if family == "ipv4" { "-6" } else { "-4" };
        let addresses = lab.sh("n1-pod1", &format!("ip {other} -o address show scope global"));
        assert_eq!(addresses.trim(), "", "{family}");
    }
}

/// As in docs/overlay.md: one route, one neighbour and one forwarding entry for each peer and family, and nothing else.
#[test]
fn the_kernels_objects_are_those_of_the_specification() {
    let lab = Laboratory::up(&["--nodes", "5", "--pods", "0", "--subnets", "2"]);
    for node in ["n1", "n5"] {
        let count = |script: &str| lab.sh(node, &format!("{script} | wc -l")).trim().to_owned();
        assert_eq!(count("ip route show proto 112"), "4", "{node}");
        assert_eq!(count("ip -6 route show proto 112"), "4", "{node}");
        for device in ["flannel.1", "flannel-v6.1"] {
            assert_eq!(count(&format!("ip neigh show dev {device} nud permanent")), "4", "{node} {device}");
            assert_eq!(count(&format!("bridge fdb show dev {device} | grep dst")), "4", "{node} {device}");
        }
        let links = lab.sh(node, "ls /sys/class/net | sort | tr '\\n' ' '");
        assert_eq!(links.trim(), "eth0 flannel-v6.1 flannel.1 lo", "{node}");
        let tables = lab.sh(node, "nft list tables | sort");
        assert_eq!(
            tables.trim(),
            "table inet podwire_fast_path\ntable inet podwire_overlay\ntable inet podwire_tunnel",
            "{node}"
        );
    }
}

#[test]
fn with_host_gw_nodes_in_another_subnet_are_reported_as_unreachable() {
    let lab = Laboratory::up(&["--nodes", "3", "--pods", "1", "--subnets", "2", "--backend", "host-gw"]);
    let said = text(&lab.run(&["status"]).stdout);
    assert!(said.contains("no route from n1 to n3"), "{said}");
    // Nodes of the same subnet reach each other.
    let (report, held) = lab.json(&["verify", "--timeout", "10s"]);
    assert!(!held && report["holds"] == false);
    let probes = report["probes"].as_array().expect("probes");
    for probe in probes {
        let far =
            [&probe["from"], &probe["to"]].iter().any(|place| place.as_str().unwrap().starts_with("n3"));
        let within = probe["from"].as_str().unwrap()[..2] == probe["to"].as_str().unwrap()[..2];
        assert_eq!(probe["failure"].is_null(), !far || within, "{probe}");
    }
    let said = text(&lab.run(&["verify", "--timeout", "300ms"]).stdout);
    assert!(said.contains("the network model does not hold") && said.contains("FROM \\ TO"), "{said}");
}

#[test]
fn invalid_specifications_are_refused_before_anything_is_created() {
    for (words, says) in [
        (&["up", "--nodes", "0"][..], "0 nodes: expected 1 to 100"),
        (&["up", "--nodes", "2", "--subnets", "3"], "3 subnets: expected 1 to 2"),
        (&["up", "--name", "Not A Name"], "is not a valid name for a lab"),
        (
            &["up", "--store", "etcd", "--family", "ipv6"],
            "flannel's keys in etcd do not support IPv6 without IPv4",
        ),
        (&["up", "--backend", "carrier-pigeon"], "vxlan, direct-or-vxlan"),
        (&["status", "--name", "unknown"], "there is no lab unknown"),
        (&["down", "--name", "../run"], "there is no lab ../run"),
        (&["break", "carrier-pigeon"], "unknown fault \"carrier-pigeon\""),
    ] {
        let output = lab(words);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(says), "{words:?}: {said}");
    }
}
