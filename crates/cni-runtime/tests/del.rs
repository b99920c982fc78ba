//! DEL and CHECK: the input of plugins, and that nothing prevents a cleanup.

#![allow(clippy::unwrap_used)]

mod bench;

use std::fs;

use bench::{list, pod, Bench};
use podwire_cni_runtime::Identity;
use podwire_cni_spec::{code, Args};
use serde_json::{json, Value};

const RESULT: &str = r#"{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.5/16"}]}"#;

#[test]
fn del_runs_backwards_with_the_recorded_result() {
    let bench = Bench::new(&["a", "b"]);
    bench.says("b", "ADD", RESULT);
    let (runtime, list) = (bench.runtime(), list("1.0.0", &["a", "b"]));
    runtime.add(&list, &pod()).unwrap();
    bench.calls();
    runtime.del(&list, &pod()).unwrap();
    assert_eq!(bench.calls(), ["DEL b pod1", "DEL a pod1"]);
    for kind in ["a", "b"] {
        assert_eq!(bench.stdin(kind, "DEL")["prevResult"]["ips"][0]["address"], "10.1.0.5/16");
    }
    assert!(bench.records().is_empty());
    runtime.del(&list, &pod()).unwrap();
    assert_eq!(bench.stdin("a", "DEL").get("prevResult"), None);
}

#[test]
fn del_omits_the_result_for_old_versions_and_converts_it_for_others() {
    let bench = Bench::new(&["a"]);
    bench.says("a", "ADD", RESULT);
    bench.runtime().add(&list("1.0.0", &["a"]), &pod()).unwrap();
    bench.fails("a", "DEL", 100, "no").runtime().del(&list("0.4.0", &["a"]), &pod()).unwrap_err();
    assert_eq!(bench.stdin("a", "DEL")["prevResult"]["ips"][0]["version"], "4");
    bench.runtime().del(&list("0.3.1", &["a"]), &pod()).unwrap_err();
    assert_eq!(bench.stdin("a", "DEL").get("prevResult"), None);
}

#[test]
fn a_failing_plugin_does_not_prevent_the_others() {
    let bench = Bench::new(&["a", "b", "c"]);
    let (runtime, list) = (bench.runtime(), list("1.0.0", &["a", "b", "absent", "c"]));
    bench.fails("b", "DEL", 100, "busy").fails("c", "DEL", 5, "no disk");
    fs::create_dir_all(bench.root.join("cache/results")).unwrap();
    fs::write(bench.record("net-pod1-eth0"), RESULT).unwrap();
    let error = runtime.del(&list, &pod()).unwrap_err();
    assert_eq!(bench.calls(), ["DEL c pod1", "DEL b pod1", "DEL a pod1"]);
    for part in
        [r#"type="c" name="net" failed (delete): no disk"#, "failed to find plugin \"absent\"", "busy"]
    {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(bench.records(), ["net-pod1-eth0"], "what is remembered stays for the next try");
}

#[test]
fn an_invalid_record_does_not_prevent_del() {
    let bench = Bench::new(&["a"]);
    let (runtime, list) = (bench.runtime(), list("1.0.0", &["a"]));
    fs::create_dir_all(bench.root.join("cache/results")).unwrap();
    for torn in
        ["", "{\"kind\":\"cniCacheV1\",\"conta", "[]", "\0\0\0\0", r#"{"kind":"cniCacheV1","config":"!"}"#]
    {
        fs::write(bench.record("net-pod1-eth0"), torn).unwrap();
        assert_eq!(runtime.cache().list().problems.len(), 1, "{torn:?}");
        runtime.del(&list, &pod()).unwrap_or_else(|error| panic!("{torn:?}: {error}"));
        assert_eq!(bench.stdin("a", "DEL").get("prevResult"), None);
        assert!(bench.records().is_empty(), "{torn:?}");
    }
}

#[test]
fn a_bare_result_of_an_old_runtime_is_used() {
    let bench = Bench::new(&["a"]);
    fs::create_dir_all(bench.root.join("cache/results")).unwrap();
    let old = r#"{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.1.0.9/16"}], "dns": {}}"#;
    fs::write(bench.record("net-pod1-eth0"), old).unwrap();
    bench.runtime().del(&list("1.0.0", &["a"]), &pod()).unwrap();
    let prev = &bench.stdin("a", "DEL")["prevResult"];
    assert_eq!((&prev["cniVersion"], &prev["ips"][0]["address"]), (&json!("1.0.0"), &json!("10.1.0.9/16")));
}

#[test]
fn a_record_of_another_attachment_is_neither_used_nor_removed() {
    let bench = Bench::new(&["a"]);
    let pod = Identity::new("b-c", "eth0").unwrap().netns("/x");
    let config = |name: &str| {
        let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": "a"}]});
        podwire_cni_spec::NetworkList::parse(list.to_string().as_bytes()).unwrap()
    };
    bench.runtime().add(&config("a"), &pod).unwrap();
    let namesake = Identity::new("c", "eth0").unwrap().netns("/y");
    let error = bench.runtime().add(&config("a-b"), &namesake).unwrap_err();
    assert!(error.to_string().ends_with("belongs to another attachment: a/b-c/eth0"), "{error}");
    bench.runtime().del(&config("a-b"), &namesake).unwrap();
    assert_eq!(bench.stdin("a", "DEL").get("prevResult"), None);
    assert_eq!(bench.records(), ["a-b-c-eth0"]);
}

#[test]
fn missing_arguments_are_those_of_the_add() {
    let bench = Bench::new(&["a"]);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "a", "capabilities": {"portMappings": true}}]});
    let list = podwire_cni_spec::NetworkList::parse(config.to_string().as_bytes()).unwrap();
    let args = Args::parse("K=V").unwrap();
    bench.runtime().add(&list, &pod().args(args).capability("portMappings", json!([1]))).unwrap();
    let gone = Identity::new("pod1", "eth0").unwrap();
    bench.runtime().del(&list, &gone).unwrap();
    assert_eq!(bench.stdin("a", "DEL")["runtimeConfig"]["portMappings"], json!([1]));
    assert_eq!(
        (bench.env("a", "DEL", "CNI_ARGS"), bench.env("a", "DEL", "CNI_NETNS")),
        ("K=V".into(), "".into())
    );
}

