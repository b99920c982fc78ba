//! The test aids: noop, which responds as its file says, and debug, which logs its calls.

use podwire_tests::{go_noop, ours, Chain, Invocation, Node, Output, Pod};
use serde_json::{json, Value};

const SCRIPT: &str = "/run/test/script.json";
const LOG: &str = "/run/test/calls.json";

/// One call of noop with a script.
struct Scene {
    node: Node,
    pod: Pod,
}

impl Scene {
    fn new() -> Scene {
        let node = Node::new();
        let pod = node.pod("blue");
        Scene { node, pod }
    }

    fn call(&self, path: &str, verb: &str, script: &Value) -> Output {
        self.node.write(SCRIPT, &script.to_string());
        let result =
            json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.5/24"}], "dns": {"domain": "x"}});
        let mut config = json!({"type": "noop", "name": "net", "cniVersion": "1.0.0", "debugFile": SCRIPT});
        if matches!(verb, "GC" | "STATUS") {
            config["cniVersion"] = json!("1.1.0");
            config["cni.dev/valid-attachments"] = json!([]);
        } else {
            config["prevResult"] = result;
        }
        Invocation::new(&self.node, path, verb, &self.pod, &config).run()
    }

    fn script(&self) -> Value {
        self.node.json(&format!("cat {SCRIPT}"))
    }
}

/// The keys of a script.
fn scripts() -> Vec<Value> {
    vec![
        json!({"ReportResult": "PASSTHROUGH"}),
        json!({"ReportResult": "INJECT-DNS"}),
        json!({"ReportResult": "{ \"cniVersion\": \"1.0.0\",  \"ips\": [] }"}),
        json!({"ReportResult": "no JSON at all"}),
        json!({"ReportError": "sorry"}),
        json!({"ReportError": "gone", "ReportErrorCode": 3, "ReportStderr": "well"}),
        json!({"ReportResult": "{}", "ReportStderr": "some words\n", "ExitWithCode": 7}),
        json!({"ReportResult": "", "ExitWithCode": -1}),
        json!({"reportresult": "{}", "ReportVersionSupport": null}),
    ]
}

#[test]
fn noop_responds_as_its_file_says_and_records_the_call() {
    let scene = Scene::new();
    let output = scene.call(
        &ours(),
        "ADD",
        &json!({"ReportResult": "not JSON", "ExitWithCode": 5, "ReportStderr": "hm"}),
    );
    assert_eq!((output.status, &*output.stdout, &*output.stderr), (5, "not JSON", "hm"));
    let written = scene.script();
    assert_eq!((&written["Command"], &written["CmdArgs"]["ContainerID"]), (&json!("ADD"), &json!("blue")));
    assert_eq!(written["CmdArgs"]["Netns"], scene.pod.netns);
    let (code, text) =
        scene.call(&ours(), "DEL", &json!({"ReportError": "no", "ReportErrorCode": 11})).error();
    assert_eq!((code, &*text), (11, "no"));
    let injected = scene.call(&ours(), "ADD", &json!({"ReportResult": "INJECT-DNS"})).result();
    assert_eq!(injected["dns"], json!({"nameservers": ["1.2.3.4"], "domain": "x"}));
    scene.call(&ours(), "DEL", &json!({"ReportResult": "PASSTHROUGH"})).result();
}

#[test]
fn noop_answers_as_the_reference_librarys_does() {
    let Some(go) = go_noop() else { return };
    let scene = Scene::new();
    for script in scripts() {
        for verb in ["ADD", "CHECK", "DEL", "GC", "STATUS"] {
            // Go's plugin crashes without a result to pass on.
            if matches!(verb, "GC" | "STATUS")
                && ["PASSTHROUGH", "INJECT-DNS"].iter().any(|w| script["ReportResult"] == *w)
            {
                continue;
            }
            let reported = |path: &str| {
                let output = scene.call(path, verb, &script);
                let mut written = scene.script();
                assert!(written["CmdArgs"]["StdinData"].as_str().is_some_and(|data| data.len() > 40));
                // The order of keys and the directory may differ.
                written["CmdArgs"]["StdinData"] = json!("");
                written["CmdArgs"]["Path"] = json!("");
                let stdout = serde_json::from_str(&output.stdout).unwrap_or(json!(output.stdout));
                (output.status, stdout, output.stderr, written)
            };
            assert_eq!(reported(&ours()), reported(go), "{verb} {script}");
        }
    }
}

