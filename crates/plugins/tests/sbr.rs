//! sbr against the real kernel.

#![allow(clippy::unwrap_used)] // A test that cannot go on says so.

mod test_pod;

use std::fs;

use podwire_cni_plugin::{Command, Source};
use podwire_plugins::sbr::Sbr;
use serde_json::{json, Value};
use test_pod::{call, go, with_pod, Pod};

/// An interface with an address of each family and a route through its gateway.
fn attach(pod: &Pod, ifname: &str, n: u8) -> Value {
    let (_, mut result) = pod.connect("net", ifname);
    pod.run(&format!("ip address add 10.{n}.0.5/24 dev {ifname}"));
    pod.run(&format!("ip address add fd0{n}::5/64 dev {ifname} nodad"));
    pod.run(&format!("ip route add 10.9.0.0/16 via 10.{n}.0.1 metric {n}"));
    result["ips"] = json!([
        {"interface": 1, "address": format!("10.{n}.0.5/24"), "gateway": format!("10.{n}.0.1")},
        {"interface": 1, "address": format!("fd0{n}::5/64"), "gateway": format!("fd0{n}::1")},
    ]);
    result["routes"] = json!([{"dst": "10.9.0.0/16", "gw": format!("10.{n}.0.1")}]);
    result
}

fn config(prev: &Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "sbr", "prevResult": prev})
}

/// The rules with a source: (source, table).
fn rules(pod: &Pod) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for family in ["-4", "-6"] {
        let list = pod.json(&format!("ip -j {family} rule"));
        let text = |rule: &Value, key: &str| rule[key].as_str().unwrap_or_default().to_string();
        all.extend(list.as_array().unwrap().iter().map(|rule| (text(rule, "src"), text(rule, "table"))));
    }
    all.retain(|(source, _)| source != "all");
    all
}

/// A table's routes over an interface: (destination, gateway, preferred source).
fn routes(pod: &Pod, family: &str, table: &str, ifname: &str) -> Vec<(String, String, String)> {
    let list = pod.json(&format!("ip -j {family} route show table {table} dev {ifname}"));
    let text = |route: &Value, key: &str| route[key].as_str().unwrap_or_default().to_string();
    let row = |route: &Value| (text(route, "dst"), text(route, "gateway"), text(route, "prefsrc"));
    list.as_array().unwrap().iter().map(row).collect()
}

fn row(dst: &str, gateway: &str, source: &str) -> (String, String, String) {
    (dst.into(), gateway.into(), source.into())
}

fn taken(pod: &Pod, from: &str, to: &str) -> String {
    let found = &pod.json(&format!("ip -j route get {to} from {from}"))[0];
    format!("{} via {}", found["dev"].as_str().unwrap(), found["gateway"].as_str().unwrap_or("-"))
}

