//! What plugins do for the agent's fast path: a pod's device has the qdisc for programs from its creation.

#![allow(clippy::unwrap_used)] // A test that cannot go on says so.

mod test_pod;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use podwire_cni_plugin::{Command, Source};
use podwire_kernel::fast_path::CONNTRACK_SYSCTLS;
use podwire_plugins::bandwidth::Bandwidth;
use podwire_plugins::bridge::Bridge;
use serde_json::{json, Value};
use test_pod::{call, json as read, run, with_pod, Pod};

/// As the agent does.
fn turn_on() {
    run("nft add table inet podwire_fast_path");
    run("nft add chain inet podwire_fast_path c");
    run("nft add rule inet podwire_fast_path c ct state established");
    for key in CONNTRACK_SYSCTLS {
        fs::write(format!("/proc/sys/{key}"), "1").unwrap();
    }
}

fn config(bridge: &str) -> Value {
    json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": bridge, "hairpinMode": true, "ipam": {}})
}

/// ADD of bridge, with its result and the qdiscs of the pod's host end.
fn add(pod: &Pod, ifname: &str, path: &str) -> (Value, Vec<String>) {
    let source = Source { path: path.into(), ..pod.source(ifname) };
    let result = call(&Bridge, Command::Add, &source, &config("br7")).unwrap();
    let device = host_end(&result);
    let link = &read(&format!("ip -j -d link show {device}"))[0];
    assert!(link["flags"].as_array().unwrap().contains(&json!("UP")), "{link}");
    assert_eq!(link["master"], "br7");
    assert_eq!(link["linkinfo"]["info_slave_data"]["hairpin"], true);
    assert!(link["ifalias"].as_str().unwrap().ends_with(ifname));
    (result, qdiscs(&device))
}

fn host_end(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().unwrap().to_owned()
}

fn qdiscs(device: &str) -> Vec<String> {
    let all = read(&format!("tc -j qdisc show dev {device}"));
    let kinds = all.as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap().to_owned());
    kinds.filter(|kind| kind != "noqueue").collect()
}

#[test]
fn a_pod_gets_the_qdisc_for_programs_only_while_the_fast_path_is_on() {
    with_pod(|pod| {
        assert_eq!(add(pod, "eth0", "").1, Vec::<String>::new());
        turn_on();
        assert_eq!(add(pod, "eth1", "").1, ["clsact"]);
        run("nft delete table inet podwire_fast_path");
        assert_eq!(add(pod, "eth2", "").1, Vec::<String>::new());
    });
}

#[test]
fn limits_replace_the_qdisc_for_programs() {
    with_pod(|pod| {
        turn_on();
        let (result, _) = add(pod, "eth0", "");
        let mut limits = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "bandwidth", "prevResult": result,
            "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000,
        });
        limits["prevResult"] = pod.call(&Bandwidth, Command::Add, "eth0", &limits).unwrap();
        assert_eq!(qdiscs(&host_end(&result)), ["tbf", "ingress"]);
        pod.call(&Bandwidth, Command::Check, "eth0", &limits).unwrap();
        pod.call(&Bandwidth, Command::Del, "eth0", &limits).unwrap();
    });
}

/// Go's `bandwidth` fails on a device with the qdisc for programs.
#[test]
fn a_pod_whose_limits_another_project_sets_gets_no_qdisc_for_programs() {
    with_pod(|pod| {
        turn_on();
        let folder = std::env::temp_dir().join(format!("plugins-{}", pod.container));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("bandwidth");
        fs::write(&program, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let kinds = add(pod, "eth0", folder.to_str().unwrap()).1;
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(kinds, Vec::<String>::new());
    });
}