#[test]
fn noop_reports_the_versions_of_its_file() {
    let scene = Scene::new();
    scene.node.write(
        SCRIPT,
        &json!({"ReportVersionSupport": ["0.-42.0", "0.2.0"], "ReportResult": "{}"}).to_string(),
    );
    let config = json!({"type": "noop", "name": "net", "cniVersion": "1.0.0"});
    let args = format!("DEBUG={SCRIPT}");
    let call =
        |verb: &str| Invocation::new(&scene.node, &ours(), verb, &scene.pod, &config).env("CNI_ARGS", &args);
    assert_eq!(call("VERSION").run().result()["supportedVersions"], json!(["0.-42.0", "0.2.0"]));
    let (code, text) = call("ADD").run().error();
    assert_eq!((code, &*text), (1, "incompatible CNI versions"));
    let usual = Invocation::new(&scene.node, &ours(), "VERSION", &scene.pod, &config).run().result();
    assert_eq!(usual["supportedVersions"][6], "1.1.0");
}

#[test]
fn noop_keeps_a_list_of_its_calls_and_needs_no_script() {
    let scene = Scene::new();
    scene.node.write(SCRIPT, "{}");
    let config =
        json!({"type": "noop", "name": "net", "cniVersion": "1.0.0", "debugFile": SCRIPT, "commandLog": LOG});
    for verb in ["ADD", "DEL"] {
        assert_eq!(Invocation::new(&scene.node, &ours(), verb, &scene.pod, &config).run().status, 0);
    }
    let calls = scene.node.json(&format!("cat {LOG}"));
    let verbs: Vec<_> = calls.as_array().unwrap().iter().map(|call| &call["Command"]).collect();
    assert_eq!(verbs, ["ADD", "DEL"]);
    let plain = json!({"type": "noop", "name": "net", "cniVersion": "1.0.0"});
    let output = Invocation::new(&scene.node, &ours(), "ADD", &scene.pod, &plain).run();
    assert_eq!((output.status, &*output.stdout), (0, "{}"));
}

#[test]
fn debug_logs_its_calls_and_runs_commands_in_the_pod() {
    let node = Node::new();
    let pod = node.pod("blue");
    let hook = |word: &str| json!([["sh", "-c", format!("readlink /proc/self/ns/net >> /run/test/{word}")]]);
    let ptp = json!({"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.7.0.0/24"}});
    let debug = json!({"type": "debug", "cniOutput": "/run/test/calls", "addHooks": hook("add"),
        "delHooks": hook("del"), "checkHooks": hook("check")});
    let chain = Chain::new(&ours(), "net", &[ptp, debug]);
    let result = chain.add(&node, &pod);
    assert_eq!(result["interfaces"][1]["name"], "eth0", "the result is passed on");
    chain.check(&node, &pod, &result).unwrap();
    chain.del(&node, &pod, Some(&result));
    let inside = node.sh("ip netns exec blue readlink /proc/self/ns/net");
    assert_ne!(inside, node.sh("readlink /proc/self/ns/net"));
    for word in ["add", "check", "del"] {
        assert_eq!(node.sh(&format!("cat /run/test/{word}")), inside, "{word}");
    }
    let calls = node.sh("cat /run/test/calls");
    let first: Vec<_> = calls.lines().take(6).collect();
    let expected = ["CmdAdd", "ContainerID: blue", "Netns: /run/netns/blue", "IfName: eth0", "Args: "];
    assert_eq!(first[..5], expected);
    for word in ["CmdCheck", "CmdDel", "StdinData: {", "----------------------"] {
        assert!(calls.lines().any(|line| line.starts_with(word)), "{word}: {calls}");
    }
}

#[test]
fn errors_of_debug_are_reported_and_stop_nothing() {
    let node = Node::new();
    let pod = node.pod("blue");
    let config = json!({"type": "debug", "name": "net", "cniVersion": "1.0.0", "cniOutput": "/nowhere/calls",
        "addHooks": [["false"], [], ["nowhere"], ["sh", "-c", "echo out; echo err >&2; exit 3"], ["touch", "/run/test/last"]]});
    let output = Invocation::new(&node, &ours(), "ADD", &pod, &config).run();
    output.result();
    for words in ["/nowhere/calls", "`false`", "it is empty", "`nowhere`", "exit status: 3: out\nerr"] {
        assert!(output.stderr.contains(words), "{words}: {}", output.stderr);
    }
    node.sh("test -e /run/test/last");
    let gone = Pod { netns: String::new(), ..pod };
    Invocation::new(&node, &ours(), "DEL", &gone, &config).run().result();
}