#[test]
fn each_address_gets_its_own_default_route() {
    with_pod(|pod| {
        let first = config(&attach(pod, "eth0", 1));
        let second = config(&attach(pod, "eth1", 2));
        let result = pod.call(&Sbr, Command::Add, "eth0", &first).unwrap();
        assert_eq!(result["ips"], first["prevResult"]["ips"]);
        pod.call(&Sbr, Command::Add, "eth1", &second).unwrap();

        let table = |n: u32| n.to_string();
        let mut found = rules(pod);
        found.sort();
        let expected = [("10.1.0.5", 100), ("10.2.0.5", 102), ("fd01::5", 101), ("fd02::5", 103)];
        assert_eq!(found, expected.map(|(source, n)| (source.to_string(), table(n))));
        let expected = [
            row("default", "10.1.0.1", ""),
            row("10.1.0.0/24", "", "10.1.0.5"),
            row("10.9.0.0/16", "10.1.0.1", ""),
        ];
        assert_eq!(routes(pod, "-4", "100", "eth0"), expected);
        let expected = [row("fd02::/64", "", ""), row("fe80::/64", "", ""), row("default", "fd02::1", "")];
        assert_eq!(routes(pod, "-6", "103", "eth1"), expected);
        assert!(routes(pod, "-4", "main", "eth0").is_empty());
        assert_eq!(
            routes(pod, "-6", "main", "eth0"),
            [row("fe80::/64", "", "")],
            "neighbours stay reachable"
        );

        assert_eq!(taken(pod, "10.1.0.5", "8.8.8.8"), "eth0 via 10.1.0.1");
        assert_eq!(taken(pod, "10.2.0.5", "8.8.8.8"), "eth1 via 10.2.0.1");
        assert_eq!(taken(pod, "10.2.0.5", "10.2.0.9"), "eth1 via -");
        assert_eq!(taken(pod, "fd02::5", "fd09::1"), "eth1 via fd02::1");

        for (ifname, config) in [("eth0", &first), ("eth1", &second)] {
            pod.call(&Sbr, Command::Check, ifname, config).unwrap();
            // A second ADD changes nothing.
            let before = (rules(pod), routes(pod, "-4", "all", ifname));
            pod.call(&Sbr, Command::Add, ifname, config).unwrap();
            assert_eq!((rules(pod), routes(pod, "-4", "all", ifname)), before);
        }
        pod.call(&Sbr, Command::Del, "eth0", &first).unwrap();
        assert_eq!(rules(pod).len(), 2, "the other interface keeps its rules");
        pod.call(&Sbr, Command::Check, "eth1", &second).unwrap();
        pod.call(&Sbr, Command::Del, "eth1", &second).unwrap();
        pod.call(&Sbr, Command::Del, "eth1", &second).unwrap();
        assert!(rules(pod).is_empty());
    });
}

#[test]
fn the_routes_equal_gos() {
    let state = |pod: &Pod| (rules(pod), routes(pod, "-4", "100", "eth0"), routes(pod, "-4", "main", "eth0"));
    let alone = |theirs: bool| {
        let mut found = None;
        with_pod(|pod| {
            let mut prev = attach(pod, "eth0", 1);
            prev["ips"].as_array_mut().unwrap().pop();
            pod.run("ip -6 address flush dev eth0");
            let mut config = config(&prev);
            config["cniVersion"] = json!("1.0.0");
            match theirs {
                true => {
                    if go("sbr", "ADD", &pod.source("eth0"), &config).is_some() {
                        found = Some(state(pod));
                        pod.call(&Sbr, Command::Check, "eth0", &config).unwrap();
                        pod.call(&Sbr, Command::Del, "eth0", &config).unwrap();
                        assert!(rules(pod).is_empty());
                    }
                }
                false => {
                    pod.call(&Sbr, Command::Add, "eth0", &config).unwrap();
                    found = Some(state(pod));
                    go("sbr", "DEL", &pod.source("eth0"), &config);
                    assert!(rules(pod).is_empty());
                }
            }
        });
        found
    };
    let Some(theirs) = alone(true) else { return };
    assert_eq!(alone(false), Some(theirs));
}

#[test]
fn hints_keep_on_link_routes_in_the_main_table() {
    with_pod(|pod| {
        let mut config = config(&attach(pod, "eth0", 1));
        config["addSourceHints"] = json!(true);
        pod.call(&Sbr, Command::Add, "eth0", &config).unwrap();
        assert_eq!(routes(pod, "-4", "main", "eth0"), [row("10.1.0.0/24", "", "10.1.0.5")]);
        let v6 = routes(pod, "-6", "main", "eth0");
        assert_eq!(v6, [row("fd01::/64", "", "fd01::5"), row("fe80::/64", "", "")]);
        pod.call(&Sbr, Command::Check, "eth0", &config).unwrap();
        pod.call(&Sbr, Command::Add, "eth0", &config).unwrap();
        assert_eq!(routes(pod, "-6", "main", "eth0"), v6);
        pod.run("ip -6 route del fd01::/64 dev eth0 table main");
        let text = pod.call(&Sbr, Command::Check, "eth0", &config).unwrap_err().to_string();
        assert!(text.contains("lacks route to fd01::/64 in the main table"), "{text}");
    });
}