#[test]
fn a_container_can_be_detached_by_its_names_alone() {
    let bench = Bench::new(&["a", "b"]);
    bench.runtime().add(&list("1.0.0", &["a", "b"]), &pod()).unwrap();
    bench.calls();
    assert!(bench.runtime().del_cached("net", "pod1", "eth0").unwrap());
    assert_eq!(bench.calls(), ["DEL b pod1", "DEL a pod1"]);
    assert_eq!(bench.env("a", "DEL", "CNI_NETNS"), "/run/netns/nowhere");
    assert!(!bench.runtime().del_cached("net", "pod1", "eth0").unwrap());
}

#[test]
fn check_sends_the_recorded_result_and_stops_at_the_first_error() {
    let bench = Bench::new(&["a", "b"]);
    bench.says("b", "ADD", RESULT);
    let (runtime, config) = (bench.runtime(), list("1.0.0", &["a", "b"]));
    runtime.add(&config, &pod()).unwrap();
    bench.calls();
    runtime.check(&config, &pod()).unwrap();
    assert_eq!(bench.calls(), ["CHECK a pod1", "CHECK b pod1"]);
    assert_eq!(bench.stdin("a", "CHECK")["prevResult"]["ips"][0]["address"], "10.1.0.5/16");
    bench.fails("a", "CHECK", 100, "eth0 is down");
    assert_eq!(runtime.check(&config, &pod()).unwrap_err().code(), 100);
    assert_eq!(bench.calls(), ["CHECK a pod1"]);

    let error = runtime.check(&list("0.3.1", &["a"]), &pod()).unwrap_err();
    assert_eq!(error.code(), code::INCOMPATIBLE_VERSION);
    assert!(error
        .to_string()
        .starts_with(r#"configuration version "0.3.1" does not support the CHECK command"#));
    let mut off = config;
    off.disable_check = true;
    runtime.check(&off, &pod()).unwrap();
    assert!(bench.calls().is_empty());
}

#[test]
fn records_are_private_and_appear_atomically() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new(&["a"]);
    bench.runtime().add(&list("1.0.0", &["a"]), &pod()).unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&bench.record("net-pod1-eth0")), 0o600);
    assert_eq!(mode(&bench.root.join("cache/results")), 0o700);
    assert!(bench::files(&bench.root.join("cache/results/.new")).is_empty());
    let value: Value = serde_json::from_slice(&fs::read(bench.record("net-pod1-eth0")).unwrap()).unwrap();
    let keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["kind", "containerId", "config", "ifName", "networkName", "netns", "result"]);
}

#[test]
fn a_record_whose_del_cannot_succeed_can_be_forgotten() {
    let bench = Bench::new(&["one"]);
    let (runtime, list) = (bench.runtime(), list("1.0.0", &["one"]));
    assert!(!runtime.forget("net", &pod()).unwrap(), "there is no record");
    runtime.add(&list, &pod()).unwrap();
    bench.fails("one", "DEL", 1, "incompatible CNI versions");
    runtime.del(&list, &pod()).unwrap_err();
    assert_eq!(bench.records(), ["net-pod1-eth0"]);
    bench.calls();
    assert!(runtime.forget("net", &pod()).unwrap());
    assert_eq!((bench.records(), bench.calls()), (vec![], vec![]));

    // One that cannot be read, too; but not that of another attachment.
    std::fs::write(bench.record("net-pod1-eth0"), "{").unwrap();
    assert!(runtime.forget("net", &pod()).unwrap());
    assert!(bench.records().is_empty());
    bench.works_again("one", "DEL");
    runtime.add(&list, &Identity::new("a-b", "eth0").unwrap().netns("/run/netns/nowhere")).unwrap();
    let foreign = Identity::new("b", "eth0").unwrap();
    assert!(runtime.forget("net-a", &foreign).unwrap_err().to_string().contains("belongs to another"));
    assert_eq!(bench.records(), ["net-a-b-eth0"]);
}
