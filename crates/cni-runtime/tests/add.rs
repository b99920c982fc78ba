//! ADD: the input of each plugin, and what remains when one fails.

#![allow(clippy::unwrap_used)]

mod bench;

use std::fs::{self, OpenOptions};
use std::time::{Duration, Instant};

use bench::{list, pod, Bench};
use podwire_cni_runtime::{Error, Identity, Trace};
use podwire_cni_spec::{code, Args, NetworkList};
use serde_json::{json, Value};

/// Long enough for a plugin to start.
const DEADLINE: Duration = Duration::from_secs(10);

#[test]
fn each_plugin_gets_the_result_of_the_one_before() {
    let bench = Bench::new(&["a", "b"]);
    bench.says(
        "a",
        "ADD",
        r#"{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.5/16"}], "extra": {"x": 1}}"#,
    );
    bench.says("b", "ADD", r#"{"cniVersion": "1.0.0", "ips": [{"address": "10.2.0.5/16"}]}"#);
    let attachment = bench.runtime().add(&list("1.0.0", &["a", "b"]), &pod()).unwrap();
    assert_eq!(attachment.ips[0].address.to_string(), "10.2.0.5/16");
    assert_eq!(bench.calls(), ["ADD a pod1", "ADD b pod1"]);
    assert_eq!(bench.stdin("a", "ADD"), json!({"type": "a", "name": "net", "cniVersion": "1.0.0"}));
    let prev = &bench.stdin("b", "ADD")["prevResult"];
    assert_eq!(prev["ips"][0]["address"], "10.1.0.5/16");
    assert_eq!(prev["extra"]["x"], 1, "what only plugins understand is passed on");
}

#[test]
fn the_environment_names_the_container_and_the_trace() {
    let bench = Bench::new(&["a"]);
    let trace = Trace { parent: "00-4bf9-00f0-01".into(), baggage: "k=v".into(), ..Trace::default() };
    let args = Args::parse("IgnoreUnknown=1;K8S_POD_NAME=web").unwrap();
    bench.runtime().trace(trace).add(&list("1.0.0", &["a"]), &pod().args(args)).unwrap();
    let env = |name| bench.env("a", "ADD", name);
    assert_eq!((env("CNI_CONTAINERID"), env("CNI_IFNAME")), ("pod1".into(), "eth0".into()));
    assert_eq!((env("CNI_NETNS"), env("CNI_COMMAND")), ("/run/netns/nowhere".into(), "ADD".into()));
    assert_eq!(env("CNI_ARGS"), "IgnoreUnknown=1;K8S_POD_NAME=web");
    assert_eq!(env("CNI_PATH"), bench.root.join("bin").display().to_string());
    assert_eq!((env("TRACEPARENT"), env("BAGGAGE")), ("00-4bf9-00f0-01".into(), "k=v".into()));
}

#[test]
fn runtime_config_has_only_what_a_plugin_asks_for() {
    let bench = Bench::new(&["a", "b"]);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "a", "capabilities": {"portMappings": true, "mac": false, "dns": true}}, {"type": "b"}]});
    let list = NetworkList::parse(config.to_string().as_bytes()).unwrap();
    let pod = pod().capability("portMappings", json!([{"hostPort": 80}])).capability("mac", json!("x"));
    bench.runtime().add(&list, &pod).unwrap();
    assert_eq!(bench.stdin("a", "ADD")["runtimeConfig"], json!({"portMappings": [{"hostPort": 80}]}));
    assert_eq!(bench.stdin("b", "ADD").get("runtimeConfig"), None);
}

#[test]
fn the_highest_common_version_is_spoken() {
    let bench = Bench::new(&["a"]);
    let config =
        json!({"cniVersions": ["0.4.0", "1.0.0", "7.0.0"], "name": "net", "plugins": [{"type": "a"}]});
    bench.runtime().add(&NetworkList::parse(config.to_string().as_bytes()).unwrap(), &pod()).unwrap();
    assert_eq!(bench.stdin("a", "ADD")["cniVersion"], "1.0.0");
}