#[test]
fn two_interfaces_in_one_subnet_keep_their_hints() {
    with_pod(|pod| {
        let mut configs = Vec::new();
        for (ifname, last) in [("eth0", 5), ("eth1", 6)] {
            let (_, mut prev) = pod.connect("net", ifname);
            pod.run(&format!("ip address add 10.1.0.{last}/24 dev {ifname}"));
            prev["ips"] =
                json!([{"interface": 1, "address": format!("10.1.0.{last}/24"), "gateway": "10.1.0.1"}]);
            let mut config = config(&prev);
            config["addSourceHints"] = json!(true);
            configs.push((ifname, config));
        }
        for (ifname, config) in &configs {
            pod.call(&Sbr, Command::Add, ifname, config).unwrap();
        }
        for (ifname, config) in &configs {
            pod.call(&Sbr, Command::Check, ifname, config).unwrap();
        }
        assert_eq!(taken(pod, "10.1.0.5", "10.1.0.9"), "eth0 via -");
        assert_eq!(taken(pod, "10.1.0.6", "10.1.0.9"), "eth1 via -");
    });
}

#[test]
fn a_configured_table_only_gets_rules() {
    with_pod(|pod| {
        let mut config = config(&attach(pod, "eth0", 1));
        config["table"] = json!(5000);
        let main = routes(pod, "-4", "main", "eth0");
        for _ in 0..2 {
            pod.call(&Sbr, Command::Add, "eth0", &config).unwrap();
            let expected = ["10.1.0.5", "fd01::5"].map(|source| (source.to_string(), "5000".to_string()));
            assert_eq!(rules(pod), expected);
        }
        assert_eq!(routes(pod, "-4", "main", "eth0"), main);
        pod.call(&Sbr, Command::Check, "eth0", &config).unwrap();
        // A rule of another program for the same address stays.
        pod.run("ip rule add from 10.1.0.5 table 77");
        pod.call(&Sbr, Command::Del, "eth0", &config).unwrap();
        assert_eq!(rules(pod), [("10.1.0.5".to_string(), "77".to_string())]);
    });
}

#[test]
fn configured_gateways_are_used() {
    with_pod(|pod| {
        let mut config = config(&attach(pod, "eth0", 1));
        config["gateways"] = json!(["10.1.0.254", "fd01::fe"]);
        pod.call(&Sbr, Command::Add, "eth0", &config).unwrap();
        assert_eq!(taken(pod, "10.1.0.5", "8.8.8.8"), "eth0 via 10.1.0.254");
        assert_eq!(taken(pod, "fd01::5", "fd09::1"), "eth0 via fd01::fe");
        pod.call(&Sbr, Command::Check, "eth0", &config).unwrap();
    });
}

#[test]
fn check_reports_what_is_missing() {
    with_pod(|pod| {
        let config = config(&attach(pod, "eth0", 1));
        pod.call(&Sbr, Command::Add, "eth0", &config).unwrap();
        pod.run("ip route del default table 100");
        pod.run("ip route del 10.9.0.0/16 table 100");
        pod.run("ip -6 rule del from fd01::5 table 101");
        let text = pod.call(&Sbr, Command::Check, "eth0", &config).unwrap_err().to_string();
        let lacks = "source based routing of eth0 lacks";
        let expected = format!(
            "{lacks} rule from fd01::5/128 to its own table; \
             {lacks} default route via 10.1.0.1 in table 100; {lacks} route to 10.9.0.0/16"
        );
        assert!(text.starts_with(&expected), "{text}");
    });
}

