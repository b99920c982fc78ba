//! GC, STATUS and VERSION.

#![allow(clippy::unwrap_used)]

mod bench;

use std::fs;

use bench::{list, pod, Bench};
use podwire_cni_runtime::{Cache, Identity};
use podwire_cni_spec::{code, ContainerId, IfName};
use serde_json::json;

fn id(container: &str) -> Identity {
    Identity::new(container, "eth0").unwrap().netns(format!("/run/netns/{container}"))
}

fn valid(container: &str) -> Vec<(ContainerId, IfName)> {
    vec![(ContainerId::parse(container).unwrap(), IfName::parse("eth0").unwrap())]
}

#[test]
fn gc_removes_invalid_attachments_and_sends_both_keys() {
    let bench = Bench::new(&["a", "b"]);
    let (runtime, list) = (bench.runtime(), list("1.1.0", &["a", "b"]));
    for container in ["keep", "stale"] {
        runtime.add(&list, &id(container)).unwrap();
    }
    fs::write(bench.record("net-torn-eth0"), "").unwrap();
    bench.calls();
    let removed = runtime.gc(&list, &valid("keep")).done().unwrap();
    assert_eq!(removed.iter().map(|record| record.container.as_str()).collect::<Vec<_>>(), ["stale"]);
    assert_eq!(bench.calls(), ["DEL b stale", "DEL a stale", "GC a", "GC b"]);
    assert_eq!(bench.env("a", "DEL", "CNI_NETNS"), "/run/netns/stale");
    let request = bench.stdin("b", "GC");
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        assert_eq!(request[key], json!([{"containerID": "keep", "ifname": "eth0"}]), "{key}");
    }
    assert_eq!(bench.records(), ["net-keep-eth0", "net-torn-eth0"]);
}

#[test]
fn a_container_attached_after_the_listing_is_kept() {
    let bench = Bench::new(&["a"]);
    let (runtime, list) = (bench.runtime(), list("1.1.0", &["a"]));
    runtime.add(&list, &id("stale")).unwrap();
    let judged = Cache::new(bench.root.join("cache")).list().records;
    runtime.add(&list, &id("new")).unwrap();
    bench.calls();
    let removed = runtime.gc_of(&list, judged, &[]).done().unwrap();
    assert_eq!(removed.iter().map(|record| record.container.as_str()).collect::<Vec<_>>(), ["stale"]);
    assert_eq!(bench.calls(), ["DEL a stale", "GC a"]);
    let sent = &bench.stdin("a", "GC")["cni.dev/valid-attachments"];
    assert_eq!(*sent, json!([{"containerID": "new", "ifname": "eth0"}]));
}

/// A restarted container keeps its id, and so the path of its record.
#[test]
fn a_container_restarted_after_the_listing_is_kept() {
    let bench = Bench::new(&["a"]);
    let (runtime, list) = (bench.runtime(), list("1.1.0", &["a"]));
    runtime.add(&list, &id("restarted")).unwrap();
    let judged = Cache::new(bench.root.join("cache")).list().records;
    runtime.del(&list, &id("restarted")).unwrap();
    runtime.add(&list, &id("restarted").netns("/run/netns/again")).unwrap();
    bench.calls();
    assert!(runtime.gc_of(&list, judged, &[]).done().unwrap().is_empty());
    assert_eq!(bench.calls(), ["GC a"]);
    let sent = &bench.stdin("a", "GC")["cni.dev/valid-attachments"];
    assert_eq!(*sent, json!([{"containerID": "restarted", "ifname": "eth0"}]));
}