#[test]
fn a_result_of_another_version_is_converted() {
    let bench = Bench::new(&["a", "b", "c"]);
    bench.says("a", "ADD", r#"{"cniVersion": "", "ips": [{"version": "4", "address": "10.1.0.5/16"}]}"#);
    bench.says("b", "ADD", r#"{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.5/16"}]}"#);
    bench.runtime().add(&list("0.4.0", &["a", "b", "c"]), &pod()).unwrap();
    for kind in ["b", "c"] {
        let prev = &bench.stdin(kind, "ADD")["prevResult"];
        assert_eq!(
            (&prev["cniVersion"], &prev["ips"][0]["version"]),
            (&json!("0.4.0"), &json!("4")),
            "{kind}"
        );
    }
}

#[test]
fn null_is_an_empty_result_but_no_output_is_an_error() {
    let bench = Bench::new(&["a", "b"]);
    bench.says("a", "ADD", "null");
    bench.runtime().add(&list("1.0.0", &["a", "b"]), &pod()).unwrap();
    assert_eq!(bench.stdin("b", "ADD")["prevResult"], json!({"cniVersion": "1.0.0"}));
    bench.says("a", "ADD", "");
    let other = Identity::new("pod2", "eth0").unwrap().netns("/x");
    let error = bench.runtime().add(&list("1.0.0", &["a", "b"]), &other).unwrap_err();
    assert_eq!(error.code(), code::DECODE);
    assert!(error.to_string().contains("read its result: invalid JSON: the input is empty"), "{error}");
}

#[test]
fn a_failed_add_runs_del_backwards_including_the_failing_plugin() {
    let bench = Bench::new(&["a", "b", "c"]);
    bench.says("a", "ADD", r#"{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.5/16"}]}"#);
    bench.fails("b", "ADD", 11, "no address left");
    let error = bench.runtime().add(&list("1.0.0", &["a", "b", "c"]), &pod()).unwrap_err();
    assert_eq!(error.to_string(), r#"plugin type="b" name="net" failed (add): no address left"#);
    assert_eq!(error.code(), 11);
    assert_eq!(bench.calls(), ["ADD a pod1", "ADD b pod1", "DEL b pod1", "DEL a pod1"]);
    assert_eq!(bench.stdin("a", "DEL")["prevResult"]["ips"][0]["address"], "10.1.0.5/16");
    assert_eq!(bench.records(), [""; 0]);
}

#[test]
fn a_failed_cleanup_is_reported_and_the_record_stays() {
    let bench = Bench::new(&["a", "b"]);
    bench.fails("b", "ADD", 7, "bad config").fails("b", "DEL", 100, "device busy");
    let error = bench.runtime().add(&list("1.0.0", &["a", "b"]), &pod()).unwrap_err();
    assert!(matches!(error, Error::Undo { .. }));
    assert_eq!(error.code(), 7);
    assert!(error.to_string().contains("bad config; the cleanup failed too: "), "{error}");
    assert!(
        error.to_string().ends_with(r#"plugin type="b" name="net" failed (delete): device busy"#),
        "{error}"
    );
    assert_eq!(bench.calls(), ["ADD a pod1", "ADD b pod1", "DEL b pod1", "DEL a pod1"]);
    assert_eq!(bench.records(), ["net-pod1-eth0"]);
}

#[test]
fn the_record_exists_before_the_first_plugin_runs() {
    let bench = Bench::new(&["a"]);
    bench.does("a", "ADD", r#"cp "${0%/*}/../cache/results/net-pod1-eth0" "$log/seen""#);
    bench.runtime().add(&list("1.0.0", &["a"]), &pod()).unwrap();
    let seen: Value = serde_json::from_slice(&fs::read(bench.root.join("log/seen")).unwrap()).unwrap();
    assert_eq!((&seen["containerId"], seen.get("result")), (&json!("pod1"), None));
    let after: Value = serde_json::from_slice(&fs::read(bench.record("net-pod1-eth0")).unwrap()).unwrap();
    assert_eq!(after["result"], json!({"cniVersion": "1.0.0"}));
}

#[test]
fn an_interrupted_add_is_cleaned_up_by_the_next() {
    let bench = Bench::new(&["a"]);
    bench.runtime().add(&list("1.0.0", &["a"]), &pod()).unwrap();
    let mut record: Value =
        serde_json::from_slice(&fs::read(bench.record("net-pod1-eth0")).unwrap()).unwrap();
    record.as_object_mut().unwrap().remove("result");
    fs::write(bench.record("net-pod1-eth0"), record.to_string()).unwrap();
    bench.calls();
    bench.runtime().add(&list("1.0.0", &["a"]), &pod()).unwrap();
    assert_eq!(bench.calls(), ["DEL a pod1", "ADD a pod1"]);
}

#[test]
fn a_failing_second_add_does_not_detach_a_running_container() {
    let bench = Bench::new(&["a"]);
    bench.runtime().add(&list("1.0.0", &["a"]), &pod()).unwrap();
    bench.fails("a", "ADD", 100, "eth0 exists").calls();
    let error = bench.runtime().add(&list("1.0.0", &["a"]), &pod()).unwrap_err();
    assert!(
        error.to_string().contains("eth0 exists; the container is already attached, according to "),
        "{error}"
    );
    assert_eq!(bench.calls(), ["ADD a pod1"]);
    assert_eq!(bench.records(), ["net-pod1-eth0"]);
}

#[test]
fn a_missing_plugin_is_noticed_before_any_plugin_runs() {
    let bench = Bench::new(&["a"]);
    let error = bench.runtime().add(&list("1.0.0", &["a", "absent"]), &pod()).unwrap_err();
    let start = r#"plugin type="absent" name="net" failed (add): failed to find plugin "absent" in path ["#;
    assert!(error.to_string().starts_with(start), "{error}");
    assert!(bench.calls().is_empty() && bench.records().is_empty());
}

#[test]
fn a_plugin_that_only_writes_to_stderr_is_quoted() {
    let bench = Bench::new(&["a"]);
    bench.does("a", "ADD", "echo 'no such device' >&2; exit 3");
    let error = bench.runtime().add(&list("1.0.0", &["a"]), &pod()).unwrap_err();
    assert!(error.to_string().contains(r#"netplugin failed: "no such device": exit status: 3"#), "{error}");
}

#[test]
fn a_plugin_file_that_is_being_written_is_an_error() {
    let bench = Bench::new(&["a"]);
    let writer = OpenOptions::new().append(true).open(bench.plugin("a")).unwrap();
    let error = bench.runtime().del(&list("1.0.0", &["a"]), &pod()).unwrap_err();
    assert!(error.to_string().contains("Text file busy"), "{error}");
    drop(writer);
    bench.runtime().del(&list("1.0.0", &["a"]), &pod()).unwrap();
}

#[test]
fn a_slow_plugin_gets_sigterm_and_can_clean_up() {
    let bench = Bench::new(&["a"]);
    bench.does("a", "ADD", r#"trap 'echo yes > "$log/cleaned"; exit 1' TERM; while :; do sleep 0.05; done"#);
    let runtime = bench.runtime().timeout(DEADLINE);
    let error = runtime.add(&list("1.0.0", &["a"]), &pod()).unwrap_err();
    assert_eq!(error.code(), code::TRY_AGAIN);
    assert!(error.to_string().contains("did not end before its deadline and was stopped"), "{error}");
    assert!(bench.root.join("log/cleaned").exists());
    assert_eq!(bench.calls(), ["ADD a pod1", "DEL a pod1"]);
}

#[test]
fn a_plugin_that_ignores_sigterm_is_killed() {
    let bench = Bench::new(&["a"]);
    bench.does("a", "ADD", "trap '' TERM; while :; do sleep 0.05; done");
    let started = Instant::now();
    let runtime = bench.runtime().timeout(DEADLINE);
    let error = runtime.add(&list("1.0.0", &["a"]), &pod()).unwrap_err();
    assert!(error.to_string().contains("ignored SIGTERM and was killed"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(60));
}

/// For example an IPAM plugin, which could allocate an address that no process releases.
#[test]
fn child_processes_of_a_slow_plugin_are_stopped_with_it() {
    let bench = Bench::new(&["a"]);
    let calls = r#"(trap '' TERM; sh -c 'echo $PPID' > "$log/called"; while :; do sleep 0.05; done) & wait"#;
    bench.does("a", "ADD", calls);
    let error = bench.runtime().timeout(DEADLINE).add(&list("1.0.0", &["a"]), &pod()).unwrap_err();
    assert!(error.to_string().contains("did not end before its deadline and was stopped"), "{error}");
    let called = fs::read_to_string(bench.root.join("log/called")).unwrap();
    // An ended process stays a zombie until init reaps it.
    let is_at_work = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", called.trim())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
    };
    let end = Instant::now() + Duration::from_secs(60);
    while is_at_work() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!is_at_work(), "process {called}");
}

#[test]
fn a_daemon_that_a_plugin_leaves_behind_is_not_waited_for() {
    let bench = Bench::new(&["a"]);
    bench.does("a", "ADD", "sleep 60 &");
    let started = Instant::now();
    bench.runtime().add(&list("1.0.0", &["a"]), &pod()).unwrap();
    assert!(started.elapsed() < Duration::from_secs(20));
}

/// A pipe takes 64 KiB of the config.
#[test]
fn a_plugin_that_does_not_read_its_input_does_not_block() {
    let bench = Bench::new(&["a"]);
    std::fs::write(bench.plugin("a"), "#!/bin/sh\nsleep 60 <&0 >/dev/null 2>&1 &\necho '{}'\n").unwrap();
    let long = "x".repeat(1 << 20);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a", "long": long}]});
    let list = NetworkList::parse(config.to_string().as_bytes()).unwrap();
    let started = Instant::now();
    bench.runtime().add(&list, &pod()).unwrap();
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_plugin_with_endless_output_is_stopped() {
    let bench = Bench::new(&["a"]);
    bench.does("a", "ADD", "trap '' TERM; while :; do echo; done");
    let error = bench.runtime().timeout(DEADLINE).add(&list("1.0.0", &["a"]), &pod()).unwrap_err();
    assert!(error.to_string().contains("ignored SIGTERM and was killed"), "{error}");
    // Even without a deadline the output is limited.
    bench.does("a", "ADD", "exec yes >&2");
    let error = bench.runtime().add(&list("1.0.0", &["a"]), &pod()).unwrap_err();
    assert!(error.to_string().contains("it printed more than 64 MiB and was killed"), "{error}");
}

#[test]
fn output_of_a_daemon_that_a_plugin_left_is_ignored() {
    let bench = Bench::new(&["a"]);
    // Empty lines are valid JSON white space; the writer ends when the pipe is closed.
    bench.does("a", "ADD", "while echo; do :; done 2>/dev/null &");
    bench.runtime().add(&list("1.0.0", &["a"]), &pod()).unwrap();
}

#[test]
fn names_too_long_for_a_file_are_refused_before_any_plugin_runs() {
    let bench = Bench::new(&["a"]);
    let long = Identity::new(&"f".repeat(250), "eth0").unwrap().netns("/x");
    let error = bench.runtime().add(&list("1.0.0", &["a"]), &long).unwrap_err();
    assert_eq!(error.code(), code::INVALID_ENV);
    assert!(bench.calls().is_empty() && bench.records().is_empty());
}

#[test]
fn names_are_checked() {
    assert_eq!(Identity::new("", "eth0").unwrap_err().code(), code::UNKNOWN_CONTAINER);
    assert_eq!(Identity::new("../x", "eth0").unwrap_err().code(), code::INVALID_ENV);
    assert_eq!(Identity::new("x", "eth0/0").unwrap_err().code(), code::INVALID_ENV);
}