#[test]
fn a_failed_add_leaves_the_main_table_as_it_was() {
    with_pod(|pod| {
        let mut config = config(&attach(pod, "eth0", 1));
        config["gateways"] = json!(["10.77.0.1"]);
        let state = || (routes(pod, "-4", "all", "eth0"), routes(pod, "-6", "main", "eth0"));
        let before = state();
        let error = pod.call(&Sbr, Command::Add, "eth0", &config).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "Failed to copy a route to its table: add default route via 10.77.0.1 in table 100"
            ),
            "{error}"
        );
        assert!(rules(pod).is_empty());
        assert_eq!(state(), before);
        assert!(routes(pod, "-6", "101", "eth0").is_empty());
        let error = pod.call(&Sbr, Command::Add, "eth7", &config).unwrap_err().to_string();
        assert!(error.starts_with("No IP addresses supplied on interface: eth7"), "{error}");
        let unchained = json!({"cniVersion": "1.0.0", "name": "net"});
        let error = pod.call(&Sbr, Command::Add, "eth0", &unchained).unwrap_err().to_string();
        assert!(error.starts_with("This plugin must be called as chained plugin"), "{error}");
    });
}

#[test]
fn del_succeeds_without_the_namespace() {
    with_pod(|pod| {
        let mut config = config(&attach(pod, "eth0", 1));
        pod.call(&Sbr, Command::Add, "eth0", &config).unwrap();
        // The interface is already deleted: the recorded result has its addresses.
        pod.run("ip link del eth0");
        pod.call(&Sbr, Command::Del, "eth0", &config).unwrap();
        assert!(rules(pod).is_empty());
        config.as_object_mut().unwrap().remove("prevResult");
        pod.call(&Sbr, Command::Del, "eth0", &config).unwrap();
        pod.vanish();
        pod.call(&Sbr, Command::Del, "eth0", &config).unwrap();
        call(&Sbr, Command::Del, &Source { netns: String::new(), ..pod.source("eth0") }, &config).unwrap();
        assert!(!pod.netns.exists());
    });
}

#[test]
fn concurrent_adds_choose_different_tables() {
    with_pod(|pod| {
        let configs: Vec<Value> = (0..6).map(|n| config(&attach(pod, &format!("eth{n}"), n + 1))).collect();
        let node = podwire_kernel::Netns::current().unwrap();
        std::thread::scope(|scope| {
            for (n, config) in configs.iter().enumerate() {
                let (node, ifname) = (&node, format!("eth{n}"));
                scope.spawn(move || {
                    node.run(|| pod.call(&Sbr, Command::Add, &ifname, config).unwrap()).unwrap();
                });
            }
        });
        let mut tables: Vec<String> = rules(pod).into_iter().map(|(_, table)| table).collect();
        tables.sort();
        tables.dedup();
        assert_eq!(tables.len(), 12);
        for (n, config) in configs.iter().enumerate() {
            pod.call(&Sbr, Command::Check, &format!("eth{n}"), config).unwrap();
        }
        let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&pod.netns).unwrap());
        assert!(!std::path::Path::new("/run/podwire/sbr").join(format!("{inode}.lock")).exists());
    });
}

#[test]
fn a_killed_add_can_be_repeated() {
    with_pod(|pod| {
        let config = config(&attach(pod, "eth0", 1));
        // Killed after adding the rules and copying one route.
        pod.run("ip rule add from 10.1.0.5 table 100");
        pod.run("ip -6 rule add from fd01::5 table 101");
        pod.run("ip route add 10.1.0.0/24 dev eth0 src 10.1.0.5 proto kernel scope link table 100");
        pod.call(&Sbr, Command::Add, "eth0", &config).unwrap();
        assert_eq!(rules(pod).len(), 2);
        assert!(routes(pod, "-4", "main", "eth0").is_empty());
        pod.call(&Sbr, Command::Check, "eth0", &config).unwrap();
        let unrecorded = json!({"cniVersion": "1.0.0", "name": "net"});
        pod.call(&Sbr, Command::Del, "eth0", &unrecorded).unwrap();
        assert!(rules(pod).is_empty());
    });
}

#[test]
fn status_and_gc_need_no_pod() {
    with_pod(|pod| {
        let config =
            json!({"cniVersion": "1.1.0", "name": pod.own_network(), "cni.dev/valid-attachments": []});
        call(&Sbr, Command::Status, &Source::default(), &config).unwrap();
        call(&Sbr, Command::Gc, &Source::default(), &config).unwrap();
    });
}