#[test]
fn a_container_restarted_during_gc_is_kept() {
    let bench = Bench::new(&["a", "b"]);
    let (runtime, list) = (bench.runtime(), list("1.1.0", &["a", "b"]));
    runtime.add(&list, &id("restarted")).unwrap();
    fs::copy(bench.record("net-restarted-eth0"), bench.root.join("again")).unwrap();
    bench.does("a", "GC", r#"cp "$log/../again" "$log/../cache/results/net-restarted-eth0""#);
    assert_eq!(runtime.gc(&list, &[]).done().unwrap().len(), 1);
    let sent = |kind: &str| bench.stdin(kind, "GC")["cni.dev/valid-attachments"].clone();
    assert_eq!(sent("a"), json!([]));
    assert_eq!(sent("b"), json!([{"containerID": "restarted", "ifname": "eth0"}]));
}

#[test]
fn older_networks_are_collected_by_del_only() {
    let bench = Bench::new(&["a"]);
    let mut list = list("1.0.0", &["a"]);
    bench.runtime().add(&list, &pod()).unwrap();
    bench.calls();
    list.disable_gc = true;
    assert!(bench.runtime().gc(&list, &[]).done().unwrap().is_empty());
    assert!(bench.calls().is_empty());
    list.disable_gc = false;
    assert_eq!(bench.runtime().gc(&list, &[]).done().unwrap().len(), 1);
    assert_eq!(bench.calls(), ["DEL a pod1"]);
}

#[test]
fn gc_goes_on_past_every_error_and_reports_them_all() {
    let bench = Bench::new(&["a", "b"]);
    let (runtime, list) = (bench.runtime(), list("1.1.0", &["a", "b"]));
    for container in ["one", "two"] {
        runtime.add(&list, &id(container)).unwrap();
    }
    bench.fails("a", "DEL", 100, "busy").fails("a", "GC", 100, "lost").calls();
    let sweep = runtime.gc(&list, &[]);
    assert_eq!((sweep.removed.len(), sweep.errors.len()), (0, 3));
    assert_eq!(bench.calls(), ["DEL b one", "DEL a one", "DEL b two", "DEL a two", "GC a", "GC b"]);
    bench.works_again("a", "DEL").works_again("a", "GC");
    assert_eq!(runtime.gc(&list, &[]).done().unwrap().len(), 2);
}

#[test]
fn a_plugin_removed_from_the_network_runs_del_too() {
    let bench = Bench::new(&["a", "b"]);
    bench.runtime().add(&list("1.0.0", &["a", "b"]), &pod()).unwrap();
    bench.calls();
    bench.runtime().gc(&list("1.0.0", &["a"]), &[]).done().unwrap();
    assert_eq!(bench.calls(), ["DEL b pod1", "DEL a pod1"]);
}

#[test]
fn a_plugin_removed_from_the_network_is_retried_if_it_fails() {
    let bench = Bench::new(&["a", "b"]);
    bench.runtime().add(&list("1.0.0", &["a", "b"]), &pod()).unwrap();
    bench.fails("b", "DEL", code::TRY_AGAIN, "busy").calls();
    let sweep = bench.runtime().gc(&list("1.0.0", &["a"]), &[]);
    assert_eq!((sweep.removed.len(), sweep.errors.len()), (0, 1));
    assert_eq!(bench.records(), ["net-pod1-eth0"], "only the record knows it");
    bench.works_again("b", "DEL").calls();
    assert_eq!(bench.runtime().gc(&list("1.0.0", &["a"]), &[]).done().unwrap().len(), 1);
    assert_eq!(bench.calls(), ["DEL b pod1", "DEL a pod1"]);
}

#[test]
fn if_a_plugin_of_the_old_config_is_gone_the_new_config_is_used() {
    let bench = Bench::new(&["a", "b"]);
    bench.runtime().add(&list("1.0.0", &["a", "b"]), &pod()).unwrap();
    fs::remove_file(bench.plugin("b")).unwrap();
    assert_eq!(bench.runtime().gc(&list("1.0.0", &["a"]), &[]).done().unwrap().len(), 1);
    assert!(bench.records().is_empty());
}

/// The plugin, which is still installed, calls it and fails without it.
#[test]
fn if_an_ipam_plugin_of_the_old_config_is_gone_the_new_config_is_used() {
    let bench = Bench::new(&["a", "ipam"]);
    let with_ipam =
        json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a", "ipam": {"type": "ipam"}}]});
    let with_ipam = podwire_cni_spec::NetworkList::parse(with_ipam.to_string().as_bytes()).unwrap();
    bench.runtime().add(&with_ipam, &pod()).unwrap();
    let calls = r#"if grep -q ipam "$at.stdin" && [ ! -e "${0%/*}/ipam" ]; then exit 1; fi"#;
    bench.does("a", "DEL", calls);
    fs::remove_file(bench.plugin("ipam")).unwrap();
    assert_eq!(bench.runtime().gc(&list("1.0.0", &["a"]), &[]).done().unwrap().len(), 1);
    assert!(bench.records().is_empty());
}

#[test]
fn other_networks_are_left_alone() {
    let bench = Bench::new(&["a"]);
    bench.runtime().add(&list("1.1.0", &["a"]), &pod()).unwrap();
    let other = json!({"cniVersion": "1.1.0", "name": "other", "plugins": [{"type": "a"}]});
    let other = podwire_cni_spec::NetworkList::parse(other.to_string().as_bytes()).unwrap();
    assert!(bench.runtime().gc(&other, &[]).done().unwrap().is_empty());
    assert_eq!(bench.records(), ["net-pod1-eth0"]);
}

#[test]
fn an_add_that_was_killed_is_collected() {
    let bench = Bench::new(&["a"]);
    let list = list("1.0.0", &["a"]);
    bench.fails("a", "ADD", 1, "x").fails("a", "DEL", 1, "x").runtime().add(&list, &pod()).unwrap_err();
    bench.works_again("a", "DEL").calls();
    let removed = bench.runtime().gc(&list, &[]).done().unwrap();
    assert_eq!(removed[0].result, None);
    assert_eq!(bench.calls(), ["DEL a pod1"]);
    assert_eq!(bench.stdin("a", "DEL").get("prevResult"), None);
    assert!(bench.records().is_empty());
}

#[test]
fn status_stops_at_the_first_error_and_keeps_its_code() {
    let bench = Bench::new(&["a", "b"]);
    bench.runtime().status(&list("1.1.0", &["a", "b"])).unwrap();
    assert_eq!(bench.calls(), ["STATUS a", "STATUS b"]);
    bench.fails("a", "STATUS", code::LIMITED_CONNECTIVITY, "no uplink");
    let error = bench.runtime().status(&list("1.1.0", &["a", "b"])).unwrap_err();
    assert_eq!(error.code(), code::LIMITED_CONNECTIVITY);
    assert_eq!(bench.calls(), ["STATUS a"]);
    bench.runtime().status(&list("1.0.0", &["a"])).unwrap();
    assert!(bench.calls().is_empty());
}

#[test]
fn validation_asks_every_plugin_for_its_versions() {
    let bench = Bench::new(&["a", "b", "old"]);
    for kind in ["a", "b"] {
        bench.says(kind, "VERSION", r#"{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}"#);
    }
    bench.fails("old", "VERSION", 4, "unknown CNI_COMMAND: VERSION");
    let runtime = bench.runtime();
    assert_eq!(runtime.version_info("old").unwrap().supported, ["0.1.0"]);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "b", "capabilities": {"portMappings": true}},
        {"type": "a", "capabilities": {"mac": true, "portMappings": true, "dns": false}}]});
    let fit = podwire_cni_spec::NetworkList::parse(config.to_string().as_bytes()).unwrap();
    assert_eq!(runtime.validate(&fit).unwrap(), ["mac", "portMappings"]);
    let error = runtime.validate(&list("0.4.0", &["a", "old"])).unwrap_err().to_string();
    assert!(error.contains(r#"plugin a does not support config version "0.4.0""#), "{error}");
    assert!(error.contains(r#"plugin old does not support config version "0.4.0""#), "{error}");
    assert!(runtime.validate(&list("1.0.0", &["absent"])).is_err());
}
